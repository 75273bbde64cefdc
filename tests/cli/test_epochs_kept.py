"""What was signed in an earlier epoch: judged by that epoch's manifest, or not at all."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.shell import answer, running, said, started
from tests.runtime.world import PATIENCE_S

from quorumcast.cli.main import main
from quorumcast.manifest.files import read_manifest

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A cell that is over, and a receipt from its first epoch."""
    directory = tmp_path_factory.mktemp("cells") / "cell"
    receipt = directory.parent / "receipt.json"
    with running(directory, ["orders:brb", "audit:brb"]):
        options = ["--count", 1, "--receipt", receipt]
        with started("subscribe", "audit", "-m", directory, "-i", "bob", *options) as listener:
            said(listener, "subscribed to audit")
            assert main(["publish", "audit", "one", "-m", str(directory), "-i", "alice"]) == 0
            assert listener.wait(PATIENCE_S) == 0
    return directory, receipt


@pytest.fixture
def cell(signed: tuple[Path, Path], tmp_path: Path) -> Path:
    """The same cell in its next epochs: the channel is gone, and brokers have other keys."""
    copy = tmp_path / "cell"
    shutil.copytree(signed[0], copy)
    for command in (
        ["channel", "delete", "audit", "--yes", "--no-wait"],
        ["epoch", "rotate", "broker-1"],
        ["epoch", "rotate", "broker-2"],
        ["epoch", "rotate", "broker-3"],
    ):
        assert main([*command, "-m", str(copy)]) == 0
    return copy


def test_every_manifest_that_is_replaced_is_kept(cell: Path) -> None:
    kept = {path.name: read_manifest(path).epoch for path in (cell / "epochs").iterdir()}
    assert kept == {"1.json": 1, "2.json": 2, "3.json": 3, "4.json": 4}


def test_a_receipt_is_judged_by_the_manifest_of_its_epoch(
    signed: tuple[Path, Path], cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    verdict = answer(capsys, "verify", signed[1], "-m", cell)
    assert (verdict["valid"], verdict["epoch"], verdict["channel"]) == (True, 1, "audit")


def test_without_that_manifest_it_cannot_be_judged(
    signed: tuple[Path, Path], cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = (cell / "epochs" / "1.json").rename(cell / "first.json")
    capsys.readouterr()
    assert main(["verify", str(signed[1]), "-m", str(cell)]) == 3
    said = capsys.readouterr().out
    assert said.startswith("cannot be judged: it was signed in epoch 1 of cell 'cell'")
    assert "this manifest is of epoch 5, by which cell 'cell' has no channel 'audit'" in said
    assert answer(capsys, "verify", signed[1], "-m", cell, code=3)["valid"] is None
    assert answer(capsys, "verify", signed[1], "-m", first)["valid"] is True


def test_contents_that_were_altered_are_not_valid_by_any_manifest(
    signed: tuple[Path, Path], cell: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = json.loads(signed[1].read_text())
    forged["contents"] = forged["contents"][::-1]
    file = tmp_path / "forged.json"
    file.write_text(json.dumps(forged))
    capsys.readouterr()
    for path in [None, cell / "epochs" / "1.json"]:  # with the first manifest, and without
        if path is not None:
            path.unlink()
        assert answer(capsys, "verify", file, "-m", cell, code=1)["valid"] is False


def test_a_manifest_of_another_operator_is_not_taken_for_an_epoch(
    signed: tuple[Path, Path], cell: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other" / "cell"
    assert main(["init", str(other), "--channel", "audit:brb"]) == 0
    shutil.copy(other / "manifest.json", cell / "epochs" / "1.json")
    capsys.readouterr()
    assert answer(capsys, "verify", signed[1], "-m", cell, code=3)["valid"] is None


def test_a_receipt_of_another_cell_is_told_apart_from_a_forged_one(
    signed: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    assert main(["init", str(other), "--channel", "orders:brb"]) == 0
    capsys.readouterr()
    verdict = answer(capsys, "verify", signed[1], "-m", other, code=1)
    assert verdict["reason"] == (
        "it was signed in cell 'cell', and this manifest is of cell 'other'; name the manifest of "
        "'cell' with -m"
    )
