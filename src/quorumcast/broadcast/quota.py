"""Retention over all lives of a publisher: what one lane of its streams on a channel may take up.

A publisher that restarts begins a new stream. Its earlier publications are worth as much as its
later ones, so retention counts them together and lets go of the oldest first: of the oldest life,
and there of the longer of its two streams (the other one is for what is urgent).

What brokers have not settled together counts apart. A lying publisher could else begin one life
after the other at a single broker, settle none, and so push out what everybody has settled. As much
may be unsettled as is retained. Beyond that the broker gives up what is unsettled of earlier lives,
and refuses more of the newest one until some of it is settled (`crowded`).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from quorumcast.core.limits import Limits


class Shelf(Protocol):
    """A ledger, as far as a quota knows it."""

    @property
    def kept(self) -> int:
        """How many publications are held that are settled."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Bytes of contents held that are settled."""
        ...

    @property
    def unsettled(self) -> int:
        """How many publications are held that are not settled."""
        ...

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of contents held that are not settled."""
        ...

    def let_go(self, count: int) -> None:
        """Let go of the oldest publications."""
        ...


def _kept(shelf: Shelf) -> int:
    return shelf.kept


class Quota:
    """Publications and bytes that the ledgers of one publisher share."""

    __slots__ = (
        "_ages",
        "_lives",
        "_only",
        "_queued",
        "crowded",
        "emptied",
        "held_bytes",
        "most",
        "most_bytes",
        "most_lives",
        "pending_bytes",
        "publications",
        "unsettled",
        "unsettled_bytes",
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
        #: Publications and bytes that are settled, over all of them; and those that are not.
        self.publications = 0
        self.held_bytes = 0
        self.unsettled = 0
        self.unsettled_bytes = 0
        #: Bytes of runs that are in no ledger yet, or in one and wait to be delivered.
        self.pending_bytes = 0
        #: Whether more is unsettled than may be: earlier lives have to give up theirs.
        self.crowded = False
        #: Whether one of them has become empty, or another has begun, since somebody looked.
        self.emptied = False

    def limit(self, limits: Limits) -> None:
        """Go by these limits from the next publication on."""
        self.most = limits.retained_publications
        self.most_bytes = limits.retained_bytes
        self.most_lives = limits.streams_per_publisher

    def enter(self, incarnation: int, shelf: Shelf) -> None:
        """A ledger that is still empty takes part."""
        self._only = None
        self._lives.setdefault(incarnation >> 1, {})[incarnation] = shelf

    def leave(self, incarnation: int) -> None:
        """A ledger is given up with all that it holds."""
        life = self._lives[incarnation >> 1]
        shelf = life.pop(incarnation)
        if not life:
            del self._lives[incarnation >> 1]
        self.empty(shelf)

    def empty(self, shelf: Shelf) -> None:
        """A ledger gives up all that it holds."""
        self.remove(shelf.kept, shelf.kept_bytes, shelf.unsettled, shelf.unsettled_bytes)
        self.drain()

    def stock(self, incarnation: int) -> None:
        """A ledger that held nothing settled does from now on."""
        self._only = None
        life = incarnation >> 1
        if life not in self._queued:
            self._queued.add(life)
            heappush(self._ages, life)

    def drain(self) -> None:
        """A ledger has nothing settled left."""
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
        held_bytes = sum(shelf.kept_bytes for shelf in kept)
        return self.most - sum(map(_kept, kept)), self.most_bytes - held_bytes

    def make_room(self, incarnation: int, count: int, size: int) -> bool:
        """Let go of earlier lives for what a ledger gets back; False if that is not enough."""
        most, most_bytes = self.room_for(incarnation)
        if count > most or size > most_bytes:
            return False
        while self.publications + count > self.most or self.held_bytes + size > self.most_bytes:
            self._oldest().let_go(1)
        return True

    def add(self, settled: int, settled_bytes: int, unsettled: int, unsettled_bytes: int) -> None:
        """So much is held in addition: let go of what is too much now."""
        self.publications += settled
        self.held_bytes += settled_bytes
        self.unsettled += unsettled
        self.unsettled_bytes += unsettled_bytes
        if self.publications > self.most or self.held_bytes > self.most_bytes:
            self.trim()

    def remove(
        self, settled: int, settled_bytes: int, unsettled: int, unsettled_bytes: int
    ) -> None:
        """So much is not held any longer."""
        self.publications -= settled
        self.held_bytes -= settled_bytes
        self.unsettled -= unsettled
        self.unsettled_bytes -= unsettled_bytes

    def settle(self, count: int, size: int) -> None:
        """So much of what was not settled is settled now."""
        self.add(count, size, -count, -size)

    def refuses(self, count: int, size: int) -> bool:
        """Whether so much more would be too much that is not settled.

        Where nothing else waits, a run is taken whatever its size.
        """
        # What is pending may be in a ledger as well, and is not held twice.
        waits = max(self.unsettled_bytes, self.pending_bytes)
        if self.unsettled + count <= self.most and waits + size <= self.most_bytes:
            return False
        if not self.unsettled and not waits:
            return False
        self.crowded = True
        return True

    @property
    def relieved(self) -> bool:
        """Whether no more than half of what may be unsettled is."""
        waits = max(self.unsettled_bytes, self.pending_bytes)
        return 2 * self.unsettled <= self.most and 2 * waits <= self.most_bytes

    def trim(self) -> None:
        """Let go of the oldest publications until the rest may be retained."""
        while self.publications > self.most or (
            self.held_bytes > self.most_bytes and self.publications > 1
        ):
            shelf = self._only
            if shelf is None:
                self._oldest().let_go(1)
            else:
                shelf.let_go(max(1, min(self.publications - self.most, shelf.kept)))

    def _oldest(self) -> Shelf:
        # Each life is taken from the heap once for each time that it was put there: a scan over
        # all lives for each publication would let a publisher of many lives hold up its broker.
        while True:
            shelves = self._lives.get(self._ages[0], {})
            shelf = max(shelves.values(), key=_kept, default=None)
            if shelf is not None and shelf.kept:
                self._only = shelf if len(shelves) == 1 else None
                return shelf
            self._queued.discard(heappop(self._ages))
