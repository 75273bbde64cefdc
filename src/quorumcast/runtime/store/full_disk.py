"""Tells a full disk, for which a broker waits, from a broken one, which stops it.

SQLite reports a full disk only for ENOSPC; a quota or a limit on file sizes looks like any other
failure. To tell, a probe file is written that reaches as far as SQLite did.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: Bytes written to find out whether there is room.
_PROBE_BYTES = 64 * 1024
#: Attempts at a write that fails although there is room.
_TRIES = 3
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(Exception):
    """The disk takes no more for now; nothing of the batch was written."""


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
            code = sqlite_code(error)
            if code == sqlite3.SQLITE_FULL:
                raise DiskFullError(str(error)) from None
            if code != sqlite3.SQLITE_IOERR_WRITE:
                raise
            if not _takes(probe, max(map(size_of, files))):
                raise DiskFullError(str(error)) from None
            if not tries_left:
                raise
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise DiskFullError(str(error)) from None
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


def sqlite_code(error: sqlite3.Error) -> int:
    """SQLite's extended code; errors of the Python module itself have none."""
    return getattr(error, "sqlite_errorcode", 0)
