"""Brokers that come and go by command, while `quorumcast up` runs the cell."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.shell import answer, base_port, brokers_up, running
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
    said = " ".join(capsys.readouterr().err.split())
    assert "broker-5 is added, but broker-5 did not take epoch 2, or catch up, in time" in said
    assert "then run 'quorumcast members change --remove broker-1'" in said
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
    asked = iter([set(), set(), set(), set(), set(), {"broker-3"}])

    def rows(manifest: Manifest, urls: object) -> dict[str, dict[str, object]]:
        told.late = next(asked, told.late)
        return told.rows(manifest, urls)

    monkeypatch.setattr("quorumcast.cli.options.ask_cell", rows)
    assert main(["members", "replace", "broker-2", "broker-6", *where[:3], "7779", *here]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "broker-6 is added, but broker-3 has not caught up" in said
    assert "then run 'quorumcast members change --remove broker-2'" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["remove", "broker-2"], "needs 4 brokers to tolerate f=1, but the cell has 3"),
        (["remove", "nobody"], "there is no broker 'nobody'"),
        (
            ["add", "broker-2", "--host", "h", "--port", "7777"],
            "there is a broker 'broker-2' already",
        ),
        (["rotate", "brokr-2"], "there is no node 'brokr-2' in cell 'cell'; it has broker-1, "),
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


@pytest.fixture
def idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A cell of four brokers whose files are there; tests say what brokers tell."""
    cell = tmp_path / "cell"
    assert main(["init", str(cell), "--base-port", str(base_port())]) == 0
    capsys.readouterr()
    return cell


def refused(capsys: pytest.CaptureFixture[str], cell: Path, *words: object) -> str:
    """The sentence with which a command is refused before it has changed anything."""
    before = sorted(path.name for path in cell.iterdir())
    assert main(["members", *map(str, words), "-m", str(cell), "--timeout", "0"]) == 2
    assert sorted(path.name for path in cell.iterdir()) == before
    assert read_manifest(cell / "manifest.json").epoch == 1
    return " ".join(capsys.readouterr().err.split())


def test_members_replace_that_cannot_finish_changes_nothing(
    idle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch)
    here = ["--host", "127.0.0.1", "--port", 7777]
    said = refused(capsys, idle, "replace", "nobody", "broker-5", *here)
    assert "there is no broker 'nobody' in cell 'cell'" in said
    told.down = {"broker-1"}
    said = refused(capsys, idle, "replace", "broker-1", "broker-5", *here)
    assert "once broker-5 is added, 4 of 5 brokers must be up, and 3 are; start the others" in said
    assert "or use 'members add broker-5' and start it at once" in said
    told.down = {"broker-1", "broker-2"}
    said = refused(capsys, idle, "replace", "broker-1", "broker-5", *here)
    assert "only 2 of 4 brokers say that they have taken epoch 1" in said
    told.down = set()
    there = ["--host", "no-such-host.invalid", "--port", 7777]
    said = refused(capsys, idle, "replace", "broker-1", "broker-5", *there)
    assert "broker-5 could not be reached at no-such-host.invalid:7777" in said
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        busy = ["--host", "127.0.0.1", "--port", port]
        said = refused(capsys, idle, "replace", "broker-1", "broker-5", *busy)
    assert f"something else listens at 127.0.0.1:{port} already: nothing was changed" in said


def test_members_replace_in_the_pool_of_a_chain_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cell"
    assert main(["init", str(cell), "--channel", "c:chain", "--base-port", str(base_port())]) == 0
    Told(monkeypatch)
    here = ["--host", "127.0.0.1", "--port", 7777]
    said = refused(capsys, cell, "replace", "broker-1", "broker-5", *here)
    assert "from which channel 'c' draws its chains" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "nothing to change: cell 'cell' has f=1"),
        (["--f", "1"], "nothing to change: cell 'cell' has f=1"),
        (["--f", "2"], "needs 7 brokers to tolerate f=2, but the cell has 4"),
        (["--add", "broker-5"], "--add takes NAME=HOST:PORT, not 'broker-5'"),
        (["--remove", "broker-4"], "needs 4 brokers to tolerate f=1, but the cell has 3"),
        (
            ["--add", "b5=127.0.0.1:7", "--add", "b6=127.0.0.1:8", "--f", "2"],
            "needs 7 brokers to tolerate f=2, but the cell has 6",
        ),
    ],
)
def test_members_change_that_no_cell_could_take_changes_nothing(
    idle: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    Told(monkeypatch)
    assert sentence in refused(capsys, idle, "change", *words)


def test_members_change_writes_an_epoch_for_each_step(
    idle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    told = Told(monkeypatch)

    def rows(manifest: Manifest, urls: object) -> dict[str, dict[str, object]]:
        asked.append(urls)
        return told.rows(manifest, urls)

    monkeypatch.setattr("quorumcast.cli.options.ask_cell", rows)
    new = [w for i in (5, 6, 7) for w in ("--add", f"broker-{i}=127.0.0.1:{7790 + i}")]
    page = ["--url", "broker-7=http://10.0.0.7:8100"]  # not a member yet
    grown = answer(capsys, "members", "change", *new, "--f", 2, *page, "-m", idle)
    assert (grown["epoch"], grown["before"]["n"], grown["before"]["f"]) == (5, 4, 1)
    assert (grown["after"]["n"], grown["after"]["f"], grown["done"]) == (7, 2, True)
    last = asked[-1]
    assert isinstance(last, dict)
    assert last["broker-7"] == "http://10.0.0.7:8100"
    gone = [word for i in (1, 2, 3) for word in ("--remove", f"broker-{i}")]
    shrunk = answer(capsys, "members", "change", *gone, "--f", 1, "-m", idle)
    assert (shrunk["epoch"], shrunk["after"]["n"], shrunk["after"]["f"]) == (9, 4, 1)
    assert shrunk["after"]["brokers"] == "broker-4, broker-5, broker-6, broker-7"
    kept = [read_manifest(idle / "epochs" / f"{epoch}.json") for epoch in range(1, 9)]
    sizes = [(len(manifest.brokers), manifest.f) for manifest in kept]
    assert sizes == [(4, 1), (5, 1), (6, 1), (7, 1), (7, 2), (7, 1), (6, 1), (5, 1)]


@pytest.mark.timeout(400)
def test_cell_grown_to_f_2_goes_on_without_two_brokers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "cell", ["trades:total+durable", "news:ab+history:20"]) as cell:
        here = ["-m", str(cell)]
        capsys.readouterr()
        base = base_port()
        new = [w for i in range(3) for w in ("--add", f"broker-{5 + i}=127.0.0.1:{base + i}")]
        answer(capsys, "publish", "trades", "f was 1", *here, "-i", "alice")
        patient = ["--timeout", "200", *here]
        grown = answer(capsys, "members", "change", *new, "--f", "2", *patient)
        assert (grown["after"]["n"], grown["after"]["f"], grown["done"]) == (7, 2, True)
        up = brokers_up(capsys, cell)
        assert {row["epoch"] for row in up.values()} == {5}
        stopped = [up[name]["pid"] for name in ("broker-1", "broker-6")]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            # Two of seven are gone, and what is published now is still ordered.
            for channel in ("trades", "news"):
                answer(capsys, "publish", channel, "f is 2", *here, "-i", "alice")
            assert main(["replay", "trades", *here, "-i", "bob", "--json"]) == 0
            told = [json.loads(line)["payload"] for line in capsys.readouterr().out.splitlines()]
            assert told == ["f was 1", "f is 2"]
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
