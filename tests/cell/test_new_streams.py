"""Votes on streams that too few brokers have named yet."""

from __future__ import annotations

from tests.support.cells import ALICE, B1, B2, B3, CAROL, ORDERS, STREAM, vote

from quorumcast.cell.subscribing.new_streams import EARLY_BYTES, OVERHEAD, EarlyVotes, NewStreams
from quorumcast.core.ids import NodeId, Stream, at_seat
from quorumcast.core.machine import Receive

OTHER = Stream(ORDERS, CAROL, 1)


def kept(*events: Receive) -> EarlyVotes:
    made = EarlyVotes()
    for event in events:
        made.keep(event)
    return made


def test_names_of_one_broker_displace_the_oldest_of_the_same_publisher() -> None:
    named = NewStreams(per_publisher=True)
    theirs = Stream(ORDERS, CAROL, 1)
    named.name(B1, theirs, 2, 3)
    lives = [Stream(ORDERS, ALICE, life) for life in range(1, 9)]
    for life in (*lives, *lives[-3:]):
        assert not named.name(B1, life, 2, 3)
    assert len(named) == 4
    assert not named.name(B2, lives[0], 2, 3)
    assert named.name(B2, lives[-1], 2, 3)
    assert named.name(B2, theirs, 2, 3)
    named.retain((B1,))
    assert len(named) == 2


def test_stream_that_enough_have_named_is_followed_once_fewer_are_needed() -> None:
    """As after an epoch with a smaller f."""
    named = NewStreams(per_publisher=True)
    assert not named.name(B1, STREAM, 3, 9)
    assert not named.name(B2, STREAM, 3, 9)
    assert named.name(B1, STREAM, 2, 9)
    assert not len(named)


def test_names_at_all_seats_of_a_client_count_together() -> None:
    named = NewStreams(per_publisher=True)
    for seat in range(1, 9):
        named.name(B1, Stream(ORDERS, at_seat(ALICE, seat), 1), 2, 3)
    assert len(named) == 3


def test_names_of_one_broker_displace_the_oldest_of_all_where_any_may_be_a_publisher() -> None:
    named = NewStreams(per_publisher=False)
    for number in range(9):
        named.name(B1, Stream(ORDERS, NodeId(f"dave{number}"), 1), 2, 3)
    assert len(named) == 3


def test_early_votes_are_handed_out_once_in_the_order_of_their_broker() -> None:
    cast = [vote(B1, 1, b"a"), vote(B2, 1, b"a"), vote(B1, 2, b"b")]
    made = kept(*cast, vote(B1, 1, b"z", stream=OTHER))
    votes, complete = made.take(STREAM, (B1, B2))
    assert (sorted(votes, key=cast.index), complete) == (cast, True)
    assert [event for event in votes if event.sender == B1] == [cast[0], cast[2]]
    assert (made.take(STREAM, (B1, B2)), len(made)) == (([], False), 1)


def test_early_votes_of_a_broker_that_voted_before_are_not_kept() -> None:
    made = kept(vote(B1, 2, b"b"), vote(B2, 1, b"a"))
    assert made.take(STREAM, (B1, B2)) == ([vote(B2, 1, b"a")], False)


def test_early_votes_on_histories_are_kept_beside_those_on_publications() -> None:
    history = vote(B1, 1, b"h", stream=STREAM.history)
    assert len(kept(history)) == 0
    assert kept(vote(B1, 1, b"a"), history).take(STREAM, (B1,))[0] == [vote(B1, 1, b"a"), history]


def test_early_vote_that_came_by_a_chain_is_none_of_the_brokers_that_it_names() -> None:
    """A lying broker may name any of them."""
    by_chain = vote(B3, 1, b"a", order=(B1, B2, B3))
    assert kept(by_chain).take(STREAM, (B3, B2)) == ([by_chain], False)


def test_early_votes_of_which_one_was_lost_are_not_taken_for_all() -> None:
    for stream in (STREAM, STREAM.history):
        made = kept(vote(B1, 1, b"a"), vote(B1, 1, b"a", stream=stream))
        made.keep(vote(B1, 3, b"c", stream=stream))
        assert made.take(STREAM, (B1,)) == ([], False)


def test_early_votes_newest_streams_displace_the_oldest_of_their_broker_alone() -> None:
    """A lying broker votes on streams that do not exist."""
    made = kept(vote(B1, 1, b"a"), vote(B2, 1, b"a"))
    large = b"x" * (EARLY_BYTES // 4)
    for life in range(2, 100):
        made.keep(vote(B2, 1, large, full=True, stream=Stream(ORDERS, ALICE, life)))
    assert len(made) <= 1 + EARLY_BYTES // len(large)
    assert made.take(STREAM, (B1, B2)) == ([vote(B1, 1, b"a")], False)
    assert made.take(Stream(ORDERS, ALICE, 99), (B2,))[1]


def test_early_votes_without_contents_are_bounded_as_well() -> None:
    made = EarlyVotes()
    for number in range(1, 2 * EARLY_BYTES // OVERHEAD):
        made.keep(vote(B1, number, b"a"))
    assert len(made) <= EARLY_BYTES // OVERHEAD


def test_early_votes_that_name_many_brokers_are_bounded_as_well() -> None:
    made, order = EarlyVotes(), (B1, B2, B3) * 8
    for number in range(1, 2 * EARLY_BYTES // OVERHEAD):
        made.keep(vote(B1, number, b"a", order=order))
    assert len(made) <= EARLY_BYTES // OVERHEAD // len(order)


def test_early_vote_larger_than_all_room_is_not_kept_and_leaves_the_room_to_others() -> None:
    made = kept(vote(B1, 1, b"x" * EARLY_BYTES, full=True), vote(B1, 1, b"z", stream=OTHER))
    assert made.take(STREAM, (B1,)) == ([], False)
    assert made.take(OTHER, (B1,)) == ([vote(B1, 1, b"z", stream=OTHER)], True)


def test_early_votes_are_dropped_where_some_may_be_lost() -> None:
    made = kept(vote(B1, 1, b"a"), vote(B2, 1, b"a"))
    made.clear(B1)
    assert made.take(STREAM, (B1, B2)) == ([vote(B2, 1, b"a")], False)
    made.keep(vote(B1, 1, b"a"))
    made.clear()
    assert len(made) == 0
