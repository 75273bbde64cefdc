"""A connection pool: nodes that stay connected to a cell from one Spark task to the next.

Spark reads with many short tasks in long-lived processes, and connecting costs a handshake with
every broker. A node is closed after IDLE_S without a task, or as soon as another process on this
machine waits for a seat. Two processes at one seat would displace each other: a file lock per seat
prevents that on one machine. On several machines, the tasks of a micro-batch prefer different
seats, by their partition numbers.
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
from quorumcast.client.loop_thread import LoopThread
from quorumcast.client.node import Node
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.pipeline.streams.options import Access

IDLE_S = 30.0
#: Time between two attempts to take a seat, and between two checks of an idle node.
_POLL_S = 0.05
_IDLE_CHECK_S = 0.2


class PooledNode:
    """A connected node, its seat, and the thread that drives it."""

    def __init__(self, thread: LoopThread, node: Node, seat: Seat) -> None:
        self.thread = thread
        self.node = node
        self.seat = seat
        #: The time of the last use.
        self.used = 0.0

    @property
    def reached(self) -> str:
        """How many brokers are connected, for error messages."""
        brokers = self.node.manifest.broker_ids
        away = [broker for broker in brokers if broker not in self.node.connected]
        missing = f" (not {', '.join(away)})" if away else ""
        return f"{len(brokers) - len(away)} of {len(brokers)} brokers can be reached{missing}"

    def close(self) -> None:
        """Disconnect and release the seat."""
        self.thread.run(self.leave())

    async def leave(self) -> None:
        """Disconnect and release the seat, in the node's thread."""
        await self.node.close()
        self.seat.leave()


class ConnectionPool:
    """The nodes of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._thread: LoopThread | None = None
        #: Idle nodes.
        self._idle: dict[Access, list[PooledNode]] = {}
        #: Tasks that close nodes; asyncio keeps only weak references to tasks.
        self._leaving: set[asyncio.Task[None]] = set()

    @contextmanager
    def borrow(self, access: Access, wish: int = 0) -> Iterator[PooledNode]:
        """Lend a connected node; it returns to the pool unless the caller raises."""
        pooled = self.take(access, wish)
        try:
            yield pooled
        except BaseException:
            pooled.close()
            raise
        self._keep(access, pooled)

    def take(self, access: Access, wish: int = 0) -> PooledNode:
        """Return a connected node, which the caller must close."""
        with self._guard:
            idle = self._idle.get(access)
            pooled = idle.pop() if idle else None
            if self._thread is None:
                self._thread = LoopThread("quorumcast-spark")
            thread = self._thread
        if pooled is None:
            return _connect(thread, access, wish)
        try:
            thread.run(pooled.node.wait_connected(access.timeout_s))
        except BaseException:
            pooled.close()
            raise
        return pooled

    def close(self) -> None:
        """Close the idle nodes."""
        with self._guard:
            idle = [pooled for nodes in self._idle.values() for pooled in nodes]
            self._idle.clear()
        for pooled in idle:
            pooled.close()

    def _keep(self, access: Access, pooled: PooledNode) -> None:
        pooled.used = time.monotonic()
        with self._guard:
            self._idle.setdefault(access, []).append(pooled)
        pooled.thread.loop.call_soon_threadsafe(self._maybe_close, access, pooled, pooled.used)

    def _maybe_close(self, access: Access, pooled: PooledNode, used: float) -> None:
        """Close a node that is idle since `used`, if it is time or its seat is wanted."""
        loop = pooled.thread.loop
        with self._guard:
            idle = self._idle.get(access, [])
            if pooled not in idle or pooled.used != used:
                return
            if time.monotonic() < used + IDLE_S and not pooled.seat.give_way():
                loop.call_later(_IDLE_CHECK_S, self._maybe_close, access, pooled, used)
                return
            idle.remove(pooled)
        leaving = loop.create_task(pooled.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


POOL = ConnectionPool()


def _connect(thread: LoopThread, access: Access, wish: int) -> PooledNode:
    seat = take_seat(access, wish)
    try:
        connected = client.connect(
            access.manifest, access.identity, timeout_s=access.timeout_s, seat=seat.number
        )
        return PooledNode(thread, thread.run(connected), seat)
    except BaseException:
        seat.leave()
        raise


class Seat:
    """A seat, locked against other processes on this machine."""

    def __init__(self, number: int, lock: int, wanted: Path) -> None:
        self.number = number
        #: The file descriptor of the lock.
        self._lock = lock
        #: A file that exists while another process waits for one of these seats.
        self._wanted = wanted

    def give_way(self) -> bool:
        """Whether to release the seat for a waiting process; true for one holder per request."""
        try:
            self._wanted.unlink()
        except FileNotFoundError:
            return False
        return True

    def leave(self) -> None:
        """Release the seat."""
        os.close(self._lock)


def take_seat(access: Access, wish: int) -> Seat:
    """Wait for a free seat; prefer the seat number `wish` of the list."""
    places = len(access.seats)
    order = [access.seats[(wish + place) % places] for place in range(places)]
    cell, identity = read_manifest(Path(access.manifest)).cell, read_identity(access.identity)
    # The key distinguishes cells with the same name on this machine.
    client_id, key = identity.name, bytes(identity.verify_key).hex()
    name = hashlib.sha256(f"{cell}/{client_id}/{key}".encode()).hexdigest()[:16]
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
                f"the seats {seats} of {client_id!r} are all taken on this machine: end another "
                "query, give this one more with the option 'seats', or an identity of its own"
            )
        os.close(_open(wanted))
        time.sleep(_POLL_S)


def _own_folder() -> Path:
    """Return the folder of the lock files, which only this user can write to."""
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
    """Open a lock file; symbolic links are refused."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UsageError(f"{path} is a link: remove it") from None
