"""Follows a growing log file like `tail -F`, and resumes after a restart.

A `LogPosition` identifies a file and how far it has been read. The caller saves it once the lines
are safe. It is found again after the file was rotated by renaming, or by copying and truncating.

- `read` returns only whole lines. The unfinished end of a file is returned once the file has been
  renamed and nothing was written to it for LEAVING_LOOKS calls.
- A file that is shorter than its position, or begins differently, was truncated or replaced.
- A line has the same `origin` whenever it is read, so that duplicates can be recognised.

The rest of a file that is compressed before it was read to its end is lost.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.lines import MAX_LINE_BYTES
from quorumcast.traces.drafts import replacing

#: Bytes at the beginning of a file that identify it.
HEAD_BYTES = 256
CHUNK_BYTES = 256 * 1024
#: Calls without new lines after which a renamed file is finished.
LEAVING_LOOKS = 4
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".zip"}


class LogPosition(msgspec.Struct, frozen=True):
    """How far a file has been read."""

    device: int
    inode: int
    offset: int
    #: Digest of the bytes that were read, at most the first HEAD_BYTES.
    head: str
    #: The number of earlier files; it makes origins unique when a file is truncated.
    turn: int = 0


class LogFile:
    """A log file and its rotated predecessors."""

    def __init__(
        self, path: Path, position: LogPosition | None = None, *, from_start: bool = False
    ) -> None:
        there = _readable(path)
        self.path = path
        #: The position after the last line returned. None: start at the end, because the file
        #: existed before it was followed. A file that appears later is read from its beginning.
        self._position = position
        if position is None and not there:
            self._position = LogPosition(0, 0, 0, "")
        elif position is None and from_start:
            about = path.stat()
            self._position = LogPosition(about.st_dev, about.st_ino, 0, "")
        self._file: BinaryIO | None = None
        #: Calls without new lines since the file was renamed.
        self._idle_looks = 0
        #: The error of the last call, or "".
        self.trouble = ""

    @property
    def position(self) -> LogPosition | None:
        """The position after the last line returned."""
        return self._position

    def read(self) -> list[tuple[str, bytes]]:
        """Return the new lines as (origin, line) pairs."""
        try:
            if self._file is None:
                self._open()
            lines = self._read()
        except OSError as error:
            # The file is gone or unreadable; the next call tries again.
            self.close()
            missing = isinstance(error, FileNotFoundError)
            self.trouble = "" if missing else error.strerror or str(error)
            return []
        self.trouble = ""
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # ------------------------------------------------------------------ reading

    def _read(self) -> list[tuple[str, bytes]]:
        file, position = self._opened()
        size = os.fstat(file.fileno()).st_size
        if size < position.offset or (size > position.offset and not _begins(file, position)):
            # It was truncated; a copy may hold the rest.
            self.close()
            self._open()
            file, position = self._opened()
        file.seek(position.offset)
        chunk = file.read(CHUNK_BYTES)
        lines = self._take(chunk, last=False)
        if self._position != position:
            self._idle_looks = 0
            return lines
        if not self._is_renamed():
            return []
        self._idle_looks += 1
        if self._idle_looks < LEAVING_LOOKS:
            return []
        lines = self._take(chunk, last=True)
        self._advance()
        return lines

    def _take(self, chunk: bytes, *, last: bool) -> list[tuple[str, bytes]]:
        """Return the whole lines of a chunk; if it is the last of a file, the rest as well."""
        _, position = self._opened()
        lines: list[tuple[str, bytes]] = []
        begin = 0
        while begin < len(chunk):
            end = chunk.find(b"\n", begin) + 1
            if not end or end - begin > MAX_LINE_BYTES:
                if len(chunk) - begin >= MAX_LINE_BYTES:
                    end = begin + _whole_characters(chunk[begin : begin + MAX_LINE_BYTES])
                elif last:
                    end = len(chunk)
                else:
                    break
            line = chunk[begin:end]
            if line.strip(b"\r\n"):
                lines.append((_origin(position, position.offset + begin, line), line))
            begin = end
        if begin:
            self._moved(position.offset + begin)
        return lines

    def _moved(self, offset: int) -> None:
        file, position = self._opened()
        head = position.head
        if position.offset < HEAD_BYTES:
            head = _head(file, offset)
        self._position = msgspec.structs.replace(position, offset=offset, head=head)

    def _opened(self) -> tuple[BinaryIO, LogPosition]:
        if self._file is None or self._position is None:
            raise OSError("no file is open")
        return self._file, self._position

    # ------------------------------------------------------------ rotated files

    def _is_renamed(self) -> bool:
        """Whether another file has the name of the open one."""
        return _is(self.path, self._opened()[1]) is False

    def _open(self) -> None:
        """Open the file of the position, or the newest file."""
        if self._position is None:
            self._begin(self.path, None)
            self._moved(self._end())
            return
        found, _ = self._after(self._position)
        self._begin(found or self.path, self._position if found else None)

    def _end(self) -> int:
        """Return the end of the last whole line: an unfinished line counts as new."""
        file, _ = self._opened()
        size = os.fstat(file.fileno()).st_size
        begin = max(0, size - MAX_LINE_BYTES)
        file.seek(begin)
        newline = file.read(size - begin).rfind(b"\n")
        return begin + newline + 1 if newline >= 0 else size

    def _begin(self, path: Path, position: LogPosition | None) -> None:
        self.close()
        file = path.open("rb")
        about = os.fstat(file.fileno())
        turn = self._position.turn + 1 if self._position is not None else 0
        self._file = file
        self._idle_looks = 0
        if position is not None:
            self._position = msgspec.structs.replace(
                position, device=about.st_dev, inode=about.st_ino
            )
        else:
            self._position = LogPosition(about.st_dev, about.st_ino, 0, "", turn)

    def _advance(self) -> None:
        """Open the next newer file; its name is looked up again, because rotation changes names."""
        _, position = self._opened()
        _, newer = self._after(position)
        self._begin(newer[0] if newer else self.path, None)

    def _after(self, position: LogPosition) -> tuple[Path | None, list[Path]]:
        """Return the file of a position, or None, and the newer files."""
        family = [*self._older(), self.path]
        same = [path for path in family if _is(path, position)]
        # A copy begins like the original. At offset 0 every file would match.
        alike = family if position.offset else []
        for path in (*reversed(same), *reversed(alike)):
            if _continues(path, position):
                return path, family[family.index(path) + 1 :]
        return None, []

    def _older(self) -> list[Path]:
        """Return the rotated files, the oldest first."""
        found: list[tuple[int, Path]] = []
        for path in self.path.parent.glob(f"{glob.escape(self.path.name)}?*"):
            if path.suffix in _COMPRESSED:
                continue
            with contextlib.suppress(OSError):  # removed meanwhile
                about = path.stat()
                if stat.S_ISREG(about.st_mode):
                    found.append((about.st_mtime_ns, path))
        return [path for _, path in sorted(found)]


def _readable(path: Path) -> bool:
    """Return whether a file exists; raise `UsageError` if it cannot be followed."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory; name the log files in it")
        if not path.exists():
            return False
        if not path.is_file():
            raise UsageError(f"{path} is no regular file; only those can be followed")
        path.open("rb").close()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); give this user the right to read it, or "
            "leave it out"
        ) from None
    return True


def _is(path: Path, position: LogPosition) -> bool | None:
    """Return whether a path is the file of a position; None if there is no such path."""
    try:
        about = path.stat()
    except OSError:
        return None
    return (about.st_dev, about.st_ino) == (position.device, position.inode)


def _continues(path: Path, position: LogPosition) -> bool:
    """Whether a file begins like that of the position and is long enough."""
    try:
        with path.open("rb") as file:
            long_enough = os.fstat(file.fileno()).st_size >= position.offset
            return long_enough and _begins(file, position)
    except OSError:
        return False


def _begins(file: BinaryIO, position: LogPosition) -> bool:
    return _head(file, position.offset) == position.head


def _head(file: BinaryIO, offset: int) -> str:
    length = min(offset, HEAD_BYTES)
    if not length:
        return ""
    file.seek(0)
    return hashlib.sha256(file.read(length)).hexdigest()[:16]


def _origin(position: LogPosition, offset: int, line: bytes) -> str:
    digest = hashlib.sha256(line).hexdigest()[:8]
    return f"{position.device:x}.{position.inode:x}.{position.turn}@{offset}:{digest}"


def _whole_characters(piece: bytes) -> int:
    """Return the length of the longest prefix that ends with a whole UTF-8 character."""
    for back in range(1, 4):
        byte = piece[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # a character begins here and has more bytes than are left
            return len(piece) - back
    return len(piece)


# --------------------------------------------------------------- saved positions


class LogPositions:
    """The saved positions of all files that a probe follows, as a JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._positions: dict[str, LogPosition] = {}
        try:
            self._positions = msgspec.json.decode(path.read_bytes(), type=dict[str, LogPosition])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"{path} does not say where log files were left ({error}); remove it to begin anew"
            ) from None

    def get(self, file: Path) -> LogPosition | None:
        """Return the saved position of a file."""
        return self._positions.get(str(file))

    def keep(self, file: Path, position: LogPosition) -> None:
        """Save a position atomically."""
        # Each followed file has a thread of its own; the last write must hold all positions.
        with self._lock:
            self._positions[str(file)] = position
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as draft:
                draft.write_bytes(msgspec.json.encode(self._positions))
