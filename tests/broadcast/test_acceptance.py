"""Acceptance at a subscriber (Freeman, algorithms 3, 6 and 9)."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    B1,
    B2,
    B3,
    B4,
    B5,
    B6,
    B7,
    STREAM,
    bodies,
    delivered,
    digest,
    digests,
    reasons,
    suspects,
)

from quorumcast.broadcast.acceptance import Acceptor, rule_for
from quorumcast.broadcast.application import Deliver
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Drop, DropReason, Effect, Suspect, Suspicion
from quorumcast.core.quorum import Broadcast, Protection, Quorums
from quorumcast.crypto.digest import hasher

BROKERS = (B1, B2, B3, B4, B5, B6, B7)
ORDER, OTHER = (B1, B2, B3), (B1, B2, B4)


def acceptor(
    first: int = 1,
    protection: Protection = Protection.BYZANTINE,
    broadcast: Broadcast = Broadcast.AUTHENTICATED,
    quorums: Quorums = Quorums(4, 1),  # noqa: B008  (a frozen value)
    **limits: int,
) -> Acceptor:
    rule = rule_for(quorums, protection, broadcast, BROKERS)
    return Acceptor(STREAM, first, rule, hasher("sha256"), Limits(**limits))


def cast(
    at: Acceptor,
    brokers: tuple[NodeId, ...],
    first: int,
    *run: bytes,
    full: bool = True,
    order: tuple[NodeId, ...] = (),
) -> list[Effect]:
    effects: list[Effect] = []
    for broker in brokers:
        effects += at.vote(broker, first, digests(*run), run if full else (), order)
    return effects


# ------------------------------------------------------------- thresholds


@pytest.mark.parametrize(
    ("protection", "broadcast", "n", "f", "votes"),
    [
        (Protection.CRASH, Broadcast.DIRECT, 2, 1, 1),
        (Protection.TRUSTED, Broadcast.DIRECT, 3, 1, 2),
        (Protection.TRUSTED, Broadcast.DIRECT, 5, 2, 3),
        (Protection.BYZANTINE, Broadcast.AUTHENTICATED, 4, 1, 3),
        (Protection.BYZANTINE, Broadcast.AUTHENTICATED, 5, 1, 4),
        (Protection.BYZANTINE, Broadcast.AUTHENTICATED, 7, 2, 5),
        (Protection.BYZANTINE, Broadcast.BRACHA, 4, 1, 3),
        (Protection.BYZANTINE, Broadcast.BRACHA, 7, 2, 5),
        (Protection.BYZANTINE, Broadcast.BRACHA, 5, 1, 4),
    ],
)
def test_acceptor_one_vote_below_the_threshold_waits_and_at_it_accepts(
    protection: Protection, broadcast: Broadcast, n: int, f: int, votes: int
) -> None:
    """Algorithm 3, line 8, and algorithm 6, line 8."""
    at = acceptor(1, protection, broadcast, Quorums(n, f))
    cast(at, BROKERS[: votes - 1], 1, b"a")
    assert at.deliver() == []
    cast(at, BROKERS[votes - 1 : votes], 1, b"a")
    assert at.deliver() == [
        Deliver(STREAM, 1, digest(b"a"), b"a", BROKERS[:votes]),
    ]


def test_acceptor_repeated_vote_counts_once() -> None:
    """Algorithm 3, line 6."""
    at = acceptor()
    assert cast(at, (B1, B1, B1, B2), 1, b"a") == []
    assert at.deliver() == []


def test_acceptor_votes_for_two_contents_do_not_add_up() -> None:
    at = acceptor()
    cast(at, (B1, B2), 1, b"a")
    cast(at, (B3, B4), 1, b"b")
    assert at.deliver() == []


def test_acceptor_second_vote_for_other_contents_is_suspected_and_not_counted() -> None:
    at = acceptor()
    cast(at, (B1, B2), 1, b"a")
    cast(at, (B3,), 1, b"b")
    assert cast(at, (B3,), 1, b"a") == [Suspect(B3, Suspicion.EQUIVOCATION, STREAM, 1)]
    assert at.deliver() == []


def test_acceptor_publication_is_delivered_once() -> None:
    """Algorithm 3, line 10."""
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a")
    assert delivered(at.deliver()) == [(1, b"a")]
    assert cast(at, (B1, B2, B3, B4), 1, b"a") == []
    assert at.deliver() == []


def test_acceptor_numbers_are_delivered_in_order_without_a_gap() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 2, b"b", b"c")
    assert at.deliver() == []
    cast(at, (B1, B2, B3), 1, b"a")
    assert delivered(at.deliver()) == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_acceptor_runs_cut_differently_count_alike() -> None:
    at = acceptor()
    cast(at, (B1,), 1, b"a", b"b")
    cast(at, (B2,), 1, b"a")
    cast(at, (B2,), 2, b"b")
    cast(at, (B3,), 1, b"a", b"b")
    assert delivered(at.deliver()) == [(1, b"a"), (2, b"b")]


def test_acceptor_dissenters_are_named_and_suspected() -> None:
    at = acceptor()
    cast(at, (B4,), 1, b"lie")
    cast(at, (B1, B2, B3), 1, b"a")
    assert at.deliver() == [
        Deliver(STREAM, 1, digest(b"a"), b"a", (B1, B2, B3), (B4,)),
        Suspect(B4, Suspicion.DISSENT, STREAM, 1),
    ]


def test_acceptor_dissent_may_be_the_fault_of_a_publisher_that_is_not_trusted() -> None:
    """A publisher told one broker something else: the broker is correct."""
    rule = rule_for(Quorums(4, 1), Protection.BYZANTINE, Broadcast.AUTHENTICATED)
    at = Acceptor(STREAM, 1, rule, hasher("sha256"), Limits(), may_split=1)
    cast(at, (B4,), 1, b"told otherwise")
    cast(at, (B1, B2, B3), 1, b"a")
    suspicion = Suspect(B4, Suspicion.DISSENT, STREAM, 1, (B4, STREAM.publisher))
    assert at.deliver()[1:] == [suspicion]
    assert cast(at, (B4,), 1, b"told otherwise") == []


def split_acceptor() -> Acceptor:
    """One that has seen more than f brokers dissent."""
    rule = rule_for(Quorums(4, 1), Protection.BYZANTINE, Broadcast.AUTHENTICATED)
    at = Acceptor(STREAM, 1, rule, hasher("sha256"), Limits(), may_split=1)
    for number, other in ((1, B4), (2, B3)):
        cast(at, (other,), number, b"told otherwise")
        cast(at, tuple(b for b in BROKERS if b != other), number, b"a")
    return at


def test_acceptor_publisher_is_suspected_once_more_than_f_brokers_dissent() -> None:
    """One of them is correct, so it forwarded what it was sent."""
    at = split_acceptor()
    split = Suspect(STREAM.publisher, Suspicion.SPLIT, STREAM, 2)
    effects = [e for e in at.deliver() if isinstance(e, Suspect)]
    assert [(e.node, e.reason) for e in effects] == [
        (B4, Suspicion.DISSENT),
        (STREAM.publisher, Suspicion.SPLIT),
    ]
    assert effects[1] == split
    assert cast(at, (B4,), 1, b"told otherwise") == [
        Suspect(STREAM.publisher, Suspicion.SPLIT, STREAM, 1)
    ]


def test_acceptor_liar_of_an_epoch_and_liar_of_the_next_do_not_convict_a_publisher() -> None:
    rule = rule_for(Quorums(4, 1), Protection.BYZANTINE, Broadcast.AUTHENTICATED)
    at = Acceptor(STREAM, 1, rule, hasher("sha256"), Limits(), may_split=1)
    cast(at, (B1, B2, B3), 1, b"a")
    cast(at, (B4,), 1, b"lie")
    at.deliver()
    at.recount(rule, (B1, B2, B3, B5), 1)
    cast(at, (B1, B2, B3), 2, b"a")
    cast(at, (B5,), 2, b"lie")
    assert [e.node for e in at.deliver() if isinstance(e, Suspect)] == [B5]


def test_acceptor_two_liars_do_not_convict_a_publisher_once_two_may_lie() -> None:
    before, after = [
        rule_for(Quorums(7, f), Protection.BYZANTINE, Broadcast.AUTHENTICATED) for f in (1, 2)
    ]
    at = Acceptor(STREAM, 1, before, hasher("sha256"), Limits(), may_split=1)
    at.recount(after, BROKERS, 2)
    cast(at, (B1, B2, B3, B4, B5), 1, b"a")
    cast(at, (B6, B7), 1, b"lie")
    assert [e.node for e in at.deliver() if isinstance(e, Suspect)] == [B6, B7]


def test_acceptor_late_dissent_is_suspected() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a")
    at.deliver()
    assert cast(at, (B4,), 1, b"lie") == [Suspect(B4, Suspicion.DISSENT, STREAM, 1)]


def test_acceptor_vote_below_the_start_is_ignored() -> None:
    at = acceptor(first=5)
    assert cast(at, (B1, B2, B3), 1, b"a") == []
    assert at.sizes()["tallies"] == 0


# ------------------------------------------------------------------ chains


def chain() -> Acceptor:
    return acceptor(broadcast=Broadcast.CHAIN)


def test_acceptor_chain_needs_all_of_the_last_f_plus_1() -> None:
    """Algorithm 9, lines 8–12."""
    at = chain()
    cast(at, (B1, B3), 1, b"a", order=ORDER)
    assert at.deliver() == []
    cast(at, (B2,), 1, b"a", order=ORDER)
    assert delivered(at.deliver()) == [(1, b"a")]


def test_acceptor_chain_votes_by_different_chains_do_not_add_up_to_less_than_2f_plus_1() -> None:
    at = chain()
    cast(at, (B3,), 1, b"a", order=ORDER)
    cast(at, (B2,), 1, b"a", order=OTHER)
    assert at.deliver() == []
    cast(at, (B4,), 1, b"b", order=OTHER)
    cast(at, (B5, B6, B7), 1, b"a", order=ORDER)  # no chain is drawn from these
    assert at.deliver() == []
    cast(at, (B1,), 1, b"a", order=ORDER)
    assert delivered(at.deliver()) == [(1, b"a")]


def test_acceptor_chain_same_contents_by_a_new_chain_moves_the_vote() -> None:
    at = chain()
    cast(at, (B2,), 1, b"a", order=ORDER)
    assert cast(at, (B4, B2), 1, b"a", order=OTHER) == []
    assert delivered(at.deliver()) == [(1, b"a")]


def test_acceptor_chain_without_brokers_decides_nothing() -> None:
    at = chain()
    cast(at, BROKERS, 1, b"a")
    assert at.deliver() == []


# ------------------------------------------------------------------ bodies


def test_acceptor_decided_without_a_body_waits_for_it() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a", b"b", full=False)
    assert at.deliver() == []
    assert at.lacking(10) == [1, 2]
    assert at.lacking(1) == [1]
    assert at.voters(1) == [B1, B2, B3]
    assert at.contents(B2, 1, digests(b"a"), (b"a",)) == []
    assert delivered(at.deliver()) == [(1, b"a")]
    assert at.lacking(10) == [2]


def test_acceptor_body_with_another_hash_is_refused_and_suspected() -> None:
    at = acceptor()
    effects = at.vote(B1, 1, digests(b"a"), (b"b",))
    assert effects == [
        Drop(DropReason.BAD_BODY, B1),
        Suspect(B1, Suspicion.BAD_BODY, STREAM, 1),
    ]
    cast(at, (B2, B3), 1, b"a", full=False)
    assert at.lacking(1) == [1], "its vote counts all the same"


def test_acceptor_bodies_that_do_not_pair_with_digests_are_refused() -> None:
    at = acceptor()
    assert reasons(at.vote(B1, 1, digests(b"a"), (b"a", b"b"))) == [DropReason.BAD_RUN]
    assert at.contents(B1, 1, digests(b"a"), ()) == [Drop(DropReason.BAD_RUN, B1)]


def test_acceptor_contents_of_what_lost_are_not_kept() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a", full=False)
    at.contents(B4, 1, digests(b"lie"), (b"lie",))
    assert at.sizes()["pending_bytes"] == 0
    assert at.deliver() == []


def test_acceptor_body_of_the_losing_side_is_released_at_delivery() -> None:
    at = acceptor()
    cast(at, (B4,), 1, b"long lie")
    cast(at, (B1, B2, B3), 1, b"a")
    assert at.sizes()["pending_bytes"] == len(b"long lie" + b"a")
    at.deliver()
    assert at.sizes()["pending_bytes"] == 0
    assert at.sizes()["bodies"] == 0


# ----------------------------------------------------------------- history


def test_acceptor_history_decides_what_votes_did_not() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a")
    cast(at, (B1,), 2, b"b")
    assert at.settle(1, digests(b"a", b"b", b"c")) == [2, 3]
    assert [(e.number, e.by_history) for e in at.deliver() if isinstance(e, Deliver)] == [
        (1, False),
        (2, True),
    ]
    assert at.lacking(5) == [3]


def test_acceptor_history_of_what_was_delivered_changes_nothing() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a")
    at.deliver()
    assert at.settle(1, digests(b"a")) == []


def test_acceptor_history_body_is_taken_from_anybody_with_the_right_hash() -> None:
    at = acceptor()
    at.settle(1, digests(b"a"))
    assert at.voters(1) == []
    assert at.contents(B4, 1, digests(b"a"), (b"a",)) == []
    assert delivered(at.deliver()) == [(1, b"a")]


# -------------------------------------------------------------------- gaps


def test_acceptor_skip_forgets_what_lies_before_and_never_goes_back() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 2, b"b", b"c", b"d")
    at.skip_to(4)
    assert delivered(at.deliver()) == [(4, b"d")]
    at.skip_to(2)
    assert at.next == 5
    assert at.sizes()["pending_bytes"] == 0


# ------------------------------------------------------------------ limits


def test_acceptor_vote_beyond_the_window_is_dropped() -> None:
    at = acceptor(vote_window=4)
    assert cast(at, (B1,), 4, b"d") == []
    assert cast(at, (B1,), 5, b"e") == [Drop(DropReason.OUT_OF_WINDOW, B1)]
    assert cast(at, (B1,), 2**62, b"e") == [Drop(DropReason.OUT_OF_WINDOW, B1)]
    assert at.sizes()["tallies"] == 1


def test_acceptor_flood_of_votes_fills_no_more_than_the_window() -> None:
    at = acceptor(vote_window=16)
    for number in range(1, 200):
        cast(at, (B4,), number, b"x%d" % number)
    assert (at.sizes()["tallies"], at.sizes()["bodies"]) == (16, 16)


def test_acceptor_flood_of_contents_for_the_next_number_is_bounded() -> None:
    """A liar sends ever new bodies, each with its right hash, for a number not decided yet."""
    at = acceptor()
    for i in range(300):
        junk = b"%04d" % i * 100
        at.vote(B4, 1, digests(junk), (junk,))
        at.contents(B4, 1, digests(junk), (junk,))
    assert at.sizes()["pending_bytes"] <= 400
    cast(at, (B1, B2, B3), 1, b"a")
    assert delivered(at.deliver()) == [(1, b"a")]


def test_acceptor_pending_bytes_are_bounded_but_never_stop_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.broadcast.acceptance.MAX_PENDING_BYTES", 10)
    at = acceptor()
    assert cast(at, (B4,), 2, b"0123456789") == []
    assert reasons(cast(at, (B4,), 3, b"x")) == [DropReason.OVER_LIMIT]
    assert at.sizes()["pending_bytes"] == 10
    cast(at, (B1, B2, B3), 1, b"a")
    assert delivered(at.deliver()) == [(1, b"a")]


def test_acceptor_accepted_digests_are_kept_for_some_segments_only() -> None:
    at = acceptor(segment=2, kept_segments=2)
    for number in range(1, 10):
        cast(at, (B1, B2, B3), number, *bodies(number, 1))
        at.deliver()
    assert at.sizes()["accepted"] == 4
    assert at.accepted(5) is None
    assert at.accepted(6) == digest(b"p6")
    assert at.accepted_run(6, 4) == digests(*bodies(6, 4))
    assert at.accepted_run(5, 2) is None


def test_acceptor_vote_far_ahead_does_not_pass_for_having_voted_since() -> None:
    """A broker that votes once on number 2**62 must still be noticed when it falls silent."""
    at = acceptor(vote_window=4)
    cast(at, (B4,), 2**62, b"x")
    assert at.last_vote.get(B4, 0) <= at.next + 4


def test_acceptor_one_liar_among_four_never_gets_a_correct_broker_suspected() -> None:
    at = acceptor()
    effects = cast(at, (B1, B2), 1, b"a", b"b")
    for lie in (b"x", b"y"):
        effects += cast(at, (B4,), 1, lie, lie)
        effects += at.contents(B4, 1, digests(lie, b"a"), (lie, lie))
    effects += cast(at, (B3,), 1, b"a", b"b")
    effects += at.deliver()
    assert set(suspects(effects)) == {B4}
    assert delivered(effects) == [(1, b"a"), (2, b"b")]


def test_acceptor_gap_of_any_length_is_skipped_at_once() -> None:
    """A lying publisher opens its stream at 2**61: all correct brokers will say so."""
    at = acceptor()
    cast(at, (B1, B2), 1, b"a", b"b")
    at.skip_to(2**61)
    assert (at.next, at.sizes()["tallies"], at.sizes()["pending_bytes"]) == (2**61, 0, 0)
    cast(at, (B1, B2, B3), 2**61, b"z")
    assert delivered(at.deliver()) == [(2**61, b"z")]


def test_acceptor_broker_wrong_about_one_number_of_a_run_dissents_there_alone() -> None:
    at = acceptor()
    cast(at, (B4,), 1, b"a", b"lie")
    at.settle(1, digests(b"a", b"b"))
    at.contents(B1, 1, digests(b"a", b"b"), (b"a", b"b"))
    effects = at.deliver()
    assert [(e.number, e.votes, e.dissent) for e in effects if isinstance(e, Deliver)] == [
        (1, (B4,), ()),
        (2, (), (B4,)),
    ]
    assert at.sizes()["pending_bytes"] == 0


def test_acceptor_run_skipped_in_its_middle_is_delivered_from_there() -> None:
    at = acceptor()
    cast(at, (B1, B2, B3), 1, b"a", b"b", b"c")
    at.skip_to(2)
    assert delivered(at.deliver()) == [(2, b"b"), (3, b"c")]
    assert at.sizes()["pending_bytes"] == 0


def test_acceptor_is_crowded_when_histories_name_a_window_of_numbers() -> None:
    made = acceptor(vote_window=4)
    made.settle(2, digests(b"b", b"c", b"d"))
    assert not made.crowded
    made.settle(5, digests(b"e"))
    assert made.crowded
