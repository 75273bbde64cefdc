"""Brokers that come and go by command, while `quorumcast up` runs the cell."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shell import answer, base_port, running
from tests.runtime.world import eventually

from quorumcast.cli.main import main
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.manifest import Manifest

pytestmark = pytest.mark.runtime


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Path]:
    with running(tmp_path / "cell", ["trades:total+durable"], "alice,bob") as made:
        yield made


def test_members_replace_a_broker_of_a_running_cell(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--host", "127.0.0.1", "--port", str(base_port()), "-m", str(cell), "--json"]
    code = main(["members", "replace", "broker-1", "broker-5", *where, "--timeout", "200"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    facts = json.loads(captured.out)
    assert (facts["epoch"], facts["done"]) == (3, True)
    assert facts["before"]["brokers"].startswith("broker-1, ")
    assert facts["after"]["brokers"] == "broker-2, broker-3, broker-4, broker-5"
    assert len(facts["taken"]) >= 3

    def epochs() -> list[int]:
        members = answer(capsys, "members", "list", "-m", cell, "--live")["members"]
        return [m["epoch"] for m in members if m["role"] == "broker"]

    assert eventually(lambda: epochs() == [3, 3, 3, 3])
    log = cell / "logs" / "broker-1.log"
    assert eventually(lambda: "has left the cell" in log.read_text())
    rotated = answer(
        capsys, "members", "rotate", "broker-2", "-m", cell, "--wait", "--timeout", "200"
    )
    assert (rotated["epoch"], rotated["done"]) == (4, True)
    assert rotated["identity"] == str(cell / "broker-2.identity.next")
    assert rotated["restart"].startswith("nothing; where broker-2 has files of its own, copy")


def test_members_replace_waits_until_the_new_broker_has_caught_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell"
    assert main(["init", str(cell), "--base-port", str(base_port()), "--digest", "sha256"]) == 0
    late = {"broker-5": ["publications of orders/alice@1"]}

    def rows(manifest: Manifest, urls: object) -> dict[str, dict[str, object]]:
        return {
            name: {"up": True, "epoch": manifest.epoch, "catching_up": late.get(name, [])}
            for name in manifest.broker_ids
        }

    monkeypatch.setattr("quorumcast.cli.options.ask_cell", rows)
    where = ["--host", "127.0.0.1", "--port", "7777", "-m", str(cell), "--timeout", "0"]
    assert main(["members", "replace", "broker-1", "broker-5", *where]) == 2
    assert "has not caught up: start it, wait until" in capsys.readouterr().err
    assert read_manifest(cell / "manifest.json").broker("broker-1") is not None
    late.clear()
    where[3] = "7788"
    assert main(["members", "replace", "broker-2", "broker-6", *where]) == 0
    assert read_manifest(cell / "manifest.json").broker("broker-2") is None


class Told:
    """What the brokers of a cell say of themselves: who is down, and who catches up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down: set[str] = set()
        self.late: set[str] = set()
        monkeypatch.setattr("quorumcast.cli.options.ask_cell", self.rows)

    def rows(self, manifest: Manifest, urls: object) -> dict[str, dict[str, object]]:
        return {
            name: {
                "up": name not in self.down,
                "epoch": manifest.epoch,
                "catching_up": ["publications of orders/alice@1"] if name in self.late else [],
            }
            for name in manifest.broker_ids
        }


def test_members_no_step_while_brokers_that_stay_catch_up_unless_in_haste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell"
    assert main(["init", str(cell), "--brokers", "6", "--base-port", str(base_port())]) == 0
    told = Told(monkeypatch)
    told.late = {"broker-6"}
    here = ["-m", str(cell), "--timeout", "0"]
    assert main(["members", "remove", "broker-1", *here]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "broker-6 has not caught up: wait until 'quorumcast status' says so no longer" in said
    assert read_manifest(cell / "manifest.json").epoch == 1
    # Whoever goes need not have what the others hold, and who is down is what they wait for.
    assert main(["members", "remove", "broker-6", *here]) == 0
    told.late, told.down = {"broker-5"}, {"broker-4"}
    assert main(["members", "remove", "broker-4", *here]) == 0
    assert main(["members", "rotate", "broker-3", *here]) == 2
    assert main(["members", "rotate", "broker-3", *here, "--hasty"]) == 0
    assert read_manifest(cell / "manifest.json").epoch == 4


def test_members_no_step_before_a_new_broker_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell"
    assert main(["init", str(cell), "--base-port", str(base_port())]) == 0
    told = Told(monkeypatch)
    told.down = {"broker-5"}
    here = ["-m", str(cell), "--timeout", "0"]
    where = ["--host", "127.0.0.1", "--port", "7777", *here]
    assert main(["members", "add", "broker-5", *where]) == 0
    assert main(["members", "add", "broker-6", *where[:3], "7778", *here]) == 2
    assert "broker-5 has not caught up" in capsys.readouterr().err
    assert main(["members", "remove", "broker-5", *here]) == 0, "it was a mistake"


def test_members_replace_a_broken_broker_and_say_what_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell"
    assert main(["init", str(cell), "--base-port", str(base_port())]) == 0
    told = Told(monkeypatch)
    told.late = {"broker-1"}
    here = ["-m", str(cell), "--timeout", "0"]
    where = ["--host", "127.0.0.1", "--port", "7777", *here]
    assert main(["members", "replace", "broker-1", "broker-5", *where]) == 0
    assert read_manifest(cell / "manifest.json").broker("broker-1") is None
    told.late.clear()
    asked = iter([set(), set(), set(), {"broker-3"}])

    def rows(manifest: Manifest, urls: object) -> dict[str, dict[str, object]]:
        told.late = next(asked, told.late)
        return told.rows(manifest, urls)

    monkeypatch.setattr("quorumcast.cli.options.ask_cell", rows)
    assert main(["members", "replace", "broker-2", "broker-6", *where[:3], "7779", *here]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "broker-6 has been added, and broker-2 not removed: broker-3 has not caught up" in said
    assert "then run 'quorumcast members remove broker-2'" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["remove", "broker-2"], "needs 4 brokers to tolerate f=1, but the cell has 3"),
        (["remove", "nobody"], "there is no broker 'nobody'"),
        (["add", "broker-2", "--host", "h", "--port", "7777"], "appears twice"),
        (["add", "operator", "--host", "h", "--port", "7777"], "choose another name"),
    ],
)
def test_members_steps_that_no_cell_should_take_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    where = tmp_path / "cell"
    assert main(["init", str(where), "--channel", "orders:ab+history"]) == 0
    assert main(["members", *arguments, "-m", str(where), "--offline"]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert read_manifest(where / "manifest.json").epoch == 1


def test_members_a_step_waits_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "cell"
    # Not on the usual ports: somebody may run a cell there.
    place = ["init", str(where), "--base-port", str(base_port())]
    assert main([*place, "--channel", "orders:ab+history"]) == 0
    new = ["members", "add", "broker-5", "--host", "127.0.0.1", "--port", "7777", "-m", str(where)]
    assert main(new) == 2
    assert "only 0 of 4 brokers say that they have taken epoch 1" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (where / "broker-5.identity").exists()
    assert main([*new, "--offline"]) == 0
    shown = capsys.readouterr().out
    assert "n        4 → 5" in shown
    assert "quorum   3 → 4" in shown
