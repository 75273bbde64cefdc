"""A node's disk: records become durable after a sync delay, and a crash loses what was not.

Records become durable in the order in which they were written (a journal, not a page cache): a
crash keeps a prefix. `durable` is what `Restored` events bring back after a restart, unless the
disk itself was lost.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumcast.core.machine import Record
from quorumcast.sim.scheduler import Scheduler


class Disk:
    """The journal of one node."""

    __slots__ = ("_life", "_scheduler", "durable", "sync_ms")

    def __init__(self, scheduler: Scheduler, sync_ms: int) -> None:
        self._scheduler = scheduler
        self.sync_ms = sync_ms
        #: What a restart finds, oldest first.
        self.durable: list[Record] = []
        #: Grows with every crash, so that a sync of an earlier life never completes.
        self._life = 0

    def write(self, record: Record, done: Callable[[], None]) -> None:
        """Make a record durable, then call `done`; a crash in between forgets both."""
        life = self._life

        def synced() -> None:
            if life != self._life:
                return
            self.durable.append(record)
            done()

        # A constant delay keeps the order of writing: the heap breaks ties by age.
        self._scheduler.after(self.sync_ms, synced)

    def crash(self, *, wipe: bool) -> None:
        """Lose what is not durable, and with `wipe` everything."""
        self._life += 1
        if wipe:
            self.durable.clear()
