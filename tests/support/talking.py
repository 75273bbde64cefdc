"""Peers that do nothing but talk, under either driver: for what links on demand promise."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.runtime.world import PATIENCE_S, until
from tests.support.directories import Peers

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Connected, Disconnected, Effect, Event, Receive, Unreachable
from quorumcast.core.message import Message
from quorumcast.crypto.directory import Address
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.mac import mac_factory
from quorumcast.crypto.session import Family
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.transport import Transport
from quorumcast.sim.kernel.network import Network, Weather
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler
from quorumcast.testing.bed import free_ports

NAMES = ANN, BEN, CID, DAN = [NodeId(name) for name in ("ann", "ben", "cid", "dan")]
EVE = NodeId("eve")
IDENTITIES = {name: Identity(name, name.encode().ljust(32, b"-")) for name in (*NAMES, EVE)}


class Say(Message, frozen=True, array_like=True):
    """Anything."""

    text: str


TALK = Family("talk", Say)


class Talker:
    """Writes down what it hears, and does once what it was told to do when it hears something."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.then: dict[Event, list[Effect]] = {}

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        self.heard.append(event)
        return self.then.pop(event, [])

    def sizes(self) -> dict[str, int]:
        return {}


class Stage(Protocol):
    """Peers under one of the two drivers."""

    talkers: dict[NodeId, Talker]

    async def start(self, *names: NodeId, talker: type[Talker] = Talker) -> None: ...

    def do(self, name: NodeId, *effects: Effect) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None: ...

    async def wait(self, ms: int) -> None: ...

    def links(self, name: NodeId) -> list[NodeId]: ...

    async def close(self) -> None: ...


def heard(stage: Stage, name: NodeId) -> list[Event]:
    return stage.talkers[name].heard


def said(stage: Stage, name: NodeId) -> list[str]:
    """What a peer was told."""
    return [
        event.message.text
        for event in heard(stage, name)
        if isinstance(event, Receive) and isinstance(event.message, Say)
    ]


def about(stage: Stage, name: NodeId, peer: NodeId) -> list[Event]:
    """What a peer has heard of its link to another."""
    return [
        event
        for event in heard(stage, name)
        if isinstance(event, Connected | Disconnected | Unreachable) and event.peer == peer
    ]


def keyring(name: NodeId, directory: Peers) -> Keyring:
    return Keyring(IDENTITIES[name], directory, mac_factory("blake2b"))


class SocketStage:
    """Real sockets and the asyncio driver."""

    def __init__(
        self,
        *,
        dialed_links: int = 64,
        calls: dict[NodeId, Sequence[NodeId]] | None = None,
        strangers: Sequence[NodeId] = (),
    ) -> None:
        self.limits = TransportLimits(
            dialed_links=dialed_links, connect_timeout_s=PATIENCE_S, greeting_timeout_s=PATIENCE_S
        )
        ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        # Dan is known, and cannot be called.
        self.addresses = {n: Address("127.0.0.1", ports[n]) for n in NAMES if n is not DAN}
        self._calls = calls
        self._strangers = strangers
        self.talkers: dict[NodeId, Talker] = {}
        self.drivers: dict[NodeId, Driver] = {}
        self.transports: dict[NodeId, Transport] = {}

    def directory(self, me: NodeId) -> Peers:
        known = [IDENTITIES[name] for name in NAMES if name == me or name not in self._strangers]
        return Peers(known, self.addresses, self._calls)

    async def start(self, *names: NodeId, talker: type[Talker] = Talker) -> None:
        for name in names:
            listener = _Late()
            directory = self.directory(name)
            self.transports[name] = transport = Transport(
                directory,
                Greeter(keyring(name, directory), TALK),
                listener,
                limits=self.limits,
                rng=random.Random(1),
            )
            self.talkers[name] = talker()
            driver = self.drivers[name] = Driver(self.talkers[name], transport)
            listener.driver = driver
            if name in self.addresses:
                await transport.listen("127.0.0.1", self.addresses[name].port)
            transport.call_peers()

    def do(self, name: NodeId, *effects: Effect) -> None:
        self.drivers[name].carry_out(list(effects))

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def wait(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    def links(self, name: NodeId) -> list[NodeId]:
        return self.transports[name].peers()

    async def close(self) -> None:
        for transport in self.transports.values():
            await transport.close()


class _Late:
    """Passes on to a driver that is made after its links."""

    driver: Driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)


class SimStage:
    """Virtual time and the simulated network."""

    def __init__(
        self,
        *,
        dialed_links: int = 64,
        calls: dict[NodeId, Sequence[NodeId]] | None = None,
        strangers: Sequence[NodeId] = (),
    ) -> None:
        self.scheduler = Scheduler(1)
        addresses = {name: Address(name, 1) for name in NAMES if name is not DAN}
        keyrings = {}
        for me in NAMES:
            known = [IDENTITIES[name] for name in NAMES if name == me or name not in strangers]
            keyrings[me] = keyring(me, Peers(known, addresses, calls))
        self.network = Network(self.scheduler, keyrings, TALK, Weather())
        self.network.dialed_links = dialed_links
        self._calls = calls or {}
        self.talkers: dict[NodeId, Talker] = {}
        self.nodes: dict[NodeId, SimulatedNode] = {}

    async def start(self, *names: NodeId, talker: type[Talker] = Talker) -> None:
        for name in names:
            self.talkers[name] = machine = talker()
            node = SimulatedNode(name, lambda m=machine: m, self.scheduler, self.network, ())  # type: ignore[misc]
            self.nodes[name] = node
            self.network.add(node)
        for name in names:
            for other in self._calls.get(name, ()):
                self.network.connect(name, other)

    def do(self, name: NodeId, *effects: Effect) -> None:
        self.nodes[name].carry_out(list(effects))

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(10_000):
            if condition():
                return
            self.pass_ms(1)
        raise TimeoutError

    async def wait(self, ms: int) -> None:
        self.pass_ms(ms)

    def pass_ms(self, ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now + ms)

    def links(self, name: NodeId) -> list[NodeId]:
        links = self.network.links_of(name)
        return [link.peer(name) for link in links if name in link.sessions]

    async def close(self) -> None:
        pass
