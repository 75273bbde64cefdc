"""The records of a machine on disk, with group commit.

All changes of one turn of the event loop become one transaction of the `Database`, in their order.
Transactions run one at a time in a thread, so the loop goes on while the disk syncs; changes that
arrive meanwhile form the next one. `done` is called on the loop after the commit is on disk. A
record replaces the one at the same address (kind, owner, place). Records of archived kinds are left
on disk and read from there, on the loop, one at a time.

On a full disk the batch, and everything behind it, is retried every `RETRY_S`. Nothing is
acknowledged meanwhile, so publishers' credits run out, which bounds what waits; the machine is
told. Any other error of the disk stops the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from quorumcast.core.machine import ArchiveReader, Record
from quorumcast.runtime.logs import note
from quorumcast.runtime.store.contract import CONTRACT, StoreKind, StoreStatus
from quorumcast.runtime.store.database import Change, Database, Keep, Remove
from quorumcast.runtime.store.full_disk import DiskFullError

#: Lazy changes wait for others at most this long, and at most this many bytes of them.
LAZY_S = 0.05
LAZY_BYTES = 1024 * 1024
#: The pause between attempts on a full disk.
RETRY_S = 1.0


def _nothing() -> None:
    """Called when a removal is on disk, for which nobody waits."""


class DiskStore:
    """The records of one node."""

    def __init__(
        self,
        path: Path,
        kinds: Sequence[type[Record]],
        *,
        holder: str = "",
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Open or create the file; `holder` is the full name of the broker that owns it."""
        self._database = Database(path, kinds, holder)
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_failure = on_failure
        self._on_full: Callable[[bool], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        #: Changes that wait for the next commit, with their `done`.
        self._waiting: list[tuple[Change, Callable[[], None]]] = []
        #: Bytes of records that are not on disk yet, and the most that there ever were.
        self._waiting_bytes = 0
        self._most_waiting_bytes = 0
        self._committing: asyncio.Task[None] | None = None
        #: Set while only lazy changes wait.
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._closing = asyncio.Event()
        self._full = False
        #: After a failure nothing is written any more: it might depend on what was lost.
        self._failed = False

    def load(self) -> list[Record]:
        """Every record on disk at the start but archived ones, in the order of writing; once."""
        found, self._database.found = self._database.found, []
        return found

    def watch(self, on_full: Callable[[bool], None]) -> None:
        """Call `on_full` when the disk becomes full, and when it has room again."""
        self._on_full = on_full

    def save(self, record: Record, done: Callable[[], None], *, lazy: bool = False) -> None:
        """Write a record and call `done` when it is on disk; a lazy one waits for others."""
        kind = type(record).__name__
        encoded = self._encode(record)
        self._waiting_bytes += len(encoded)
        self._most_waiting_bytes = max(self._most_waiting_bytes, self._waiting_bytes)
        self._change(Keep(kind, record.owner, record.place, encoded), done, lazy=lazy)

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        """Remove the records of a kind and owner at places from `since` up to below `below`."""
        self._change(Remove(kind.__name__, owner, below, since), _nothing, lazy=True)

    @property
    def archive(self) -> ArchiveReader:
        """Reads archived records; for the event loop."""
        return self._database.archive

    def status(self) -> StoreStatus:
        """The present state."""
        database = self._database
        return StoreStatus(
            int(self._full),
            self._waiting_bytes,
            self._most_waiting_bytes,
            database.file_bytes,
            database.log_bytes,
            database.archive_bytes,
            database.archive.damaged,
        )

    # -------------------------------------------------------------- committing

    def _change(self, change: Change, done: Callable[[], None], *, lazy: bool = False) -> None:
        self._waiting.append((change, done))
        if not lazy or self._waiting_bytes > LAZY_BYTES:
            self._commit_now()
        elif self._committing is None and self._lazy_timer is None:
            self._lazy_timer = self._loop.call_later(LAZY_S, self._commit_now)

    def _commit_now(self) -> None:
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        if self._committing is None and not self._failed:
            self._committing = self._loop.create_task(self._commit())

    async def _commit(self) -> None:
        try:
            while self._waiting or (self._database.is_untidy and not self._closing.is_set()):
                if self._waiting and not await self._commit_batch():
                    return
                # After `done`: votes need not wait until the files are tidy.
                if self._database.is_untidy:
                    await self._loop.run_in_executor(self._thread, self._database.tidy)
        except Exception as error:
            # The node must stop rather than acknowledge what may not be on disk.
            self._failed = True
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._committing = None

    async def _commit_batch(self) -> bool:
        """Commit what waits, or wait a while for room; False if the store is closing without."""
        batch, self._waiting = self._waiting, []
        changes = [change for change, _ in batch]
        try:
            await self._loop.run_in_executor(self._thread, self._database.write, changes)
        except DiskFullError as error:
            self._waiting[:0] = batch
            return await self._room_again(str(error))
        self._waiting_bytes -= sum(len(c.record) for c in changes if isinstance(c, Keep))
        self._tell(full=False)
        for _, done in batch:
            done()
        return True

    async def _room_again(self, reason: str) -> bool:
        """Wait before the next attempt; False if the store is closing."""
        self._tell(full=True, reason=reason)
        try:
            async with asyncio.timeout(RETRY_S):
                await self._closing.wait()
        except TimeoutError:
            return True
        return False

    def _tell(self, *, full: bool, reason: str = "") -> None:
        if full == self._full:
            return
        self._full = full
        shown = msgspec.structs.asdict(self.status())
        if full:
            note("disk is full; tries again", level=logging.ERROR, reason=reason, **shown)
        else:
            note("disk has room again", **shown)
        if self._on_full is not None:
            self._on_full(full)

    async def close(self) -> None:
        """Commit what waits and close the file; on a full disk the rest was never acknowledged."""
        self._closing.set()
        if self._waiting:
            self._commit_now()
        while self._committing is not None:
            await self._committing
        self._thread.shutdown()
        self._database.close()


#: The built-in kind of store.
KIND = StoreKind(contract=CONTRACT, open=DiskStore)
