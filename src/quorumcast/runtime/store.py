"""What a machine asked to keep: one small SQLite journal, committed once per loop turn.

Records that arrive in one turn of the event loop become one transaction (group commit). It runs in
a thread, one at a time, so the loop goes on while the disk syncs; records that arrive meanwhile
form the next one. `done` is called on the loop only after the commit has reached the disk
(`synchronous=FULL` in WAL mode).

A record with a `key` replaces the older record with that key; one without is appended. The journal
keeps the newest `KEPT` records: nobody asks for what lies further back than a publisher's buffer.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record

#: Records kept; older ones are removed now and then.
KEPT = 200_000
#: Records between two clean-ups.
CLEAN_EVERY = 20_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY,
    key TEXT UNIQUE,
    record BLOB NOT NULL
)
"""


class Journal:
    """The records of one node."""

    def __init__(
        self,
        path: Path,
        kinds: tuple[type[Record], ...],
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._path = path
        self._encode = msgspec.msgpack.Encoder().encode
        union = kinds[0]
        for kind in kinds[1:]:
            union = union | kind  # type: ignore[assignment]
        self._decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(union)
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        #: Records of this turn and whom to tell; emptied by every commit.
        self._waiting: list[tuple[Record, Callable[[], None]]] = []
        self._committing: asyncio.Task[None] | None = None
        #: Records written since the last clean-up.
        self._written = 0
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise UsageError(
                f"the journal {path} cannot be opened ({error}); "
                "give the broker a directory that it may write, or move the broken file away"
            ) from None

    def load(self) -> list[Record]:
        """Every record that the disk holds, oldest first."""
        try:
            rows = self._database.execute("SELECT record FROM journal ORDER BY id").fetchall()
            return [self._decoder.decode(record) for (record,) in rows]
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise UsageError(
                f"the journal {self._path} is damaged ({error}); move it away: "
                "the broker then fetches what it lacks from the others"
            ) from None

    def save(self, record: Record, done: Callable[[], None]) -> None:
        """Keep a record with the next commit, and say when it is safe."""
        self._waiting.append((record, done))
        if self._committing is None:
            self._committing = self._loop.create_task(self._commit())

    async def _commit(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                rows = [(getattr(record, "key", None), self._encode(record)) for record, _ in batch]
                await self._loop.run_in_executor(self._thread, self._write, rows)
                for _, done in batch:
                    done()
        except sqlite3.Error as error:
            # A disk that does not keep its word: the node must stop rather than promise.
            if self._on_failure is None:
                raise
            self._on_failure(error)
        finally:
            self._committing = None

    def _write(self, rows: list[tuple[str | None, bytes]]) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            database.executemany("INSERT OR REPLACE INTO journal (key, record) VALUES (?, ?)", rows)
            self._written += len(rows)
            if self._written >= CLEAN_EVERY:
                self._written = 0
                database.execute(
                    "DELETE FROM journal WHERE id <= (SELECT max(id) FROM journal) - ?", (KEPT,)
                )
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    async def close(self) -> None:
        """Commit what waits and close the file."""
        while self._committing is not None:
            await self._committing
        self._thread.shutdown()
        self._database.close()
