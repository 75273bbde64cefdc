"""Retention over all lives of a publisher: what one lane of its streams on a channel may take up.

A publisher that restarts begins a new stream. Its earlier publications are worth as much as its
later ones, so retention counts them together and lets go of the oldest first: of the oldest life,
and there of the longer of its two streams (the other one is for what is urgent).
"""

from __future__ import annotations

from typing import Protocol

from quorumcast.core.limits import Limits


class Shelf(Protocol):
    """A ledger, as far as a quota knows it."""

    def __len__(self) -> int: ...

    @property
    def held_bytes(self) -> int:
        """Bytes of contents held."""
        ...

    def let_go(self) -> None:
        """Let go of the oldest publication."""
        ...


class Quota:
    """Publications and bytes that the ledgers of one publisher share."""

    __slots__ = (
        "_shelves",
        "emptied",
        "held_bytes",
        "most",
        "most_bytes",
        "pending_bytes",
        "publications",
    )

    def __init__(self, limits: Limits) -> None:
        self.limit(limits)
        #: The ledgers that share this quota, by incarnation.
        self._shelves: dict[int, Shelf] = {}
        #: Sums over all of them.
        self.publications = 0
        self.held_bytes = 0
        #: Bytes of runs that wait to be delivered; beyond `most_bytes` only the next run is taken.
        self.pending_bytes = 0
        #: Whether one of them has become empty since somebody looked.
        self.emptied = False

    def limit(self, limits: Limits) -> None:
        """Go by these limits from the next publication on."""
        self.most = limits.retained_publications
        self.most_bytes = limits.retained_bytes

    def enter(self, incarnation: int, shelf: Shelf) -> None:
        """A ledger that is still empty takes part."""
        self._shelves[incarnation] = shelf

    def leave(self, incarnation: int) -> None:
        """A ledger is given up with all that it holds."""
        shelf = self._shelves.pop(incarnation)
        self.publications -= len(shelf)
        self.held_bytes -= shelf.held_bytes

    def room_for(self, shelf: Shelf) -> tuple[int, int]:
        """Publications and bytes that a ledger may still get back: earlier lives give way to it."""
        life = next(life for life, other in self._shelves.items() if other is shelf) >> 1
        kept = [other for other_life, other in self._shelves.items() if other_life >> 1 >= life]
        held_bytes = sum(other.held_bytes for other in kept)
        return self.most - sum(map(len, kept)), self.most_bytes - held_bytes

    def make_room(self, shelf: Shelf, count: int, size: int) -> bool:
        """Let go of earlier lives for what a ledger gets back; False if that is not enough."""
        most, most_bytes = self.room_for(shelf)
        if count > most or size > most_bytes:
            return False
        while self.publications + count > self.most or self.held_bytes + size > self.most_bytes:
            self._oldest().let_go()
        return True

    def trim(self) -> None:
        """Let go of the oldest publications until the rest may be retained."""
        while self.publications > self.most or (
            self.held_bytes > self.most_bytes and self.publications > 1
        ):
            self._oldest().let_go()

    def _oldest(self) -> Shelf:
        if len(self._shelves) == 1:  # nearly always
            return next(iter(self._shelves.values()))
        lives = [(incarnation >> 1, shelf) for incarnation, shelf in self._shelves.items()]
        first = min(life for life, shelf in lives if len(shelf))
        return max((shelf for life, shelf in lives if life == first), key=len)
