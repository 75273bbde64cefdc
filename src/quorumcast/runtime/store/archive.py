"""The archive of a store: a table with one row per archived record, and readers of it.

A record of at most `INLINE_BYTES` is in its row; of a larger one, the row says where it is in the
`Segments`. Every row has a checksum of the record and its address, compared at each read. A record
that fails is damage of the disk: it is logged, counted, and read as if it were not there.

Rows are written by the store's thread and read by the event loop, with a connection of its own: a
read sees what the last commit left, also while the next one is under way. Each read is one short
transaction, so that none keeps the WAL from starting over.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from quorumcast.core.machine import R, Record
from quorumcast.runtime.logs import note
from quorumcast.runtime.store.segments import Segments

#: Larger records go into segments.
INLINE_BYTES = 1024
#: Records are moved in steps of about so many bytes.
COMPACT_BYTES = 1024 * 1024
#: Damaged records that are told apart; further ones are neither logged nor counted.
MAX_DAMAGED = 1000

#: Inline rows have no segment, and are not in the index of segments.
SCHEMA = (
    "CREATE TABLE archive (kind TEXT NOT NULL, owner TEXT NOT NULL, place INTEGER NOT NULL, "
    "checksum BLOB NOT NULL, segment INTEGER, start INTEGER, length INTEGER, record BLOB, "
    "PRIMARY KEY (kind, owner, place)) WITHOUT ROWID",
    "CREATE INDEX located ON archive (segment, start, length) WHERE segment IS NOT NULL",
)
_SEGMENTS = (
    "SELECT segment, SUM(length), MAX(start + length) FROM archive "
    "WHERE segment IS NOT NULL GROUP BY segment"
)
_OWNED = "kind = ? AND owner = ?"
_RANGE = f"{_OWNED} AND place >= ? AND place < ?"
_REMOVED = f"SELECT segment, length FROM archive WHERE {_RANGE} AND segment IS NOT NULL"
_REMOVE = f"DELETE FROM archive WHERE {_RANGE}"
_INSERT = "INSERT INTO archive VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_LOCATED = "SELECT kind, owner, place, start, length FROM archive WHERE segment = ? LIMIT 1000"
_MOVE = f"UPDATE archive SET segment = ?, start = ? WHERE {_OWNED} AND place = ?"

_ROW = f"SELECT place, checksum, segment, start, length, record FROM archive WHERE {_OWNED} "
_GET = f"{_ROW} AND place = ?"
_FIRST = f"{_ROW} AND place >= ? ORDER BY place LIMIT 1"
_LAST = f"{_ROW} AND place < ? ORDER BY place DESC LIMIT 1"
_NEXT_OWNER = "SELECT MIN(owner) FROM archive WHERE kind = ? AND owner > ?"
_FIRST_OWNER = "SELECT MIN(owner) FROM archive WHERE kind = ?"

#: Errors of a read that say nothing about the record: it can be read later.
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
#: What a row or a segment that is damaged can make of a read.
_UNREADABLE = (
    sqlite3.Error,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)

_encode = msgspec.msgpack.Encoder().encode


def checksum(key: bytes, address: tuple[int | str, ...], record: bytes) -> bytes:
    """A checksum of a record at an address, in the store that has this key."""
    check = hashlib.blake2b(_encode(address), digest_size=16, key=key)
    check.update(record)
    return check.digest()


class ArchiveWriter:
    """Changes the rows of an archive; each method is called within a transaction."""

    def __init__(self, connection: sqlite3.Connection, segments: Segments, key: bytes) -> None:
        self._execute = connection.execute
        self._segments = segments
        self._key = key

    def segments_in_use(self) -> dict[int, tuple[int, int]]:
        """By segment that rows name: the sum of their lengths, and the highest end."""
        return {segment: (live, end) for segment, live, end in self._execute(_SEGMENTS)}

    def put(self, kind: str, owner: str, place: int, record: bytes) -> int:
        """Write a record that replaces the one at its address; returns its bytes in the row."""
        self.remove(kind, owner, place, place + 1)
        check = checksum(self._key, (kind, owner, place), record)
        where: tuple[object, ...] = None, None, None, record
        if len(record) > INLINE_BYTES:
            where = *self._segments.append(record), len(record), None
        self._execute(_INSERT, (kind, owner, place, check, *where))
        return 0 if where[3] is None else len(record)

    def remove(self, kind: str, owner: str, since: int, below: int) -> None:
        """Remove the records of a kind and owner from one place on and below another."""
        address = kind, owner, since, below
        for segment, length in self._execute(_REMOVED, address):
            self._segments.remove(segment, length)
        self._execute(_REMOVE, address)

    def compact(self, segment: int) -> None:
        """Append some records of a segment to the current one, and forget where they were."""
        segments, moved = self._segments, 0
        rows = self._execute(_LOCATED, (segment,)).fetchall()
        for kind, owner, place, start, length in rows:
            # A record that cannot be read stays damaged: zeros do not match its checksum.
            record = b""
            try:
                record = segments.read(segment, start, length)
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    raise
            target = segments.append(record.ljust(length, b"\0"))
            segments.remove(segment, length)
            self._execute(_MOVE, (*target, kind, owner, place))
            moved += length
            if moved >= COMPACT_BYTES:
                return
        if not rows:
            segments.give_up(segment)


class ArchiveLookup:
    """Reads archived records; used by one thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        segments: Segments,
        key: bytes,
        kinds: Sequence[type[Record]],
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._segments = segments
        self._key = key
        self._decoders: dict[type[Record], msgspec.msgpack.Decoder[Any]] = {
            kind: msgspec.msgpack.Decoder(kind) for kind in kinds
        }
        #: Addresses of records that failed, and the kinds whose rows did.
        self._damaged: set[tuple[str, str, int | None]] = set()

    @property
    def damaged(self) -> int:
        """How many records were found damaged since the store was opened."""
        return len(self._damaged)

    def get(self, kind: type[R], owner: str, place: int) -> R | None:
        """The record at an address; None if there is none, or if the disk has damaged it."""
        return self._find(kind, owner, _GET, place)[1]

    def first(self, kind: type[R], owner: str, since: int) -> R | None:
        """The undamaged record at the lowest place from this one on."""
        while True:
            place, record = self._find(kind, owner, _FIRST, since)
            if record is not None or place is None:
                return record
            since = max(place, since) + 1

    def last(self, kind: type[R], owner: str, below: int) -> R | None:
        """The undamaged record at the highest place below this one."""
        while True:
            place, record = self._find(kind, owner, _LAST, below)
            if record is not None or place is None:
                return record
            below = min(place, below - 1)

    def owners(self, kind: type[Record]) -> list[str]:
        """Everybody who has records of a kind."""
        name = kind.__name__
        found: list[str] = []
        try:
            # A search for each owner, where DISTINCT would walk along all the rows.
            ((owner,),) = self._execute(_FIRST_OWNER, (name,)).fetchall()
            while owner is not None:
                found.append(owner)
                ((owner,),) = self._execute(_NEXT_OWNER, (name, owner)).fetchall()
        except _UNREADABLE as error:
            self._is_damaged(name, "", None, str(error))
        return found

    def _find(
        self, kind: type[R], owner: str, query: str, place: int
    ) -> tuple[int | None, R | None]:
        """The place of the record that a query finds, and the record unless it is damaged."""
        name = kind.__name__
        at: int | None = None
        try:
            row = self._row(query, (name, owner, place))
            if row is None:
                return None, None
            at, check, record = row
            if check == checksum(self._key, (name, owner, at), record):
                return at, self._decoders[kind].decode(record)
            reason = "it is not what was written"
        except _UNREADABLE as error:
            reason = str(error)
        self._is_damaged(name, owner, at, reason)
        return at, None

    def _row(self, query: str, key: tuple[str, str, int]) -> tuple[int, bytes, bytes] | None:
        """Place, checksum and record that a query finds; None if it finds nothing."""
        found: tuple[int, bytes, bytes] | None = None
        for _ in range(2):
            rows: list[Any] = self._execute(query, key).fetchall()
            if not rows:
                return None
            place, check, segment, start, length, record = rows[0]
            if segment is None:
                return place, check, record
            try:
                return place, check, self._segments.read(segment, start, length)
            except OSError:
                # Removed since, or moved and the segment unlinked: then the row has changed.
                found = place, check, b""
        return found

    def _is_damaged(self, kind: str, owner: str, place: int | None, reason: str) -> None:
        known = self._damaged
        if (kind, owner, place) in known or len(known) >= MAX_DAMAGED:
            return
        known.add((kind, owner, place))
        note(
            "archived record is damaged; treated as missing",
            level=logging.ERROR,
            kind=kind,
            owner=owner,
            place=place,
            reason=reason,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
