"""The observer: what a node notices of its peers, from events and effects alone. n = 4, f = 1."""

from __future__ import annotations

import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, ORDERS, STREAM, Cell, digests

from quorumcast.agents import observation
from quorumcast.agents.observation import COLUMNS, Observation, columns_of
from quorumcast.agents.observer import Observer
from quorumcast.agents.turnout import BUCKETS, PATIENCE_MS, bucket_of
from quorumcast.core.ids import Digest, Millis, NodeId
from quorumcast.core.machine import (
    Connected,
    Deliver,
    Disconnected,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.messages import (
    Ack,
    Checkpoint,
    Position,
    Positions,
    Publish,
    Ready,
    Subscribe,
    Vote,
    Write,
)
from quorumcast.core.quorum import Protection
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)
#: Links that have been up for a while.
LATER = PATIENCE_MS


class Watched:
    """An observer of one node, and the time."""

    def __init__(self, me: NodeId, role: str, policy: str = "ab") -> None:
        self.cell = Cell(Policy.named(policy))
        self.observer = Observer(self.cell.manifest, me, role)
        self.now = 0
        for broker in BROKERS:
            if broker != me:
                self.event(Connected(broker))
        self.now = LATER

    def event(self, event: Event) -> None:
        self.observer.on_event(event, Millis(self.now))

    def hear(self, sender: NodeId, message: object) -> None:
        self.event(Receive(sender, message))  # type: ignore[arg-type]

    def effect(self, effect: Effect) -> None:
        self.observer.on_effect(effect, Millis(self.now))

    def send(self, to: NodeId, message: object) -> None:
        self.effect(Send((to,), message))  # type: ignore[arg-type]

    def accept(self, number: int) -> None:
        digest = Digest(digests(b"%d" % number))
        self.effect(Deliver(STREAM, number, digest, b"", (B1, B2)))

    def rows(self, kind: str) -> list[Observation]:
        self.observer.close(Millis(self.now))
        return [row for row in self.observer.notes.take(all_=True) if row.kind == kind]

    def found(self, kind: str) -> set[tuple[str, str, str]]:
        return {(row.accused, row.reason, row.message) for row in self.rows(kind)}


def vote(number: int) -> Vote:
    return Vote(STREAM, number, digests(b"%d" % number))


def test_vote_that_never_comes_is_missing_and_late_ones_are_classed() -> None:
    bob = Watched(BOB, "subscriber")
    for broker in (B1, B2):
        bob.hear(broker, vote(1))
    bob.accept(1)
    bob.now += 50
    bob.hear(B3, vote(1))
    bob.now += PATIENCE_MS
    rows = bob.rows("came")
    assert {row.accused: row.number for row in rows} == {
        B1: BUCKETS[0], B2: BUCKETS[0], B3: bucket_of(50),
    }  # fmt: skip
    assert bucket_of(50) == 80


def test_missing_vote_is_told_with_its_number() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(7))
    bob.accept(7)
    bob.now += PATIENCE_MS
    missing = bob.rows("missing")
    assert {(row.accused, row.message, row.number) for row in missing} == {
        (broker, "Vote", 7) for broker in (B2, B3, B4)
    }


def test_nothing_is_missing_over_a_link_that_was_down_or_lost_packets() -> None:
    bob = Watched(BOB, "subscriber")
    bob.event(Disconnected(B2))
    bob.event(Connected(B2))
    bob.observer.on_lost(B3, Millis(bob.now))
    bob.accept(1)
    bob.now += PATIENCE_MS
    assert {row.accused for row in bob.rows("missing")} == {B1, B4}


def test_votes_out_of_order_are_backwards_unless_they_were_asked_for() -> None:
    bob = Watched(BOB, "subscriber")
    for number in (1, 3, 2):
        bob.hear(B1, vote(number))
    bob.send(B2, Subscribe(ORDERS, (), bodies=False))
    for number in (1, 3, 2):
        bob.hear(B2, vote(number))
    assert bob.found("backwards") == {(B1, "", "Vote")}


def test_request_without_an_answer_is_told_and_an_answered_one_is_not() -> None:
    bob = Watched(BOB, "subscriber")
    for broker in (B1, B2):
        bob.send(broker, Subscribe(ORDERS, (), bodies=False))
    bob.hear(B1, Positions(ORDERS, ()))
    bob.now += PATIENCE_MS
    assert bob.found("unanswered") == {(B2, "", "Subscribe")}


def test_acknowledgement_of_what_was_never_sent_is_a_boast() -> None:
    alice = Watched(ALICE, "publisher")
    alice.send(B1, Publish(STREAM, 1, digests(b"1")))
    alice.hear(B1, Ack(STREAM, 1, 10))
    alice.hear(B2, Ack(STREAM, 2, 10))
    assert alice.found("boasts") == {(B2, "unsent", "Ack")}


def test_position_far_from_all_others_is_a_boast() -> None:
    bob = Watched(BOB, "subscriber")
    for broker, end in ((B1, 5), (B2, 6), (B3, 10**6)):
        bob.hear(broker, Positions(ORDERS, (Position(STREAM, 1, end),)))
    assert bob.found("boasts") == {(B3, "ahead", "Positions")}


def test_ready_for_another_run_than_this_broker_contradicts() -> None:
    broker = Watched(B1, "broker", "brb")
    broker.hear(B2, Ready(STREAM, 1, b"a" * 32))
    broker.send(B2, Ready(STREAM, 1, b"b" * 32))
    broker.hear(B3, Ready(STREAM, 1, b"b" * 32))
    broker.hear(B4, Ready(STREAM, 1, b"c" * 32))
    broker.hear(B4, Ready(STREAM, 1, b"b" * 32))
    assert broker.found("contradicts") == {
        (B2, "others", "Ready"), (B4, "others", "Ready"), (B4, "itself", "Ready"),
    }  # fmt: skip


def test_leader_that_writes_otherwise_than_f_plus_one_others_contradicts_as_leader() -> None:
    broker = Watched(B4, "broker", "total")
    for sender, value in ((B1, b"a"), (B2, b"b"), (B3, b"b")):
        broker.hear(sender, Write(Protection.BYZANTINE, 0, 1, value * 32))
    assert broker.found("contradicts") == {(B1, "leading", "Write")}


def test_signed_statement_otherwise_than_what_was_accepted_contradicts_and_is_kept() -> None:
    bob = Watched(BOB, "subscriber")
    bob.accept(1)
    bob.hear(B1, Checkpoint(bob.cell.segment(B1, 1, b"1")[1]))
    bob.hear(B2, Checkpoint(bob.cell.segment(B2, 1, b"other")[1]))
    assert bob.found("contradicts") == {(B2, "accepted", "Checkpoint")}
    kept = bob.observer.take_documents()
    assert [(document.kind, document.subject) for document in kept] == [
        ("statement", B1), ("statement", B2),
    ]  # fmt: skip


def test_what_the_machine_suspects_and_ignores_is_told_with_the_message() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    bob.effect(Suspect(B1, Suspicion.DISSENT, STREAM, 1))
    bob.effect(Drop(DropReason.BAD_RUN, B1))
    assert bob.found("suspect") == {(B1, "dissent", "Vote")}
    assert bob.found("refused") == set()  # rows are handed out once


def test_flood_of_different_observations_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "MAX_DIFFERENT", 8)
    bob = Watched(BOB, "subscriber")
    for incarnation in range(100):
        stream = type(STREAM)(ORDERS, ALICE, incarnation)
        bob.effect(Suspect(B1, Suspicion.DISSENT, stream, 1))
    rows = bob.rows("suspect")
    assert len(rows) <= 9
    assert sum(row.count for row in rows) == 100


def test_rows_become_columns_with_run_and_shifted_times() -> None:
    bob = Watched(BOB, "subscriber")
    bob.hear(B1, vote(1))
    rows = bob.rows("heard")
    columns = columns_of("run-1", rows, shift_ms=1000)
    assert list(columns) == list(COLUMNS)
    assert columns["run"] == ["run-1"]
    assert columns["t_ms"] == [rows[0].t_ms + 1000]
