"""The file behind a store: one SQLite database that is checked when it is opened.

    records   one row per record, by `seq`, the order of writing; its address is unique
    head      how many changes were ever written, in the same transaction as the last of them

SQLite takes care of crashes (WAL, `synchronous=FULL`); this module takes care of a disk that does
not keep what it was given. Every row has a checksum, the tree and its index are walked when the
file is opened, and the *mark*, a small file beside it, says how many changes have ever been made:
SQLite takes a damaged log for one that ends early, and a file that was put back from a copy for a
good one. Nothing of a file that fails is used. It is set aside under another name and the broker
starts with an empty one, as one that lost its disk; what it knew it gets from the others. Files set
aside are never removed; when there are `MAX_ASIDE` of them, somebody should look at the disk.

The mark is written after the commit and never synced by itself: it may lag (after a power failure)
but never runs ahead. It is locked as long as the database is open, so that no two brokers share it.

Space of removed records is used again, and the log is moved into the database whenever it has
grown by `CHECKPOINT_BYTES`: with retention, neither file grows. Nobody else may read the file
meanwhile (`locking_mode=EXCLUSIVE`): a reader would keep the log from starting over.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.machine import Record
from quorumcast.runtime.logs import note
from quorumcast.runtime.store.changes import Change, outcome
from quorumcast.runtime.store.room import DiskFullError, size_of, writing

#: The log is moved into the database after so many bytes; it gets little longer than that.
CHECKPOINT_BYTES = 8 * 1024 * 1024
#: About what a record costs in the log beside itself, and what every commit does.
_RECORD_BYTES = 256
_COMMIT_BYTES = 3 * 4096
#: Damaged files that are kept; with so many a broker does not start.
MAX_ASIDE = 3

#: "QcSt": tells our files from other people's databases.
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

#: Errors that say nothing about what is in the file.
_NOT_THE_FILE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
)

_encode = msgspec.msgpack.Encoder().encode


class DamageError(Exception):
    """The file is not what was written."""


class Mark:
    """How many changes a database has seen, in a file beside it that is locked while it is open."""

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
        """So many changes are safe now."""
        # One short write within a page: it is there wholly or not at all.
        os.pwrite(self._file, self._image(number), 0)

    def begin(self) -> None:
        """No changes so far, on disk before there is a database."""
        os.ftruncate(self._file, 0)
        self.move(0)
        os.fsync(self._file)

    def _image(self, number: int) -> bytes:
        data = number.to_bytes(self._NUMBER, "big")
        check = hashlib.blake2b(data, digest_size=self._CHECK, key=self._key)
        return data + check.digest()

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)


class Database:
    """The records of one broker in one file; used by one thread at a time."""

    def __init__(self, path: Path, kinds: Sequence[type[Record]], holder: str) -> None:
        self.path = path
        self._log = path.with_name(f"{path.name}-wal")
        #: Checksums are bound to the broker: another one's records do not pass.
        self._key = hashlib.blake2b(holder.encode(), digest_size=32).digest()
        self._decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in kinds}
        #: Changes ever written; the next row's `seq` is higher.
        self._seq = 0
        #: About how much the log has grown since it was moved into the database.
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
                # Before SQLite has it open: closing a file lets go of the process's locks on it.
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
        """The database that is there, if it is what was written; otherwise an empty one."""
        try:
            if not self.path.exists():
                if self._mark.read():
                    note("store is gone; starts empty", level=logging.ERROR, path=str(self.path))
                return self._create()
            connection = _connect(self.path)
            try:
                self._check(connection)
            except DamageError as damage:
                # Renamed before it is closed: SQLite then leaves file and log as they are.
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
        """Made under another name, so that whatever has its own name is whole."""
        self._seq, self._logged = 0, 0
        self.found = []
        self._mark.begin()
        making = self.path.with_name(f"{self.path.name}.new")
        making.unlink(missing_ok=True)
        # For nobody else to read; SQLite gives its log the mode of the file.
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
        """Read everything; `DamageError` if anything is not as it was written."""
        try:
            _prepare(connection)
            # First of all, and without a change: it may be somebody else's.
            if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
                raise DamageError("it is not a store")
            schema = connection.execute(
                "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
            ).fetchall()
            if tuple(sql for (sql,) in schema) != _SCHEMA:
                raise DamageError("its tables are not those of a store")
            # Also compares the index with the rows: one that misleads would remove other records.
            flaws = connection.execute("PRAGMA integrity_check(1)").fetchall()
            if flaws != [("ok",)]:
                raise DamageError(str(flaws[0][0]).replace("\n", " "))
            self._check_mark(connection)
            self._read(connection)
            if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                raise DamageError("it has no log")
            # A damaged header can say that a file is only for reading.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_HEAD, (self._seq,))
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            if _code(error) & 0xFF in _NOT_THE_FILE:
                raise
            raise DamageError(str(error)) from None
        except UnicodeDecodeError:  # in SQLite's own words about it
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
        # The log first: a database without its log is found damaged again, a log without its
        # database is lost.
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
        """Make these changes in this order, all or none; they are safe when this returns."""
        try:
            size = writing(lambda: self._commit(changes), self.path, self._log)
        except DiskFullError:
            self._make_room()
            raise
        self._seq += len(changes)
        self._logged += size
        # A mark that lags only notices less.
        with contextlib.suppress(OSError):
            self._mark.move(self._seq)

    def _commit(self, changes: Sequence[Change]) -> int:
        """How long the log got by it, about."""
        connection, size = self._connection, _COMMIT_BYTES
        removals, keeps = outcome(changes, self._seq)
        try:
            connection.execute("BEGIN IMMEDIATE")
            # First of all: a disk that is full has room for the rest then.
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
        """Give back what the log takes, if the database itself has room for it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @property
    def log_is_long(self) -> bool:
        """Whether it is time to tidy up."""
        return self._logged >= CHECKPOINT_BYTES

    def tidy(self) -> None:
        """Move the log into the database."""
        move = "PRAGMA wal_checkpoint(PASSIVE)"
        try:
            writing(lambda: self._connection.execute(move).fetchall(), self.path, self._log)
        except DiskFullError:
            return  # tried again after the next commit; the log holds everything meanwhile
        self._logged = 0

    # ------------------------------------------------------------------- around

    @property
    def file_bytes(self) -> int:
        """The size of the database."""
        return size_of(self.path)

    @property
    def log_bytes(self) -> int:
        """The size of its log."""
        return size_of(self._log)

    def close(self) -> None:
        """Move the log into the database and let others have it."""
        self._connection.close()
        self._mark.close()


def _connect(path: Path) -> sqlite3.Connection:
    """Without reading anything yet."""
    return sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute(f"PRAGMA journal_size_limit={2 * CHECKPOINT_BYTES}")
    # Removed records need not be overwritten: that would write every body twice.
    connection.execute("PRAGMA secure_delete=OFF")


def _code(error: sqlite3.Error) -> int:
    """SQLite's extended code; errors of the Python module itself have none."""
    return getattr(error, "sqlite_errorcode", 0)
