"""A log file as it grows, like `tail -F`, that goes on where it stopped.

A *place* is how far a file has been handed out: which file (device and inode), how many bytes, a
digest of its beginning, and how many files came before. `LogFile.place` is kept by whoever
reads once the lines are safe elsewhere; with it a later process finds the rest, also if the file
was renamed or copied and truncated meanwhile and newer ones have come (`_after`).

- Only whole lines are handed out. The unfinished end of a file is handed out when no more can come:
  when the file has been renamed and nothing was written to it for a few looks.
- A line longer than `MAX_LINE_BYTES` comes in pieces.
- A file that is shorter than its place, or begins differently, was truncated or replaced.
- The same line has the same `origin` whenever it is read: what is published twice can be told.

Rotated files that are compressed before they were read to the end are lost to us.
"""

from __future__ import annotations

import contextlib
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

#: How much of a file's beginning tells it from another.
HEAD_BYTES = 256
CHUNK_BYTES = 256 * 1024
#: Looks at a renamed file that found nothing before it is left for the new one.
LEAVING_LOOKS = 4
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".zip"}


class Place(msgspec.Struct, frozen=True):
    """How far a file has been handed out."""

    device: int
    inode: int
    offset: int
    #: Digest of the first bytes, as many as were read and at most HEAD_BYTES.
    head: str
    #: How many files came before: tells apart lines at one offset of a file that was truncated.
    turn: int = 0


class LogFile:
    """One file, and those that it is renamed to."""

    def __init__(self, path: Path, place: Place | None = None, *, from_start: bool = False) -> None:
        there = _readable(path)
        self.path = path
        #: The place after the last line handed out. A file that is there when nobody has read it
        #: yet is old, and begun at its end; one that comes later is new.
        self._place = place
        if place is None and not there:
            self._place = Place(0, 0, 0, "")
        elif place is None and from_start:
            about = path.stat()
            self._place = Place(about.st_dev, about.st_ino, 0, "")
        self._file: BinaryIO | None = None
        #: Looks at a renamed file that found nothing.
        self._idle_looks = 0
        #: Why the last look found a file and could not read it.
        self.trouble = ""

    @property
    def place(self) -> Place | None:
        """How far everything has been handed out."""
        return self._place

    def read(self) -> list[tuple[str, bytes]]:
        """What is new, as (origin, line) pairs; nothing if there is nothing new."""
        try:
            if self._file is None:
                self._open()
            lines = self._read()
        except OSError as error:
            # Not there any more, or not for us: looked for again with the next call.
            self.close()
            missing = isinstance(error, FileNotFoundError)
            self.trouble = "" if missing else error.strerror or str(error)
            return []
        self.trouble = ""
        return lines

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # ------------------------------------------------------------------ reading

    def _read(self) -> list[tuple[str, bytes]]:
        file, place = self._opened()
        size = os.fstat(file.fileno()).st_size
        if size < place.offset or (size > place.offset and not _begins(file, place)):
            self._truncated()
            file, place = self._opened()
        file.seek(place.offset)
        chunk = file.read(CHUNK_BYTES)
        lines = self._take(chunk, last=False)
        if self._place != place:
            self._idle_looks = 0
            return lines
        if not self._left():
            return []
        self._idle_looks += 1
        if self._idle_looks < LEAVING_LOOKS:
            return []
        lines = self._take(chunk, last=True)
        self._advance()
        return lines

    def _take(self, chunk: bytes, *, last: bool) -> list[tuple[str, bytes]]:
        """The whole lines of a chunk; of the last chunk of a file, all of it."""
        _, place = self._opened()
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
                lines.append((_origin(place, place.offset + begin, line), line))
            begin = end
        if begin:
            self._moved(place.offset + begin)
        return lines

    def _moved(self, offset: int) -> None:
        file, place = self._opened()
        head = place.head
        if place.offset < HEAD_BYTES:
            head = _head(file, offset)
        self._place = msgspec.structs.replace(place, offset=offset, head=head)

    def _opened(self) -> tuple[BinaryIO, Place]:
        if self._file is None or self._place is None:
            raise OSError("no file is open")
        return self._file, self._place

    # --------------------------------------------------------- which file comes next

    def _left(self) -> bool:
        """Whether another file has taken the name of the open one."""
        _, place = self._opened()
        try:
            there = self.path.stat()
        except OSError:
            return False
        return (there.st_dev, there.st_ino) != (place.device, place.inode)

    def _open(self) -> None:
        """Open the file in which the place is, or the newest one."""
        if self._place is None:
            self._begin(self.path, None)
            self._moved(self._end())
            return
        found, _ = self._after(self._place)
        self._begin(found or self.path, self._place if found else None)

    def _end(self) -> int:
        """Behind the last whole line: what is being written just now is new."""
        file, _ = self._opened()
        size = os.fstat(file.fileno()).st_size
        begin = max(0, size - MAX_LINE_BYTES)
        file.seek(begin)
        newline = file.read(size - begin).rfind(b"\n")
        return begin + newline + 1 if newline >= 0 else size

    def _begin(self, path: Path, place: Place | None) -> None:
        self.close()
        file = path.open("rb")
        about = os.fstat(file.fileno())
        turn = self._place.turn + 1 if self._place is not None else 0
        self._file = file
        self._idle_looks = 0
        if place is not None:
            self._place = msgspec.structs.replace(place, device=about.st_dev, inode=about.st_ino)
        else:
            self._place = Place(about.st_dev, about.st_ino, 0, "", turn)

    def _truncated(self) -> None:
        """The rest may be in a copy that was made before."""
        self.close()
        self._open()

    def _advance(self) -> None:
        """On to the next newer file; names are looked up anew, because they change."""
        _, place = self._opened()
        _, newer = self._after(place)
        self._begin(newer[0] if newer else self.path, None)

    def _after(self, place: Place) -> tuple[Path | None, list[Path]]:
        """The file in which a place is, if it is still there, and the files that are newer."""
        family = [*self._older(), self.path]
        same = [path for path in family if _is(path, place)]
        # A copy begins like the original; nothing that was read begins like everything.
        alike = family if place.offset else []
        for path in (*reversed(same), *reversed(alike)):
            if _continues(path, place):
                return path, family[family.index(path) + 1 :]
        return None, []

    def _older(self) -> list[Path]:
        """Files that this one may have been renamed or copied to, the oldest first."""
        found: list[tuple[int, Path]] = []
        for path in self.path.parent.glob(f"{_literally(self.path.name)}?*"):
            if path.suffix in _COMPRESSED:
                continue
            with contextlib.suppress(OSError):  # it went away just now; the others are there
                about = path.stat()
                if stat.S_ISREG(about.st_mode):
                    found.append((about.st_mtime_ns, path))
        return [path for _, path in sorted(found)]


def _readable(path: Path) -> bool:
    """Whether a file is there; a `UsageError` if something is that cannot be followed."""
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


def _literally(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _is(path: Path, place: Place) -> bool:
    try:
        about = path.stat()
    except OSError:
        return False
    return (about.st_dev, about.st_ino) == (place.device, place.inode)


def _continues(path: Path, place: Place) -> bool:
    """Whether a file begins like that of the place and reaches as far."""
    try:
        with path.open("rb") as file:
            long_enough = os.fstat(file.fileno()).st_size >= place.offset
            return long_enough and _begins(file, place)
    except OSError:
        return False


def _begins(file: BinaryIO, place: Place) -> bool:
    return _head(file, place.offset) == place.head


def _head(file: BinaryIO, offset: int) -> str:
    length = min(offset, HEAD_BYTES)
    if not length:
        return ""
    file.seek(0)
    return hashlib.sha256(file.read(length)).hexdigest()[:16]


def _origin(place: Place, offset: int, line: bytes) -> str:
    digest = hashlib.sha256(line).hexdigest()[:8]
    return f"{place.device:x}.{place.inode:x}.{place.turn}@{offset}:{digest}"


def _whole_characters(piece: bytes) -> int:
    """Where to cut so that no UTF-8 character is cut in two."""
    for back in range(1, 4):
        byte = piece[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # a character begins here and has more bytes than are left
            return len(piece) - back
    return len(piece)


# -------------------------------------------------------------------- what is kept


class Places:
    """The places of all files that a probe follows, in a small file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn = threading.Lock()
        self._places: dict[str, Place] = {}
        try:
            self._places = msgspec.json.decode(path.read_bytes(), type=dict[str, Place])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"{path} does not say where log files were left ({error}); remove it to begin anew"
            ) from None

    def get(self, file: Path) -> Place | None:
        """Where a file was left."""
        return self._places.get(str(file))

    def keep(self, file: Path, place: Place) -> None:
        """Keep it; at once the new file or the old one, whatever happens.

        Each file that is followed has a thread of its own for this. What is written last must be
        the newest, so they take turns.
        """
        with self._turn:
            self._places[str(file)] = place
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as draft:
                draft.write_bytes(msgspec.json.encode(self._places))
