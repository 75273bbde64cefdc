"""Retention over all lives of a publisher: what one lane of its streams on a channel may take up.

A publisher that restarts begins a new stream. Its earlier publications are worth as much as its
later ones, so retention counts them together and lets go of the oldest first: of the oldest life,
and there of the longer of its two streams (the other one is for what is urgent).
"""

from __future__ import annotations

from heapq import heappop, heappush
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
        "_ages",
        "_lives",
        "_only",
        "_queued",
        "emptied",
        "held_bytes",
        "most",
        "most_bytes",
        "pending_bytes",
        "publications",
    )

    def __init__(self, limits: Limits) -> None:
        self.limit(limits)
        #: The ledgers that share this quota, by life and incarnation: at most two in a life.
        self._lives: dict[int, dict[int, Shelf]] = {}
        #: A heap of the lives that hold something, each once; others in it are skipped.
        self._ages: list[int] = []
        self._queued: set[int] = set()
        #: The ledger of the oldest life, if it is its only one and not empty: the usual case.
        self._only: Shelf | None = None
        #: Sums over all of them.
        self.publications = 0
        self.held_bytes = 0
        #: Bytes of runs that wait to be delivered; beyond `most_bytes` only the next run is taken.
        self.pending_bytes = 0
        #: Whether one of them has become empty, or another has begun, since somebody looked.
        self.emptied = False

    def limit(self, limits: Limits) -> None:
        """Go by these limits from the next publication on."""
        self.most = limits.retained_publications
        self.most_bytes = limits.retained_bytes

    def enter(self, incarnation: int, shelf: Shelf) -> None:
        """A ledger that is still empty takes part."""
        self._only = None
        self._lives.setdefault(incarnation >> 1, {})[incarnation] = shelf

    def leave(self, incarnation: int) -> None:
        """A ledger is given up with all that it holds."""
        self._only = None
        life = self._lives[incarnation >> 1]
        shelf = life.pop(incarnation)
        if not life:
            del self._lives[incarnation >> 1]
        self.publications -= len(shelf)
        self.held_bytes -= shelf.held_bytes

    def stock(self, incarnation: int) -> None:
        """A ledger that was empty holds something from now on."""
        self._only = None
        life = incarnation >> 1
        if life not in self._queued:
            self._queued.add(life)
            heappush(self._ages, life)

    def drain(self) -> None:
        """A ledger has nothing left."""
        self._only = None
        self.emptied = True

    def room_for(self, incarnation: int) -> tuple[int, int]:
        """Publications and bytes that a ledger may still get back: earlier lives give way to it."""
        kept = [
            shelf
            for life, shelves in self._lives.items()
            if life >= incarnation >> 1
            for shelf in shelves.values()
        ]
        held_bytes = sum(shelf.held_bytes for shelf in kept)
        return self.most - sum(map(len, kept)), self.most_bytes - held_bytes

    def make_room(self, incarnation: int, count: int, size: int) -> bool:
        """Let go of earlier lives for what a ledger gets back; False if that is not enough."""
        most, most_bytes = self.room_for(incarnation)
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
            shelf = self._only
            (self._oldest() if shelf is None else shelf).let_go()

    def _oldest(self) -> Shelf:
        # Each life is taken from the heap once for each time that it was put there: a scan over
        # all lives for each publication would let a publisher of many lives hold up its broker.
        while True:
            shelves = self._lives.get(self._ages[0], {})
            shelf = max(shelves.values(), key=len, default=None)
            if shelf:
                self._only = shelf if len(shelves) == 1 else None
                return shelf
            self._queued.discard(heappop(self._ages))
