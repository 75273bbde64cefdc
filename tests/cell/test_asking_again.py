"""What a subscriber asks for again, so that nothing that brokers hold is missing for long."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cell.test_interest import begun, say
from tests.support.cell_network import CellNetwork
from tests.support.cells import (
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    CAROL,
    ORDERS,
    STREAM,
    T0,
    Cell,
    limited,
    publish,
    vote,
)

from quorumcast.broadcast.application import Deliver, DeliverGap, Join, Submit
from quorumcast.cell.messages import Position, Positions, Subscribe
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.cell.subscribing.lives import DISPLACED_TICKS
from quorumcast.cell.subscribing.reports import FRESH_ROUNDS
from quorumcast.cell.subscribing.rhythm import IDLE_TICKS
from quorumcast.cell.subscribing.subscriber import REFRESH_MS, Refresh, Subscriber
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.limits import MAX_STREAMS_NAMED
from quorumcast.core.machine import Connected, Effect, Receive, Send, TimerFired

BROKERS = (B1, B2, B3, B4)
THEIRS = Stream(ORDERS, CAROL, 1)
#: The time within which a subscriber asks for a whole channel, whatever moves.
LONGEST_MS = (IDLE_TICKS + 2) * REFRESH_MS


class Watched:
    """A cell with these publishers, and what bob is told."""

    def __init__(self, *publishers: NodeId, replay: int = 1024) -> None:
        self.cell = Cell(limited("ab", replay=replay), clients=(BOB, *publishers))
        self.network = CellNetwork(self.cell, self._watch, lambda *words: None)
        self.got: Counter[NodeId] = Counter()
        for broker in self.cell.manifest.broker_ids:
            self.network.start_broker(broker)
        for publisher in publishers:
            self.network.enter(publisher, self.cell.publisher(publisher))

    def _watch(self, now: int, node: NodeId, effect: Effect) -> None:
        if node == BOB and isinstance(effect, Deliver):
            self.got[effect.stream.publisher] += 1

    def publish(self, publisher: NodeId, count: int = 1) -> None:
        self.network.happen(publisher, Submit(ORDERS, (b"x",) * count))

    def join(self, start: int | None = None) -> None:
        self.network.enter(BOB, self.cell.subscriber(BOB))
        self.network.happen(BOB, Join(ORDERS, start))
        self.network.run(100)

    def run_beside_alice(self, for_ms: int) -> None:
        """Alice publishes all the time, so something always moves."""
        for _ in range(for_ms // 100):
            self.publish(ALICE)
            self.network.run(100)


def test_many_streams_that_catch_up_at_once_are_complete_soon_beside_one_that_moves() -> None:
    """Brokers answer few requests at a time, and dropped those for some streams."""
    others = tuple(NodeId(f"dave{number}") for number in range(10))
    cell = Watched(ALICE, *others, replay=32)
    for _ in range(20):
        for other in others:
            cell.publish(other, 10)
        cell.network.run(50)
    cell.network.run(500)
    cell.join(start=0)
    cell.run_beside_alice(2_000)
    assert [cell.got[other] for other in others] == [200] * len(others)


def test_lives_of_a_liar_do_not_use_up_the_requests_for_others() -> None:
    """It begins a life in each millisecond, at two brokers alone."""
    cell = Watched(ALICE, CAROL, replay=64)
    for _ in range(80):
        cell.publish(CAROL, 50)
        cell.network.run(20)
    cell.network.run(500)
    cell.join(start=0)
    for life in range(2, 1000):
        stream = Stream(ORDERS, ALICE, life)
        for broker in (B1, B2):
            cell.network.happen(broker, publish(1, b"x", stream=stream))
        cell.network.run(1)
    cell.network.run(1000)
    assert cell.got[CAROL] == 4000


def test_last_vote_that_is_lost_on_a_channel_that_never_rests_is_asked_for() -> None:
    cell = Watched(ALICE, CAROL)
    cell.publish(CAROL)
    cell.network.run(100)
    cell.join()
    cell.network.losses.append(
        lambda _, to, send: to == BOB and getattr(send.message, "stream", None) == THEIRS
    )
    cell.publish(CAROL)
    cell.network.run(100)
    cell.network.losses.clear()
    cell.run_beside_alice(LONGEST_MS)
    assert cell.got[CAROL] == 1


def followed(*streams: Stream) -> Subscriber:
    """A subscriber that follows these streams, of which brokers hold nothing yet."""
    made = Cell(limited("ab"), publishers=(ALICE, CAROL)).subscriber()
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    for broker in BROKERS:
        held = tuple(Position(stream, 1, 1) for stream in streams)
        made.handle(Receive(broker, Positions(ORDERS, held)), T0)
    return made


def asked(effects: list[Effect]) -> list[tuple[bool, tuple[Stream, ...]]]:
    """What one broker is asked for: whether for few streams, and for which."""
    return [
        (effect.message.few, tuple(cursor.stream for cursor in effect.message.cursors))
        for effect in effects
        if isinstance(effect, Send) and effect.to == (B1,) and isinstance(effect.message, Subscribe)
    ]


def refresh(made: Subscriber, number: int) -> list[Effect]:
    """Alice's next publication comes, and then a refresh."""
    for broker in BROKERS:
        made.handle(vote(broker, number, b"x", full=True), T0)
    return made.handle(TimerFired(Refresh(ORDERS)), T0)


def test_stream_of_which_a_correct_broker_reports_more_is_asked_for_beside_one_that_moves() -> None:
    made = followed(STREAM, THEIRS)
    refresh(made, 1)
    for broker in (B1, B2):
        report = Positions(ORDERS, (Position(THEIRS, 1, 2), Position(STREAM, 1, 2)))
        made.handle(Receive(broker, report), T0)
    assert asked(refresh(made, 2)) == [(True, (THEIRS,))]


def test_stream_of_which_only_a_liar_reports_more_is_left_alone() -> None:
    made = followed(STREAM, THEIRS)
    refresh(made, 1)
    made.handle(Receive(B1, Positions(ORDERS, (Position(THEIRS, 1, 9),))), T0)
    assert asked(refresh(made, 2)) == []


def test_whole_channel_is_asked_for_now_and_then_though_something_always_moves() -> None:
    made = followed(STREAM, THEIRS)
    every = [asked(refresh(made, number)) for number in range(1, 3 * IDLE_TICKS)]
    assert [found for found in every if found] == [[(False, (STREAM, THEIRS))]] * 2


@pytest.mark.parametrize("burst", [1, 3, 9])
def test_requests_between_two_refreshes_are_one_round(burst: int) -> None:
    """Several streams that catch up together make no broker pass for one that does not answer."""
    made = begun(limited("ab"))
    for broker in (B1, B2):
        say(made, broker, 2)
    for _ in range(2 * FRESH_ROUNDS):
        made.refresh()
        for _ in range(burst):
            made.asked_again([STREAM])
        for broker in (B1, B2, B3):
            made.on_positions(broker, Positions(ORDERS, (Position(STREAM, 1, 2),), few=True))
        assert made.reports.answering == 3


def test_full_report_makes_room_for_the_streams_that_were_asked_for() -> None:
    """Brokers do not name all streams of so many publishers, and have dropped the first ones."""
    names = [NodeId(f"dave{number}") for number in range(MAX_STREAMS_NAMED)]
    cell = Cell(limited("ab"), clients=(ALICE, BOB, *names))
    made = Interest(cell.view(BOB), cell.manifest.channels[0])
    full = tuple(Position(Stream(ORDERS, name, 1), 1, 1) for name in names)
    for broker in (B1, B2, B3):
        made.on_positions(broker, Positions(ORDERS, full))
    for broker in (B1, B2):
        made.name(broker, STREAM)
    few = Positions(ORDERS, (Position(STREAM, 50, 100),), few=True)
    gaps = [gap for broker in BROKERS for gap in made.on_positions(broker, few)[1]]
    assert gaps == [DeliverGap(STREAM, 1, 49)]


# ------------------------------------------------------------------- lives


def life(number: int) -> Stream:
    return Stream(ORDERS, ALICE, number)


def report(made: Interest, *numbers: int) -> None:
    """All brokers hold 1 to 9 of these lives."""
    held = Positions(ORDERS, tuple(Position(life(number), 1, 10) for number in numbers))
    for broker in (B1, B2, B3, B4):
        made.on_positions(broker, held)


def test_earlier_life_that_is_named_later_ends_with_the_life_after_it() -> None:
    made = begun(limited("ab", streams_per_publisher=2))
    report(made, 3, 4)
    report(made, 3, 4, 5)
    made.end_displaced()
    report(made, 2, 3, 4, 5)
    for _ in range(DISPLACED_TICKS):
        made.end_displaced()
        report(made, 2, 3, 4, 5)
    assert made.take_lost() == [DeliverGap(life(3), 1, 9), DeliverGap(life(2), 1, 9)]
    assert list(made.acceptors) == [life(4), life(5)]


def test_gap_at_the_end_of_a_life_covers_what_brokers_have_voted_on() -> None:
    """Its second number was lost, and nobody has reported any."""
    made = Cell(limited("ab", streams_per_publisher=1)).subscriber()
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
    made.handle(Join(ORDERS), T0)
    for broker in BROKERS:
        made.handle(Receive(broker, Positions(ORDERS, ())), T0)
    for number in (1, *range(3, 10)):
        for broker in BROKERS:
            made.handle(vote(broker, number, b"x", full=True, stream=life(1)), T0)
    gaps: list[Effect] = []
    for later in (2, 3):
        for broker in BROKERS:
            effects = made.handle(vote(broker, 1, b"x", full=True, stream=life(later)), T0)
            gaps += [effect for effect in effects if isinstance(effect, DeliverGap)]
    assert gaps == [DeliverGap(life(1), 2, 9)]
