"""Reading a part of an order once: nothing beyond it, nothing twice, and everybody's word on it."""

from __future__ import annotations

from tests.support.cells import (
    AB,
    B1,
    B2,
    B3,
    B4,
    BOB,
    ORDERS,
    STREAM,
    T0,
    Cell,
    delivered,
    digests,
    feed,
    limited,
    messages,
    publish,
    sent,
    vote,
)

from quorumcast.broadcast.application import Deliver, DeliverGap, Join, Leave
from quorumcast.broadcast.messages import Cursor
from quorumcast.cell.messages import Position, Positions, Subscribe, Vote
from quorumcast.cell.serving.audience import EXCERPT_BYTES, REPLAY_BYTES
from quorumcast.cell.subscribing.excerpt import (
    ALL_VOTES_MS,
    FIRST_SPAN,
    SKIPPED_FOR,
    SPAN_BYTES,
    STRIKES,
    VotesDue,
)
from quorumcast.cell.subscribing.subscriber import Refresh, Subscriber
from quorumcast.core.ids import DIGEST_SIZE, NodeId, total_order
from quorumcast.core.machine import Connected, Disconnected, Effect, Receive, SetTimer, TimerFired

BROKERS = (B1, B2, B3, B4)
TOTAL = limited("total")
ORDER = total_order(ORDERS)
UP = TimerFired(VotesDue(ORDERS))


def begin(
    first: int, until: int, *, end: int = 100, base: int = 1, brokers: tuple[NodeId, ...] = BROKERS
) -> tuple[Subscriber, list[Effect]]:
    """One that reads these positions of an order that brokers hold from `base` to before `end`."""
    made = Cell(TOTAL).subscriber()
    for broker in brokers:
        made.handle(Connected(broker), T0)
    effects = made.handle(Join(ORDERS, first, until=until), T0)
    for broker in brokers:
        held = Positions(ORDERS, (Position(ORDER, base, end),))
        effects += made.handle(Receive(broker, held), T0)
    return made, effects


def asked(effects: list[Effect]) -> list[tuple[int, int]]:
    """Where the spans begin and end that the first broker is asked for."""
    found = [send.message for send in sent(effects, Subscribe) if send.to == (B1,)]
    return [(m.cursors[0].next, m.until) for m in found if isinstance(m, Subscribe) and m.cursors]


def votes(first: int, *run: bytes, by: tuple[NodeId, ...] = BROKERS) -> list[Receive]:
    return [vote(broker, first, *run, full=broker == B4, stream=ORDER) for broker in by]


def test_excerpt_is_asked_for_with_its_end_and_delivered_to_it() -> None:
    made, effects = begin(3, 5)
    assert asked(effects) == [(3, 5)]
    assert delivered(feed(made.handle, *votes(3, b"c", b"d"))) == [(3, b"c"), (4, b"d")]
    assert made.ends(ORDERS) == {ORDER: 5}
    assert made.handle(TimerFired(Refresh(ORDERS)), T0)[1:] == []


def test_excerpt_votes_of_an_earlier_subscription_bring_nothing_beyond_it() -> None:
    made, _ = begin(3, 5)
    beyond = votes(5, b"e")
    assert delivered(feed(made.handle, *beyond, *votes(3, b"c", b"d"))) == [(3, b"c"), (4, b"d")]


def test_excerpt_next_span_is_asked_for_while_the_last_one_comes_and_nothing_twice() -> None:
    made, effects = begin(1, 100)
    assert asked(effects) == [(1, 1 + FIRST_SPAN)]
    half = [b"x"] * (FIRST_SPAN // 2)
    after = feed(made.handle, *votes(1, *half))
    first, until = asked(after)[0]
    assert first == 1 + FIRST_SPAN
    assert until > first


def test_excerpt_spans_are_as_long_as_publications_are_small() -> None:
    large = b"x" * (SPAN_BYTES // 4)
    made, _ = begin(1, 1000, end=1000)
    after = feed(made.handle, *votes(1, *[large] * FIRST_SPAN))
    first = 1 + FIRST_SPAN
    assert asked(after) == [(first, first + 3), (first + 3, first + 6)]


def test_excerpt_waits_for_the_votes_of_all_that_can_be_reached() -> None:
    made, _ = begin(1, 2)
    early = feed(made.handle, *votes(1, b"a", by=(B4, B1)))
    assert delivered(early) == []
    assert SetTimer(VotesDue(ORDERS), ALL_VOTES_MS) in early
    liar = feed(made.handle, vote(B2, 1, b"b", stream=ORDER), vote(B3, 1, b"a", stream=ORDER))
    (found,) = [effect for effect in liar if isinstance(effect, Deliver)]
    assert (found.body, found.votes, found.dissent) == (b"a", (B4, B1, B3), (B2,))


def test_excerpt_waits_for_a_broker_whose_link_is_still_being_made() -> None:
    """Whoever reads as soon as n-f can be reached must not miss what the last one says."""
    made, _ = begin(1, 2, brokers=(B1, B3, B4))
    early = feed(made.handle, *votes(1, b"a", by=(B4, B1, B3)))
    assert delivered(early) == []
    assert SetTimer(VotesDue(ORDERS), ALL_VOTES_MS) in early
    made.handle(Connected(B2), T0)
    late = feed(made.handle, vote(B2, 1, b"b", stream=ORDER))
    (found,) = [effect for effect in late if isinstance(effect, Deliver)]
    assert found.dissent == (B2,)


def test_excerpt_does_not_wait_for_a_broker_whose_link_has_broken() -> None:
    made, _ = begin(1, 2)
    assert delivered(feed(made.handle, *votes(1, b"a", by=(B4, B1, B2)))) == []
    assert delivered(made.handle(Disconnected(B3), T0)) == [(1, b"a")]


def test_excerpt_waits_for_a_silent_broker_once_and_no_longer_than_so() -> None:
    made, _ = begin(1, 4)
    assert delivered(feed(made.handle, *votes(1, b"a", by=(B4, B1, B2)))) == []
    assert delivered(made.handle(UP, T0)) == [(1, b"a")]
    assert delivered(feed(made.handle, *votes(2, b"b", by=(B4, B1, B2)))) == [(2, b"b")]


def test_excerpt_broker_that_is_always_late_is_soon_not_waited_for() -> None:
    made, _ = begin(1, 100)
    for number in range(1, STRIKES + 1):
        feed(made.handle, *votes(2 * number - 1, b"a", by=(B4, B1, B2)))
        # Just in time for this one, when the next one is late already.
        feed(made.handle, *votes(2 * number, b"b", by=(B4, B1, B2)))
        feed(made.handle, vote(B3, 2 * number - 1, b"a", stream=ORDER))
        after = made.handle(UP, T0)
        assert delivered(after) == ([(2 * number, b"b")] if number == STRIKES else [])
        feed(made.handle, vote(B3, 2 * number, b"b", stream=ORDER))


def test_excerpt_slow_broker_is_waited_for_again_after_a_while() -> None:
    made, _ = begin(1, 2)
    feed(made.handle, *votes(1, b"a", by=(B4, B1, B2)))
    made.handle(UP, T0)
    waits: list[bool] = []
    for join in range(1, SKIPPED_FOR + 2):
        made.handle(Leave(ORDERS), T0)
        made.handle(Join(ORDERS, 1, until=2), T0)
        for broker in BROKERS:
            made.handle(Receive(broker, Positions(ORDERS, (Position(ORDER, 1, 100),), join)), T0)
        waits.append(delivered(feed(made.handle, *votes(1, b"a", by=(B4, B1, B2)))) == [])
    assert waits == [False] * (SKIPPED_FOR - 1) + [True, True]


def test_excerpt_timer_of_what_has_come_meanwhile_gives_nobody_up() -> None:
    made, _ = begin(1, 4)
    for number in (1, 2):
        feed(made.handle, *votes(number, b"ab"[number - 1 : number], by=(B4, B1, B2)))
    assert delivered(feed(made.handle, vote(B3, 1, b"a", stream=ORDER))) == [(1, b"a")]
    assert made.handle(UP, T0) == [SetTimer(VotesDue(ORDERS), ALL_VOTES_MS)]
    assert delivered(feed(made.handle, vote(B3, 2, b"b", stream=ORDER))) == [(2, b"b")]


def test_excerpt_broker_that_goes_is_not_waited_for() -> None:
    made, _ = begin(1, 2)
    feed(made.handle, *votes(1, b"a", by=(B4, B1, B2)))
    assert delivered(made.handle(Disconnected(B3), T0)) == [(1, b"a")]


def test_excerpt_that_does_not_move_is_asked_for_again_from_where_it_stands() -> None:
    made, _ = begin(1, 4)
    feed(made.handle, *votes(1, b"a"))
    again: list[Effect] = []
    for _ in range(2):
        again += made.handle(TimerFired(Refresh(ORDERS)), T0)
    assert asked(again) == [(2, 4)]


def test_excerpt_beyond_what_brokers_report_waits_for_them() -> None:
    made, effects = begin(5, 7, end=3)
    assert asked(effects) == [(5, 7)]
    assert delivered(feed(made.handle, *votes(5, b"e", b"f"))) == [(5, b"e"), (6, b"f")]


def test_excerpt_what_is_held_no_longer_is_a_gap_within_it() -> None:
    _, effects = begin(3, 10, base=6)
    assert [e for e in effects if isinstance(e, DeliverGap)] == [DeliverGap(ORDER, 3, 5)]
    assert asked(effects) == [(6, 10)]


def test_excerpt_of_which_nothing_is_held_is_one_gap() -> None:
    made, effects = begin(3, 10, base=50)
    assert [e for e in effects if isinstance(e, DeliverGap)] == [DeliverGap(ORDER, 3, 9)]
    assert asked(effects) == []
    assert made.ends(ORDERS) == {ORDER: 10}


def test_excerpt_of_nothing_tells_where_the_order_stands_and_asks_for_no_more() -> None:
    made, effects = begin(0, 1, end=80, base=20)
    assert (made.oldest(ORDERS), made.end(ORDERS)) == (20, 80)
    assert asked(effects) == []
    made.handle(Leave(ORDERS), T0)
    assert made.handle(UP, T0) == []


def test_excerpt_of_an_order_that_nobody_has_begun_stands_at_its_beginning() -> None:
    made = Cell(TOTAL).subscriber()
    made.handle(Join(ORDERS, 0, until=1), T0)
    for broker in BROKERS:
        made.handle(Connected(broker), T0)
        made.handle(Receive(broker, Positions(ORDERS, ())), T0)
    assert made.joined(ORDERS)
    assert (made.oldest(ORDERS), made.end(ORDERS)) == (1, 1)


def test_broker_sends_a_part_of_the_past_and_does_not_count_its_reader() -> None:
    made = Cell(AB).broker()
    made.handle(publish(1, b"a", b"b", b"c", b"d"), T0)
    asks = Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 2),), True, until=4))
    assert messages(made.handle(asks, T0), Vote) == [Vote(STREAM, 2, digests(b"b", b"c"))]
    assert messages(made.handle(publish(5, b"e"), T0), Vote) == []
    assert made.subscribers().get(ORDERS, {}) == {}


def test_broker_sends_a_part_of_the_past_in_runs_that_can_be_used_while_others_come() -> None:
    made = Cell(AB).broker()
    body = b"x" * (EXCERPT_BYTES // 2)
    for number in range(1, 5):
        made.handle(publish(number, body + bytes([number])), T0)
    asks = Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 1),), True, until=5))
    runs = [send.message for send in sent(made.handle(asks, T0), Vote)]
    assert [run.first for run in runs if isinstance(run, Vote)] == [1, 2, 3, 4]


# ------------------------------------------------------ subscriptions far behind


def test_subscription_far_behind_asks_for_spans_by_the_size_of_publications() -> None:
    large = b"x" * (REPLAY_BYTES // 8)
    made, effects = begin(1, 0, end=1000)
    assert asked(effects) == [(1, 0)]
    # Brokers replay seven or eight of them for the first request.
    assert asked(feed(made.handle, *votes(1, *[large] * 3))) == []
    assert asked(feed(made.handle, *votes(4, *[large] * 3))) == [(8, 11)]
    assert asked(feed(made.handle, *votes(7, *[large] * 3))) == [(11, 14)]


def test_subscription_that_has_caught_up_asks_for_nothing() -> None:
    made, _ = begin(1, 0, end=4)
    assert asked(feed(made.handle, *votes(1, b"a", b"b", b"c"))) == []


def test_subscription_at_the_end_does_not_ask_for_what_comes_by_itself() -> None:
    """Each answer tells of a later end: it would ask as often as something is ordered."""
    large = b"x" * (REPLAY_BYTES // 8)
    made, _ = begin(1, 0, end=4)
    feed(made.handle, *votes(1, large, large, large))
    for end in range(6, 30):
        for broker in BROKERS:
            made.handle(Receive(broker, Positions(ORDERS, (Position(ORDER, 1, end),))), T0)
        assert asked(feed(made.handle, *votes(end - 2, large))) == []


def test_broker_ends_a_replay_before_the_outbox_of_a_subscriber_is_full() -> None:
    made = Cell(AB).broker()
    for number in range(1, 6):
        made.handle(publish(number, b"x" * (REPLAY_BYTES // 2)), T0)
    asks = Receive(BOB, Subscribe(ORDERS, (Cursor(STREAM, 1),), bodies=True))
    runs = messages(made.handle(asks, T0), Vote)
    assert [
        (run.first, len(run.digests) // DIGEST_SIZE) for run in runs if isinstance(run, Vote)
    ] == [(1, 2)]
