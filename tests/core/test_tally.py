"""The tally against a twin that keeps every vote and counts anew each time."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quorumcast.core.ids import NodeId
from quorumcast.core.tally import Ballot, Tally

MEMBERS = [NodeId(name) for name in "abcde"]
VOTES = st.lists(st.tuples(st.sampled_from(MEMBERS), st.integers(0, 3)), max_size=30)


class NaiveTally:
    """Keeps all that was said; a member's first vote is found by looking from the start."""

    def __init__(self) -> None:
        self.said: list[tuple[NodeId, int]] = []

    def first(self, member: NodeId) -> int | None:
        return next((value for who, value in self.said if who == member), None)

    def vote(self, member: NodeId, value: int) -> Ballot:
        first = self.first(member)
        self.said.append((member, value))
        if first is None:
            return Ballot.COUNTED
        return Ballot.REPEATED if first == value else Ballot.CONFLICTING

    def voters(self, value: int) -> list[NodeId]:
        order = list(dict.fromkeys(who for who, _ in self.said))
        return [who for who in order if self.first(who) == value]


@given(VOTES)
def test_tally_any_votes_agrees_with_its_naive_twin(votes: list[tuple[NodeId, int]]) -> None:
    tally: Tally[int] = Tally()
    naive = NaiveTally()
    for member, value in votes:
        assert tally.vote(member, value) is naive.vote(member, value)
    members = {who for who, _ in votes}
    assert len(tally) == len(members)
    for member in MEMBERS:
        assert tally.vote_of(member) == naive.first(member)
    for value in range(4):
        assert tally.voters(value) == naive.voters(value)
        assert tally.count(value) == len(naive.voters(value))
    assert tally.votes() == {member: naive.first(member) for member in members}
    assert set(tally.values()) == {naive.first(member) for member in members}


@given(VOTES, st.integers(1, 5))
def test_leader_any_votes_has_the_threshold_or_nobody_has(
    votes: list[tuple[NodeId, int]], threshold: int
) -> None:
    tally: Tally[int] = Tally()
    naive = NaiveTally()
    for member, value in votes:
        tally.vote(member, value)
        naive.vote(member, value)
    enough = {value for value in range(4) if len(naive.voters(value)) >= threshold}
    leader = tally.leader(threshold)
    assert leader in enough if enough else leader is None


def test_tally_falsy_value_still_counts_once() -> None:
    tally: Tally[bytes] = Tally()
    assert tally.vote(MEMBERS[0], b"") is Ballot.COUNTED
    assert tally.vote(MEMBERS[0], b"") is Ballot.REPEATED
    assert tally.count(b"") == 1
    assert tally.leader(1) == b""


def test_tally_one_member_many_values_cannot_fill_it() -> None:
    tally: Tally[int] = Tally()
    for value in range(1000):
        tally.vote(MEMBERS[0], value)
    assert (len(tally), tally.values()) == (1, [0])


@given(VOTES)
def test_revote_any_moves_leave_the_last_vote_of_each_member(
    votes: list[tuple[NodeId, int]],
) -> None:
    tally: Tally[int] = Tally()
    last: dict[NodeId, int] = {}
    for member, value in votes:
        if tally.vote(member, value) is Ballot.CONFLICTING:
            tally.revote(member, value)
        last[member] = value
    assert tally.votes() == last
    assert {value: tally.count(value) for value in tally.values()} == Counter(last.values())


def test_revote_one_member_many_values_cannot_fill_it() -> None:
    tally: Tally[int] = Tally()
    tally.vote(MEMBERS[0], 0)
    for value in range(1, 1000):
        tally.revote(MEMBERS[0], value)
    assert (len(tally), tally.values()) == (1, [999])
