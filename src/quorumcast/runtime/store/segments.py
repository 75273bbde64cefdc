"""Segments: append-only files that hold the large records of an archive.

A segment is a sequence of encoded records and nothing else; rows of the database say where each
one starts, how long it is, and what its checksum is. The directory of the segments is used by the
store's thread, except for `read`, which any thread may call.

    append…  sync  COMMIT  settle        one commit: bytes reach the disk before rows name them
    append…        ROLLBACK  rewind      a commit that failed

A crash leaves bytes at the end of a segment that no row names. No segment is appended to after a
restart, so they do no harm.

A segment that no row names any more is unlinked some time after the commit that removed the last
one (`unlink_one`): to free its space takes a while, and no commit has to wait for that.

Records of different age share segments, so removed bytes may stay between others: `to_compact` is
the segment with the most of them, once all together are more than an eighth of what is kept.
Its records are then appended to the current segment, a few at a time, and it is unlinked.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path

#: A segment that has reached this size is not appended to any more.
SEGMENT_BYTES = 64 * 1024 * 1024
#: A small archive has smaller segments, so that little space is lost in them.
LEAST_SEGMENT_BYTES = 4 * 1024 * 1024
_SEGMENTS_PER_ARCHIVE = 8
#: Segments that are open for reading.
MAX_OPEN = 16

_ENDING = ".segment"


class DamageError(Exception):
    """A file does not contain what was written."""


class Segments:
    """The segments of one store."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Sizes of the files, and how many of their bytes are named by rows.
        self._sizes: dict[int, int] = {}
        self._live: Counter[int] = Counter()
        #: Sums of the two. Only the store's thread writes them.
        self.file_bytes = 0
        self.live_bytes = 0
        #: The segment that is appended to, with its descriptor; None until something is appended.
        self._current: int | None = None
        self._descriptor = -1
        #: The number of the next segment. No number is used twice while the store is open.
        self._next = 1
        #: Since the last commit: the current segment's size then, and changes of live bytes.
        self._settled_size = 0
        self._changed: Counter[int] = Counter()
        #: Segments without live bytes that are still to be unlinked, and their sizes.
        self._unneeded: dict[int, int] = {}
        #: Descriptors for reading, least recently used first.
        self._open: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, segment: int) -> Path:
        """The file of a segment."""
        return self._directory / f"{segment:08}{_ENDING}"

    # ------------------------------------------------------------------ opening

    def open(self, named: Mapping[int, tuple[int, int]]) -> None:
        """Check the files against the rows: by segment, the sum of lengths and the highest end."""
        files = {
            int(path.stem): path
            for path in self._directory.glob(f"*{_ENDING}")
            if path.stem.isdecimal()
        }
        for segment, (live, end) in named.items():
            size = files[segment].stat().st_size if segment in files else 0
            if size < end:
                lack = f"is {end - size} bytes short" if segment in files else "is missing"
                raise DamageError(f"its segment {segment} {lack}")
            self._sizes[segment], self._live[segment] = size, live
        self.file_bytes, self.live_bytes = sum(self._sizes.values()), self._live.total()
        self._next = max(files, default=0) + 1
        for segment in files.keys() - named.keys():
            files[segment].unlink()

    # ------------------------------------------------------------------ writing

    def append(self, record: bytes) -> tuple[int, int]:
        """Write a record behind the others; returns its segment and where it starts there."""
        segment = self._begin() if self._current is None else self._current
        start = self._sizes[segment]
        rest = memoryview(record)
        while rest:
            rest = rest[os.pwrite(self._descriptor, rest, start + len(record) - len(rest)) :]
        self._sizes[segment] = start + len(record)
        self._changed[segment] += len(record)
        return segment, start

    def remove(self, segment: int, length: int) -> None:
        """A row that named so many bytes of a segment is removed with the next commit."""
        self._changed[segment] -= length

    def sync(self) -> None:
        """Return when everything appended is on disk."""
        if self._current is not None and self._sizes[self._current] > self._settled_size:
            os.fdatasync(self._descriptor)
            if not self._settled_size:
                sync_directory(self._directory)
                sync_directory(self._directory.parent)

    def rewind(self) -> None:
        """Undo what was done since the last commit."""
        self._changed.clear()
        if self._current is not None:
            self._sizes[self._current] = self._settled_size
            # Only for the space: no row names these bytes, and the next record overwrites them.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._settled_size)

    def settle(self) -> None:
        """The commit is on disk: note segments without live bytes, end a segment that is long."""
        changed, self._changed = self._changed, Counter()
        self._live.update(changed)
        self.live_bytes += changed.total()
        if self._current is not None:
            self.file_bytes += self._sizes[self._current] - self._settled_size
            self._settled_size = self._sizes[self._current]
            if self._settled_size >= self._full_size:
                self.seal()
        for segment in changed:
            if self._live[segment] <= 0 and segment in self._sizes:
                self._abandon(segment)

    @property
    def _full_size(self) -> int:
        share = self.live_bytes // _SEGMENTS_PER_ARCHIVE
        return min(SEGMENT_BYTES, max(LEAST_SEGMENT_BYTES, share))

    def _begin(self) -> int:
        """Begin a new segment; returns its number."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        segment = self._next
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._descriptor = os.open(self.path(segment), flags, 0o600)
        self._next += 1
        self._current, self._sizes[segment], self._settled_size = segment, 0, 0
        return segment

    def seal(self) -> None:
        """Append nothing more to the current segment."""
        if self._current is not None:
            os.close(self._descriptor)
            self._current = None

    def _abandon(self, segment: int) -> None:
        if segment == self._current:
            # A short one stays for the next records: a new file costs more than its space.
            if self._sizes[segment] < LEAST_SEGMENT_BYTES // 4:
                return
            self.seal()
        self.live_bytes -= self._live.pop(segment, 0)
        self._unneeded[segment] = self._sizes.pop(segment)

    @property
    def has_unneeded(self) -> bool:
        """Whether there is a segment to unlink."""
        return bool(self._unneeded)

    def unlink_one(self) -> None:
        """Unlink a segment without live bytes."""
        segment, size = self._unneeded.popitem()
        # One that is gone already is gone; any other is removed at the next start.
        with contextlib.suppress(OSError):
            self.path(segment).unlink()
        with self._lock:
            descriptor = self._open.pop(segment, None)
        # Outside the lock, because this is when the space is freed.
        if descriptor is not None:
            os.close(descriptor)
        self.file_bytes -= size

    # --------------------------------------------------------------- compacting

    @property
    def to_compact(self) -> int | None:
        """The segment with the most removed bytes, if there are too many in all; else None."""
        if (
            self._unneeded
            or self.file_bytes - self.live_bytes <= self.live_bytes // 8 + self._full_size
        ):
            return None
        return max(self._sizes, key=lambda segment: self._sizes[segment] - self._live[segment])

    def give_up(self, segment: int) -> None:
        """No row names this segment: unlink it with the next commit."""
        self._changed[segment] -= self._live[segment]

    # ------------------------------------------------------------------ reading

    def read(self, segment: int, start: int, length: int) -> bytes:
        """Bytes of a segment; fewer than asked for if it ends before.

        Raises `FileNotFoundError` if it was unlinked: its records, if they are still kept, have
        moved to another one.
        """
        with self._lock:
            descriptor = self._open.pop(segment, None)
            if descriptor is None:
                descriptor = os.open(self.path(segment), os.O_RDONLY)
                if len(self._open) >= MAX_OPEN:
                    os.close(self._open.popitem(last=False)[1])
            self._open[segment] = descriptor
            return os.pread(descriptor, length, start)

    def close(self) -> None:
        """Close all files."""
        self.seal()
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
