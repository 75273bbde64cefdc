"""`quorumcast pipeline monitor` on a real cell: channels, probes, refusals."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shell import answer, line, running, started
from tests.runtime.world import eventually

from quorumcast.cli.main import main
from quorumcast.manifest.files import read_manifest

pytestmark = pytest.mark.runtime

MONITOR = ("pipeline", "monitor")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "plant"
    with running(directory, ["other:ab"], "alice,bob,carol") as made:
        options = ("-m", made, "--probes", "alice", "--consoles", "bob")
        assert main([*MONITOR, "init", *map(str, options)]) == 0
        yield made


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of a command that is refused."""
    capsys.readouterr()
    assert main([*MONITOR, *map(str, arguments)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    return sentence


def test_init_makes_three_channels_at_once_and_leaves_them_alone_afterwards(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    manifest = read_manifest(cell / "manifest.json")
    entry = {str(channel.name): channel for channel in manifest.channels}
    assert manifest.epoch == 2
    assert entry["metrics"].policy.title == "total+durable"
    assert (entry["logs"].publishers, entry["logs"].subscribers) == (("alice",), ("bob",))
    assert (entry["alarms"].publishers, entry["alarms"].subscribers) == (("bob",), ("*",))
    again = answer(capsys, *MONITOR, "init", "-m", cell)
    assert (again["made"], again["epoch"]) == ([], 2)
    assert set(again["channels"]) == {"metrics", "logs", "alarms"}


def test_init_refuses_what_it_cannot_keep(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(capsys, "init", "-m", cell, "--prefix", "x", "--policy", "ab")
    assert "no total order" in sentence
    assert main(["channel", "create", "y/metrics:total+durable", "-m", str(cell)]) == 0
    assert "other columns" in refused(capsys, "init", "-m", cell, "--prefix", "y")


def test_probe_publishes_from_a_process_and_stops_when_asked(
    cell: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, state = tmp_path / "app.log", tmp_path / "state.json"
    log.write_text("ERROR one\n")
    with started(
        *MONITOR, "probe", "-m", cell, "-i", "alice", "--metrics", "--interval", "0.1",
        "--logs", log, "--from-start", "--state", state,
        "--syslog", "127.0.0.1:0", "--host", "web-1", "--json",
    ) as probe:  # fmt: skip
        ready = line(probe)
        host, port = ready["syslog"].split(":")
        with socket.create_connection((host, int(port))) as out:
            out.sendall(b"<11>1 - gate sshd - - - refused\n")
        with started(
            "subscribe", "logs", "-m", cell, "-i", "bob", "--from", "1", "--count", "2", "--json"
        ) as reader:
            found = [line(reader), line(reader)]
        # A probe that is stopped waits for the cell's word, but not for long.
        assert eventually(state.exists, timeout_s=120)
        probe.send_signal(signal.SIGTERM)
        last = line(probe)
    assert {json.dumps(row).count("refused") for row in found} == {0, 1}
    assert last["published"]["logs"] == 1
    assert last["published"]["syslog"] == 1
    assert last["published"]["metrics"] > 0
    assert last["dropped"] == {"metrics": 0, "syslog": 0, "connections": 0}
    places = json.loads(state.read_text())
    assert places[str(log)]["offset"] == len("ERROR one\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("probe", "-i", "alice"), "nothing to do"),
        (("probe", "-i", "alice", "--syslog", "5514"), "HOST:PORT"),
        (("probe", "-i", "alice", "--metrics", "--host", "a/b"), "--host"),
        (("probe", "-i", "carol", "--metrics"), "carol"),
        (("probe", "-i", "alice", "--metrics", "--prefix", "z"), "monitor init"),
        (("run", "-i", "bob", "--store", "x", "--prefix", "z"), "monitor init"),
        (("run", "-i", "bob", "--store", "x", "--once", "--seconds", "1"), "contradict"),
        (("run", "-i", "bob", "--store", "x", "--trigger", "0"), "--trigger"),
        (("run", "-i", "bob", "--store", "/proc/x"), "choose another directory"),
        (("run", "-i", "bob", "--store", "x", "--rules", "none.toml"), "monitor rules"),
    ],
)
def test_nonsense_is_one_sentence(
    cell: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *rest = arguments
    assert words in refused(capsys, command, "-m", cell, *rest)
    assert list(tmp_path.glob("x/*")) == []


def test_rules_that_are_printed_are_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*MONITOR, "rules"]) == 0
    file = tmp_path / "rules.toml"
    file.write_text(capsys.readouterr().out)
    assert main([*MONITOR, "rules", str(file)]) == 0
    assert "10 rules, no mistakes" in capsys.readouterr().out
    file.write_text(file.read_text().replace("above = 90", "over = 90", 1))
    assert "line " in refused(capsys, "rules", file)
