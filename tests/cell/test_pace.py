"""Publishers that wait for slow subscribers: credit, allowances, lapses. n = 4, f = 1."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    ALICE,
    BOB,
    CAROL,
    ORDERS,
    STREAM,
    Cell,
    bodies,
    limited,
    messages,
    publish,
    reasons,
)

from quorumcast.broadcast.messages import Ack, Cursor, Open
from quorumcast.broadcast.shelf import Shelf
from quorumcast.cell.messages import Reached, Subscribe, Unsubscribe
from quorumcast.cell.serving.audience import REPORTS
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.pace import (
    MAX_LAPSES,
    PACE_MS,
    REGAIN,
    Allowance,
    PaceTick,
    _unread_bytes,
)
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import (
    Disconnected,
    DropReason,
    Effect,
    Receive,
    SetTimer,
    TimerFired,
)

WAIT_MS, WINDOW, RETAINED = 1000, 8, 32
#: Publications that bob may leave unread before the publisher may send less than a window.
FREE = RETAINED - 2 * WINDOW
#: All that is sent while bob reads nothing.
MOST = RETAINED - WINDOW
NEXT_LIFE = Stream(ORDERS, ALICE, 3)


class Scene:
    """A broker, its clock, and the credit that alice has."""

    def __init__(self, *readers: NodeId, name: str = "ab", **limits: int) -> None:
        wanted = {"window": WINDOW, "retained_publications": RETAINED, "segment": 8} | limits
        policy = limited(name, wait_ms=WAIT_MS, **wanted)
        self.broker: Broker = Cell(policy).broker()
        self.now = 0
        self.credit: dict[Stream, int] = {}
        self.ticking = False
        for reader in readers:
            self.take(Receive(reader, Subscribe(ORDERS, (), True)))
        self.take(Receive(ALICE, Open(STREAM, 1, 1)))

    def take(self, event: Receive | TimerFired | Disconnected) -> list[Effect]:
        effects = self.broker.handle(event, Millis(self.now))
        for ack in messages(effects, Ack):
            assert isinstance(ack, Ack)
            self.credit[ack.stream] = ack.credit
        self.ticking |= any(isinstance(e, SetTimer) and e.timer == PaceTick() for e in effects)
        return effects

    def publish(self, upto: int, stream: Stream = STREAM, size: int = 1) -> None:
        """Publish up to a number, as far as there is credit."""
        if stream not in self.credit:
            self.take(Receive(ALICE, Open(stream, 1, 1)))
        while (number := self.published(stream) + 1) <= min(upto, self.credit[stream]):
            run = [b"x" * size] * (min(upto, self.credit[stream]) + 1 - number)
            self.take(publish(number, *run, stream=stream))

    def published(self, stream: Stream = STREAM) -> int:
        return self.broker.streams()[stream].next - 1

    def reach(self, reader: NodeId, number: int, stream: Stream = STREAM) -> list[Effect]:
        return self.take(Receive(reader, Reached(ORDERS, (Cursor(stream, number),))))

    def wait(self, span: int) -> None:
        """Let time pass; the publisher sends what it may."""
        for _ in range(span // PACE_MS):
            self.now += PACE_MS
            if self.ticking:
                self.ticking = False
                self.take(TimerFired(PaceTick()))


def test_publisher_has_a_window_of_credit_while_subscribers_keep_up() -> None:
    scene = Scene(BOB)
    for number in range(1, 50):
        scene.publish(number)
        scene.reach(BOB, number)
        assert scene.credit[STREAM] == number + WINDOW
    assert not scene.ticking


@pytest.mark.parametrize("name", ["ab", "direct"])
def test_publisher_gets_no_credit_for_what_would_displace_unread_publications(name: str) -> None:
    scene = Scene(BOB, name=name)
    scene.publish(FREE)
    assert not scene.ticking
    scene.publish(100)
    assert scene.published() == MOST
    assert scene.credit[STREAM] == MOST
    assert scene.ticking


def test_publisher_goes_on_as_far_as_the_slowest_subscriber_reads() -> None:
    scene = Scene(BOB, CAROL)
    scene.publish(100)
    scene.reach(BOB, MOST + 1)
    assert scene.credit[STREAM] == MOST
    scene.reach(CAROL, 5)
    assert scene.credit[STREAM] == MOST + 4
    scene.reach(CAROL, 3)  # an old report
    scene.publish(100)
    assert scene.published() == MOST + 4


def test_subscriber_cannot_have_read_what_was_not_published() -> None:
    scene = Scene(BOB)
    scene.publish(4)
    scene.reach(BOB, 2**40)
    scene.publish(100)
    assert scene.published() == MOST + 4


def test_subscription_tells_how_far_its_subscriber_is() -> None:
    scene = Scene(BOB)
    scene.publish(100)
    scene.take(Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 5),), True)))
    assert scene.credit[STREAM] == MOST + 4


def test_publisher_waits_only_for_the_allowance_and_then_for_nobody() -> None:
    scene = Scene(BOB)
    scene.publish(100)
    scene.wait(WAIT_MS - 2 * PACE_MS)
    assert scene.credit[STREAM] == MOST
    scene.wait(2 * PACE_MS)
    assert scene.credit[STREAM] == MOST + WINDOW
    scene.publish(10 * RETAINED)
    assert scene.published() == 10 * RETAINED
    scene.wait(PACE_MS)
    assert not scene.ticking
    assert scene.broker.waited() == {ORDERS: {BOB: WAIT_MS}}


def test_lapsed_subscriber_is_waited_for_when_it_has_caught_up_and_regained_its_allowance() -> None:
    scene = Scene(BOB)
    scene.publish(100)
    scene.wait(WAIT_MS)
    scene.publish(100)
    scene.reach(BOB, 101)
    scene.publish(200)
    assert scene.published() == 200  # it has caught up, and has no allowance
    scene.now += 2 * REGAIN * WAIT_MS
    scene.reach(BOB, 150)
    scene.publish(300)
    assert scene.published() == 300  # it has an allowance, and has not caught up
    scene.reach(BOB, 301)
    scene.publish(400)
    assert scene.published() == 300 + MOST
    scene.wait(WAIT_MS)
    assert scene.credit[STREAM] > 300 + MOST


def test_lying_subscriber_costs_ever_less_time() -> None:
    """It claims to have caught up whenever that is believed, and to read nothing from then on."""
    scene = Scene(BOB)
    blocked = 0
    while scene.now < 100 * WAIT_MS:
        scene.reach(BOB, scene.published() + 1)
        wanted = scene.published() + 2 * RETAINED
        scene.publish(wanted)
        while scene.published() < wanted:
            scene.wait(PACE_MS)
            blocked += PACE_MS
            scene.publish(wanted)
        scene.now += WAIT_MS
    assert WAIT_MS < blocked < 5 * WAIT_MS


def test_subscriber_that_reports_right_before_each_look_is_charged_as_well() -> None:
    scene = Scene(BOB)
    blocked = 0
    while scene.now < 100 * WAIT_MS:
        wanted = scene.published() + 2 * RETAINED
        scene.publish(wanted)
        blocked += PACE_MS if scene.published() < wanted else 0
        scene.reach(BOB, scene.published() + 1)
        scene.wait(PACE_MS)
    assert WAIT_MS <= blocked < 5 * WAIT_MS


def test_allowance_is_regained_half_as_fast_after_every_lapse() -> None:
    allowance = Allowance(Millis(0))
    allowance.spend(1000, Millis(1000))
    allowance.regain(Millis(1000 + 500 * REGAIN))
    assert allowance.spent == 500
    for _ in range(MAX_LAPSES + 1):
        allowance.lapse()
    assert allowance.lapses == MAX_LAPSES
    allowance.regain(Millis(1000 + (500 + 1000) * REGAIN))
    assert allowance.spent == 500


def test_broker_that_stood_still_charges_nobody_for_that() -> None:
    scene = Scene(BOB)
    scene.publish(100)
    scene.now += 100 * WAIT_MS
    scene.take(TimerFired(PaceTick()))
    assert scene.broker.waited() == {ORDERS: {BOB: 2 * PACE_MS}}


def test_subscriber_that_leaves_is_waited_for_no_longer() -> None:
    scene = Scene(BOB)
    scene.publish(100)
    scene.take(Receive(BOB, Unsubscribe(ORDERS)))
    assert scene.credit[STREAM] == MOST + WINDOW


def test_subscriber_that_was_disconnected_is_waited_for_until_its_time_is_over() -> None:
    scene = Scene(BOB)
    scene.publish(4)
    scene.take(Disconnected(BOB))
    scene.publish(100)
    assert scene.published() == MOST
    scene.wait(WAIT_MS)
    assert scene.credit[STREAM] == MOST + WINDOW
    assert scene.broker.sizes()["gone"] == 0


def test_subscriber_that_comes_back_in_time_has_lost_nothing() -> None:
    scene = Scene(BOB)
    scene.publish(4)
    scene.take(Disconnected(BOB))
    scene.wait(WAIT_MS - PACE_MS)
    scene.take(Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 3),), True)))
    scene.wait(WAIT_MS)
    scene.publish(100)
    assert scene.published() == MOST + 2


def test_subscriber_of_the_past_is_not_waited_for_before_it_has_caught_up() -> None:
    scene = Scene()
    scene.publish(100)
    scene.take(Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 70),), True)))
    scene.publish(200)
    assert scene.published() == 200
    scene.reach(BOB, 195)
    scene.publish(300)
    assert scene.published() == 194 + MOST


def test_new_stream_is_followed_by_everybody_who_is_there_but_not_by_lapsed_ones() -> None:
    scene = Scene(BOB, CAROL)
    scene.publish(4)
    scene.reach(CAROL, 5)
    scene.publish(100)
    scene.wait(WAIT_MS)  # both lapse
    scene.publish(100)
    scene.reach(CAROL, 101)
    scene.now += 4 * REGAIN * WAIT_MS
    scene.reach(CAROL, 101)
    scene.publish(1000, Stream(ORDERS, ALICE, 3))
    assert scene.published(Stream(ORDERS, ALICE, 3)) == MOST
    scene.take(Receive(CAROL, Unsubscribe(ORDERS)))
    scene.publish(1000, Stream(ORDERS, ALICE, 3))
    assert scene.published(Stream(ORDERS, ALICE, 3)) == 1000


def test_all_lives_of_a_publisher_count_together_as_they_do_for_retention() -> None:
    scene = Scene(BOB)
    scene.publish(20)
    scene.publish(100, NEXT_LIFE)
    assert scene.published(NEXT_LIFE) == MOST - 20
    scene.reach(BOB, 21)
    scene.publish(100, NEXT_LIFE)
    assert scene.published(NEXT_LIFE) == MOST


def test_seats_of_a_client_share_its_allowance() -> None:
    first, second = NodeId("bob#1"), NodeId("bob#2")
    scene = Scene(first, second)
    scene.publish(100)
    scene.wait(WAIT_MS)
    scene.publish(200)
    assert scene.published() == 200


def test_large_contents_are_refused_before_they_displace_unread_ones() -> None:
    scene = Scene(BOB, retained_bytes=100, window=4)
    scene.publish(2, size=40)
    run = bodies(3, 1)[0] * 20
    effects = scene.take(publish(3, run))
    assert reasons(effects) == [DropReason.OVER_LIMIT]
    assert scene.ticking
    assert scene.published() == 2
    scene.reach(BOB, 3)
    scene.take(publish(3, run))
    assert scene.published() == 3


def test_large_contents_are_refused_only_for_the_allowance() -> None:
    scene = Scene(BOB, retained_bytes=100, window=4)
    scene.publish(2, size=40)
    run = bodies(3, 1)[0] * 20
    scene.take(publish(3, run))
    scene.wait(WAIT_MS)
    scene.take(publish(3, run))
    assert scene.published() == 3


def test_report_of_a_node_that_has_not_subscribed_is_dropped() -> None:
    scene = Scene()
    scene.publish(4)
    assert reasons(scene.reach(BOB, 1)) == [DropReason.UNEXPECTED]
    assert reasons(scene.take(Receive(BOB, Reached(Channel("nowhere"), (Cursor(STREAM, 1),))))) == [
        DropReason.UNKNOWN_CHANNEL
    ]
    assert scene.broker.sizes()["followed"] == 0


def test_report_about_unknown_streams_keeps_nothing() -> None:
    scene = Scene(BOB)
    before = scene.broker.sizes()
    scene.reach(BOB, 5, Stream(ORDERS, CAROL, 1))
    scene.reach(BOB, 5, STREAM.history)
    assert scene.broker.sizes() | {"served": before["served"]} == before


def test_reports_are_taken_so_often_and_no_oftener() -> None:
    scene = Scene(BOB)
    for _ in range(REPORTS):
        assert reasons(scene.reach(BOB, 1)) == []
    assert reasons(scene.reach(BOB, 1)) == [DropReason.OVER_LIMIT]


def test_nobody_is_followed_where_publishers_do_not_wait() -> None:
    broker = Cell(limited("ab", window=WINDOW, retained_publications=RETAINED)).broker()
    broker.handle(Receive(BOB, Subscribe(ORDERS, (), True)), Millis(0))
    broker.handle(Receive(ALICE, Open(STREAM, 1, 1)), Millis(0))
    broker.handle(Receive(BOB, Reached(ORDERS, (Cursor(STREAM, 1),))), Millis(0))
    broker.handle(publish(1, *bodies(1, 2)), Millis(0))
    assert broker.sizes()["followed"] == 0


def test_streams_that_have_ended_are_followed_no_longer() -> None:
    scene = Scene(BOB, streams_per_publisher=2)
    for life in range(2, 20):
        scene.publish(1, Stream(ORDERS, ALICE, 2 * life))
    sizes = scene.broker.sizes()
    assert sizes["followed"] == sizes["streams"] < 5


def test_many_slow_subscribers_do_not_make_each_publication_expensive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All contents that a subscriber has not accepted were looked at, for each, with every run."""
    seats = [NodeId(f"bob#{seat}") for seat in range(1, 30)]
    scene = Scene(*seats, retained_publications=400, retained_bytes=400 * 40, window=40)
    for upto in range(20, 420, 20):
        scene.publish(upto, size=35)
        scene.now += PACE_MS
        for seat in seats:
            scene.reach(seat, max(1, upto - 100))
    looked_at = 0
    bodies_of = Shelf.bodies

    def counted(self: Shelf, first: int, stop: int) -> list[bytes]:
        nonlocal looked_at
        looked_at += stop - first
        return bodies_of(self, first, stop)

    monkeypatch.setattr(Shelf, "bodies", counted)
    scene.publish(401, size=35)
    assert scene.published() == 401
    assert looked_at < 10


@pytest.mark.parametrize("number", [2, 5, 9, 10])
def test_bytes_that_a_subscriber_has_not_accepted_are_those_that_are_held(number: int) -> None:
    scene = Scene(BOB)
    scene.publish(4, size=10)
    scene.reach(BOB, 2)
    for at in range(5, 10):
        scene.publish(at, size=at)
    scene.reach(BOB, number)
    served = scene.broker.served(STREAM)
    assert served is not None
    ledger = served.carrier.ledger
    assert _unread_bytes([served], BOB) == ledger.size(number, 10)
    ledger.let_go(3)
    assert _unread_bytes([served], BOB) == ledger.size(number, 10)
    scene.reach(BOB, 8)
    scene.reach(BOB, 9)
    assert _unread_bytes([served], BOB) == ledger.size(max(number, 9), 10)
