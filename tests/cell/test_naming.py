"""Streams that are named: no identity with many lives hides those of others."""

from __future__ import annotations

import pytest
from tests.cell.test_interest import begun
from tests.support.cells import ALICE, B1, B2, BOB, CAROL, ORDERS, T0, Cell, messages, publish

from quorumcast.broadcast.messages import Cursor
from quorumcast.cell import naming
from quorumcast.cell.messages import Positions, Subscribe, Survey
from quorumcast.cell.naming import name_in_turn
from quorumcast.core.ids import NodeId, Stream, at_seat
from quorumcast.core.machine import Receive
from quorumcast.manifest.policy import Policy

HONEST = Stream(ORDERS, CAROL, 2)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "MAX_STREAMS_NAMED", 8)


def lives(publisher: NodeId, *numbers: int) -> list[Cursor]:
    return [Cursor(Stream(ORDERS, publisher, 2 * number), 1) for number in numbers]


def test_naming_short_list_is_left_as_it_is() -> None:
    found = lives(ALICE, *range(8))
    assert name_in_turn(found) == tuple(found)


def test_naming_newest_lives_of_each_identity_come_first_in_turn() -> None:
    found = lives(CAROL, 1, 2) + lives(BOB, 5) + lives(ALICE, *range(100))
    named = lives(CAROL, 1, 2) + lives(BOB, 5) + lives(ALICE, *range(95, 100))
    assert name_in_turn(found) == tuple(named)


def test_naming_seats_of_a_client_have_one_turn_between_them() -> None:
    seats = [cursor for seat in range(64) for cursor in lives(at_seat(ALICE, seat), 1)]
    assert set(name_in_turn(lives(CAROL, 1, 2, 3, 4) + seats)) >= set(lives(CAROL, 1, 2, 3, 4))


@pytest.mark.parametrize("asked", [Subscribe(ORDERS, (), False), Survey(ORDERS)])
def test_broker_names_the_stream_of_another_beside_many_lives_of_one(
    asked: Subscribe | Survey,
) -> None:
    cell = Cell(Policy.named("ab"))
    broker = cell.broker()
    broker.handle(publish(1, b"x", stream=HONEST, sender=CAROL), T0)
    for number in range(20):
        stream = Stream(ORDERS, ALICE, 2 * number)
        broker.handle(publish(1, b"x", stream=stream, sender=ALICE), T0)
    sender = B2 if isinstance(asked, Survey) else BOB
    (answer,) = messages(broker.handle(Receive(sender, asked), T0), Positions)
    assert isinstance(answer, Positions)
    assert len(answer.positions) == 8
    assert HONEST in {position.stream for position in answer.positions}


def test_subscriber_asks_for_the_stream_of_another_beside_many_lives_of_one() -> None:
    made = begun()
    for cursor in lives(CAROL, 1) + lives(ALICE, *range(20)):
        for broker in (B1, B2):
            made.name(broker, cursor.stream)
    asked = made.subscribe_to(B1).cursors
    assert len(asked) == 8
    assert HONEST in {cursor.stream for cursor in asked}
