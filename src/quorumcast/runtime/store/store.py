"""What a machine asked to keep: changes of one loop turn are one commit, made in a thread.

Records and removals that are asked for in one turn of the event loop become one transaction (group
commit) of the `Database`, in the order in which they were asked for. It runs in a thread, one at a
time, so the loop goes on while the disk syncs; what is asked for meanwhile forms the next one.
`done` is called on the loop only after the commit has reached the disk.

A record replaces the one that was at its address.

A full disk loses nothing and stops nobody: the batch stays, with everything behind it, and is tried
again every `RETRY_S`. Nothing is promised meanwhile, so the machines' credits run out and what
waits is bounded by them; the machine is told, too, so that it can say why. Whatever else goes wrong
with the disk stops the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from quorumcast.core.machine import Record
from quorumcast.runtime.logs import note
from quorumcast.runtime.store.changes import Change, Keep, Remove
from quorumcast.runtime.store.database import Database
from quorumcast.runtime.store.room import DiskFullError

#: So long lazy changes wait for company, and so many bytes of them at most.
LAZY_S = 0.05
LAZY_BYTES = 1024 * 1024
#: How often a full disk is tried again.
RETRY_S = 1.0


def _nothing() -> None:
    """Nobody waits for a removal."""


class StoreStatus(msgspec.Struct, frozen=True):
    """The state of a store, for `/status`, `/metrics` and the log."""

    #: 1 while the disk is full, else 0.
    full: int
    #: Bytes of records that are not on disk yet, and the most that there ever were.
    waiting_bytes: int
    most_waiting_bytes: int
    #: Sizes of the database and of its write-ahead log.
    file_bytes: int
    log_bytes: int


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
        """Open or create the file; `holder` names the broker whose records these are."""
        self._database = Database(path, kinds, holder)
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_failure = on_failure
        self._on_full: Callable[[bool], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        #: Changes of this turn and whom to tell; emptied by every commit.
        self._waiting: list[tuple[Change, Callable[[], None]]] = []
        #: Bytes of records that were given and are not safe yet, and the most there ever were.
        self._waiting_bytes = 0
        self._most_waiting_bytes = 0
        self._committing: asyncio.Task[None] | None = None
        #: Set while nothing but lazy changes waits.
        self._dawdling: asyncio.TimerHandle | None = None
        self._closing = asyncio.Event()
        self._full = False
        #: After a failure nothing is written any more: it might rest on what was not.
        self._failed = False

    def load(self) -> list[Record]:
        """Every record that the disk held at the start, in the order of writing; once."""
        found, self._database.found = self._database.found, []
        return found

    def watch(self, on_full: Callable[[bool], None]) -> None:
        """Say there when the disk has become full, and when it has room again."""
        self._on_full = on_full

    def save(self, record: Record, done: Callable[[], None], *, lazy: bool = False) -> None:
        """Keep a record with the next commit, which a lazy one does not hurry; say when it is."""
        kind = type(record).__name__
        encoded = self._encode(record)
        self._waiting_bytes += len(encoded)
        self._most_waiting_bytes = max(self._most_waiting_bytes, self._waiting_bytes)
        self._change(Keep(kind, record.owner, record.place, encoded), done, lazy=lazy)

    def forget(self, kind: type[Record], owner: str, below: int, since: int = 0) -> None:
        """Remove the records of a kind and owner below a place, with the next commit."""
        self._change(Remove(kind.__name__, owner, below, since), _nothing, lazy=True)

    def status(self) -> StoreStatus:
        """The present state."""
        database = self._database
        return StoreStatus(
            int(self._full),
            self._waiting_bytes,
            self._most_waiting_bytes,
            database.file_bytes,
            database.log_bytes,
        )

    def _change(self, change: Change, done: Callable[[], None], *, lazy: bool = False) -> None:
        self._waiting.append((change, done))
        if not lazy or self._waiting_bytes > LAZY_BYTES:
            self._hurry()
        elif self._committing is None and self._dawdling is None:
            self._dawdling = self._loop.call_later(LAZY_S, self._hurry)

    def _hurry(self) -> None:
        if self._dawdling is not None:
            self._dawdling.cancel()
            self._dawdling = None
        if self._committing is None and not self._failed:
            self._committing = self._loop.create_task(self._commit())

    async def _commit(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                changes = [change for change, _ in batch]
                try:
                    await self._loop.run_in_executor(self._thread, self._database.write, changes)
                except DiskFullError as error:
                    self._waiting[:0] = batch
                    if not await self._room_again(str(error)):
                        return
                    continue
                self._waiting_bytes -= sum(len(c.record) for c in changes if isinstance(c, Keep))
                self._tell(full=False)
                for _, done in batch:
                    done()
                # After the promises: votes need not wait until the log has been moved.
                if self._database.log_is_long:
                    await self._loop.run_in_executor(self._thread, self._database.tidy)
        except Exception as error:
            # A disk that does not keep its word: the node must stop rather than promise.
            self._failed = True
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._committing = None

    async def _room_again(self, reason: str) -> bool:
        """Wait before the next try; False if there will be none."""
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
        """Commit what waits and close the file; what a full disk does not take was not promised."""
        self._closing.set()
        if self._waiting:
            self._hurry()
        while self._committing is not None:
            await self._committing
        self._thread.shutdown()
        self._database.close()
