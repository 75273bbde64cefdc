"""Help texts hold what the code knows: policies, types and limits of channels."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from quorumcast.cli.cell.channel_help import LIMITS, POLICIES, TYPES
from quorumcast.cli.main import command_tree, main
from quorumcast.cli.options import Commands
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import ALPHA, ALPHA_MAX, POLICY_NAMES
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
        assert f"    {name:14} {meaning}" in printed
    for line in TYPES:
        assert f"    {line}" in printed
    for name, meaning in LIMITS.items():
        assert [
            line for line in printed if re.fullmatch(f"    {name} .* {re.escape(meaning)}", line)
        ]
    assert max(map(len, printed)) <= 80


@pytest.mark.parametrize("command", ["init", "channel create", "bench"])
def test_help_names_the_alpha_of_channels_that_name_none(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"{ALPHA}-{ALPHA_MAX} if left out" in " ".join(capsys.readouterr().out.split())


def commands(parser: Any, *names: str) -> Iterator[list[str]]:
    """The words of every command and every group of commands."""
    for name, inner in getattr(parser, "commands", {}).items():
        yield [*names, name]
        yield from commands(inner, *names, name)


@pytest.mark.parametrize(
    "words", list(commands(typer.main.get_command(command_tree()))), ids=" ".join
)
def test_help_is_printed_as_it_is_written_in_80_columns(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "\n  --json " in printed or "COMMAND [ARGS]" in printed  # what people see, programs can
    assert max(map(len, printed.splitlines())) <= 80
    assert not re.search(r"[a-z,:] ?\.\.\.$", printed, re.MULTILINE)  # no sentence is cut


def test_names_of_emoji_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    app = Commands(add_completion=False)
    app.command(example="x audit:ab:bob", help="Rights as in audit:ab:bob.")(lambda: None)
    with pytest.raises(SystemExit):
        app(["--help"])
    printed = capsys.readouterr().out
    assert "Rights as in audit:ab:bob." in printed
    assert "Example:  quorumcast x audit:ab:bob" in printed
    assert main(["init", str(tmp_path / "cell"), "--digest", "sha256"]) == 0
    capsys.readouterr()
    assert main(["channel", "list", ":ab:", "-m", str(tmp_path / "cell")]) == 0
    assert "matches ':ab:'" in capsys.readouterr().out


def test_help_names_the_environment_variables_of_all_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "QUORUMCAST_MANIFEST  The default of -m" in printed
    assert "QUORUMCAST_IDENTITY  The default of -i" in printed
