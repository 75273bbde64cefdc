"""Where a subscriber begins, which streams it believes in, and what it gives up. n = 4, f = 1."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    B2,
    B3,
    B4,
    BOB,
    CAROL,
    LANE,
    ORDERS,
    STREAM,
    Cell,
    digests,
    limited,
)
from tests.support.tree_network import CellPlan, identity_in, manifest_of

from quorumcast.broadcast.application import Deliver, DeliverGap
from quorumcast.broadcast.messages import Cursor
from quorumcast.cell.messages import Position, Positions, Subscribe
from quorumcast.cell.subscribing.excerpt import Excerpt, SkippedBrokers
from quorumcast.cell.subscribing.interest import DOUBTFUL_TICKS, PATIENT_TICKS, Interest
from quorumcast.cell.subscribing.lives import DISPLACED_TICKS
from quorumcast.cell.subscribing.reports import FRESH_ROUNDS
from quorumcast.core.ids import Channel, NodeId, Stream, total_order
from quorumcast.core.limits import MAX_STREAMS_NAMED
from quorumcast.core.machine import Effect
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View


def interest(
    policy: Policy = AB,
    n: int = 4,
    f: int = 1,
    start: int | None = None,
    since: int = 0,
    until: int = 0,
    join: int = 0,
) -> Interest:
    cell = Cell(policy, n=n, f=f, publishers=(ALICE, CAROL))
    excerpt = Excerpt(until, policy.limits, SkippedBrokers()) if until else None
    return Interest(cell.view(BOB), cell.manifest.channels[0], start, since, excerpt, join)


def say(
    to: Interest, broker: NodeId, next_: int, base: int = 1, stream: Stream = STREAM
) -> tuple[bool, list[object]]:
    anew, effects = to.on_positions(broker, Positions(ORDERS, (Position(stream, base, next_),)))
    return anew, list(effects)


def begun(policy: Policy = AB) -> Interest:
    made = interest(policy)
    for broker in (B1, B2, B3):
        made.on_positions(broker, Positions(ORDERS, ()))
    return made


# --------------------------------------------------------------- beginning


def test_interest_begins_at_n_minus_f_answers_and_not_before() -> None:
    made = interest()
    assert say(made, B1, 10) == (False, [])
    assert say(made, B1, 10) == (False, [])
    assert say(made, B2, 10) == (False, [])
    assert not made.begun
    assert say(made, B3, 10) == (True, [])
    assert made.begun


def test_interest_start_is_the_f_plus_1th_largest_answer() -> None:
    made = interest()
    for broker, next_ in ((B1, 7), (B2, 9), (B3, 8)):
        say(made, broker, next_)
    assert made.acceptors[STREAM].next == 8


def test_interest_liar_cannot_push_the_start_up() -> None:
    made = interest()
    for broker, next_ in ((B4, 2**61), (B2, 9), (B3, 8)):
        say(made, broker, next_)
    assert made.acceptors[STREAM].next == 9


def test_interest_asks_for_a_time_until_it_has_begun() -> None:
    made = interest(start=0, since=1234)
    assert made.subscribe_to(B1) == Subscribe(ORDERS, (), False, 1234)
    for broker, base in ((B1, 5), (B2, 5), (B3, 4)):
        made.on_positions(broker, Positions(ORDERS, (Position(STREAM, base, 10, 1),)))
    assert made.acceptors[STREAM].next == 5
    assert made.ends == {STREAM: 10}
    assert made.subscribe_to(B1).since == 0


def test_interest_does_not_take_the_answer_to_an_earlier_subscription_for_its_own() -> None:
    """More may have been acknowledged since, before this subscription was made."""
    made = interest(start=0, join=2)
    assert made.subscribe_to(B1) == Subscribe(ORDERS, (), False, join=2)
    old = Positions(ORDERS, (Position(STREAM, 10, 10),), 1)
    for broker in (B1, B2, B3, B4):
        assert made.on_positions(broker, old) == (False, [])
    assert not made.begun
    for broker in (B1, B2, B3):
        made.on_positions(broker, Positions(ORDERS, (Position(STREAM, 1, 11),), 2))
    assert (made.begun, made.acceptors[STREAM].next, made.ends) == (True, 1, {STREAM: 11})


@pytest.mark.parametrize(("bases", "first"), [((1, 1, 7), 1), ((1, 7, 7), 7), ((2**61, 7, 7), 7)])
def test_interest_brokers_that_looked_less_far_for_a_time_have_lost_nothing(
    bases: tuple[int, ...], first: int
) -> None:
    made = interest(start=0, since=1234)
    said: list[Effect] = []
    for broker, base in zip((B1, B2, B3), bases, strict=True):
        position = Position(STREAM, base, 10, 1)
        said += made.on_positions(broker, Positions(ORDERS, (position,)))[1]
    assert (said, made.acceptors[STREAM].next) == ([], first)


def test_interest_what_too_few_hold_of_a_time_is_a_gap() -> None:
    made = interest(start=0, since=1234)
    said: list[Effect] = []
    for broker, base, oldest in ((B1, 3, 1), (B2, 3, 1), (B3, 7, 7), (B4, 7, 7)):
        position = Position(STREAM, base, 10, oldest)
        said += made.on_positions(broker, Positions(ORDERS, (position,)))[1]
    assert (said, made.acceptors[STREAM].next) == ([DeliverGap(STREAM, 3, 6)], 7)


@pytest.mark.parametrize("lie", [1, 3, 2**61])
@pytest.mark.parametrize("oldest", [1, 8, 10])
def test_interest_liar_neither_hides_nor_invents_what_is_gone_before_the_oldest(
    lie: int, oldest: int
) -> None:
    made = interest(start=0)
    for broker in (B1, B2, B3):
        say(made, broker, 10, oldest)
    assert made.dropped == ([DeliverGap(STREAM, 1, oldest - 1)] if oldest > 1 else [])
    made = interest(start=0)
    say(made, B4, max(lie, 10), lie)
    for broker in (B1, B2, B3):
        say(made, broker, 10, oldest)
    assert made.acceptors[STREAM].next == oldest
    assert made.dropped == ([DeliverGap(STREAM, 1, oldest - 1)] if oldest > 1 else [])


@pytest.mark.parametrize("lie", [(2**61, 2**61), (2**61, 1), (12, 12), (1, 1)])
@pytest.mark.parametrize("since", [0, 1234])
def test_interest_liar_hides_nothing_of_a_stream_of_which_only_one_other_has_heard(
    lie: tuple[int, int], since: int
) -> None:
    """Retention has dropped nothing: the other brokers are about to receive it."""
    made = interest(start=0, since=since)
    first = 8 if since else 1
    heard = (Position(STREAM, first, 12, 1 if since else 0),)
    false = (Position(STREAM, lie[0], 2**61, lie[1]),)
    for broker, held in ((B1, heard), (B2, false), (B3, ()), (B4, ())):
        made.on_positions(broker, Positions(ORDERS, held))
    assert made.begun
    assert made.acceptors[STREAM].next <= first
    assert made.dropped == []


@pytest.mark.parametrize("policy", ["ab", "ab+history", "direct"])
def test_interest_waits_for_who_may_tell_which_of_two_lies_about_the_beginning(policy: str) -> None:
    made = interest(Policy.named(policy), start=0)
    say(made, B1, 10, 8)
    say(made, B2, 10, 1)
    made.on_positions(B3, Positions(ORDERS, ()))
    assert not made.begun
    say(made, B4, 10, 8)
    assert (made.begun, made.acceptors[STREAM].next) == (True, 8)


def test_interest_stream_that_a_liar_invents_is_not_told_to_be_gone() -> None:
    made = interest(start=0)
    over = Position(Stream(ORDERS, CAROL, 3), 100, 100, over=True)
    made.on_positions(B4, Positions(ORDERS, (over,)))
    for broker in (B1, B2, B3):
        made.on_positions(broker, Positions(ORDERS, ()))
    for _ in range(DOUBTFUL_TICKS):
        made.wait_no_longer()
    assert (made.begun, made.dropped) == (True, [])


def test_interest_that_begins_with_what_comes_misses_nothing_before() -> None:
    made = interest()
    for broker in (B1, B2, B3):
        say(made, broker, 10, 8)
    assert (made.begun, made.dropped) == (True, [])


Report = tuple[int, int]
#: The first number of a time and the oldest, both of a stream that ends with 9.
LATE, EARLY, EMPTY = (8, 8), (9, 8), (10, 10)


def asked_for_a_time(*reports: Report, policy: Policy = AB, n: int = 4) -> Interest:
    """The first report is a liar's."""
    made = interest(policy, n=n, start=0, since=1234)
    stream = total_order(ORDERS) if policy.total else STREAM
    for broker, (base, oldest) in zip((B3, B1, B2, B4), reports, strict=False):
        made.on_positions(broker, Positions(ORDERS, (Position(stream, base, 10, oldest),)))
    return made


LIES = [(2**61, 2**61), (2**61, 1), (1, 1), (10, 1), (8, 8), (9, 8), (10, 10), (3, 7), (5, 0)]


@pytest.mark.parametrize("policy", ["ab", "total"])
@pytest.mark.parametrize("lie", LIES)
def test_interest_liar_neither_hides_nor_invents_what_is_gone_of_a_time(
    lie: Report, policy: str
) -> None:
    named = Policy.named(policy)
    stream = total_order(ORDERS) if policy == "total" else STREAM
    for honest, gone in ((LATE, 7), (EARLY, 0), (EMPTY, 9), ((10, 8), 0), ((1, 1), 0), ((5, 1), 0)):
        made = asked_for_a_time(lie, honest, honest, honest, policy=named)
        assert made.begun
        assert made.dropped == ([DeliverGap(stream, 1, gone)] if gone else []), (honest, lie)
        assert made.acceptors[stream].next == honest[0]


@pytest.mark.parametrize("lie", LIES)
def test_interest_of_two_that_answer_the_third_tells_whether_what_is_gone_was_wanted(
    lie: Report,
) -> None:
    for honest, gone in ((LATE, [DeliverGap(STREAM, 1, 7)]), (EARLY, [])):
        made = asked_for_a_time(lie, honest, honest, policy=Policy.named("direct"), n=3)
        assert (made.begun, made.dropped) == (True, gone), (honest, lie)


def test_interest_that_cannot_know_whether_what_is_gone_was_wanted_tells_it() -> None:
    made = asked_for_a_time((10, 1), LATE, policy=Policy.named("direct"), n=3)
    for _ in range(DOUBTFUL_TICKS):
        assert (made.begun, made.dropped) == (False, [])
        made.wait_no_longer()
    assert (made.begun, made.dropped) == (True, [DeliverGap(STREAM, 1, 7)])


def test_interest_one_broker_that_holds_older_publications_says_nothing_for_the_others() -> None:
    made = asked_for_a_time((60, 60), (3, 1), LATE)
    assert not made.begun  # the fourth may hold as much as the second one
    made = asked_for_a_time((60, 60), (3, 1), LATE, LATE)
    assert (made.acceptors[STREAM].next, made.dropped) == (8, [DeliverGap(STREAM, 1, 7)])


def test_interest_lives_before_one_that_goes_back_beyond_the_time_were_not_wanted() -> None:
    lives = [Stream(ORDERS, publisher, life) for publisher in (ALICE, CAROL) for life in (2, 4, 7)]
    firsts = (5, 8, 9, 5, 5, 8)  # of alice's last life a publication is held that is older
    held = tuple(
        Position(stream, first, first if first == 5 else 10, 0 if first == 5 else 8, first == 5)
        for stream, first in zip(lives, firsts, strict=True)
    )
    made = interest(start=0, since=1234)
    for broker in (B1, B2, B3):
        made.on_positions(broker, Positions(ORDERS, held))
    assert [(gap.stream, gap.upto) for gap in made.dropped] == [
        (lives[3], 4), (lives[4], 4), (lives[5], 7),
    ]  # fmt: skip


def doubtful() -> Interest:
    """Three have answered, and one of them claims to have lost everything."""
    made = interest(start=0)
    say(made, B4, 2**61 + 1, 2**61)
    assert say(made, B2, 10) == say(made, B3, 10) == (False, [])
    return made


def test_interest_liar_about_its_oldest_hides_nothing_that_the_last_broker_holds() -> None:
    made = doubtful()
    assert say(made, B1, 10) == (True, [])
    assert made.acceptors[STREAM].next == 1


def test_interest_where_one_word_is_enough_waits_for_who_may_hold_what_another_has_lost() -> None:
    made = interest(Policy.named("direct-crash"), n=2, start=0)
    assert say(made, B1, 7, base=4) == (False, [])
    assert say(made, B2, 4)[0]
    assert made.acceptors[STREAM].next == 1


def test_interest_liar_about_its_oldest_hides_no_stream_that_a_broker_is_to_hear_of() -> None:
    made = interest(start=0)
    made.on_positions(B1, Positions(ORDERS, ()))
    say(made, B2, 2**61, base=2**61)
    say(made, B3, 3)
    assert say(made, B4, 3) == (True, [])
    assert made.acceptors[STREAM].next == 1


def test_interest_liar_about_its_oldest_cannot_keep_us_from_what_comes() -> None:
    made = doubtful()
    for _ in range(DOUBTFUL_TICKS - 1):
        assert made.wait_no_longer() == (False, [])
    # B1 is down: two of those that may lie or not are too few to accept from, and we say so.
    assert made.wait_no_longer() == (True, [DeliverGap(STREAM, 1, 9)])
    assert made.acceptors[STREAM].next == 10


def test_interest_of_two_that_answer_one_may_be_a_liar_and_the_third_is_waited_for() -> None:
    """In a smallest cell nothing tells them apart, and numbers would be passed over in silence."""
    made = interest(Policy.named("direct"), n=3, start=0)
    assert say(made, B2, 2**61, 2**61) == say(made, B1, 6) == (False, [])
    assert say(made, B3, 6) == (True, [])
    assert made.acceptors[STREAM].next == 1


def test_interest_what_one_of_two_may_hold_is_a_gap_if_the_third_does_not_answer() -> None:
    made = interest(Policy.named("direct"), n=3, start=0)
    assert say(made, B2, 2**61, 2**61) == say(made, B1, 6) == (False, [])
    for _ in range(DOUBTFUL_TICKS - 1):
        assert made.wait_no_longer() == (False, [])
    assert made.wait_no_longer() == (True, [DeliverGap(STREAM, 1, 5)])
    assert made.acceptors[STREAM].next == 6


@pytest.mark.parametrize("policy", ["ab+history", "brb", "total"])
def test_interest_broker_that_lost_its_past_and_a_liar_hide_nothing_that_two_others_hold(
    policy: str,
) -> None:
    made = interest(Policy.named(policy), start=0)
    stream = total_order(ORDERS) if policy == "total" else STREAM
    doubts = policy != "brb"  # there three of four must hold it, and two have not
    for broker, base in ((B1, 1), (B2, 50), (B4, 50)):
        assert say(made, broker, 60, base, stream)[0] is (broker == B4 and not doubts)
    said = say(made, B3, 60, 1, stream)[1]
    assert (said, made.acceptors[stream].next) == (([], 1) if doubts else ([], 50))


@pytest.mark.parametrize("policy", ["ab+history", "total"])
def test_interest_reader_hears_of_what_is_acknowledged_though_a_broker_denies_it(
    policy: str,
) -> None:
    """B1, B2 and B3 have acknowledged 59; B1 denies it, and B4 is late."""
    made = interest(Policy.named(policy), start=0)
    stream = total_order(ORDERS) if made.entry.policy.total else STREAM
    for broker, next_ in ((B1, 1), (B2, 60), (B4, 50)):
        assert say(made, broker, next_, 1, stream) == (False, [])
    assert say(made, B3, 60, 1, stream) == (True, [])
    assert made.ends == {stream: 60}


@pytest.mark.parametrize(("until", "waits"), [(1, True), (60, False), (61, False)])
def test_interest_reader_of_a_range_does_not_wait_for_the_end_of_the_channel(
    until: int, waits: bool
) -> None:
    """B2 is ahead of the others, as under load, and B3 is down."""
    made = interest(Policy.named("total"), start=1, until=until)
    stream = total_order(ORDERS)
    assert say(made, B1, 60, 1, stream) == say(made, B2, 61, 1, stream) == (False, [])
    assert say(made, B4, 60, 1, stream) == (not waits, [])


def test_interest_who_wants_what_all_hold_waits_for_nobody() -> None:
    made = interest(Policy.named("total"), start=55)
    stream = total_order(ORDERS)
    assert say(made, B1, 60, 1, stream) == say(made, B2, 60, 50, stream) == (False, [])
    assert say(made, B4, 60, 50, stream) == (True, [])
    assert made.acceptors[stream].next == 55


def test_interest_one_broker_cannot_have_us_begin_long_before_a_time() -> None:
    made = interest(Policy.named("total"), start=0, since=1234)
    stream = total_order(ORDERS)
    for broker, base in ((B4, 1), (B1, 50), (B2, 50)):
        made.on_positions(broker, Positions(ORDERS, (Position(stream, base, 60, 1),)))
    assert made.acceptors[stream].next == 50


def test_interest_brokers_that_forgot_one_number_more_than_others_raise_no_doubts() -> None:
    made = interest(Policy.named("brb"), start=0)
    assert say(made, B1, 200, 100) == say(made, B2, 200, 101) == (False, [])
    assert say(made, B3, 200, 101) == (True, [])
    assert made.acceptors[STREAM].next == 101


def test_interest_that_begins_with_what_comes_has_no_doubts_about_the_past() -> None:
    made = interest()
    say(made, B4, 10, 9)
    say(made, B2, 10)
    assert say(made, B3, 10) == (True, [])


def test_interest_liar_cannot_pull_the_start_down() -> None:
    made = interest()
    for broker, next_ in ((B4, 1), (B2, 9), (B3, 8)):
        say(made, broker, next_)
    assert made.acceptors[STREAM].next == 8


def test_interest_broker_that_does_not_know_the_stream_counts_as_at_its_beginning() -> None:
    made = interest()
    made.on_positions(B1, Positions(ORDERS, ()))
    for broker, next_ in ((B2, 9), (B3, 8)):
        say(made, broker, next_)
    assert made.acceptors[STREAM].next == 8


def test_interest_stream_named_by_f_brokers_is_not_followed() -> None:
    made = interest()
    made.on_positions(B1, Positions(ORDERS, ()))
    made.on_positions(B2, Positions(ORDERS, ()))
    say(made, B4, 9)
    assert made.begun
    assert made.acceptors == {}


def test_interest_with_crash_protection_believes_one_broker() -> None:
    made = interest(Policy.named("direct-crash"), n=2)
    say(made, B1, 5)
    assert made.acceptors[STREAM].next == 5


def test_interest_larger_cell_needs_more_answers() -> None:
    made = interest(n=7, f=2)
    for i, next_ in enumerate((2**61, 2**60, 5, 4, 3), start=3):
        say(made, NodeId(f"b{i}"), next_)
    assert made.acceptors[STREAM].next == 5, "two liars, and 5 is what a correct broker said"


# ------------------------------------------------------------ later streams


def test_interest_stream_that_turns_up_later_begins_at_1() -> None:
    made = begun()
    assert not made.name(B1, STREAM)
    assert made.name(B2, STREAM)
    assert made.acceptors[STREAM].next == 1
    assert not made.name(B3, STREAM), "it is followed already"


def test_interest_same_broker_twice_is_one_broker() -> None:
    made = begun()
    made.name(B1, STREAM)
    assert not made.name(B1, STREAM)


def test_interest_stream_without_right_or_of_another_channel_is_never_followed() -> None:
    made = begun()
    for stream in (Stream(ORDERS, BOB, 1), Stream(Channel("news"), ALICE, 1), LANE):
        for broker in (B1, B2, B3):
            assert not made.name(broker, stream)
    assert made.sizes()["named"] == 0


def test_interest_history_lane_is_followed_where_there_are_histories() -> None:
    made = begun(limited("ab+history"))
    made.name(B1, STREAM)
    made.name(B2, LANE)
    assert set(made.acceptors) == {STREAM, LANE}


def test_interest_old_incarnations_give_way_and_do_not_come_back() -> None:
    made = begun(limited("ab", streams_per_publisher=2))
    for incarnation in range(1, 6):
        stream = Stream(ORDERS, ALICE, incarnation)
        made.name(B1, stream)
        made.name(B2, stream)
    for _ in range(DISPLACED_TICKS):
        made.end_displaced()
    assert [s.incarnation for s in made.acceptors] == [4, 5]
    assert set(made.archives) == set(made.acceptors)
    for broker in (B1, B2, B3):
        assert not made.name(broker, Stream(ORDERS, ALICE, 2))


def test_interest_life_that_brokers_gave_up_is_announced_as_a_gap() -> None:
    """It came and went while the subscriber was away."""
    made, life = begun(), Stream(ORDERS, ALICE, 7)
    over = Positions(ORDERS, (Position(life, 5, 5, 5),))
    assert made.on_positions(B1, over) == (False, [])
    fresh, effects = made.on_positions(B2, over)
    assert fresh
    _, more = made.on_positions(B3, over)
    assert effects + more == [DeliverGap(life, 1, 4)]


def test_interest_life_that_gives_way_to_later_ones_is_announced_if_it_is_lacking() -> None:
    made = begun(limited("ab", streams_per_publisher=2))
    lives = [Stream(ORDERS, ALICE, n) for n in (2, 4, 6)]
    for broker in (B1, B2):
        made.on_positions(broker, Positions(ORDERS, tuple(Position(s, 1, 3) for s in lives)))
    assert made.take_lost() == []
    # Meanwhile brokers are asked again, and name what was published last.
    for broker in (B1, B2):
        made.on_positions(broker, Positions(ORDERS, tuple(Position(s, 1, 4) for s in lives)))
    for _ in range(DISPLACED_TICKS):
        assert made.take_lost() == []
        made.end_displaced()
    assert made.take_lost() == [DeliverGap(lives[0], 1, 3)]
    assert lives[0] not in made.acceptors
    assert not made.may_follow(lives[0])


def test_interest_follows_no_more_than_twice_as_many_lives_as_it_may() -> None:
    made = begun(limited("ab", streams_per_publisher=2))
    lives = [Stream(ORDERS, ALICE, n) for n in range(2, 14, 2)]
    for broker in (B1, B2):
        made.on_positions(broker, Positions(ORDERS, tuple(Position(s, 1, 3) for s in lives)))
    assert made.take_lost() == [DeliverGap(life, 1, 2) for life in lives[:2]]
    assert list(made.acceptors) == lives[2:]


def test_interest_streams_that_a_liar_invents_are_bounded() -> None:
    made = begun()
    for incarnation in range(5000):
        made.name(B4, Stream(ORDERS, ALICE, incarnation))
    assert made.sizes()["named"] <= MAX_STREAMS_NAMED


def test_interest_inventions_of_a_publisher_do_not_keep_others_streams_out() -> None:
    """carol opens each of thousands of streams at one correct broker only."""
    made = begun()
    for incarnation in range(MAX_STREAMS_NAMED):
        for i, broker in enumerate((B1, B2, B3, B4)):
            made.name(broker, Stream(ORDERS, CAROL, 4 * incarnation + i))
    made.name(B1, STREAM)
    assert made.name(B2, STREAM)


# -------------------------------------------------------------------- gaps


def following() -> Interest:
    made = interest()
    for broker in (B1, B2, B3):
        say(made, broker, 5)
    say(made, B4, 5)
    return made


def test_interest_gap_is_announced_when_too_few_hold_what_is_next() -> None:
    made = following()
    assert say(made, B1, 20, base=9) == (False, [])
    anew, effects = say(made, B2, 20, base=8)
    assert effects == [DeliverGap(STREAM, 5, 7)]
    assert made.acceptors[STREAM].next == 8
    assert not anew


def test_interest_liar_cannot_announce_a_gap() -> None:
    made = following()
    assert say(made, B4, 2**61, base=2**61) == (False, [])
    assert made.acceptors[STREAM].next == 5


def test_interest_no_gap_as_long_as_a_broker_not_heard_may_hold_the_numbers() -> None:
    """Trusted publishers, n = 3: one of two answers is a broker's that lost its memory."""
    made = interest(Policy.named("direct"), n=3)
    assert say(made, B1, 5)[0] is False
    say(made, B2, 5)
    assert made.acceptors[STREAM].next == 5
    assert say(made, B2, 20, base=16) == (False, [])
    assert say(made, B3, 20, base=16)[1] == [DeliverGap(STREAM, 5, 15)]


def crash_cell() -> Interest:
    """Three brokers of which one word is enough; the third has answered once."""
    made = interest(Policy.named("direct-crash"), n=3)
    for broker in (B1, B2, B3):
        say(made, broker, 5)
    return made


def wait(made: Interest, refreshes: int, *brokers: NodeId) -> list[object]:
    """These brokers answer every refresh: they no longer hold what comes next."""
    news: list[object] = []
    for _ in range(refreshes):
        made.refresh()
        made.asked_again()
        for broker in brokers:
            news += say(made, broker, 40, base=20)[1]
    return news


def test_interest_waits_for_a_broker_that_is_dead_only_so_long() -> None:
    made = crash_cell()
    assert wait(made, PATIENT_TICKS, B1, B2) == []
    assert wait(made, FRESH_ROUNDS + 1, B1, B2) == [DeliverGap(STREAM, 5, 19)]


def test_interest_requests_for_a_few_streams_tell_dead_brokers_from_others_as_well() -> None:
    made = crash_cell()
    few = Positions(ORDERS, (Position(STREAM, 20, 40),), few=True)
    news: list[object] = []
    for _ in range(PATIENT_TICKS + FRESH_ROUNDS + 1):
        made.refresh()
        made.asked_again([STREAM])
        for broker in (B1, B2):
            news += made.on_positions(broker, few)[1]
    assert news == [DeliverGap(STREAM, 5, 19)]


def test_interest_waits_for_a_dead_broker_while_another_may_still_fetch() -> None:
    """The wait for one broker does not begin anew when another has given up fetching."""
    made = crash_cell()
    for _ in range(PATIENT_TICKS + FRESH_ROUNDS + 1):
        assert wait(made, 1, B1) == []
        assert say(made, B2, 40)[1] == []
    assert say(made, B2, 40, base=20)[1] == [DeliverGap(STREAM, 5, 19)]


def test_interest_waits_for_each_silent_broker_from_its_own_silence_on() -> None:
    made = interest(Policy.named("direct-crash"), n=4, f=3)
    for broker in (B1, B2, B3, B4):
        say(made, broker, 5)
    for _ in range(2 * PATIENT_TICKS):
        assert wait(made, 1, B1, B2) == []
        assert say(made, B3, 40)[1] == []
    assert wait(made, PATIENT_TICKS, B1, B2) == []
    assert wait(made, FRESH_ROUNDS + 1, B1, B2) == [DeliverGap(STREAM, 5, 19)]


def test_interest_does_not_give_up_what_a_broker_that_answers_holds() -> None:
    made = crash_cell()
    for _ in range(3 * PATIENT_TICKS):
        assert wait(made, 1, B1, B2) == []
        assert say(made, B3, 8)[1] == []


def relayed_interest() -> Interest:
    """Three brokers of a child cell, of which one may be faulty; two votes are enough.

    b1 votes on what comes next; b2 says that it no longer holds it.
    """
    top = CellPlan("top", AB, n=4)
    leaf = CellPlan("leaf", Policy.named("relay"), parent="top")
    manifest = manifest_of(leaf, (top, leaf))
    view = View(manifest, manifest.keyring(identity_in("leaf", "bob")))
    made = Interest(view, manifest.channels[0])
    for broker in (B1, B2, B3):
        say(made, broker, 5)
    made.acceptors[STREAM].vote(B1, 5, digests(b"p5"), (b"p5",))
    return made


def wait_for_b3(made: Interest, refreshes: int, *, answers: bool) -> list[object]:
    news: list[object] = []
    for _ in range(refreshes):
        made.refresh()
        made.asked_again()
        news += say(made, B3, 40)[1] if answers else []
        news += say(made, B1, 40, base=5)[1]
        news += say(made, B2, 40, base=20)[1]
    return news


@pytest.mark.parametrize("answers", [False, True], ids=["dead", "liar"])
def test_interest_relayed_waits_only_so_long_for_a_broker_that_gives_no_vote(
    answers: bool,
) -> None:
    made = relayed_interest()
    assert wait_for_b3(made, PATIENT_TICKS - 1, answers=answers) == []
    assert wait_for_b3(made, 2, answers=answers) == [DeliverGap(STREAM, 5, 19)]


def test_interest_relayed_does_not_give_up_what_is_voted_on_in_time() -> None:
    made = relayed_interest()
    assert wait_for_b3(made, PATIENT_TICKS - 1, answers=True) == []
    acceptor = made.acceptors[STREAM]
    acceptor.vote(B3, 5, digests(b"p5"), ())
    assert [type(effect) for effect in acceptor.deliver()] == [Deliver]
    made.refresh()
    assert wait_for_b3(made, PATIENT_TICKS - 2, answers=True) == []


def chain_interest(*holders: NodeId) -> Interest:
    """A chain, whose pool is the whole cell, and brokers that vote on what comes next."""
    made = interest(Policy.named("chain"))
    for broker in (B1, B2, B3):
        say(made, broker, 5)
    for broker in holders:
        made.acceptors[STREAM].vote(broker, 5, digests(b"p5"), (b"p5",), (B1, B4, B3))
    return made


def wait_on_chain(made: Interest, refreshes: int, bases: dict[NodeId, int]) -> list[object]:
    """Brokers answer every refresh, and hold what follows on these numbers."""
    news: list[object] = []
    for _ in range(refreshes):
        made.refresh()
        made.asked_again()
        for broker, base in bases.items():
            news += say(made, broker, 40 if base > 1 else 1, base=base)[1]
    return news


def test_interest_on_a_chain_gives_up_what_too_few_vote_for_and_no_chain_brings_again() -> None:
    """The broker beside the chain may hold it for all that one knows, and never will."""
    made = chain_interest(B3)
    bases = {B1: 20, B2: 20, B3: 5, B4: 1}
    assert wait_on_chain(made, PATIENT_TICKS - 1, bases) == []
    assert wait_on_chain(made, 2, bases) == [DeliverGap(STREAM, 5, 19)]
    assert made.acceptors[STREAM].next == 20


def test_interest_on_a_chain_gives_up_what_two_hold_by_different_chains() -> None:
    made = chain_interest(B3)
    made.acceptors[STREAM].vote(B4, 5, digests(b"p5"), (), (B1, B3, B2))
    bases = {B1: 20, B2: 20, B3: 5, B4: 5}
    assert wait_on_chain(made, PATIENT_TICKS - 1, bases) == []
    assert wait_on_chain(made, 2, bases) == [DeliverGap(STREAM, 5, 19)]


def test_interest_on_a_chain_waits_for_a_silent_broker_whose_vote_would_be_enough() -> None:
    made = chain_interest(B3)
    assert wait_on_chain(made, 3 * PATIENT_TICKS, {B1: 20, B2: 20, B3: 5}) == []


def test_interest_on_a_chain_liar_cannot_announce_a_gap_while_a_run_is_on_its_way() -> None:
    made = chain_interest(B1)
    assert wait_on_chain(made, 3 * PATIENT_TICKS, {B1: 5, B2: 2**61, B3: 1, B4: 1}) == []


def test_interest_on_a_chain_does_not_give_up_what_is_decided() -> None:
    made = chain_interest(B3, B4)
    assert wait_on_chain(made, 3 * PATIENT_TICKS, {B1: 20, B2: 20, B3: 5, B4: 5}) == []


def test_interest_on_a_chain_waits_anew_after_progress() -> None:
    made = chain_interest(B3)
    bases = {B1: 20, B2: 20, B3: 5, B4: 5}
    assert wait_on_chain(made, PATIENT_TICKS, bases) == []
    made.refresh()
    acceptor = made.acceptors[STREAM]
    acceptor.vote(B4, 5, digests(b"p5"), (), (B1, B4, B3))
    assert [type(effect) for effect in acceptor.deliver()] == [Deliver]
    assert say(made, B4, 40, base=5)[1] == []
    assert wait_on_chain(made, PATIENT_TICKS - 1, bases) == []


def test_interest_liar_cannot_announce_a_gap_while_a_correct_broker_is_away() -> None:
    made = following()
    for _ in range(3 * PATIENT_TICKS):
        made.refresh()
        made.asked_again()
        assert say(made, B1, 8)[1] == say(made, B2, 8)[1] == []
        assert say(made, B4, 2**61, base=2**61)[1] == []


def test_interest_gap_is_announced_once() -> None:
    made = following()
    for broker in (B1, B2):
        say(made, broker, 20, base=9)
    assert say(made, B2, 20, base=9) == (False, [])


def unnamed_gaps(made: Interest, refreshes: int, *brokers: NodeId) -> list[DeliverGap]:
    """These brokers answer every refresh, and hold what comes next."""
    gaps: list[DeliverGap] = []
    for _ in range(refreshes):
        made.refresh()
        made.asked_again()
        for broker in brokers:
            say(made, broker, 40)
        gaps += made.give_up_unnamed()
    return gaps


def beyond_history() -> Interest:
    """The next history begins with 9, after numbers 5 to 8 of which nothing is decided."""
    made = interest(Policy.named("chain+history"))
    for broker in (B1, B2, B3):
        say(made, broker, 5)
    made.note_history(STREAM, 9)
    made.acceptors[STREAM].settle(9, bytes(32))
    return made


def test_interest_gives_up_what_neither_a_history_names_nor_votes_decide() -> None:
    made = beyond_history()
    assert unnamed_gaps(made, PATIENT_TICKS - 1, B1, B2, B3) == []
    assert unnamed_gaps(made, 1, B1, B2, B3) == [DeliverGap(STREAM, 5, 8)]
    assert made.acceptors[STREAM].next == 9
    assert unnamed_gaps(made, 2 * PATIENT_TICKS, B1, B2, B3) == []


def test_interest_gives_up_nothing_that_a_history_names() -> None:
    made = beyond_history()
    made.acceptors[STREAM].settle(5, bytes(4 * 32))
    assert unnamed_gaps(made, 2 * PATIENT_TICKS, B1, B2, B3) == []


def test_interest_gives_up_nothing_while_too_few_brokers_answer() -> None:
    made = beyond_history()
    assert unnamed_gaps(made, 2 * PATIENT_TICKS, B1, B2) == []


# ----------------------------------------------------------------- cursors


def test_interest_cursors_say_what_is_wanted_and_bodies_from_the_source_alone() -> None:
    made = following()
    made.source.use(B2)
    cursors = (Cursor(STREAM, 5),)
    assert made.subscribe_to(B1) == Subscribe(ORDERS, cursors, False)
    assert made.subscribe_to(B2) == Subscribe(ORDERS, cursors, True)


def test_interest_is_behind_when_a_replay_is_used_up_and_more_is_held() -> None:
    made = following()
    replay = made.entry.policy.limits.replay
    made.requested = {STREAM: 5}
    for broker in (B1, B2):
        say(made, broker, 5 + 2 * replay)
    assert not made.behind(STREAM)
    made.acceptors[STREAM].skip_to(5 + replay // 2)
    assert made.behind(STREAM)


def test_interest_what_one_liar_claims_to_hold_does_not_make_it_behind() -> None:
    made = following()
    made.requested = {STREAM: 5}
    say(made, B4, 2**61)
    made.acceptors[STREAM].skip_to(5000)
    assert not made.behind(STREAM)
