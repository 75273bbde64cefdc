"""Cells that reproduce Freeman's figures with broken algorithms say everywhere what they are."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.shell import answer, base_port

from quorumcast.cli.cell import running
from quorumcast.cli.main import main
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.statements import Evidence, EvidenceKind
from quorumcast.manifest.files import read_manifest

WARNING = "cell his reproduces published figures (MAC hmac-md5, digest md5) and is not for use"
BROKEN = ("--reproduce-freeman", "--mac", "hmac-md5", "--digest", "md5")


@pytest.fixture(scope="module")
def his(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cells") / "his"
    assert main(["init", str(directory), "--base-port", str(base_port()), *BROKEN]) == 0
    return directory


def test_init_names_the_mac_and_the_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = answer(capsys, "init", tmp_path / "usual", "--mac", "hmac-sha512")
    assert (usual["mac"], usual["warning"]) == ("hmac-sha512", "")
    assert read_manifest(tmp_path / "usual" / "manifest.json").mac == "hmac-sha512"
    assert answer(capsys, "init", tmp_path / "his", *BROKEN)["warning"] == WARNING


def test_manifest_with_broken_algorithms_is_refused_without_its_signed_word(his: Path) -> None:
    file = his / "manifest.json"
    content = json.loads(file.read_text())
    assert content["manifest"].pop("reproduction") is True
    other = his / "other.json"
    other.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="was altered after its operator signed it"):
        read_manifest(other)


def test_status_doctor_and_verify_say_that_the_cell_is_not_for_use(
    his: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "-m", str(his)]) == 1
    assert f"warning: {WARNING}" in " ".join(capsys.readouterr().out.split())
    assert answer(capsys, "status", "-m", his, code=1)["warning"] == WARNING
    warnings = [
        finding["says"]
        for finding in answer(capsys, "doctor", his, code=1)["findings"]
        if finding["level"] == "warning"
    ]
    assert WARNING in warnings
    document = tmp_path / "evidence.json"
    evidence = Evidence(kind=EvidenceKind.CONFLICT, accused=NodeId("broker-1"), against=())
    document.write_bytes(msgspec.json.encode(evidence))
    assert answer(capsys, "verify", document, "-m", his, code=1)["warning"] == WARNING


def test_up_says_it_before_it_starts_a_broker(
    his: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise UsageError("not now")

    monkeypatch.setattr(running, "refuse_taken", refuse)
    assert main(["up", str(his)]) == 2
    assert f"warning: {WARNING}" in capsys.readouterr().err
