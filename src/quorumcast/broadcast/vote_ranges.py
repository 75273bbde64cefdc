"""Votes are counted per range of consecutive numbers, with one tally for all of them.

Any two votes or histories agree on all numbers of a range or on none, so what its tally counts
holds for each number by itself. Normally a range is a run, and everybody agrees on it. Where a vote
differs in some numbers, or runs are cut differently, the range is split just there: a liar that
alters one number of each run costs two ranges instead of one, and one that alters all of them none.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from quorumcast.core.ids import DIGEST_SIZE, NodeId, split_digests
from quorumcast.core.tally import Tally

#: What a broker votes for: digests and, on a chain, the chain that brought them.
Value = tuple[bytes, tuple[NodeId, ...]]


class VoteRange:
    """Consecutive numbers with one tally: two votes agree on all of them or on none."""

    __slots__ = ("bodies", "by_history", "count", "decided", "first", "tally")

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        self.tally: Tally[Value] = Tally()
        #: The digests that won.
        self.decided: bytes | None = None
        #: Whether a history decided.
        self.by_history = False
        #: Bodies with the right hashes, by digests.
        self.bodies: dict[bytes, tuple[bytes, ...]] = {}

    def disputed(self, digests: bytes) -> list[int]:
        """Where to split: places at which agreement with some earlier vote begins or ends."""
        if self.count == 1:
            return []
        known = {value[0] for value in self.tally.values()}
        if self.decided is not None:
            known.add(self.decided)
        if digests in known or not known:
            # What agrees with one of them stands to the others as that one does.
            return []
        mine = split_digests(digests)
        cuts: dict[int, None] = {}
        for other in sorted(known):
            same = [ours == theirs for ours, theirs in zip(mine, split_digests(other), strict=True)]
            cuts.update(dict.fromkeys(i for i, (a, b) in enumerate(pairwise(same), 1) if a != b))
        return sorted(cuts)

    def split(self, places: list[int]) -> list[VoteRange]:
        """The same in parts that begin at these places."""
        return [self._part(*ends) for ends in pairwise((0, *places, self.count))]

    def _part(self, start: int, stop: int) -> VoteRange:
        part = slice(start * DIGEST_SIZE, stop * DIGEST_SIZE)
        span = VoteRange(self.first + start, stop - start)
        for broker, (digests, order) in self.tally.votes().items():
            span.tally.vote(broker, (digests[part], order))
        span.decided = None if self.decided is None else self.decided[part]
        span.by_history = self.by_history
        span.bodies = {d[part]: bodies[start:stop] for d, bodies in self.bodies.items()}
        return span

    @property
    def size(self) -> int:
        """Bytes of bodies kept."""
        return sum(len(body) for bodies in self.bodies.values() for body in bodies)


class VoteRanges:
    """The ranges of one stream."""

    __slots__ = ("_by_first", "_wide", "top")

    def __init__(self) -> None:
        #: By first number; they do not overlap.
        self._by_first: dict[int, VoteRange] = {}
        #: Those with more than one number.
        self._wide: dict[int, VoteRange] = {}
        #: No range reaches beyond this number.
        self.top = 0

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def get(self, first: int) -> VoteRange | None:
        """The range that begins with a number."""
        return self._by_first.get(first)

    def all(self) -> Collection[VoteRange]:
        """Every range."""
        return self._by_first.values()

    def add(self, span: VoteRange) -> VoteRange:
        """Put a range where none is."""
        self._by_first[span.first] = span
        if span.count > 1:
            self._wide[span.first] = span
        self.top = max(self.top, span.first + span.count - 1)
        return span

    def remove(self, span: VoteRange) -> None:
        """Forget a range."""
        del self._by_first[span.first]
        self._wide.pop(span.first, None)

    def split(self, span: VoteRange, places: list[int]) -> list[VoteRange]:
        """A range in parts that begin at these places; the range itself if there are none."""
        if not places:
            return [span]
        self.remove(span)
        return [self.add(part) for part in span.split(places)]

    def split_at(self, *edges: int) -> None:
        """Let no range have numbers on both sides of these edges."""
        for span in list(self._wide.values()):
            stop = span.first + span.count
            self.split(span, [edge - span.first for edge in edges if span.first < edge < stop])

    def region(self, first: int, count: int, *, create: bool) -> list[VoteRange]:
        """The vote ranges that cover these numbers, in order and cut to fit."""
        end = first + count
        self.split_at(first, end)
        found: list[VoteRange] = []
        number = first
        while number < end:
            start = number
            while number < end and number not in self._by_first:
                number += 1
            if create and number > start:
                found.append(self.add(VoteRange(start, number - start)))
            if number < end:
                found.append(self._by_first[number])
                number += found[-1].count
        return found


def part_of(span: VoteRange, first: int, digests: bytes) -> bytes:
    """The part for a range of digests that begin at a number."""
    start = (span.first - first) * DIGEST_SIZE
    return digests[start : start + span.count * DIGEST_SIZE]
