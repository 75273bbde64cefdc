"""The mark of a store: a small file beside the database that counts the changes ever made.

Without it, SQLite would take a damaged WAL for one that ends early, and an old copy of the file for
a good one. The mark is written after each commit and not synced: after a power failure it may lag,
but it is never ahead. It is locked while the database is open, so that no two brokers share one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

MARK = ".mark"


class Mark:
    """The number of changes of one database."""

    _NUMBER = 8
    _CHECK = 16

    def __init__(self, store: Path, key: bytes) -> None:
        self._key = key
        path = store.with_name(store.name + MARK)
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

    def spoil(self) -> None:
        """Make the mark unreadable."""
        os.ftruncate(self._file, 0)

    def _image(self, number: int) -> bytes:
        data = number.to_bytes(self._NUMBER, "big")
        check = hashlib.blake2b(data, digest_size=self._CHECK, key=self._key)
        return data + check.digest()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)
