"""Lines to a cell: connected nodes at seats of one identity, kept from one task to the next.

Spark reads with many short tasks, in processes that it uses again. Connecting costs a handshake
with every broker, so a process keeps its node for the next task and closes it when none comes for
IDLE_S.

Two processes at one seat would displace each other. On one machine a file lock per seat keeps them
apart, whatever the queries they belong to, and ends with its process. Of other machines nobody
here knows: tasks begin to look at the seat of their partition's number, so that those of one
micro-batch take different seats.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
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
_POLL_S = 0.05


class Line:
    """A node at a seat, and the thread that drives it."""

    def __init__(self, thread: LoopThread, node: Node, lock: int) -> None:
        self.thread = thread
        self.node = node
        #: Holds the seat as long as it is open.
        self._lock = lock
        #: When it was last used.
        self.used = 0.0

    def close(self) -> None:
        """Leave the cell and the seat."""
        self.thread.run(self.leave())

    async def leave(self) -> None:
        """The same, in its thread."""
        await self.node.close()
        os.close(self._lock)


class Lines:
    """The lines of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: LoopThread | None = None
        #: Lines that nobody uses now.
        self._idle: dict[Access, list[Line]] = {}
        #: The last one that is being closed; a task that nobody holds may vanish.
        self._leaving: asyncio.Task[None] | None = None

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
        loop = line.thread.loop
        line.used = time.monotonic()
        with self._guard:
            self._idle.setdefault(access, []).append(line)
        loop.call_soon_threadsafe(loop.call_later, IDLE_S, self._end_idle, access, line, line.used)

    def _end_idle(self, access: Access, line: Line, used: float) -> None:
        with self._guard:
            idle = self._idle.get(access, [])
            if line not in idle or line.used != used:
                return
            idle.remove(line)
        self._leaving = line.thread.loop.create_task(line.leave())


LINES = Lines()


def _connect(thread: LoopThread, access: Access, wish: int) -> Line:
    seat, lock = take_seat(access, wish)
    try:
        connected = client.connect(
            access.manifest, access.identity, timeout_s=access.timeout_s, seat=seat
        )
        return Line(thread, thread.run(connected), lock)
    except BaseException:
        os.close(lock)
        raise


def take_seat(access: Access, wish: int) -> tuple[int, int]:
    """A seat that nobody on this machine has, and the lock on it."""
    places = len(access.seats)
    order = [access.seats[(wish + place) % places] for place in range(places)]
    cell, identity = read_manifest(Path(access.manifest)).cell, read_identity(access.identity)
    # By its key as well: other cells on this machine may have the same names.
    who, key = identity.name, bytes(identity.verify_key).hex()
    name = hashlib.sha256(f"{cell}/{who}/{key}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"quorumcast-seats-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    deadline = time.monotonic() + access.timeout_s
    while True:
        for seat in order:
            lock = os.open(folder / f"{name}-{seat}", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return seat, lock
        if time.monotonic() > deadline:
            seats = ", ".join(map(str, access.seats))
            raise UsageError(
                f"the seats {seats} of {who!r} are all taken on this machine: end another query, "
                "give this one more with the option 'seats', or an identity of its own"
            )
        time.sleep(_POLL_S)
