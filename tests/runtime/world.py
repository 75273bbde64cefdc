"""What the runtime's tests share: an event loop with a time-out, cells, listeners, raw peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from quorumcast.cell.messages import CELL_FAMILY
from quorumcast.client import Node, connect
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import DialFailure
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Farewell, Hello, Opened, Session, Welcome
from quorumcast.runtime.links.greeting import Greeter, decode_greeting, encode_greeting
from quorumcast.testing.bed import free_ports
from quorumcast.testing.cells import CellSetup
from quorumcast.testing.cluster import LocalCluster

T = TypeVar("T")

#: How long anything may take. A machine that others use as well may stand still for half a minute.
PATIENCE_S = 200.0


def run(main: Coroutine[Any, Any, T], timeout_s: float = PATIENCE_S) -> T:
    """Run on the loop of production."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await main

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that only another task can bring about."""
    while not condition():  # noqa: ASYNC110  (anything at all may be waited for)
        await asyncio.sleep(0.002)


def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """The same without a loop; False if it never happens."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextlib.asynccontextmanager
async def alice_and_bob(cluster: LocalCluster) -> AsyncIterator[tuple[Node, Node]]:
    """Both clients of a cluster, connected."""
    path, of = cluster.manifest_path, cluster.identity_path
    async with (
        await connect(path, of("alice"), timeout_s=PATIENCE_S) as alice,
        await connect(path, of("bob"), timeout_s=PATIENCE_S) as bob,
    ):
        yield alice, bob


def told_before_kill(script: str, path: Path, count: int) -> list[int]:
    """The numbers that a script with this argument prints until kill -9, at least so many."""
    child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(count)]
    child.kill()
    told += [int(line) for line in child.stdout.read().split()]
    child.wait()
    child.stdout.close()
    return told


def plan(brokers: int = 4, **options: Any) -> CellSetup:
    return CellSetup(brokers=brokers, ports=free_ports(brokers), **options)


def keyring(cell: CellSetup, name: str) -> Keyring:
    return cell.manifest.keyring(cell.identities[NodeId(name)])


class Heard:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.packets: list[tuple[NodeId, Opened]] = []
        self.messages: list[Any] = []
        self.up: list[NodeId] = []
        self.down: list[NodeId] = []
        self.failed: list[tuple[NodeId, DialFailure]] = []

    def receive(self, peer: NodeId, opened: Opened) -> None:
        self.packets.append((peer, opened))
        self.messages += (message for message, _ in opened)

    def peer_up(self, peer: NodeId) -> None:
        self.up.append(peer)

    def peer_down(self, peer: NodeId) -> None:
        self.down.append(peer)

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        self.failed.append((peer, reason))


class RawPeer:
    """A peer that speaks bytes: for saying what no honest program says."""

    def __init__(self, port: int, keys: Keyring) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.greeter = Greeter(keys, CELL_FAMILY)
        self.session: Session | None = None

    def send_frame(self, frame: bytes) -> None:
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """All of these, in as few writes as the socket takes."""
        self.socket.sendall(b"".join(len(one).to_bytes(4, "big") + one for one in frames))

    def read_frame(self) -> bytes:
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def hello(self, hello: Hello) -> Welcome | Farewell:
        self.send_frame(encode_greeting(hello))
        answer = decode_greeting(self.read_frame())
        assert isinstance(answer, Welcome | Farewell)
        return answer

    def greet(self, to: str, *, prove: bool = True) -> Session:
        """An honest greeting, as far as the keys allow."""
        hello = self.greeter.hello(NodeId(to))
        welcome = self.hello(hello)
        assert isinstance(welcome, Welcome), welcome
        session = self.greeter.conclude(hello, welcome)
        assert session is not None
        self.session = session
        if prove:
            self.send_frame(session.seal([]))
        return session

    def finish(self) -> None:
        """Say no more, and wait until the other side has read all of it and hangs up."""
        with contextlib.suppress(OSError):  # it has hung up already
            self.socket.shutdown(socket.SHUT_WR)
        self.wait_closed()

    def wait_closed(self) -> None:
        """Until the other side hangs up."""
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionError:
            pass

    def close(self) -> None:
        self.socket.close()
