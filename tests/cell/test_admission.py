"""Places: how many clients may publish and listen at the same time. n = 4, f = 1."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    BOB,
    CAROL,
    ORDERS,
    T0,
    Cell,
    limited,
    messages,
    publish,
    reasons,
)
from tests.support.ordering import offer

from quorumcast.broadcast.application import Join, Leave, Refused, Submit
from quorumcast.broadcast.messages import Ack, Open
from quorumcast.cell.messages import Finish, Positions, Refuse, Subscribe, Unsubscribe
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import Millis, NodeId, Stream, at_seat
from quorumcast.core.limits import MAX_SEATS
from quorumcast.core.machine import Connected, Disconnected, DropReason, Effect, Receive
from quorumcast.ordering.messages import Offer

BROKERS = (B1, B2, B3, NodeId("b4"))
FULL = (
    "channel 'orders' has its 1 subscribers already; try again when one has left, or ask the "
    "operator to raise the limit 'subscribers'"
)


def refusals(effects: list[Effect]) -> list[Refuse]:
    return [m for m in messages(effects, Refuse) if isinstance(m, Refuse)]


def listen(broker: Broker, reader: NodeId, now: int = 0) -> list[Refuse]:
    return refusals(broker.handle(Receive(reader, Subscribe(ORDERS, (), True)), Millis(now)))


def open_stream(broker: Broker, publisher: NodeId) -> list[Refuse]:
    stream = Stream(ORDERS, publisher, 1)
    return refusals(broker.handle(Receive(publisher, Open(stream, 1, 1)), T0))


@pytest.mark.parametrize("name", ["ab", "chain+history", "total"])
def test_subscriber_beyond_the_limit_is_refused_until_one_leaves_or_is_gone(name: str) -> None:
    broker = Cell(limited(name, subscribers=1)).broker()
    assert listen(broker, BOB) == []
    assert listen(broker, CAROL) == [Refuse(ORDERS, FULL, listening=True)]
    assert listen(broker, BOB, 100) == []  # whoever has a place keeps it
    broker.handle(Receive(BOB, Unsubscribe(ORDERS)), T0)
    assert listen(broker, CAROL, 200) == []
    assert listen(broker, BOB, 300) != []
    broker.handle(Disconnected(CAROL), T0)
    assert listen(broker, BOB, 400) == []


def test_subscriber_that_is_refused_for_want_of_a_place_is_counted_as_over_the_limit() -> None:
    broker = Cell(limited("ab", subscribers=1)).broker()
    listen(broker, BOB)
    effects = broker.handle(Receive(CAROL, Subscribe(ORDERS, (), True)), T0)
    assert reasons(effects) == [DropReason.OVER_LIMIT]
    assert broker.subscribers() == {ORDERS: {BOB: 0}}


@pytest.mark.parametrize("name", ["direct", "ab", "brb", "chain", "ab+history", "total"])
def test_publisher_beyond_the_limit_is_refused_until_one_finishes_or_is_gone(name: str) -> None:
    broker = Cell(limited(name, publishers=1)).broker()
    assert open_stream(broker, ALICE) == []
    (refused,) = open_stream(broker, BOB)
    assert "has its 1 publishers already" in refused.reason
    assert "raise the limit 'publishers'" in refused.reason
    assert refused.listening is False
    assert open_stream(broker, ALICE) == []
    broker.handle(Receive(ALICE, Finish(ORDERS)), T0)
    assert open_stream(broker, BOB) == []
    assert open_stream(broker, ALICE) != []
    broker.handle(Disconnected(BOB), T0)
    assert open_stream(broker, ALICE) == []
    assert broker.publishers() == {ORDERS: [ALICE]}


def test_seats_of_a_client_have_one_place_between_them() -> None:
    """Or one client that takes all its seats would keep everybody else out."""
    broker = Cell(limited("ab", publishers=2, subscribers=2)).broker()
    seats = [at_seat(ALICE, seat) for seat in range(MAX_SEATS + 1)]
    for seat in seats:
        assert open_stream(broker, seat) == []
        assert listen(broker, seat) == []
    assert open_stream(broker, BOB) == []
    assert listen(broker, BOB) == []
    assert open_stream(broker, CAROL) != []
    assert listen(broker, CAROL) != []
    for seat in seats[1:]:
        broker.handle(Disconnected(seat), T0)
    assert open_stream(broker, CAROL) != []  # alice is still there
    broker.handle(Disconnected(ALICE), T0)
    assert open_stream(broker, CAROL) == []
    assert listen(broker, CAROL, 100) == []


def test_publisher_without_a_place_publishes_nothing_and_offers_nothing() -> None:
    broker = Cell(limited("ab", publishers=1)).broker()
    open_stream(broker, BOB)
    effects = broker.handle(publish(1, b"x"), T0)
    assert len(refusals(effects)) == 1
    assert messages(effects, Ack) == []
    cell = Cell(limited("total", publishers=1))
    ordering = cell.broker()
    open_stream(ordering, BOB)
    message, bodies = offer(cell, 1, b"x")
    assert isinstance(message, Offer)
    assert len(refusals(ordering.handle(Receive(ALICE, message, bodies), T0))) == 1
    # What a broker passes on in its name needs no place.
    assert refusals(ordering.handle(Receive(B2, message, bodies), T0)) == []


# ------------------------------------------------------------------- clients


def subscriber() -> Subscriber:
    made = Cell(limited("ab", subscribers=1)).subscriber(BOB)
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    return made


def hear(client: Subscriber | Publisher, broker: NodeId, refuse: Refuse) -> list[Refused]:
    effects = client.handle(Receive(broker, refuse), T0)
    return [effect for effect in effects if isinstance(effect, Refused)]


def test_subscriber_is_refused_by_f_plus_one_and_may_try_again_in_the_same_process() -> None:
    made, refuse = subscriber(), Refuse(ORDERS, FULL, listening=True)
    assert hear(made, B1, refuse) == []
    assert hear(made, B2, refuse) == [Refused(ORDERS, FULL)]
    made.handle(Leave(ORDERS), T0)
    assert len(messages(made.handle(Join(ORDERS), T0), Subscribe)) == len(BROKERS)
    assert hear(made, B3, refuse) == []
    assert hear(made, B1, refuse) == [Refused(ORDERS, FULL)]


def test_subscriber_that_a_broker_serves_after_all_is_not_refused_by_one_more() -> None:
    made, refuse = subscriber(), Refuse(ORDERS, FULL, listening=True)
    assert hear(made, B1, refuse) == []
    made.handle(Receive(B1, Positions(ORDERS, ())), T0)
    assert hear(made, B2, refuse) == []
    assert hear(made, B1, refuse) == [Refused(ORDERS, FULL)]


def test_refusals_of_publishers_and_of_subscribers_are_not_mixed_up() -> None:
    listening, publishing = (
        Refuse(ORDERS, "x", listening=True),
        Refuse(ORDERS, "x", listening=False),
    )
    made = subscriber()
    assert [hear(made, broker, publishing) for broker in BROKERS] == [[]] * 4
    author = Cell(limited("ab")).publisher()
    author.open(ORDERS)
    assert [hear(author, broker, listening) for broker in BROKERS] == [[]] * 4


def test_publisher_that_is_refused_leaves_its_places_and_says_nothing_until_opened_again() -> None:
    author = Cell(limited("ab", publishers=1)).publisher()
    for broker in BROKERS:
        author.handle(Connected(broker), T0)
    assert len(messages(author.open(ORDERS), Open)) == len(BROKERS)
    refuse = Refuse(ORDERS, "full", listening=False)
    author.handle(Receive(B1, refuse), T0)
    effects = author.handle(Receive(B2, refuse), T0)
    assert effects[0] == Refused(ORDERS, "full")
    assert messages(effects, Finish) == [Finish(ORDERS)]
    assert messages(author.handle(Connected(B1), T0), Open) == []
    assert len(messages(author.open(ORDERS), Open)) == len(BROKERS)
    author.handle(Receive(B1, refuse), T0)
    assert Refused(ORDERS, "full") in author.handle(Receive(B2, refuse), T0)


def test_publisher_that_is_closed_leaves_its_places_once_everything_has_arrived() -> None:
    author = Cell(limited("ab")).publisher()
    for broker in BROKERS:
        author.handle(Connected(broker), T0)
    author.open(ORDERS)
    stream = author.stream(ORDERS)
    for broker in BROKERS:
        author.handle(Receive(broker, Ack(stream, 0, 100)), T0)
    author.handle(Submit(ORDERS, (b"x",)), T0)
    assert messages(author.finish(ORDERS), Finish) == []
    for broker in BROKERS[:3]:
        assert messages(author.handle(Receive(broker, Ack(stream, 1, 100)), T0), Finish) == []
    last = author.handle(Receive(BROKERS[3], Ack(stream, 1, 100)), T0)
    assert messages(last, Finish) == [Finish(ORDERS)]
