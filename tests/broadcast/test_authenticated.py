"""Authenticated broadcast at a broker (Freeman, algorithm 2)."""

from __future__ import annotations

from tests.support.cells import (
    AB,
    ALICE,
    B2,
    BOB,
    STREAM,
    T0,
    Cell,
    bodies,
    digests,
    feed,
    limited,
    publish,
    reasons,
)

from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.contract import Vouch
from quorumcast.broadcast.messages import Contents, Open, Publish, Pull, Ready
from quorumcast.core.machine import Drop, DropReason, Receive, Send, Suspect, Suspicion

CELL = Cell(AB)


def relay() -> Relay:
    return Relay(STREAM, CELL.around())


def test_relay_first_contents_of_a_number_is_forwarded() -> None:
    assert relay().handle(publish(1, b"a"), T0) == [Vouch(STREAM, 1, digests(b"a"))]


def test_relay_same_contents_again_is_not_forwarded_again() -> None:
    """Algorithm 2, lines 5 and 8: `sent` is set once."""
    broker = relay()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(publish(1, b"a"), T0) == [Drop(DropReason.DUPLICATE, ALICE)]


def test_relay_other_contents_for_a_number_is_refused_and_suspected() -> None:
    broker = relay()
    broker.handle(publish(1, b"a"), T0)
    assert broker.handle(publish(1, b"b"), T0) == [
        Drop(DropReason.CONFLICT, ALICE),
        Suspect(ALICE, Suspicion.EQUIVOCATION, STREAM, 1),
    ]
    assert broker.ledger.digest(1) == digests(b"a")


def test_relay_overlapping_run_only_its_new_part_is_forwarded() -> None:
    broker = relay()
    broker.handle(publish(1, b"a", b"b"), T0)
    assert broker.handle(publish(2, b"b", b"c"), T0) == [Vouch(STREAM, 3, digests(b"c"))]


def test_relay_run_beyond_the_next_number_is_out_of_turn() -> None:
    assert relay().handle(publish(2, b"b"), T0) == [Drop(DropReason.OUT_OF_TURN, ALICE)]


def test_relay_run_of_another_sender_is_refused() -> None:
    effects = relay().handle(publish(1, b"a", sender=B2), T0)
    assert effects == [Drop(DropReason.WRONG_SENDER, B2)]


def test_relay_body_with_another_hash_is_refused() -> None:
    event = Receive(ALICE, Publish(STREAM, 1, digests(b"a")), (b"b",))
    assert relay().handle(event, T0) == [Drop(DropReason.BAD_BODY, ALICE)]


def test_relay_digests_and_bodies_that_do_not_pair_are_refused() -> None:
    for event in (
        Receive(ALICE, Publish(STREAM, 1, digests(b"a")), ()),
        Receive(ALICE, Publish(STREAM, 1, digests(b"a")), (b"a", b"b")),
        Receive(ALICE, Publish(STREAM, 1, digests(b"a") + b"x"), (b"a", b"")),
    ):
        assert relay().handle(event, T0) == [Drop(DropReason.BAD_RUN, ALICE)]


def test_relay_pull_is_answered_with_what_is_held() -> None:
    broker = relay()
    broker.handle(publish(1, b"a", b"b"), T0)
    assert broker.handle(Receive(BOB, Pull(STREAM, 2, 5)), T0) == [
        Send((BOB,), Contents(STREAM, 2, digests(b"b")), (b"b",))
    ]


def test_relay_pull_of_what_is_not_held_is_dropped() -> None:
    broker = Relay(STREAM, Cell(limited("ab", retained_publications=1)).around())
    feed(broker.handle, publish(1, b"a"), publish(2, b"b"))
    assert reasons(broker.handle(Receive(BOB, Pull(STREAM, 3, 1)), T0)) == [DropReason.NOT_HELD]
    assert reasons(broker.handle(Receive(BOB, Pull(STREAM, 1, 2)), T0)) == [DropReason.NOT_HELD]


def test_relay_open_skips_what_the_publisher_no_longer_holds() -> None:
    broker = relay()
    assert broker.handle(Receive(ALICE, Open(STREAM, 5, 1)), T0) == []
    assert (broker.upto, broker.ledger.base) == (4, 5)
    assert broker.handle(publish(5, b"e"), T0) == [Vouch(STREAM, 5, digests(b"e"))]


def test_relay_open_of_a_broker_that_forgot_goes_on_where_it_was() -> None:
    broker = relay()
    broker.handle(Receive(ALICE, Open(STREAM, 2, 8)), T0)
    assert (broker.upto, broker.ledger.base) == (7, 8)


def test_relay_open_of_a_broker_that_remembers_changes_nothing() -> None:
    broker = relay()
    broker.handle(publish(1, b"a", b"b"), T0)
    broker.handle(Receive(ALICE, Open(STREAM, 3, 8)), T0)
    assert (broker.upto, broker.ledger.base) == (2, 1)


def test_relay_open_of_another_sender_skips_nothing() -> None:
    broker = relay()
    effects = broker.handle(Receive(B2, Open(STREAM, 5, 1)), T0)
    assert effects == [Drop(DropReason.WRONG_SENDER, B2)]
    assert broker.upto == 0


def test_relay_message_of_another_protocol_is_unexpected() -> None:
    event = Receive(B2, Ready(STREAM, 1, digests(b"a")))
    assert relay().handle(event, T0) == [Drop(DropReason.UNEXPECTED, B2)]


def test_relay_progress_is_acknowledged_and_credited() -> None:
    broker = Relay(STREAM, Cell(limited("ab", window=10)).around())
    broker.handle(publish(1, *bodies(1, 3)), T0)
    assert (broker.upto, broker.credit, broker.settled, broker.final) == (3, 13, 0, 3)


def test_relay_ledger_fills_up_to_its_limit() -> None:
    broker = Relay(STREAM, Cell(limited("ab", retained_publications=5)).around())
    for number in range(1, 50):
        broker.handle(publish(number, *bodies(number, 1)), T0)
    assert broker.sizes() == {"ledger": 5}
