"""The file behind a store: one SQLite database that is checked when it is opened.

    records   one row per record, by `seq`, the order of writing; its address is unique
    head      how many changes were ever written, in the same transaction as the last of them

SQLite survives crashes (WAL, `synchronous=FULL`). This module detects a disk that loses or alters
data: every row has a checksum, `integrity_check` walks tree and index, and the *mark*, a small file
beside the database, counts the changes ever made. Without the mark, SQLite would take a damaged
WAL for one that ends early, and an old copy of the file for a good one. A database that fails is
set aside under another name, and the broker starts with an empty one, like a broker that lost its
disk. At most `MAX_ASIDE` files are set aside, then somebody must look at the disk.

The mark is written after each commit and not synced: after a power failure it may lag, but it is
never ahead. It is locked while the database is open, so that no two brokers share one.

Space of removed records is used again, and the WAL is moved into the database whenever it has grown
by `CHECKPOINT_BYTES`, so with retention neither file grows. `locking_mode=EXCLUSIVE` keeps out
readers, which would keep the WAL from starting over.

A broker waits for room on a full disk, and stops when the disk is broken (`writing`). SQLite
reports a full disk only for ENOSPC; a quota or a limit on file sizes looks like any other failure.
To tell, a probe file is written that reaches as far as SQLite did.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime.logs import note

T = TypeVar("T")

#: The WAL is moved into the database after so many bytes; it gets little longer than that.
CHECKPOINT_BYTES = 8 * 1024 * 1024
#: Approximate overhead in the WAL of a record, and of a commit.
_RECORD_BYTES = 256
_COMMIT_BYTES = 3 * 4096
#: Damaged files that are kept; a broker with so many refuses to start.
MAX_ASIDE = 3

#: Bytes written to find out whether there is room.
_PROBE_BYTES = 64 * 1024
#: Attempts at a write that fails although there is room.
_TRIES = 3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: "QcSt": tells our files from other databases.
_APPLICATION = 0x51635374
_SCHEMA = (
    "CREATE TABLE records (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, "
    "place INTEGER NOT NULL, checksum BLOB NOT NULL, record BLOB NOT NULL)",
    "CREATE UNIQUE INDEX address ON records (kind, owner, place)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL)",
)
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

_encode = msgspec.msgpack.Encoder().encode


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


class DiskFullError(Exception):
    """The disk takes no more for now; nothing of the batch was written."""


class DamageError(Exception):
    """The content of the file is not what was written."""


class Mark:
    """Counts the changes of a database in a file beside it, which is locked while it is open."""

    _NUMBER = 8
    _CHECK = 16

    def __init__(self, path: Path, key: bytes) -> None:
        self._key = key
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise

    def read(self) -> int | None:
        """The number of changes; None if the mark is not readable."""
        data = os.pread(self._file, self._NUMBER + self._CHECK + 1, 0)
        number = int.from_bytes(data[: self._NUMBER], "big")
        return number if data == self._image(number) else None

    def move(self, number: int) -> None:
        """Write the number of changes that are on disk."""
        # One short write within a page is atomic.
        os.pwrite(self._file, self._image(number), 0)

    def begin(self) -> None:
        """Write 0 and sync, before a database is created."""
        os.ftruncate(self._file, 0)
        self.move(0)
        os.fsync(self._file)

    def _image(self, number: int) -> bytes:
        data = number.to_bytes(self._NUMBER, "big")
        check = hashlib.blake2b(data, digest_size=self._CHECK, key=self._key)
        return data + check.digest()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


class Database:
    """The records of one broker in one file; used by one thread at a time."""

    def __init__(self, path: Path, kinds: Sequence[type[Record]], holder: str) -> None:
        self.path = path
        self._log = path.with_name(f"{path.name}-wal")
        #: So that records of another broker do not pass; it is no secret.
        self._key = hashlib.blake2b(holder.encode(), digest_size=32).digest()
        self._decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in kinds}
        #: Changes ever written; the next row's `seq` is higher.
        self._seq = 0
        #: Approximate bytes in the WAL since it was last moved into the database.
        self._logged = 0
        #: What the file held when it was opened, in the order of writing.
        self.found: list[Record] = []
        self._mark = self._lock()
        try:
            self._connection = self._open()
        except BaseException:
            self._mark.close()
            raise

    # ------------------------------------------------------------------ opening

    def _lock(self) -> Mark:
        path = self.path
        try:
            if path.exists():
                # May we write? Asked before SQLite opens it, because closing a file releases all
                # locks of the process on it.
                os.close(os.open(path, os.O_RDWR))
                for file in (path, self._log):
                    with contextlib.suppress(OSError):
                        file.chmod(0o600)
            return Mark(path.with_name(f"{path.name}.mark"), self._key)
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

    def _open(self) -> sqlite3.Connection:
        """The existing database if it passes all checks; otherwise an empty one."""
        try:
            if not self.path.exists():
                if self._mark.read():
                    note("store is gone; starts empty", level=logging.ERROR, path=str(self.path))
                return self._create()
            connection = _connect(self.path)
            try:
                self._check(connection)
            except DamageError as damage:
                # Renamed before it is closed, so that SQLite leaves file and WAL as they are.
                try:
                    self._set_aside(str(damage))
                finally:
                    connection.close()
                return self._create()
            except BaseException:
                connection.close()
                raise
            return connection
        except OSError as error:
            raise self._cannot_open(error.strerror or str(error)) from None
        except sqlite3.Error as error:
            if _code(error) & 0xFF == sqlite3.SQLITE_BUSY:
                raise self._in_use("program") from None
            raise self._cannot_open(str(error)) from None

    def _create(self) -> sqlite3.Connection:
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
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        connection = _connect(self.path)
        _prepare(connection)
        return connection

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
            if tuple(sql for (sql,) in schema) != _SCHEMA:
                raise DamageError("its tables are not those of a store")
            # Also compares index and rows: a wrong index would make us remove other records.
            flaws = connection.execute("PRAGMA integrity_check(1)").fetchall()
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
        except sqlite3.Error as error:
            if _code(error) & 0xFF in _NOT_THE_FILE:
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
        for seq, kind, owner, place, checksum, record in rows:
            if not isinstance(record, bytes) or seq > self._seq:
                raise DamageError(f"record {seq} is damaged")
            if checksum != self._checksum(seq, kind, owner, place, record):
                raise DamageError(f"record {seq} is damaged, or of another broker")
            try:
                self.found.append(self._decoders[kind].decode(record))
            except (KeyError, msgspec.MsgspecError):
                raise UsageError(
                    f"the store {self.path} holds a record {kind!r} that this version does not "
                    "know: start the version that wrote it, or move the file away; the broker then "
                    "fetches what it lacks from the others"
                ) from None

    def _checksum(self, seq: int, kind: str, owner: str, place: int, record: bytes) -> bytes:
        check = hashlib.blake2b(_encode((seq, kind, owner, place)), digest_size=16, key=self._key)
        check.update(record)
        return check.digest()

    def _set_aside(self, reason: str) -> None:
        names = [self.path.with_name(f"{self.path.name}.damaged-{n + 1}") for n in range(MAX_ASIDE)]
        aside = next((name for name in names if not name.exists()), None)
        if aside is None:
            raise UsageError(
                f"the store {self.path} is damaged ({reason}), and {MAX_ASIDE} damaged ones lie "
                "beside it already: look at the disk, then move them away"
            )
        # The WAL first: after a crash in between, a database without its WAL is found damaged
        # again, whereas a WAL without its database would be lost.
        with contextlib.suppress(FileNotFoundError):
            self._log.rename(aside.with_name(f"{aside.name}-wal"))
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
            size = writing(lambda: self._commit(changes), self.path, self._log)
        except DiskFullError:
            self._make_room()
            raise
        self._seq += len(changes)
        self._logged += size
        # A mark that lags detects less, and that is all.
        with contextlib.suppress(OSError):
            self._mark.move(self._seq)

    def _commit(self, changes: Sequence[Change]) -> int:
        """Write the changes; returns about how much the WAL grew."""
        connection, size = self._connection, _COMMIT_BYTES
        removals, keeps = outcome(changes, self._seq)
        try:
            connection.execute("BEGIN IMMEDIATE")
            # Removals first: on a full disk they make room for the rest.
            for removal in removals:
                connection.execute(_REMOVE, removal)
            for seq, keep in keeps:
                kind, owner, place, record = keep.kind, keep.owner, keep.place, keep.record
                checksum = self._checksum(seq, kind, owner, place, record)
                connection.execute(_KEEP, (seq, kind, owner, place, checksum, record))
                size += len(record) + _RECORD_BYTES
            connection.execute(_HEAD, (self._seq + len(changes),))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return size

    def _make_room(self) -> None:
        """Empty the WAL into the database, if the database has room for it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @property
    def log_is_long(self) -> bool:
        """Whether it is time to `tidy`."""
        return self._logged >= CHECKPOINT_BYTES

    def tidy(self) -> None:
        """Move the WAL into the database."""
        move = "PRAGMA wal_checkpoint(PASSIVE)"
        try:
            writing(lambda: self._connection.execute(move).fetchall(), self.path, self._log)
        except DiskFullError:
            return  # tried again after the next commit; the WAL loses nothing
        self._logged = 0

    # ------------------------------------------------------------------- around

    @property
    def file_bytes(self) -> int:
        """The size of the database."""
        return size_of(self.path)

    @property
    def log_bytes(self) -> int:
        """The size of its WAL."""
        return size_of(self._log)

    def close(self) -> None:
        """Move the WAL into the database and release the lock."""
        self._connection.close()
        self._mark.close()


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file without reading it."""
    return sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA journal_size_limit={2 * CHECKPOINT_BYTES}")
    # Overwriting removed records would write every body twice.
    connection.execute("PRAGMA secure_delete=OFF")


def _code(error: sqlite3.Error) -> int:
    """SQLite's extended code; errors of the Python module itself have none."""
    return getattr(error, "sqlite_errorcode", 0)


def writing(work: Callable[[], T], *files: Path) -> T:
    """Run `work`, which writes to these files; raises `DiskFullError` if there is no room.

    Room may appear between the failure and the probe: a failed write for which there is room is
    retried.
    """
    probe = files[0].with_name(f"{files[0].name}.probe")
    for tries_left in reversed(range(_TRIES)):
        try:
            return work()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL:
                raise DiskFullError(str(error)) from None
            if code != sqlite3.SQLITE_IOERR_WRITE:
                raise
            if not _takes(probe, max(map(size_of, files))):
                raise DiskFullError(str(error)) from None
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _takes(probe: Path, end: int) -> bool:
    """Whether a file may grow beyond `end`; also True if the probe fails for another reason."""
    try:
        file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            return os.pwrite(file, bytes(_PROBE_BYTES), end) == _PROBE_BYTES
        finally:
            os.close(file)
            probe.unlink()
    except OSError as refused:
        return refused.errno not in _NO_ROOM


def size_of(file: Path) -> int:
    """Bytes of a file; 0 if it does not exist."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
