"""A node's disk: changes become durable after a sync delay, and a crash loses what was not.

The twin of the runtime's store: a record replaces the one at its address, and removals take their
turn among the records. Changes become durable in the
order in which they were made, so a crash keeps a prefix of them: those that were synced, and with
`tear` some that nobody was told about yet. A disk may also be lost (`wipe`) or damaged (`corrupt`,
at a crash or at any moment before): the next start then finds nothing, because a damaged file is
set aside and nothing of it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quorumcast.core.machine import Record
from quorumcast.sim.kernel.scheduler import Scheduler

Change = Callable[[], None]


class Disk:
    """The store of one node."""

    __slots__ = ("_changes", "_kept", "_life", "_scheduler", "_unsynced", "damaged", "sync_ms")

    def __init__(self, scheduler: Scheduler, sync_ms: int) -> None:
        self._scheduler = scheduler
        self.sync_ms = sync_ms
        #: What is durable, by kind and owner, then by place: when it was written, and the record.
        self._kept: dict[tuple[type[Record], str], dict[int, tuple[int, Record]]] = {}
        #: Durable changes so far.
        self._changes = 0
        #: Changes that a crash would lose, in the order in which they were made.
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
        """What a start finds: everything durable, or nothing and a new file in place of a bad one.

        As in the runtime, a damaged file is found out when it is opened and not before.
        """
        if self.damaged:
            self._kept.clear()
            self.damaged = False
        return self.durable

    def write(self, record: Record, done: Callable[[], None]) -> None:
        """Make a record durable, then call `done`; a crash in between forgets both."""
        self._sync(lambda: self._keep(record), done)

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        """Remove the records of a kind and owner below a place, after what was written before."""
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
        """Lose what is not durable, but for the first `tear` changes, which got there unnoticed.

        With `wipe` everything is lost; with `corrupt` the next start finds a damaged file.
        """
        self._life += 1
        for _ in range(min(tear, len(self._unsynced))):
            self._unsynced.popleft()()
        self._unsynced.clear()
        self.damaged |= corrupt
        if wipe:
            self._kept.clear()
