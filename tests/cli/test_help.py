"""Help texts hold what the code knows: policies, types and limits of channels."""

import re

import pytest

from quorumcast.cli.cell.channel_help import LIMITS, POLICIES, TYPES
from quorumcast.cli.main import main
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.manifest.schema import ARROW_TYPES


def test_help_of_channel_create_explains_every_policy_type_and_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(POLICIES) == set(POLICY_NAMES)
    assert set(LIMITS) == set(Limits.__struct_fields__)
    types = re.findall(r"\w+(?:\[[^]]*\])?", " ".join(TYPES))
    assert sorted(types) == sorted(ARROW_TYPES)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["channel", "create", "--help"]) == 0
    printed = [text.rstrip() for text in capsys.readouterr().out.splitlines()]
    for name, meaning in POLICIES.items():
        assert f"   {name:14} {meaning}" in printed
    for line in TYPES:
        assert f"   {line}" in printed
    for name, meaning in LIMITS.items():
        assert [
            line for line in printed if re.fullmatch(f"   {name} .* {re.escape(meaning)}", line)
        ]
    assert max(map(len, printed)) <= 80


def test_help_names_the_environment_variables_of_all_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "QUORUMCAST_MANIFEST  The default of -m" in printed
    assert "QUORUMCAST_IDENTITY  The default of -i" in printed
