"""The one place where votes are counted: one vote per member, and the first one stands."""

from __future__ import annotations

import enum
from collections.abc import Container, Hashable, Iterable
from typing import Generic, TypeVar

from quorumcast.core.ids import NodeId

V = TypeVar("V", bound=Hashable)


class Ballot(enum.Enum):
    """What became of one vote."""

    COUNTED = "counted"
    REPEATED = "repeated"
    #: The member had voted for another value before; its first vote stands.
    CONFLICTING = "conflicting"


def reached_by(numbers: Iterable[int], count: int) -> int:
    """The largest number that at least `count` of these reach; 0 if there are fewer."""
    ranked = sorted(numbers, reverse=True)
    return ranked[count - 1] if 0 < count <= len(ranked) else 0


class Tally(Generic[V]):
    """Votes of distinct members for values; a member's first vote is its only one.

    None is not a value: it says that there is none.
    """

    __slots__ = ("_counts", "_votes")

    def __init__(self) -> None:
        #: The first vote of each member; only `revote` moves it and `withdraw` removes it.
        self._votes: dict[NodeId, V] = {}
        #: How many members voted for each value, at least one; sums to len(_votes).
        self._counts: dict[V, int] = {}

    def vote(self, member: NodeId, value: V) -> Ballot:
        """Count a member's vote unless it has voted before."""
        earlier = self._votes.get(member)
        if earlier is not None:
            return Ballot.REPEATED if earlier == value else Ballot.CONFLICTING
        self._votes[member] = value
        self._counts[value] = self._counts.get(value, 0) + 1
        return Ballot.COUNTED

    def count(self, value: V) -> int:
        """How many members voted for a value."""
        return self._counts.get(value, 0)

    def leader(self, threshold: int) -> V | None:
        """The value that at least `threshold` members voted for, if there is one."""
        for value, count in self._counts.items():
            if count >= threshold:
                return value
        return None

    def vote_of(self, member: NodeId) -> V | None:
        """What a member voted for."""
        return self._votes.get(member)

    def revote(self, member: NodeId, value: V) -> None:
        """Move a member's vote, where its newest vote counts and not its first one."""
        earlier = self._votes.get(member)
        if earlier is not None:
            self._counts[earlier] -= 1
            if not self._counts[earlier]:
                del self._counts[earlier]  # or a member that keeps moving would fill it
        self._votes[member] = value
        self._counts[value] = self._counts.get(value, 0) + 1

    def withdraw(self, member: NodeId) -> None:
        """A member's vote no longer holds; it may vote again."""
        value = self._votes.pop(member, None)
        if value is not None:
            self._counts[value] -= 1
            if not self._counts[value]:
                del self._counts[value]

    def retain(self, members: Container[NodeId]) -> None:
        """Only these are members now: votes of others no longer count."""
        for gone in [member for member in self._votes if member not in members]:
            self.withdraw(gone)

    def votes(self) -> dict[NodeId, V]:
        """Every member's vote, in the order in which they came."""
        return self._votes

    def voters(self, value: V) -> list[NodeId]:
        """The members that voted for a value, in the order in which they did."""
        return [member for member, voted in self._votes.items() if voted == value]

    def values(self) -> list[V]:
        """Every value that somebody voted for."""
        return list(self._counts)

    def __len__(self) -> int:
        return len(self._votes)
