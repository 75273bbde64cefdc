"""The files behind a store: one SQLite database that is checked when it is opened, and segments.

    records   one row per record, by `seq`, the order of writing; its address is unique
    archive   one row per record of an archived kind (`archive`), the large ones in `segments`
    head      how many changes were ever written, in the same transaction as the last of them

SQLite survives crashes (WAL, `synchronous=FULL`). This module detects a disk that loses or alters
data: every row has a checksum, `integrity_check` walks tree and index, and the `mark` counts the
changes ever made. A database that fails is set aside under another name with its segments, and the
broker starts with an empty one, like a broker that lost its disk. At most `MAX_ASIDE` are set
aside, then somebody must look at the disk.

Records are read when the store is opened. What is archived is not: it may be far more, and each of
its records is checked when it is read. Opening looks at the sizes of the segments only, and walks
the table unless the database is longer than `FULL_CHECK_BYTES`.

Space of removed records is used again, and the WAL is moved into the database whenever it has grown
by `CHECKPOINT_BYTES`, so with retention neither file grows. SQLite's `unix-excl` locks keep other
processes out: a reader among them would keep the WAL from starting over. Within the process, the
event loop reads the archive with a connection of its own (`Database.archive`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime.logs import note
from quorumcast.runtime.store import archive
from quorumcast.runtime.store.archive import ArchiveLookup, ArchiveWriter, checksum
from quorumcast.runtime.store.backup import Gate
from quorumcast.runtime.store.full_disk import DiskFullError, size_of, sqlite_code, writing
from quorumcast.runtime.store.mark import Mark
from quorumcast.runtime.store.segments import DamageError, Segments, sync_directory

#: The WAL is moved into the database after so many bytes; it gets little longer than that.
CHECKPOINT_BYTES = 8 * 1024 * 1024
#: Approximate overhead in the WAL of a record, and of a commit.
_RECORD_BYTES = 1024
_COMMIT_BYTES = 6 * 4096
#: Damaged files that are kept; a broker with so many refuses to start.
MAX_ASIDE = 3

#: Of a longer database, opening checks the tables whose rows it reads, not the archive's.
FULL_CHECK_BYTES = 256 * 1024 * 1024
#: Records that are moved to the archive in one transaction.
_MOVED_AT_ONCE = 16

#: "QcSt": tells our files from other databases.
_APPLICATION = 0x51635374
_RECORDS_SCHEMA = (
    "CREATE TABLE records (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, "
    "place INTEGER NOT NULL, checksum BLOB NOT NULL, record BLOB NOT NULL)",
    "CREATE UNIQUE INDEX address ON records (kind, owner, place)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL)",
)
_SCHEMA = _RECORDS_SCHEMA + archive.SCHEMA
_KEEP = "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM records WHERE kind = ? AND owner = ? AND place >= ? AND place < ?"
_HEAD = "INSERT OR REPLACE INTO head VALUES (1, ?)"

#: SQLite errors that are not caused by the content of the file.
_NOT_THE_FILE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)
#: SQLite errors that mean that it cannot read its own pages.
_MALFORMED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Keep(msgspec.Struct, frozen=True):
    """Write a record to its address."""

    kind: str
    owner: str
    place: int
    record: bytes


class Remove(msgspec.Struct, frozen=True):
    """Remove the records of a kind and owner at places from `since` up to below `below`."""

    kind: str
    owner: str
    below: int
    since: int = 0


Change = Keep | Remove


def outcome(
    changes: Sequence[Change], seq: int
) -> tuple[list[tuple[str, str, int, int]], list[tuple[int, Keep]]]:
    """The net effect of these changes: removals to be made first, then records with their `seq`.

    A removal is (kind, owner, first place, place after the last). A record that is replaced or
    removed again within one commit is never written.
    """
    removals: dict[tuple[str, str, int], int] = {}
    keeps: dict[tuple[str, str, int], tuple[int, Keep]] = {}
    #: The starts of an owner's removals, so that few are compared with each record.
    begun: dict[tuple[str, str], list[int]] = {}
    # Backwards, so that a change that was met earlier overrides one that is met later.
    for at in range(len(changes) - 1, -1, -1):
        change = changes[at]
        owned = change.kind, change.owner
        if isinstance(change, Remove):
            key = (*owned, change.since)
            if key not in removals:
                begun.setdefault(owned, []).append(change.since)
            removals[key] = max(change.below, removals.get(key, change.below))
        elif not any(
            since <= change.place < removals[*owned, since] for since in begun.get(owned, ())
        ):
            keeps.setdefault((*owned, change.place), (seq + at + 1, change))
    gone = [(kind, owner, since, below) for (kind, owner, since), below in removals.items()]
    return gone, list(reversed(keeps.values()))


class Database:
    """The records of one broker; used by one thread at a time, except for `archive`."""

    def __init__(self, path: Path, kinds: Sequence[type[Record]], holder: str) -> None:
        self.path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._key = _key_of(holder)
        self._decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in kinds}
        #: Names of the kinds that are archived.
        self._archived = frozenset(kind.__name__ for kind in kinds if kind.archived)
        self._segment_directory = path.with_name(f"{path.name}.d")
        #: Changes ever written; the next row's `seq` is higher.
        self._seq = 0
        #: Approximate bytes in the WAL since it was last moved into the database.
        self._logged = 0
        #: Whether the disk was full when the files were to be tidied.
        self._no_room_to_tidy = False
        #: What the file held when it was opened, in the order of writing.
        self.found: list[Record] = []
        #: The gate is locked around every change of the files, so that backups can hold them still.
        self._mark, self._gate = self._lock()
        try:
            with self._gate:
                self._open()
        except BaseException:
            self._gate.close()
            self._mark.close()
            raise
        #: Reads archived records; for another thread.
        self.archive = ArchiveLookup(_connect(path, "ro"), self._segments, self._key, kinds)

    # ------------------------------------------------------------------ opening

    def _lock(self) -> tuple[Mark, Gate]:
        path = self.path
        try:
            if path.exists():
                # May we write? Asked before SQLite opens it, because closing a file releases all
                # locks of the process on it.
                os.close(os.open(path, os.O_RDWR))
                for file in (path, self._log):
                    with contextlib.suppress(OSError):
                        file.chmod(0o600)
            return Mark(path, self._key), Gate(path)
        except BlockingIOError:
            raise self._in_use("broker") from None
        except OSError as error:
            raise self._cannot_open(error.strerror or str(error)) from None

    def _in_use(self, other: str) -> UsageError:
        return UsageError(
            f"the store {self.path} is in use: another {other} has it open; "
            "stop that one, or give this broker a directory of its own"
        )

    def _cannot_open(self, reason: str) -> UsageError:
        return UsageError(
            f"the store {self.path} cannot be opened ({reason}): "
            "give the broker a directory in which it may read and write files"
        )

    def _open(self) -> None:
        """Open the existing database if it passes all checks; otherwise an empty one."""
        try:
            if not self.path.exists():
                if self._mark.read():
                    note("store is gone; starts empty", level=logging.ERROR, path=str(self.path))
                self._create()
                return
            self._attach(_connect(self.path))
            try:
                self._check(self._connection)
            except DamageError as damage:
                # Renamed before it is closed, so that SQLite leaves file and WAL as they are.
                try:
                    self._set_aside(str(damage))
                finally:
                    self._connection.close()
                self._create()
            except BaseException:
                self._connection.close()
                raise
        except OSError as error:
            raise self._cannot_open(error.strerror or str(error)) from None
        except sqlite3.Error as error:
            if sqlite_code(error) & 0xFF == sqlite3.SQLITE_BUSY:
                raise self._in_use("program") from None
            raise self._cannot_open(str(error)) from None

    def _attach(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._segments = Segments(self._segment_directory)
        self._writer = ArchiveWriter(connection, self._segments, self._key)

    def _create(self) -> None:
        """Create an empty database under another name, and rename it when it is complete."""
        self._seq, self._logged = 0, 0
        self.found = []
        self._mark.begin()
        making = self.path.with_name(f"{self.path.name}.new")
        making.unlink(missing_ok=True)
        # Readable by the owner only; SQLite gives its WAL the mode of the file.
        os.close(os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = _connect(making)
        try:
            _prepare(connection)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(_HEAD, (0,))
            connection.execute("COMMIT")
        finally:
            connection.close()
        making.rename(self.path)
        sync_directory(self.path.parent)
        self._attach(_connect(self.path))
        _prepare(self._connection)
        # Segments of a database that is gone.
        self._segments.open({})

    # ----------------------------------------------------------------- checking

    def _check(self, connection: sqlite3.Connection) -> None:
        """Read everything; raises `DamageError` if anything is not as it was written."""
        try:
            _prepare(connection)
            # First, and without a write: the file may not be ours.
            if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
                raise DamageError("it is not a store")
            schema = connection.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
            ).fetchall()
            tables = tuple(sql for (sql,) in schema)
            if tables not in (_SCHEMA, _RECORDS_SCHEMA):
                raise DamageError("its tables are not those of a store")
            # Also compares index and rows: a wrong index would make us remove other records.
            short = self.file_bytes <= FULL_CHECK_BYTES
            for part in ("1",) if short else ("records", "head"):
                flaws = connection.execute(f"PRAGMA integrity_check({part})").fetchall()
                if flaws != [("ok",)]:
                    raise DamageError(str(flaws[0][0]).replace("\n", " "))
            self._check_mark(connection)
            self._read(connection)
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                raise DamageError("it has no log")
            # A damaged header can make a file read-only.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_HEAD, (self._seq,))
            connection.execute("ROLLBACK")
            if tables == _RECORDS_SCHEMA:
                # Written by a version without an archive.
                with self._transaction():
                    for statement in archive.SCHEMA:
                        connection.execute(statement)
            self._segments.open(self._writer.segments_in_use())
            self._move_to_archive(connection)
        except sqlite3.Error as error:
            if sqlite_code(error) & 0xFF in _NOT_THE_FILE:
                raise
            raise DamageError(str(error)) from None
        except UnicodeDecodeError:  # in an error text of SQLite
            raise DamageError("its tables have names that are no text") from None
        self._logged = self.log_bytes

    def _check_mark(self, connection: sqlite3.Connection) -> None:
        heads = connection.execute("SELECT seq FROM head").fetchall()
        marked = self._mark.read()
        if marked is None:
            raise DamageError("its mark is missing or damaged")
        if len(heads) != 1 or not isinstance(heads[0][0], int):
            raise DamageError("its head is damaged")
        self._seq = heads[0][0]
        if self._seq < marked:
            raise DamageError(f"it ends after {self._seq} changes, but {marked} were made")

    def _read(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute(
            "SELECT seq, kind, owner, place, checksum, record FROM records ORDER BY seq"
        )
        for seq, kind, owner, place, check, record in rows:
            if not isinstance(record, bytes) or seq > self._seq:
                raise DamageError(f"record {seq} is damaged")
            if check != checksum(self._key, (seq, kind, owner, place), record):
                raise DamageError(f"record {seq} is damaged, or of another broker")
            if kind in self._archived:
                continue  # is moved to the archive
            try:
                self.found.append(self._decoders[kind].decode(record))
            except (KeyError, msgspec.MsgspecError):
                raise UsageError(
                    f"the store {self.path} holds a record {kind!r} that this version does not "
                    "know: start the version that wrote it, or move the file away; the broker then "
                    "fetches what it lacks from the others"
                ) from None

    def _move_to_archive(self, connection: sqlite3.Connection) -> None:
        """Move the records whose kind was not archived when they were written."""
        for kind in sorted(self._archived):
            query = "SELECT seq, owner, place, record FROM records WHERE kind = ? LIMIT ?"
            while rows := connection.execute(query, (kind, _MOVED_AT_ONCE)).fetchall():
                with self._transaction():
                    for seq, owner, place, record in rows:
                        self._writer.put(kind, owner, place, record)
                        connection.execute("DELETE FROM records WHERE seq = ?", (seq,))

    def _set_aside(self, reason: str) -> None:
        names = [self.path.with_name(f"{self.path.name}.damaged-{n + 1}") for n in range(MAX_ASIDE)]
        aside = next((name for name in names if not name.exists()), None)
        if aside is None:
            raise UsageError(
                f"the store {self.path} is damaged ({reason}), and {MAX_ASIDE} damaged ones lie "
                "beside it already: look at the disk, then move them away"
            )
        # The database last: after a crash in between, a database without its WAL or segments is
        # found damaged again, whereas these would be lost without their database.
        with contextlib.suppress(FileNotFoundError):
            self._log.rename(aside.with_name(f"{aside.name}-wal"))
        with contextlib.suppress(FileNotFoundError):
            self._segment_directory.rename(aside.with_name(f"{aside.name}.d"))
        self.path.rename(aside)
        note(
            "store is damaged and was set aside; starts empty, as if the disk had been lost",
            level=logging.ERROR,
            path=str(self.path),
            reason=reason,
            aside=str(aside),
        )

    # ------------------------------------------------------------------ writing

    def write(self, changes: Sequence[Change]) -> None:
        """Make these changes in this order, all or none; they are on disk when this returns."""
        try:
            with self._gate:
                size = writing(lambda: self._commit(changes), self.path, self._log)
        except DiskFullError:
            with self._gate:
                self._make_room()
            raise
        self._seq += len(changes)
        self._logged += size
        self._no_room_to_tidy = False
        # A mark that lags detects less, and that is all.
        with contextlib.suppress(OSError):
            self._mark.move(self._seq)

    def _commit(self, changes: Sequence[Change]) -> int:
        """Write the changes; returns about how much the WAL grew."""
        size = _COMMIT_BYTES
        removals, keeps = outcome(changes, self._seq)
        with self._transaction() as connection:
            # Removals first: on a full disk they make room for the rest.
            for removal in removals:
                if removal[0] in self._archived:
                    self._writer.remove(*removal)
                else:
                    connection.execute(_REMOVE, removal)
            for seq, keep in keeps:
                kind, owner, place, record = keep.kind, keep.owner, keep.place, keep.record
                size += _RECORD_BYTES
                if kind in self._archived:
                    size += self._writer.put(kind, owner, place, record)
                    continue
                check = checksum(self._key, (seq, kind, owner, place), record)
                connection.execute(_KEEP, (seq, kind, owner, place, check, record))
                size += len(record)
            connection.execute(_HEAD, (self._seq + len(changes),))
        return size

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Change rows and append to segments, all or nothing; on disk at the end."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            self._segments.sync()
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._segments.rewind()
            if isinstance(error, sqlite3.Error) and sqlite_code(error) & 0xFF in _MALFORMED:
                # In a part that opening does not check: the next start sets the store aside.
                self._mark.spoil()
            raise
        self._segments.settle()

    def _make_room(self) -> None:
        """Empty the WAL into the database, if the database has room for it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @property
    def is_untidy(self) -> bool:
        """Whether there is something to `tidy`, and was room for it when it was last tried."""
        if self._no_room_to_tidy:
            return False
        segments = self._segments
        return self._log_is_long or segments.has_unneeded or segments.to_compact is not None

    @property
    def _log_is_long(self) -> bool:
        return self._logged >= CHECKPOINT_BYTES

    def tidy(self) -> None:
        """One step: move the WAL into the database, unlink a segment, or empty one a little."""
        if self._log_is_long:
            work = self._move_log
        elif self._segments.has_unneeded:
            work = self._segments.unlink_one
        else:
            work = self._compact
        try:
            with self._gate:
                writing(work, self.path, self._log)
        except DiskFullError:
            # Tried again after the next commit; nothing is lost.
            self._no_room_to_tidy = True
        except OSError as error:
            if error.errno not in archive.NO_DESCRIPTORS:
                raise
            self._no_room_to_tidy = True

    def _move_log(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._logged = 0

    def _compact(self) -> None:
        segment = self._segments.to_compact
        if segment is not None:
            with self._transaction():
                self._writer.compact(segment)
            self._logged += _COMMIT_BYTES

    # ------------------------------------------------------------------- around

    @property
    def file_bytes(self) -> int:
        """The size of the database."""
        return size_of(self.path)

    @property
    def log_bytes(self) -> int:
        """The size of its WAL."""
        return size_of(self._log)

    @property
    def archive_bytes(self) -> int:
        """The size of its segments."""
        return self._segments.file_bytes

    def close(self) -> None:
        """Move the WAL into the database and release the lock."""
        self.archive.close()
        self._segments.close()
        with self._gate:
            self._connection.close()
        self._gate.close()
        self._mark.close()


def _key_of(holder: str) -> bytes:
    """The key of all checksums, so that records of another broker do not pass; it is no secret."""
    return hashlib.blake2b(holder.encode(), digest_size=32).digest()


def accept_copy(path: Path, holder: str) -> None:
    """Mark the copy of a store as complete, so that its broker starts with it."""
    mark = Mark(path, _key_of(holder))
    try:
        with contextlib.closing(_connect(path)) as connection:
            ((seq,),) = connection.execute("SELECT seq FROM head").fetchall()
        mark.begin()
        mark.move(seq)
    except (sqlite3.Error, ValueError) as error:
        raise UsageError(f"the copy {path} is damaged ({error}): take another backup") from None
    finally:
        mark.close()


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open the file without reading it; once it is read, no other process can open it."""
    uri = f"{path.absolute().as_uri()}?vfs=unix-excl&mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=1.0, isolation_level=None, check_same_thread=False
    )


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA journal_size_limit={2 * CHECKPOINT_BYTES}")
    # Overwriting removed records would write every body twice.
    connection.execute("PRAGMA secure_delete=OFF")
