"""A simulated disk: changes become durable after a sync delay, and a crash loses the others.

It mirrors the runtime's store: a record replaces the one at its address, and removals are ordered
among the writes. Changes become durable in order, so a crash keeps a prefix of them: the synced
ones, and with `tear` some whose sync was not reported yet. A disk may also be lost (`wipe`) or
damaged (`corrupt`). The next start then finds nothing, because a damaged file is not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quorumcast.core.machine import R, Record
from quorumcast.sim.kernel.scheduler import Scheduler

Change = Callable[[], None]


class Disk:
    """The store of one node."""

    __slots__ = ("_changes", "_kept", "_life", "_scheduler", "_unsynced", "damaged", "sync_ms")

    def __init__(self, scheduler: Scheduler, sync_ms: int) -> None:
        self._scheduler = scheduler
        self.sync_ms = sync_ms
        #: Durable records by kind and owner, then by place, each with its sequence number.
        self._kept: dict[tuple[type[Record], str], dict[int, tuple[int, Record]]] = {}
        #: Number of durable changes so far.
        self._changes = 0
        #: Changes that a crash would lose, in order.
        self._unsynced: deque[Change] = deque()
        #: Grows with every crash, so that a sync of an earlier life never completes.
        self._life = 0
        #: Whether the next start will find the file damaged.
        self.damaged = False

    @property
    def durable(self) -> list[Record]:
        """Every durable record, in the order of writing."""
        written = [entry for places in self._kept.values() for entry in places.values()]
        return [record for _, record in sorted(written, key=lambda entry: entry[0])]

    def held(self, kind: type[Record], owner: str) -> dict[int, Record]:
        """The durable records of a kind and owner, by place."""
        return {at: record for at, (_, record) in self._kept.get((kind, owner), {}).items()}

    def load(self) -> list[Record]:
        """The records found at a start: all durable ones, or none if the file is damaged.

        As in the runtime, damage is detected only when the file is opened, and records of archived
        kinds are left out.
        """
        if self.damaged:
            self._kept.clear()
            self.damaged = False
        return [record for record in self.durable if not record.archived]

    # ------------------------------------------------------- reading as an `ArchiveReader`

    def get(self, kind: type[R], owner: str, place: int) -> R | None:
        """The durable record at an address."""
        _, record = self._kept.get((kind, owner), {}).get(place, (0, None))
        return record if isinstance(record, kind) else None

    def last(self, kind: type[R], owner: str, below: int) -> R | None:
        """The durable record at the highest place below this one."""
        places = [at for at in self._kept.get((kind, owner), {}) if at < below]
        return self.get(kind, owner, max(places)) if places else None

    def first(self, kind: type[R], owner: str, since: int) -> R | None:
        """The durable record at the lowest place from this one on."""
        places = [at for at in self._kept.get((kind, owner), {}) if at >= since]
        return self.get(kind, owner, min(places)) if places else None

    def owners(self, kind: type[Record]) -> list[str]:
        """Everybody who has durable records of a kind."""
        return [owner for (known, owner), places in self._kept.items() if known is kind and places]

    # ---------------------------------------------------------------- writing

    def write(self, record: Record, done: Callable[[], None]) -> None:
        """Make a record durable, then call `done`; a crash in between cancels both."""
        self._sync(lambda: self._keep(record), done)

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        """Remove the records of a kind and owner below a place, once earlier writes are durable."""
        self._sync(lambda: self._remove(kind, owner, below, since), lambda: None)

    def _sync(self, change: Change, done: Callable[[], None]) -> None:
        life = self._life
        self._unsynced.append(change)

        def synced() -> None:
            if life != self._life:
                return
            self._unsynced.popleft()()
            done()

        # A constant delay keeps the order of writing: the heap breaks ties by age.
        self._scheduler.after(self.sync_ms, synced)

    def _keep(self, record: Record) -> None:
        self._changes += 1
        places = self._kept.setdefault((type(record), record.owner), {})
        places[record.place] = (self._changes, record)

    def _remove(self, kind: type[Record], owner: str, below: int, since: int) -> None:
        places = self._kept.get((kind, owner), {})
        for place in [place for place in places if since <= place < below]:
            del places[place]

    def crash(self, *, wipe: bool = False, tear: int = 0, corrupt: bool = False) -> None:
        """Lose all changes that are not durable, except the first `tear` of them.

        With `wipe` everything is lost; with `corrupt` the next start finds a damaged file.
        """
        self._life += 1
        for _ in range(min(tear, len(self._unsynced))):
            self._unsynced.popleft()()
        self._unsynced.clear()
        self.damaged |= corrupt
        if wipe:
            self._kept.clear()
