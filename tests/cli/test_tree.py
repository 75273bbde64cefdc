"""`quorumcast tree`: from `init` to a reader at a leaf, and every mistake in one sentence."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.shell import answer, base_port, line, started
from tests.runtime.world import PATIENCE_S, eventually

from quorumcast.cli.main import main
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.files import read_identity, read_manifest, sign_manifest, write_manifest
from quorumcast.manifest.manifest import ChannelOrigin, Manifest

pytestmark = [pytest.mark.runtime]

CELLS = ("root", "cell-1", "cell-1-1")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three levels of one broker each."""
    directory = tmp_path_factory.mktemp("trees") / "tree"
    shape = ["--levels", "3", "--fanout", "1", "--f", "0", "--base-port", str(base_port())]
    channels = ["--channel", "events:ab+history:20", "--channel", "audit:brb"]
    trades = ["--channel", "trades:ab", "--column", "trades:symbol:string"]
    trades += ["--column", "trades:price:int64", "--where", "cell-1:trades:price < 10"]
    trades += ["--where", "cell-1-1:trades:symbol != 'TUI'"]
    assert main(["tree", "init", str(directory), *shape, *channels, *trades]) == 0
    with started("tree", "up", directory, "--json", "--allow-faults") as up:
        while line(up).get("event") != "up":
            pass
        yield directory
        up.send_signal(signal.SIGINT)
        _, errors = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 130
    assert errors == ""


def mapped(capsys: pytest.CaptureFixture[str], tree: Path) -> dict[str, Any]:
    return {cell["cell"]: cell for cell in answer(capsys, "tree", "map", tree)["cells"]}


@pytest.mark.parametrize("channel", ["events", "audit"])
def test_what_is_published_at_the_root_is_read_at_a_leaf(
    tree: Path, capsys: pytest.CaptureFixture[str], channel: str
) -> None:
    words = ["one", "two", "three"]
    done = answer(capsys, "publish", channel, *words, "-m", tree / "root", "-i", "alice")
    assert done["published"] == 3
    options = ["--from", "earliest", "--count", 3, "--json"]
    leaf = tree / "cell-1-1"
    with started("subscribe", channel, "-m", leaf, "-i", "bob", *options) as listener:
        events = [line(listener) for _ in range(3)]
        assert listener.wait(PATIENCE_S) == 0
    assert [event["payload"] for event in events] == words
    assert {event["publisher"] for event in events} == {"alice"}


def test_leaf_reads_the_rows_that_the_cells_above_it_carry_on(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("CTT", 5), ("CTT", 50), ("TUI", 7), ("ALV", 60), ("ALV", 9)]
    lines = [json.dumps({"symbol": symbol, "price": price}) for symbol, price in rows]
    answer(capsys, "publish", "trades", *lines, "-m", tree / "root", "-i", "alice")
    options = ["--from", "earliest", "--count", 2, "--json"]
    for where in ((), ("--where", "price > 4")):
        leaf = ("-m", tree / "cell-1-1", "-i", "bob", *options, *where)
        with started("subscribe", "trades", *leaf) as listener:
            events = [line(listener) for _ in range(2)]
            assert listener.wait(PATIENCE_S) == 0
        assert [tuple(one["row"].values()) for one in events] == [("CTT", 5), ("ALV", 9)]
    carried = mapped(capsys, tree)["cell-1-1"]["channels"][2]["where"]
    assert carried == "(price < 10) AND (symbol != 'TUI')"


def test_map_and_channel_say_where_rows_come_from_and_which(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tree", "map", str(tree)]) == 0
    shown = capsys.readouterr().out
    assert "rows" in shown
    assert "(price < 10) AND (symbol != 'TUI')" in shown

    child = tree / "cell-1"
    told = answer(capsys, "channel", "show", "trades", "-m", child)["channel"]["origin"]
    assert told == {"cell": "root", "channel": "trades", "where": "price < 10"}
    for command in (["list"], ["show", "trades"]):
        assert main(["channel", *command, "-m", str(child)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "trades of root, where price < 10" in shown
    assert main(["channel", "list", "-m", str(tree / "root")]) == 0
    assert "comes from" not in capsys.readouterr().out


def test_publisher_at_a_child_is_told_where_to_publish(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "channel 'events' of 'cell-1' comes from cell 'root': publish on it there"
    refused(capsys, told, "publish", "events", "x", "-m", tree / "cell-1", "-i", "alice")


def test_map_and_status_say_how_far_each_level_is_behind_its_parent(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "publish", "events", "more", "-m", tree / "root", "-i", "alice")

    def together() -> bool:
        found = mapped(capsys, tree)
        events = [found[cell]["channels"][0] for cell in CELLS]
        return len({one["held"] for one in events}) == 1 and events[0]["held"] > 0

    assert eventually(together)
    found = mapped(capsys, tree)
    assert [(found[cell]["level"], found[cell]["parents"]) for cell in CELLS] == [
        (1, []),
        (2, ["root"]),
        (3, ["cell-1"]),
    ]
    assert [found[cell]["channels"][0]["behind"] for cell in CELLS] == [None, 0, 0]
    assert {up for cell in CELLS for up in found[cell]["brokers"].values()} == {True}

    main(["tree", "map", str(tree)])
    assert "└─ cell-1-1" in capsys.readouterr().out
    levels = answer(capsys, "status", "-m", tree / "cell-1-1")["levels"]
    assert [(one["cell"], one["parent"], one["behind"]) for one in levels["events"]] == [
        ("cell-1-1", "cell-1", 0),
        ("cell-1", "root", 0),
    ]
    main(["status", "-m", str(tree / "cell-1-1")])
    shown = capsys.readouterr().out
    assert "'audit' of cell-1-1 is 0 publications behind 'audit' of cell-1" in shown


def test_second_tree_up_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "seems to be running already", "tree", "up", tree)


# -------------------------------------------------------------------- mistakes


def refused(capsys: pytest.CaptureFixture[str], words: str, *arguments: object) -> None:
    assert main([*map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


@pytest.fixture
def idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    directory = tmp_path / "tree"
    assert main(["tree", "init", str(directory), "--levels", "3", "--fanout", "1"]) == 0
    capsys.readouterr()
    return directory


def test_existing_tree_is_not_overwritten(idle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in idle.rglob("*.identity")}
    refused(capsys, "already has a cell", "tree", "init", idle)
    assert {path: path.read_bytes() for path in idle.rglob("*.identity")} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--levels", "0"], "1 level or more"),
        (["--f", "-1"], "may be faulty"),
        (["--policy", "ab", "--channel", "x:ab"], "write it into each --channel"),
        (["--policy", "relay"], "no origin"),
        (["--policy", "nonsense"], "nonsense"),
        (["--channel", "x:ab::carol"], "not a client"),
        (["--levels", "12"], "make fewer levels or children"),
        (["--where", "price < 10"], "is no CELL:CHANNEL:PREDICATE"),
        (["--where", "root:events:x = 1"], "which carries on nothing here; choose one of cell-1"),
        (["--where", "cell-1:news:x = 1"], "there are events"),
        (["--where", "cell-1:events:x = 1"], "carries bytes"),
        (
            ["--column", "events:x:int64", "--where", "cell-1:events:y = 1"],
            "what channel 'events' carries on names the column 'y'",
        ),
        (
            [
                *("--column", "events:x:int64"),
                *("--where", "cell-1:events:x < 3", "--where", "cell-1:events:x > 5"),
            ],
            "--where is given twice for the channel 'events' of 'cell-1'",
        ),
        (["--column", "news:x:int64"], "which is not there; write CHANNEL:NAME:TYPE"),
        (["--column", "events:x:int63"], "unknown type"),
    ],
)
def test_tree_that_cannot_be_made_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    refused(capsys, words, "tree", "init", tmp_path / "tree", *options)
    assert not (tmp_path / "tree").exists()


def sign_anew(cell: Path, manifest: Manifest) -> None:
    """Write a manifest with the signature of the cell's operator."""
    operator = read_identity(cell / "operator.identity")
    write_manifest(cell / "manifest.json", sign_manifest(manifest, operator))


def with_origin(cell: Path, origin: ChannelOrigin) -> Manifest:
    manifest = read_manifest(cell / "manifest.json")
    entry = replace(manifest.channels[0], origin=origin)
    return replace(manifest, channels=(entry,))


@pytest.mark.parametrize("command", ["up", "map"])
def test_channels_that_come_from_one_another_are_refused(
    idle: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    below = read_manifest(idle / "cell-1-1" / "manifest.json")
    above = ChannelOrigin(below.cell, below.operator, Channel("events"))
    sign_anew(idle / "cell-1", with_origin(idle / "cell-1", above))
    refused(capsys, "in a circle", "tree", command, idle)


def test_parent_of_another_operator_is_refused(
    idle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(idle / "cell-1" / "parents")
    stranger = Identity.generate(read_identity(idle / "root" / "operator.identity").name)
    origin = ChannelOrigin("root", stranger.verify_key, Channel("events"))
    sign_anew(idle / "cell-1", with_origin(idle / "cell-1", origin))
    refused(capsys, "of another operator", "tree", "up", idle)


@pytest.mark.parametrize("command", ["up", "map"])
def test_root_made_anew_below_the_old_children_is_warned_of(
    idle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    shutil.rmtree(idle / "root")
    assert main(["init", str(idle / "root")]) == 0
    capsys.readouterr()
    monkeypatch.setattr("quorumcast.cli.tree.commands.refuse_taken", _stop)
    code = main(["tree", command, str(idle)])
    assert code == (2 if command == "up" else 0)
    told = f"warning: the parent 'root' of 'cell-1' has another operator than {idle / 'root'}"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "map"])
def test_channel_that_the_root_deleted_does_not_keep_the_tree_from_being_run_and_shown(
    idle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    assert main(["channel", "create", "more:ab", "-m", str(idle / "root")]) == 0
    assert main(["channel", "delete", "events", "--yes", "-m", str(idle / "root")]) == 0
    capsys.readouterr()
    monkeypatch.setattr("quorumcast.cli.tree.commands.refuse_taken", _stop)
    code = main(["tree", command, str(idle)])
    printed = capsys.readouterr()
    assert "'events', which cell 'root' does not have; it has more; nothing" in printed.err
    assert code == (2 if command == "up" else 0)
    assert ("far enough" if command == "up" else "cell-1-1") in printed.out + printed.err


def _stop(*_: object, **__: object) -> None:
    raise UsageError("far enough")


def test_child_of_a_root_that_changed_while_the_tree_was_down_is_given_the_new_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "tree"
    options = ["--fanout", "1", "--f", "0", "--channel", "events:total"]
    assert main(["tree", "init", str(tree), *options, "--base-port", str(base_port())]) == 0
    assert main(["channel", "create", "more:total", "-m", str(tree / "root")]) == 0
    capsys.readouterr()
    with started("tree", "up", tree, "--json") as up:
        while line(up).get("event") != "up":
            pass
        answer(capsys, "publish", "events", "one", "-m", tree / "root", "-i", "alice")
        options = ["--from", "earliest", "--count", "1", "--json"]
        with started("subscribe", "events", "-m", tree / "cell-1", "-i", "bob", *options) as reader:
            assert line(reader)["payload"] == "one"
            assert reader.wait(PATIENCE_S) == 0
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=PATIENCE_S)


def test_unknown_parent_is_refused(idle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(idle / "root")
    shutil.rmtree(idle / "cell-1" / "parents")
    refused(capsys, "comes from cell 'root', which is not in", "tree", "up", idle)


def test_relay_with_publishers_is_refused(idle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = idle / "cell-1" / "manifest.json"
    data = json.loads(path.read_text())
    data["manifest"]["channels"][0]["publishers"] = ["alice"]
    # As an operator's own program would sign it.
    from quorumcast.manifest import files

    operator = read_identity(idle / "cell-1" / "operator.identity")
    manifest = read_manifest(path)
    entry = replace(manifest.channels[0], publishers=("alice",))
    forged = replace(manifest, channels=(entry,))
    data["signature"] = operator.sign(files._signed_bytes(forged)).signature.hex()
    path.write_text(json.dumps(data))
    refused(capsys, "lists publishers, who cannot publish on it here", "tree", "up", idle)


def test_status_of_a_cell_that_is_down_says_how_to_start_the_tree(
    idle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in ("root", "cell-1"):
        says = answer(capsys, "status", "-m", idle / cell, code=1)["verdict"]["says"]
        assert f"no broker is up; start it with 'quorumcast tree up {idle}'" in says
    monkeypatch.chdir(idle / "root")
    says = answer(capsys, "status", "-m", ".", code=1)["verdict"]["says"]
    assert f"start it with 'quorumcast tree up {idle}'" in says


def test_unknown_cell_and_missing_tree_are_refused(
    idle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, "there is no cell 'cell-9'", "tree", "up", idle, "--only", "cell-9")
    refused(capsys, "there is no tree in", "tree", "map", tmp_path / "nothing")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("parents", "is not below"),
        ("parents/root/broker-1.identity", "which this broker would be a client of its parent"),
        ("parents/root/manifest.json", "is not below"),
    ],
)
def test_broker_without_the_files_of_its_parent_says_what_is_missing(
    idle: Path, capsys: pytest.CaptureFixture[str], spoil: str, words: str
) -> None:
    cell = idle / "cell-1"
    lost = cell / spoil
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    refused(capsys, words, "broker", "-m", cell, "-i", "broker-1")


def test_broker_with_a_namesake_of_its_parent_is_refused(
    idle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "other"), "--cell", "root"]) == 0
    capsys.readouterr()
    copy = idle / "cell-1" / "parents" / "root" / "manifest.json"
    copy.write_bytes((tmp_path / "other" / "manifest.json").read_bytes())
    words = "of a cell 'root' with another operator"
    refused(capsys, words, "broker", "-m", idle / "cell-1", "-i", "broker-1")


def test_backup_of_a_child_has_what_its_brokers_need_to_reach_the_parent(
    idle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "backup", tmp_path / "kept", "-m", idle / "cell-1")
    answer(capsys, "restore", tmp_path / "kept", tmp_path / "back")
    before = idle / "cell-1" / "parents" / "root"
    after = tmp_path / "back" / "parents" / "root"
    assert len(list(before.iterdir())) == 4
    for path in before.iterdir():
        copy = after / path.name
        assert copy.read_bytes() == path.read_bytes()
        assert copy.stat().st_mode == path.stat().st_mode
