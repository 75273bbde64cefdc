"""From `init` to `verify` with real processes, as a newcomer would do it."""

import io
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shell import (
    QUORUMCAST,
    answer,
    base_port,
    brokers_up,
    imported,
    line,
    running,
    said,
    started,
)
from tests.runtime.world import PATIENCE_S, eventually

from quorumcast.cli.main import main

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cells") / "cell"
    channels = ["orders:ab+history:20", "audit:brb", "private:ab:0:alice:alice"]
    with running(directory, channels, "alice,bob", "--allow-faults") as made:
        yield made


def test_files_of_a_cell_are_private_and_signed(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("alice", "broker-1", "operator"):
        assert (cell / f"{name}.identity").stat().st_mode & 0o777 == 0o600
    shown = answer(capsys, "epoch", "show", "-m", cell)
    assert (shown["cell"], shown["epoch"], shown["f"]) == ("cell", 1, 1)
    assert shown["channels"]["orders"] == "ab+history"


def test_publish_imports_no_other_role(cell: Path) -> None:
    loaded = imported("publish", "orders", "light", "-m", cell, "-i", "alice", "--json")
    assert "quorumcast.client.publishing.publisher" in loaded
    assert not loaded & {"numpy", "pandas", "pyarrow", "pydantic", "rich.console"}
    parts = ("client.incoming", "client.named", "cell.subscribing", "cell.serving", "watch", "sim")
    assert not [name for name in loaded if name.startswith(tuple(f"quorumcast.{p}" for p in parts))]


def test_event_from_publish_to_verify(
    cell: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    receipt = tmp_path / "receipt.json"
    options = ["--count", 3, "--receipt", receipt, "--json"]
    with started("subscribe", "audit", "-m", cell, "-i", "bob", *options) as listener:
        said(listener, "subscribed to audit")
        done = answer(capsys, "publish", "audit", "one", "two", "three", "-m", cell, "-i", "alice")
        assert done["published"] == 3
        events = [line(listener) for _ in range(3)]
        assert [event["payload"] for event in events] == ["one", "two", "three"]
        assert {event["publisher"] for event in events} == {"alice"}
        assert all(len(event["votes"]) >= 3 for event in events)
        assert listener.wait(PATIENCE_S) == 0

    verdict = answer(capsys, "verify", receipt, "-m", cell)
    assert verdict["valid"]
    assert (verdict["channel"], verdict["publisher"]) == ("audit", "alice")
    forged = json.loads(receipt.read_text())
    forged["number"] += 1
    receipt.write_text(json.dumps(forged))
    verdict = answer(capsys, "verify", receipt, "-m", cell, code=1)
    assert (verdict["valid"], verdict["says"]) == (False, None)


def test_lines_of_a_file_and_of_standard_input(cell: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\nb\n")
    with started("subscribe", "orders", "-m", cell, "-i", "bob", "--count", 6) as listener:
        said(listener, "subscribed to orders")
        publisher = subprocess.run(
            [*QUORUMCAST, "publish", "orders", "-", "-m", str(cell), "-i", "alice", "--json"],
            input="x\ny\n", capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        assert json.loads(publisher.stdout)["published"] == 2
        arguments = ["-m", str(cell), "-i", "alice", "--rate", "100", "--count", "2"]
        assert main(["publish", "orders", "--file", str(lines), *arguments]) == 0
        output, errors = listener.communicate(timeout=PATIENCE_S)
    # Each process is a stream of its own: between them there is no order.
    lines_of = [[text for text in output.split() if text in some] for some in ("xy", "ab")]
    assert (lines_of, errors) == ([["x", "y"], ["a", "b", "a", "b"]], "")


def test_bytes_that_are_not_utf_8_arrive_as_they_are(cell: Path) -> None:
    for options, expected in (
        ([], [b"\xff\x80", b"plain"]),
        (["--json"], [{"payload_base64": "/4A="}, {"payload": "plain"}]),
    ):
        arguments = ["subscribe", "orders", "-m", cell, "-i", "bob", "--count", 2, *options]
        with started(*arguments) as listener:
            said(listener, "subscribed to orders")
            subprocess.run(
                [*QUORUMCAST, "publish", "orders", b"\xff\x80", "plain", "-m", cell, "-i", "alice"],
                timeout=PATIENCE_S, check=True, capture_output=True,
            )  # fmt: skip
            assert isinstance(listener.stdout, io.TextIOWrapper)
            lines = listener.stdout.buffer.read().splitlines()
            assert listener.wait(PATIENCE_S) == 0
        if options:
            events = [json.loads(text) for text in lines]
            payloads = [{key: event[key] for key in event if "payload" in key} for event in events]
            assert payloads == expected
        else:
            assert lines == expected


def test_evidence_of_a_subscriber_is_saved_and_holds(
    cell: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(capsys, "faults", "set", "broker-1", "alter", "--victim", "contents", "-m", cell)
    options = ["--evidence", tmp_path / "proofs"]
    with started("subscribe", "orders", "-m", cell, "-i", "bob", *options) as listener:
        said(listener, "subscribed to orders")
        publishing = ["publish", "orders", "x", "--count", 600, "--rate", 200, "-m", cell]
        answer(capsys, *publishing, "-i", "alice")
        said(listener, f"saved to {tmp_path / 'proofs' / 'broker-1.evidence.json'}")
        listener.send_signal(signal.SIGINT)
        listener.communicate(timeout=PATIENCE_S)
    answer(capsys, "faults", "clear", "broker-1", "-m", cell)
    verdict = answer(capsys, "verify", tmp_path / "proofs" / "broker-1.evidence.json", "-m", cell)
    assert (verdict["valid"], verdict["accused"]) == (True, "broker-1")


def test_one_interrupt_ends_a_publisher_that_waits_for_a_terminal(cell: Path) -> None:
    ours, theirs = os.openpty()
    with (
        started("subscribe", "orders", "-m", cell, "-i", "bob", "--count", 1) as listener,
        subprocess.Popen(
            [*QUORUMCAST, "publish", "orders", "-", "-m", str(cell), "-i", "alice"],
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as publisher,
    ):  # fmt: skip
        try:
            said(listener, "subscribed to orders")
            said(publisher, "type events, one per line; Ctrl-D ends")
            os.write(ours, b"typed\n")
            output, _ = listener.communicate(timeout=PATIENCE_S)  # before any further line is typed
            assert output == "typed\n"
            publisher.send_signal(signal.SIGINT)
            _, errors = publisher.communicate(timeout=PATIENCE_S)
        finally:
            publisher.kill()
            os.close(ours)
            os.close(theirs)
    assert (publisher.returncode, errors) == (130, "interrupted: 1 event is published\n")


@pytest.mark.parametrize("words", [["up"], ["init", "--force"]])
def test_cell_that_runs_is_neither_started_nor_replaced(cell: Path, words: list[str]) -> None:
    done = subprocess.run(
        [*QUORUMCAST, *words, str(cell)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    (text,) = done.stderr.splitlines()
    assert "cell 'cell' seems to be running already" in text
    assert "Ctrl-C" in text
    assert "manifest" not in text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_brokers_end_with_their_supervisor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    assert main(["init", str(tmp_path / "c"), "--base-port", str(base_port())]) == 0
    capsys.readouterr()
    with started("up", tmp_path / "c", "--json") as up:
        while line(up).get("event") != "up":
            pass
        pids = [row["pid"] for row in brokers_up(capsys, tmp_path / "c").values()]
        up.send_signal(number)
        up.wait(PATIENCE_S)
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_missing_right_and_unknown_channel(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (["publish", "private", "x", "-i", "bob"], "'bob' may not publish on channel 'private'"),
        (["subscribe", "private", "-i", "bob"], "'bob' may not subscribe to channel 'private'"),
        (["publish", "nowhere", "x", "-i", "bob"], "there is no channel 'nowhere'"),
        (["subscribe", "nowhere", "-i", "bob"], "there is no channel 'nowhere'"),
    ):
        assert main([*arguments, "-m", str(cell)]) == 2
        assert expected in capsys.readouterr().err


def test_status_and_faults_of_running_brokers(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(capsys, "faults", "set", "broker-2", "alter", "-m", cell)
    again = answer(capsys, "faults", "set", "broker-2", "alter", "--percent", 50, "-m", cell)
    assert (again["faults"], again["warning"]) == (["alter"], "")
    both = answer(capsys, "faults", "set", "broker-3", "drop", "-m", cell)
    assert both["warning"].startswith(
        "2 brokers misbehave now (broker-2, broker-3), and f is 1: the cell promises nothing"
    )
    problems = answer(capsys, "status", "-m", cell, code=1)["verdict"]["problems"]
    says = [problem["says"] for problem in problems if problem["level"] == "error"]
    assert any("broker-2, broker-3 are faulty, and f is 1" in one for one in says)
    answer(capsys, "faults", "clear", "broker-3", "-m", cell)
    brokers = brokers_up(capsys, cell)
    assert list(brokers) == [f"broker-{number}" for number in range(1, 5)]
    assert brokers["broker-2"]["faults"] == ["alter"]
    assert main(["status", "-m", str(cell)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "cell cell is not well: " in shown
    assert "broker-2: it misbehaves on request (alter)" in shown
    assert answer(capsys, "faults", "clear", "broker-2", "-m", cell)["faults"] == []
    assert main(["faults", "set", "broker-1", "dance", "-m", str(cell)]) == 2
    assert "there is no fault 'dance'" in capsys.readouterr().err


def test_killed_broker_is_started_again(cell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = brokers_up(capsys, cell)["broker-4"]["pid"]
    os.kill(before, signal.SIGKILL)
    assert eventually(lambda: brokers_up(capsys, cell)["broker-4"]["pid"] != before)


def test_restart_stops_one_broker_and_waits_until_it_is_back(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: row["pid"] for name, row in brokers_up(capsys, cell).items()}
    told = answer(capsys, "restart", "broker-2", "-m", cell)["restarted"]
    after = {name: row["pid"] for name, row in brokers_up(capsys, cell).items()}
    assert [(fact["broker"], fact["pid"]) for fact in told] == [("broker-2", after["broker-2"])]
    assert [name for name in before if before[name] != after[name]] == ["broker-2"]


def test_restart_of_all_brokers_takes_one_after_the_other(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: row["pid"] for name, row in brokers_up(capsys, cell).items()}
    told = answer(capsys, "restart", "-m", cell)["restarted"]
    assert [fact["broker"] for fact in told] == list(before)
    assert not {fact["pid"] for fact in told} & set(before.values())


def test_restart_that_would_stop_the_cell_is_refused(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["restart", "broker-9", "-m", str(cell)]) == 2
    assert "there is no broker 'broker-9' in cell 'cell'" in capsys.readouterr().err
    pids = {name: row["pid"] for name, row in brokers_up(capsys, cell).items()}
    elsewhere = ["--url", "broker-1=http://127.0.0.1:1", "--timeout", "0.3"]
    assert main(["restart", "broker-2", "-m", str(cell), *elsewhere]) == 2
    said = capsys.readouterr().err
    assert "broker-2 was not restarted: besides it only 2 of 4 brokers are up" in said
    assert main(["restart", "broker-1", "-m", str(cell), *elsewhere]) == 2
    assert "broker-1 does not answer; 'quorumcast up' restarts" in capsys.readouterr().err
    assert {name: row["pid"] for name, row in brokers_up(capsys, cell).items()} == pids


def test_new_client_of_a_running_cell_publishes_after_its_epoch(
    cell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added = answer(capsys, "epoch", "add-client", "carol", "-m", cell)
    assert (added["epoch"], added["identity"]) == (2, str(cell / "carol.identity"))
    assert added["restart"] == f"nothing; give carol the identity and {cell / 'manifest.json'}"
    assert answer(capsys, "epoch", "add-channel", "news:ab:0:carol", "-m", cell)["epoch"] == 3
    assert eventually(lambda: {row["epoch"] for row in brokers_up(capsys, cell).values()} == {3})
    assert answer(capsys, "publish", "news", "x", "-m", cell, "-i", "carol")["published"] == 1
    assert main(["epoch", "rotate", "carol", "-m", str(cell)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"identity {cell / 'carol.identity'}" in shown
    assert "restart every program of carol, with the new identity" in shown
    assert answer(capsys, "publish", "news", "y", "-m", cell, "-i", "carol")["published"] == 1


def test_interrupted_subscriber_ends_with_130(cell: Path) -> None:
    with started("subscribe", "audit", "-m", cell, "-i", "bob") as listener:
        said(listener, "subscribed to audit")
        listener.send_signal(signal.SIGINT)
        output, errors = listener.communicate(timeout=PATIENCE_S)
    assert (listener.returncode, output, errors) == (130, "", "")
