"""A whole cell in memory: the real machines, drivers and client, without sockets and files.

Only the links differ from production: a message reaches the next driver in the next turn of the
event loop. Brokers can be made to lie (at most f of them, as the fault model says), cut off, killed
and restarted.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence

import msgspec

from quorumcast.cell.serving.broker import Broker
from quorumcast.client.loop_thread import ClosesOnExit, LoopThread
from quorumcast.client.node import Node
from quorumcast.client.publishing.packing import Clock, wall_us
from quorumcast.client.sync import SyncNode
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, NodeId
from quorumcast.core.machine import Bodies, DialFailure
from quorumcast.core.message import Message
from quorumcast.crypto.session import Opened
from quorumcast.faults.cell.catalogue import check_fault, make_fault
from quorumcast.faults.cell.entry import FaultContext, Role
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.contract import Listener, Trouble
from quorumcast.testing.cells import CHANNELS, CLIENTS, CellSetup

#: Messages that wait for one node before more are dropped, as in a full outbox.
MAX_INBOX = 65_536


class MemoryLinks:
    """One node's links: what it sends lands in the others' inboxes."""

    #: Set before the links are connected: a driver is made after its links.
    listener: Listener

    def __init__(self, network: MemoryNetwork, me: NodeId) -> None:
        self._network = network
        self._me = me
        self._inbox: list[tuple[NodeId, Message, Bodies]] = []
        self._scheduled = False
        self._paused = False
        #: Peers that can be reached.
        self.up: dict[NodeId, None] = {}

    def send(self, to: tuple[NodeId, ...], message: Message, bodies: Bodies) -> None:
        """Put a message into each peer's inbox."""
        for peer in to:
            if peer in self.up:
                self._network.links[peer].arrive(self._me, message, bodies)

    def arrive(self, sender: NodeId, message: Message, bodies: Bodies) -> None:
        """Take a message from a peer; it is read in the next turn of the event loop."""
        if len(self._inbox) < MAX_INBOX:
            self._inbox.append((sender, message, bodies))
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused and self._inbox:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if self._paused:
            return
        inbox, self._inbox = self._inbox, []
        packets: dict[NodeId, Opened] = {}
        for sender, message, bodies in inbox:
            if sender in self.up:
                packets.setdefault(sender, []).append((message, bodies))
        for sender, opened in packets.items():
            self.listener.receive(sender, opened)

    def dial(self, peer: NodeId) -> None:
        """Do nothing for brokers, whose links are kept; clients cannot be called."""
        if self._network.manifest.address(peer) is None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self.listener.unreachable, peer, DialFailure.UNKNOWN)

    def hangup(self, peer: NodeId) -> None:
        """Do nothing: all links of a cell are kept."""

    def peers(self) -> list[NodeId]:
        """The peers that can be reached."""
        return list(self.up)

    def troubles(self) -> dict[NodeId, Trouble]:
        """Why other brokers cannot be reached."""
        return {
            peer: Trouble("it is not running in this memory cell")
            for peer in self._network.manifest.broker_ids
            if peer != self._me and peer not in self.up
        }

    def pause_reading(self) -> None:
        """Let the inbox fill."""
        self._paused = True

    def resume_reading(self) -> None:
        """Read on."""
        self._paused = False
        self._schedule()

    async def close(self) -> None:
        """Leave the network."""
        self._network.leave(self._me)


class MemoryNetwork:
    """The links of a cell: every broker is linked with every node."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.links: dict[NodeId, MemoryLinks] = {}

    def enter(self, node: NodeId) -> MemoryLinks:
        """Make a node's links; `link` connects them once they have a listener."""
        if node in self.links:
            self.leave(node)
        links = self.links[node] = MemoryLinks(self, node)
        return links

    def link(self, node: NodeId) -> None:
        """Connect a node with every node that it may talk to."""
        brokers = self.manifest.broker_ids
        for other in list(self.links):
            if other != node and (node in brokers or other in brokers):
                self.connect(node, other)

    def connect(self, one: NodeId, other: NodeId) -> None:
        """Both learn that they can reach each other."""
        for me, peer in ((one, other), (other, one)):
            if peer not in self.links[me].up:
                self.links[me].up[peer] = None
                self.links[me].listener.peer_up(peer)

    def cut(self, node: NodeId) -> None:
        """Nobody reaches this node any more."""
        for other in list(self.links[node].up):
            for me, peer in ((node, other), (other, node)):
                if self.links[me].up.pop(peer, peer) is None:
                    self.links[me].listener.peer_down(peer)

    def leave(self, node: NodeId) -> None:
        """A node is gone."""
        if node in self.links:
            self.cut(node)
            del self.links[node]


class MemoryCell:
    """Four brokers (or as many as you like) and their clients, in this event loop.

    >>> async with MemoryCell(channels={"orders": "ab"}) as cell:        # doctest: +SKIP
    ...     alice, bob = await cell.connect("alice"), await cell.connect("bob")
    ...     async with bob.subscribe("orders") as orders, alice.publisher("orders") as out:
    ...         await out.publish(b"hello")
    ...         print((await anext(orders)).payload)
    """

    def __init__(
        self,
        *,
        brokers: int = 4,
        f: int | None = None,
        clients: Sequence[str] = CLIENTS,
        channels: Mapping[str, str | Policy | ChannelEntry] = CHANNELS,
        liars: Mapping[str, str] | None = None,
        seed: int = 0,
        now_us: Clock = wall_us,
    ) -> None:
        plan = CellSetup(brokers=brokers, f=f, clients=clients, channels=channels)
        self.manifest = plan.manifest
        self.identities = plan.identities
        self._signed = msgspec.json.encode(sign_manifest(plan.manifest, plan.operator))
        self._rng = random.Random(seed)
        #: The clock of the clients.
        self._now_us = now_us
        self._network = MemoryNetwork(self.manifest)
        self._brokers: dict[NodeId, Driver] = {}
        self._nodes: list[Node] = []
        #: What each lying broker does: (fault, percent, victims); at most f brokers.
        self._liars: dict[NodeId, list[tuple[str, int, tuple[str, ...]]]] = {
            NodeId(name): [(fault, 100, ())] for name, fault in (liars or {}).items()
        }
        if len(self._liars) > self.manifest.f:
            raise UsageError(f"this cell tolerates f={self.manifest.f} lying brokers, not more")

    # ------------------------------------------------------------------- running

    def start(self) -> None:
        """Start every broker (also done by the first `connect`)."""
        for broker in self.manifest.broker_ids:
            if broker not in self._brokers:
                self.restart(broker)

    async def connect(self, name: str = "alice") -> Node:
        """A client of the cell; the same `Node` as over the network."""
        self.start()
        identity = self.identities.get(NodeId(name))
        if identity is None or self.manifest.client(name) is None:
            known = ", ".join(client.id for client in self.manifest.clients)
            raise UsageError(f"this memory cell has no client {name!r}; it has {known}")
        node = Node(self.manifest, identity, now_us=self._now_us)
        node.signed_manifest = self._signed
        links = self._network.enter(identity.name)
        links.listener = node
        node.attach(links)
        self._network.link(identity.name)
        await node.wait_connected(1.0)
        self._nodes.append(node)
        return node

    def broker(self, name: str) -> Driver:
        """The driver of a running broker."""
        driver = self._brokers.get(NodeId(name))
        if driver is None:
            running = ", ".join(self._brokers) or "none"
            raise UsageError(f"there is no running broker {name!r}; running: {running}")
        return driver

    def kill(self, name: str) -> None:
        """A broker stops and forgets everything."""
        self.broker(name).stop()
        self._network.leave(NodeId(name))
        del self._brokers[NodeId(name)]

    def restart(self, name: str) -> None:
        """A broker starts with an empty memory."""
        broker = NodeId(name)
        if broker in self._brokers:
            self.kill(name)
        keyring = self.manifest.keyring(self.identities[broker])
        links = self._network.enter(broker)
        machine = Broker(self.manifest, keyring, life=os.urandom(DIGEST_SIZE))
        links.listener = self._brokers[broker] = Driver(machine, links)
        for fault, percent, victims in self._liars.get(broker, ()):
            self._install(broker, fault, percent, victims)
        self._network.link(broker)

    def cut(self, name: str) -> None:
        """Nobody reaches this node until `heal`."""
        self._network.cut(self._linked(name))

    def heal(self, name: str) -> None:
        """Everybody reaches this node again."""
        self._network.link(self._linked(name))

    def _linked(self, name: str) -> NodeId:
        """The id of a node that has links, cut or not."""
        node = NodeId(name)
        if node not in self._network.links:
            known = ", ".join(self._network.links)
            raise UsageError(f"there is no node {name!r} here; there are {known}")
        return node

    # --------------------------------------------------------------------- lying

    def make_lie(
        self, name: str, fault: str = "alter", *, percent: int = 100, victims: Sequence[str] = ()
    ) -> None:
        """Make a broker misbehave by a name of the catalogue; at most f brokers may."""
        self.start()
        broker = NodeId(name)
        self.broker(name)
        if broker not in self._liars and len(self._liars) >= self.manifest.f:
            raise UsageError(
                f"{', '.join(self._liars)} lies already and this cell tolerates f="
                f"{self.manifest.f}: make it honest first, or use more brokers"
            )
        self._install(broker, fault, percent, tuple(victims))
        self._liars.setdefault(broker, []).append((fault, percent, tuple(victims)))

    def make_honest(self, name: str) -> None:
        """The broker tells the truth from now on; what it said before stays said."""
        self.broker(name).faults = ()
        self._liars.pop(NodeId(name), None)

    def _install(self, broker: NodeId, name: str, percent: int, victims: tuple[str, ...]) -> None:
        keyring = self.manifest.keyring(self.identities[broker])
        context = FaultContext(
            broker, self.manifest, keyring, self._rng, percent=percent, victims=victims
        )
        driver = self._brokers[broker]
        check_fault(name, Role.BROKER)
        driver.faults = (*driver.faults, make_fault(name, context))

    # -------------------------------------------------------------------- ending

    async def close(self) -> None:
        """Stop everybody."""
        for node in self._nodes:
            await node.close()
        for driver in self._brokers.values():
            driver.stop()
        self._brokers.clear()

    async def __aenter__(self) -> MemoryCell:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncMemoryCell(ClosesOnExit):
    """A `MemoryCell` for tests without an event loop: it runs in a thread of its own."""

    def __init__(
        self,
        *,
        brokers: int = 4,
        f: int | None = None,
        clients: Sequence[str] = CLIENTS,
        channels: Mapping[str, str | Policy | ChannelEntry] = CHANNELS,
        liars: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        self._thread = LoopThread("quorumcast-cell")
        self.cell = MemoryCell(
            brokers=brokers, f=f, clients=clients, channels=channels, liars=liars, seed=seed
        )
        self._thread.call(self.cell.start)

    def connect(self, name: str = "alice") -> SyncNode:
        """A client of the cell; the same `SyncNode` as over the network."""
        return SyncNode(self._thread, self._thread.run(self.cell.connect(name)))

    def make_lie(
        self, name: str, fault: str = "alter", *, percent: int = 100, victims: Sequence[str] = ()
    ) -> None:
        """Make a broker misbehave."""
        self._thread.call(lambda: self.cell.make_lie(name, fault, percent=percent, victims=victims))

    def make_honest(self, name: str) -> None:
        """The broker tells the truth from now on."""
        self._thread.call(lambda: self.cell.make_honest(name))

    def kill(self, name: str) -> None:
        """A broker stops and forgets everything."""
        self._thread.call(lambda: self.cell.kill(name))

    def restart(self, name: str) -> None:
        """A broker starts with an empty memory."""
        self._thread.call(lambda: self.cell.restart(name))

    def cut(self, name: str) -> None:
        """Cut a node off from everybody."""
        self._thread.call(lambda: self.cell.cut(name))

    def heal(self, name: str) -> None:
        """Everybody reaches this node again."""
        self._thread.call(lambda: self.cell.heal(name))

    def close(self) -> None:
        """Stop everybody."""
        self._thread.run(self.cell.close())
        self._thread.stop()
