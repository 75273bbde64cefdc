"""The log of an observer: it times others by when it listens, and costs a node only notes."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.support.cells import B1, B2, B3, B4, BOB, ORDERS, STREAM, Cell, digests

from quorumcast.broadcast.application import Deliver
from quorumcast.cell.messages import Positions, Vote
from quorumcast.core.ids import Digest, Millis
from quorumcast.core.machine import Connected, Effect, Receive
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.observations import LONGEST_MS, LONGEST_PAUSE_MS, ObservationLog
from quorumcast.watch.observer import Observer
from quorumcast.watch.turnout import OVERDUE_MS

BROKERS = (B1, B2, B3, B4)
MANIFEST = Cell(Policy.named("ab"), 4).manifest


class Logged:
    """Bob's log, and the time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = ObservationLog(directory, MANIFEST, BOB, "subscriber")
        self.now = 10_000
        for broker in BROKERS:
            self.take(Connected(broker))
        self.wait(2 * OVERDUE_MS)
        for broker in BROKERS:
            self.take(Receive(broker, Positions(ORDERS, ())))

    def take(self, event: Any, *effects: Effect) -> None:
        self.log.on_handled(event, list(effects), Millis(self.now))

    def wait(self, ms: int) -> None:
        """Listen for a while."""
        for _ in range(ms // 50):
            self.now += 50
            self.log.look(Millis(self.now))

    def accept(self) -> None:
        """Three vote, and that is enough."""
        for broker in (B1, B2):
            self.take(Receive(broker, Vote(STREAM, 1, digests(b"1"))))
        delivered = Deliver(STREAM, 1, Digest(digests(b"1")), b"", (B1, B2, B3))
        self.take(Receive(B3, Vote(STREAM, 1, digests(b"1"))), delivered)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        self.log.close()
        rows = pq.read_table(self.directory / "observations" / "observer=bob").to_pylist()
        return [row for row in rows if row["kind"] == kind]


def test_who_never_votes_is_missing_at_the_time_of_the_wall(tmp_path: Path) -> None:
    bob = Logged(tmp_path)
    bob.wait(LONGEST_PAUSE_MS)
    bob.now += 60_000
    bob.accept()
    began = bob.now
    bob.wait(2 * OVERDUE_MS)
    (row,) = bob.rows("missing")
    (came,) = (r for r in bob.rows("came") if r["accused"] == B1)
    assert row["accused"] == B4
    assert 0 < row["t_ms"] - came["t_ms"] <= bob.now - began


@pytest.mark.parametrize("pauses", [1, 2])
def test_subscriber_that_was_stopped_hears_first_what_has_come_meanwhile(
    tmp_path: Path, pauses: int
) -> None:
    bob = Logged(tmp_path)
    bob.accept()
    for _ in range(pauses):
        bob.now += 10 * OVERDUE_MS
        bob.take(Receive(B1, Vote(STREAM, 2, digests(b"2"))))
        bob.wait(50)
    bob.take(Receive(B4, Vote(STREAM, 1, digests(b"1"))))
    bob.wait(2 * OVERDUE_MS)
    assert bob.rows("missing") == []


def test_subscriber_whose_application_is_behind_misses_nothing(tmp_path: Path) -> None:
    bob = Logged(tmp_path)
    bob.accept()
    for _ in range(20):
        bob.log.on_held(Millis(bob.now))
        bob.wait(OVERDUE_MS)
        bob.log.on_released(Millis(bob.now))
        bob.wait(OVERDUE_MS // 2)
    bob.wait(2 * OVERDUE_MS)
    assert bob.rows("missing") == []


def test_new_epoch_is_observed_anew(tmp_path: Path) -> None:
    bob = Logged(tmp_path)
    bob.accept()
    fewer = tuple(broker for broker in MANIFEST.brokers if broker.id != B4)
    later = msgspec.structs.replace(MANIFEST, epoch=2, f=0, brokers=fewer)
    bob.log.on_adopted(later, [], Millis(bob.now))
    bob.wait(2 * OVERDUE_MS)
    for broker in (B1, B2, B3):
        bob.take(Receive(broker, Positions(ORDERS, ())))
    bob.wait(2 * OVERDUE_MS)
    bob.take(Connected(B1), Deliver(STREAM, 2, Digest(digests(b"2")), b"", (B1,)))
    bob.wait(2 * OVERDUE_MS)
    assert {row["accused"] for row in bob.rows("missing")} == {B2, B3}


def test_mistake_in_taking_notes_ends_the_notes_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = Logged(tmp_path)

    def raising(*_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(Observer, "on_event", raising)
    with caplog.at_level(logging.ERROR, "quorumcast"):
        bob.accept()
        bob.wait(OVERDUE_MS)
        bob.log.close()
    assert len(caplog.records) == 1


def test_log_that_follows_another_in_the_same_process_keeps_its_files(tmp_path: Path) -> None:
    for broker in (B1, B2):
        log = ObservationLog(tmp_path, MANIFEST, BOB, "subscriber")
        log.on_handled(Connected(broker), [], Millis(1))
        log.close()
    rows = pq.read_table(tmp_path / "observations" / "observer=bob").to_pylist()
    assert {row["accused"] for row in rows} == {B1, B2}


def test_notes_that_cannot_be_written_are_lost_and_said_once_and_the_next_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "log"
    log = ObservationLog(directory, MANIFEST, BOB, "subscriber")
    shutil.rmtree(directory)
    directory.write_text("where a directory should be")
    with caplog.at_level(logging.WARNING, "quorumcast"):
        for turn in (1, 2, 3):
            log.on_handled(Connected(B1), [], Millis(turn * 2 * LONGEST_MS))
            log.look(Millis(turn * 2 * LONGEST_MS))
    assert [record.getMessage() for record in caplog.records] == ["observations are lost"]
    directory.unlink()
    log.on_handled(Connected(B1), [], Millis(8 * LONGEST_MS))
    log.close()
    own = directory / "observations" / "observer=bob"
    assert {row["kind"] for row in pq.read_table(own).to_pylist()} == {"link"}


_WRITES = """
import sys
from pathlib import Path
from tests.runtime.test_observations import Logged

assert "pandas" not in sys.modules
bob = Logged(Path(sys.argv[1]))
before = set(sys.modules)
bob.accept()
bob.log.close()
assert list(Path(sys.argv[1]).glob("observations/*/*.parquet"))
print(sorted(set(sys.modules) - before))
"""


def test_nothing_is_loaded_for_the_first_time_while_others_wait_for_the_node(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WRITES, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.stdout.strip(), ran.returncode) == ("[]", 0), ran.stderr
