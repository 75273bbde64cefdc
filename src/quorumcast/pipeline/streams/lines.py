"""Lines to a cell: connected nodes at seats of one identity, kept from one task to the next.

Spark reads with many short tasks, in processes that it uses again. Connecting costs a handshake
with every broker, so a process keeps its node for the next task and closes it when none comes for
IDLE_S, or as soon as another process on this machine waits for a seat.

Two processes at one seat would displace each other. On one machine a file lock per seat keeps them
apart, whatever the queries they belong to, and ends with its process. Of other machines nobody
here knows: tasks begin to look at the seat of their partition's number, so that those of one
micro-batch take different seats.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumcast import client
from quorumcast.client.node import Node
from quorumcast.client.sync import LoopThread
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.pipeline.streams.options import Access

IDLE_S = 30.0
#: How often whoever waits for a seat looks for one, and whoever needs none for somebody who waits.
_POLL_S = 0.05
_LOOK_S = 0.2


class Line:
    """A node at a seat, and the thread that drives it."""

    def __init__(self, thread: LoopThread, node: Node, seat: Seat) -> None:
        self.thread = thread
        self.node = node
        self.seat = seat
        #: When it was last used.
        self.used = 0.0

    def close(self) -> None:
        """Leave the cell and the seat."""
        self.thread.run(self.leave())

    async def leave(self) -> None:
        """The same, in its thread."""
        await self.node.close()
        self.seat.leave()


class Lines:
    """The lines of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: LoopThread | None = None
        #: Lines that nobody uses now.
        self._idle: dict[Access, list[Line]] = {}
        #: Those that are being closed; a task that nobody holds may vanish.
        self._leaving: set[asyncio.Task[None]] = set()

    @contextmanager
    def borrow(self, access: Access, wish: int = 0) -> Iterator[Line]:
        """A connected line; it is kept for the next one unless something goes wrong."""
        line = self.take(access, wish)
        try:
            yield line
        except BaseException:
            line.close()
            raise
        self._keep(access, line)

    def take(self, access: Access, wish: int = 0) -> Line:
        """A connected line, until the caller closes it."""
        with self._guard:
            idle = self._idle.get(access)
            line = idle.pop() if idle else None
            if self._thread is None:
                self._thread = LoopThread("quorumcast-spark")
            thread = self._thread
        if line is None:
            return _connect(thread, access, wish)
        try:
            thread.run(line.node.wait_connected(access.timeout_s))
        except BaseException:
            line.close()
            raise
        return line

    def close(self) -> None:
        """Close the lines that nobody uses."""
        with self._guard:
            idle = [line for lines in self._idle.values() for line in lines]
            self._idle.clear()
        for line in idle:
            line.close()

    def _keep(self, access: Access, line: Line) -> None:
        line.used = time.monotonic()
        with self._guard:
            self._idle.setdefault(access, []).append(line)
        line.thread.loop.call_soon_threadsafe(self._look, access, line, line.used)

    def _look(self, access: Access, line: Line, used: float) -> None:
        """Close a line that nobody has used since then, if it is time."""
        loop = line.thread.loop
        with self._guard:
            idle = self._idle.get(access, [])
            if line not in idle or line.used != used:
                return
            if time.monotonic() < used + IDLE_S and not line.seat.give_way():
                loop.call_later(_LOOK_S, self._look, access, line, used)
                return
            idle.remove(line)
        leaving = loop.create_task(line.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


LINES = Lines()


def _connect(thread: LoopThread, access: Access, wish: int) -> Line:
    seat = take_seat(access, wish)
    try:
        connected = client.connect(
            access.manifest, access.identity, timeout_s=access.timeout_s, seat=seat.number
        )
        return Line(thread, thread.run(connected), seat)
    except BaseException:
        seat.leave()
        raise


class Seat:
    """A seat that nobody else on this machine has."""

    def __init__(self, number: int, lock: int, wanted: Path) -> None:
        self.number = number
        #: Holds the seat as long as it is open.
        self._lock = lock
        #: A file that is there while somebody waits for one of these seats.
        self._wanted = wanted

    def give_way(self) -> bool:
        """Whether somebody waits; of all who ask at the same time one is told so."""
        try:
            self._wanted.unlink()
        except FileNotFoundError:
            return False
        return True

    def leave(self) -> None:
        """It is another's now."""
        os.close(self._lock)


def take_seat(access: Access, wish: int) -> Seat:
    """The first seat from the wished one on that is free, as soon as there is one."""
    places = len(access.seats)
    order = [access.seats[(wish + place) % places] for place in range(places)]
    cell, identity = read_manifest(Path(access.manifest)).cell, read_identity(access.identity)
    # By its key as well: other cells on this machine may have the same names.
    who, key = identity.name, bytes(identity.verify_key).hex()
    name = hashlib.sha256(f"{cell}/{who}/{key}".encode()).hexdigest()[:16]
    seats = ", ".join(map(str, access.seats))
    folder = _own_folder()
    wanted = folder / f"{name}-wanted-{hashlib.sha256(seats.encode()).hexdigest()[:16]}"
    deadline = time.monotonic() + access.timeout_s
    while True:
        for number in order:
            lock = _open(folder / f"{name}-{number}")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return Seat(number, lock, wanted)
        if time.monotonic() > deadline:
            raise UsageError(
                f"the seats {seats} of {who!r} are all taken on this machine: end another query, "
                "give this one more with the option 'seats', or an identity of its own"
            )
        os.close(_open(wanted))
        time.sleep(_POLL_S)


def _own_folder() -> Path:
    """Where files of seats are: a folder that this user made, and nobody else can write to."""
    folder = Path(tempfile.gettempdir()) / f"quorumcast-seats-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder.lstat()
    if not stat.S_ISDIR(made.st_mode) or made.st_uid != os.getuid() or made.st_mode & 0o022:
        raise UsageError(
            f"{folder} was made by somebody else, or others may write to it: remove it, or name "
            "another directory for temporary files in TMPDIR"
        )
    return folder


def _open(path: Path) -> int:
    """A file of a seat, and never one that a link leads to."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UsageError(f"{path} is a link: remove it") from None
