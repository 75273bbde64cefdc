"""Recalling positions of a total order: enough equal answers, or the news that they are gone.

n = 4, f = 1: two equal answers make a position.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.support.cells import B1, B2, B3, B4, BOB, ORDERS, T0, Cell, digests, messages, sent

from quorumcast.broadcast.application import Join, Leave, Recall, Recalled, Waive
from quorumcast.broadcast.messages import Contents, Pull
from quorumcast.cell.messages import Position, Positions, Subscribe
from quorumcast.cell.subscribing.recalling import MAX_RECALLED, PATIENT_TRIES, RECALL_MS, RecallDue
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import NodeId, Stream, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import (
    CancelTimer,
    Connected,
    Drop,
    DropReason,
    Effect,
    Receive,
    SetTimer,
    Suspect,
    Suspicion,
    TimerFired,
)
from quorumcast.manifest.policy import Policy

BROKERS = (B1, B2, B3, B4)
ORDER = total_order(ORDERS)
DUE = TimerFired(RecallDue(ORDERS))


def positions(broker: NodeId, base: int, end: int) -> Receive:
    return Receive(broker, Positions(ORDERS, (Position(ORDER, base, end),)))


def joined(base: int = 1, end: int = 100, policy: str = "total") -> Subscriber:
    made = Cell(Policy.named(policy)).subscriber(BOB)
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    for broker in BROKERS:
        made.handle(positions(broker, base, end), T0)
    return made


def body(number: int, text: bytes = b"") -> bytes:
    return label(Stream(ORDERS, NodeId("alice"), 1), number) + (text or b"%d" % number)


def answer(broker: NodeId, first: int, *bodies: bytes) -> Receive:
    return Receive(broker, Contents(ORDER, first, digests(*bodies)), bodies)


def recalled(effects: list[Effect]) -> list[tuple[int, bytes | None]]:
    return [
        (effect.position, None if effect.found is None else effect.found.body)
        for effect in effects
        if isinstance(effect, Recalled)
    ]


def test_recall_asks_no_more_brokers_than_it_needs() -> None:
    effects = joined().handle(Recall(ORDERS, 5, 2), T0)
    assert [send.to for send in sent(effects, Pull)] == [(B1, B2)]
    assert messages(effects, Pull) == [Pull(ORDER, 5, 2)]


def test_recall_equal_answers_make_a_position() -> None:
    made = joined()
    made.handle(Recall(ORDERS, 5, 2), T0)
    assert recalled(made.handle(answer(B1, 5, body(5), body(6)), T0)) == []
    assert recalled(made.handle(answer(B1, 5, body(5), body(6)), T0)) == []
    effects = made.handle(answer(B2, 5, body(5), body(6)), T0)
    assert recalled(effects) == [(5, b"5"), (6, b"6")]
    found = next(e.found for e in effects if isinstance(e, Recalled))
    assert found is not None
    assert (found.position, found.number, found.stream.publisher) == (5, 5, "alice")
    assert found.votes == (B1, B2)
    assert made.sizes()["recalled"] == 0


def test_recall_liar_is_outvoted_and_suspected() -> None:
    made = joined()
    made.handle(Recall(ORDERS, 5, 1), T0)
    made.handle(answer(B1, 5, body(5, b"lie")), T0)
    assert recalled(made.handle(answer(B2, 5, body(5)), T0)) == []
    effects = made.handle(DUE, T0)
    assert [send.to for send in sent(effects, Pull)] == [BROKERS]
    # Its second answer does not count.
    assert recalled(made.handle(answer(B1, 5, body(5)), T0)) == []
    effects = made.handle(answer(B3, 5, body(5)), T0)
    assert recalled(effects) == [(5, b"5")]
    assert Suspect(B1, Suspicion.DISSENT, ORDER, 5) in effects


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Receive(B1, Contents(ORDER, 5, digests(b"x")), (b"y",)), DropReason.BAD_BODY),
        (Receive(B1, Contents(ORDER, 5, digests(b"x")), ()), DropReason.BAD_RUN),
        (Receive(B1, Contents(ORDER, 5, b"x" * 33), (b"y",)), DropReason.BAD_RUN),
    ],
)
def test_recall_nonsense_is_dropped(message: Receive, reason: DropReason) -> None:
    made = joined()
    made.handle(Recall(ORDERS, 5, 1), T0)
    assert Drop(reason, B1) in made.handle(message, T0)
    assert made.sizes()["recalled"] == 1


def test_recall_late_answers_are_asked_for_again_with_bases() -> None:
    made = joined()
    made.handle(Recall(ORDERS, 5, 2), T0)
    effects = made.handle(DUE, T0)
    assert len(messages(effects, Subscribe)) == 4
    assert [send.to for send in sent(effects, Pull)] == [BROKERS]


def test_recall_asks_for_much_at_once_when_brokers_answer_again() -> None:
    """They were away for long, and it had come to ask for one position at a time, ever later."""
    made = joined()
    made.handle(Recall(ORDERS, 5, 20), T0)
    asked = [messages(made.handle(DUE, T0), Pull) for _ in range(5)]
    assert asked[-1] == [Pull(ORDER, 5, 1)]
    made.handle(answer(B1, 5, body(5)), T0)
    effects = made.handle(answer(B2, 5, body(5)), T0)
    assert SetTimer(RecallDue(ORDERS), RECALL_MS) in effects
    assert messages(made.handle(DUE, T0), Pull) == [Pull(ORDER, 6, 19)]


def test_recall_positions_that_are_gone_are_announced() -> None:
    made = joined(base=50)
    effects = made.handle(Recall(ORDERS, 48, 3), T0)
    assert recalled(effects) == [(48, None), (49, None)]
    assert [e.oldest for e in effects if isinstance(e, Recalled)] == [50, 50]
    for broker in BROKERS:
        made.handle(positions(broker, 60, 110), T0)
    assert recalled(made.handle(DUE, T0)) == [(50, None)]
    assert made.handle(DUE, T0) == []


def test_recall_waits_for_brokers_that_are_down_only_so_long() -> None:
    made = Cell(Policy.named("total-crash"), n=3).subscriber(BOB)
    for broker in (B1, B2):
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    for broker in (B1, B2):
        made.handle(positions(broker, 50, 100), T0)
    assert recalled(made.handle(Recall(ORDERS, 5, 1), T0)) == []
    late = []
    for _ in range(PATIENT_TRIES):
        late.append(recalled(made.handle(DUE, T0)))
        for broker in (B1, B2):
            made.handle(positions(broker, 50, 100), T0)
    assert late == [[]] * (PATIENT_TRIES - 1) + [[(5, None)]]


def test_recall_liars_cannot_declare_a_position_gone() -> None:
    made = joined()
    made.handle(Recall(ORDERS, 5, 1), T0)
    made.handle(positions(B1, 90, 100), T0)
    assert recalled(made.handle(DUE, T0)) == []


def test_recall_keeps_no_more_than_its_bound() -> None:
    made = joined(end=5000)
    for first in (1, MAX_RECALLED):
        made.handle(Recall(ORDERS, first, MAX_RECALLED), T0)
    assert made.sizes()["recalled"] == MAX_RECALLED
    made.handle(Leave(ORDERS), T0)
    assert made.sizes()["recalled"] == 0


def test_recall_that_nobody_waits_for_any_more_makes_room() -> None:
    made = joined(end=5000)
    made.handle(Recall(ORDERS, 1, MAX_RECALLED), T0)
    made.handle(Waive(ORDERS, 1, MAX_RECALLED // 2), T0)
    made.handle(Recall(ORDERS, 3000, 1), T0)
    assert made.sizes()["recalled"] == MAX_RECALLED // 2 + 1
    ended = made.handle(Waive(ORDERS, 1, 5000), T0)
    assert ended == [CancelTimer(RecallDue(ORDERS))]
    assert made.sizes()["recalled"] == 0
    assert made.handle(Waive(ORDERS, 1, 5000), T0) == []


def test_recall_without_one_order_or_an_interest_does_nothing() -> None:
    assert joined(policy="ab").handle(Recall(ORDERS, 1, 1), T0) == []
    made = Cell(Policy.named("total")).subscriber(BOB)
    assert made.handle(Recall(ORDERS, 1, 1), T0) == []


def test_recall_answer_of_a_broker_that_has_left_the_cell_no_longer_counts() -> None:
    cell = Cell(Policy.named("total"), n=5)
    made = cell.subscriber(BOB)
    gone = cell.manifest.broker_ids[-1]
    for broker in cell.manifest.broker_ids:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    for broker in cell.manifest.broker_ids:
        made.handle(positions(broker, 1, 100), T0)
    made.handle(Recall(ORDERS, 7, 1), T0)
    assert recalled(made.handle(answer(gone, 7, body(7, b"a lie")), T0)) == []
    brokers = tuple(entry for entry in cell.manifest.brokers if entry.id != gone)
    made.adopt(msgspec.structs.replace(cell.manifest, epoch=2, brokers=brokers), cell.keyring(BOB))
    assert recalled(made.handle(answer(B1, 7, body(7, b"a lie")), T0)) == []
    made.handle(answer(B2, 7, body(7)), T0)
    assert recalled(made.handle(answer(B3, 7, body(7)), T0)) == [(7, b"7")]
