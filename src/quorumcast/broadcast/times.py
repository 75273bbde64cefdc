"""Where in a ledger the publications of a time begin, without reading all of it each time.

Publishers stamp what they publish (`core.envelope`). The stamps are claims: they need not grow, and
contents may be too short to have one. `Times` remembers the largest stamp of each block of numbers
once somebody has asked; a block whose largest is too early is passed over as a whole. One `Search`
looks into about `MAX_READ` contents, over however many ledgers. Where that does not suffice it ends
early: the answer is never beyond the first publication of that time, and the subscriber passes over
the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumcast.core.envelope import stamp_of

#: Numbers per block, and contents that one search may look into.
BLOCK = 256
MAX_READ = 32 * BLOCK


class Search:
    """A time that is looked for, and how much may still be read for it."""

    __slots__ = ("left", "since_us")

    def __init__(self, since_us: int) -> None:
        self.since_us = since_us
        self.left = MAX_READ


class Times:
    """The largest stamps of a ledger's blocks."""

    __slots__ = ("_largest",)

    def __init__(self) -> None:
        #: Block → a stamp that no held publication of it exceeds; of whole blocks that are held.
        self._largest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._largest)

    def clear(self) -> None:
        """Nothing is held any more."""
        self._largest.clear()

    def changed(self, numbers: range) -> None:
        """There are other contents at these numbers than before, or none."""
        if self._largest:
            for block in range(numbers.start // BLOCK, (numbers.stop - 1) // BLOCK + 1):
                self._largest.pop(block, None)

    def gone(self, numbers: range) -> None:
        """The oldest numbers are dropped; a block goes with the last of its numbers."""
        if self._largest:
            for block in range(numbers.start // BLOCK, numbers.stop // BLOCK):
                self._largest.pop(block, None)

    def first(
        self, search: Search, base: int, end: int, body: Callable[[int], bytes], labelled: bool
    ) -> int:
        """The first of base … end-1 stamped at or after a time, or one before it; `end` if none."""
        number = base
        while number < end:
            block = number // BLOCK
            stop = (block + 1) * BLOCK
            known = self._largest.get(block)
            if known is None or known >= search.since_us:
                if search.left <= 0:
                    return number
                search.left -= BLOCK
                largest = -1
                for at in range(number, min(stop, end)):
                    stamp = stamp_of(body(at), labelled)
                    if stamp >= search.since_us:
                        return at
                    largest = max(largest, stamp)
                if stop <= end:
                    self._largest[block] = largest
            number = stop
        return end
