"""Boxes: what brokers have said of consecutive numbers, with one tally for all of them.

Of any two words about the numbers of a box (votes, or what a history names) either all numbers say
the same or none does. So what its tally counts holds for each number by itself. Normally a box is a
run, and everybody says the same of it. Where somebody says something else of some of its numbers,
or cuts runs otherwise, the box is cut just there: a liar that alters one number of each run costs
two boxes instead of one, and one that alters all of them none.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from quorumcast.core.ids import DIGEST_SIZE, NodeId, split_digests
from quorumcast.core.tally import Tally

#: What a broker votes for: digests and, on a chain, the chain that brought them.
Value = tuple[bytes, tuple[NodeId, ...]]


class Box:
    """Consecutive numbers with one tally: two words agree on all of them or on none."""

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
        """Where to cut so that the parts agree with these digests in all their numbers or in none.

        Places at which agreement with some earlier word begins or ends.
        """
        if self.count == 1:
            return []
        words = {value[0] for value in self.tally.values()}
        if self.decided is not None:
            words.add(self.decided)
        if digests in words or not words:
            # What agrees with one of them stands to the others as that one does.
            return []
        mine = split_digests(digests)
        cuts: dict[int, None] = {}
        for word in sorted(words):
            same = [ours == theirs for ours, theirs in zip(mine, split_digests(word), strict=True)]
            cuts.update(dict.fromkeys(i for i, (a, b) in enumerate(pairwise(same), 1) if a != b))
        return sorted(cuts)

    def cut(self, places: list[int]) -> list[Box]:
        """The same in parts, each beginning at one of these places."""
        return [self._part(*ends) for ends in pairwise((0, *places, self.count))]

    def _part(self, start: int, stop: int) -> Box:
        part = slice(start * DIGEST_SIZE, stop * DIGEST_SIZE)
        box = Box(self.first + start, stop - start)
        for broker, (digests, order) in self.tally.votes().items():
            box.tally.vote(broker, (digests[part], order))
        box.decided = None if self.decided is None else self.decided[part]
        box.by_history = self.by_history
        box.bodies = {d[part]: bodies[start:stop] for d, bodies in self.bodies.items()}
        return box

    @property
    def size(self) -> int:
        """Bytes of bodies kept."""
        return sum(len(body) for bodies in self.bodies.values() for body in bodies)


class Boxes:
    """The boxes of one stream."""

    __slots__ = ("_by_first", "_wide", "top")

    def __init__(self) -> None:
        #: By first number; they do not overlap.
        self._by_first: dict[int, Box] = {}
        #: Those with more than one number.
        self._wide: dict[int, Box] = {}
        #: No box reaches beyond this number.
        self.top = 0

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def get(self, first: int) -> Box | None:
        """The box that begins with a number."""
        return self._by_first.get(first)

    def all(self) -> Collection[Box]:
        """Every box."""
        return self._by_first.values()

    def add(self, box: Box) -> Box:
        """Put a box where none is."""
        self._by_first[box.first] = box
        if box.count > 1:
            self._wide[box.first] = box
        self.top = max(self.top, box.first + box.count - 1)
        return box

    def remove(self, box: Box) -> None:
        """Forget a box."""
        del self._by_first[box.first]
        self._wide.pop(box.first, None)

    def cut(self, box: Box, places: list[int]) -> list[Box]:
        """A box in parts that begin at these places; the box itself if there are none."""
        if not places:
            return [box]
        self.remove(box)
        return [self.add(part) for part in box.cut(places)]

    def cut_at(self, *edges: int) -> None:
        """Let no box have numbers on both sides of these edges."""
        for box in list(self._wide.values()):
            stop = box.first + box.count
            self.cut(box, [edge - box.first for edge in edges if box.first < edge < stop])

    def region(self, first: int, count: int, *, create: bool) -> list[Box]:
        """The boxes of a range, in order; none of them sticks out of it."""
        end = first + count
        self.cut_at(first, end)
        found: list[Box] = []
        number = first
        while number < end:
            start = number
            while number < end and number not in self._by_first:
                number += 1
            if create and number > start:
                found.append(self.add(Box(start, number - start)))
            if number < end:
                found.append(self._by_first[number])
                number += found[-1].count
        return found


def part_of(box: Box, first: int, digests: bytes) -> bytes:
    """What digests from a number on say of a box."""
    start = (box.first - first) * DIGEST_SIZE
    return digests[start : start + box.count * DIGEST_SIZE]
