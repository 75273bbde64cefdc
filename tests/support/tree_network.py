"""Trees of cells in memory: each cell is a network of its own, and uplinks connect them.

Names of nodes may be the same in two cells, and are: brokers are `b1`, `b2`, … everywhere. The
uplink of broker `b1` of a cell `leaf` is the client `leaf-b1` of the parent. All cells share a
clock. `RelayEvent`s go from a broker to its uplinks and back at once, as within one process.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache, partial
from itertools import combinations

import msgspec
from tests.support.cells import life_of
from tests.support.network import Disk, Network

from quorumcast.broadcast.application import Deliver, DeliverGap, Join, Proven, Recalled, Submit
from quorumcast.broadcast.relayed import RelayEvent, RelayLedger
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.cell.subscribing.uplink import Uplink
from quorumcast.core.ids import CELL, Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Accuse, Effect, Machine, Suspect
from quorumcast.core.statements import Receipt
from quorumcast.crypto.identity import Identity
from quorumcast.faults.cell.catalogue import make_fault
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Fault, Later
from quorumcast.manifest.build import make_cell, repeatable_seeds
from quorumcast.manifest.manifest import ChannelEntry, ChannelOrigin, Manifest
from quorumcast.manifest.policy import Policy

ORDERS = Channel("orders")


class CellPlan(msgspec.Struct, frozen=True):
    """A cell of a tree, with one channel."""

    name: str
    policy: Policy
    n: int = 3
    f: int = 1
    parent: str = ""
    clients: tuple[str, ...] = ("alice", "bob")
    #: The name of its channel.
    channel: Channel = ORDERS
    schema: tuple[tuple[str, str], ...] = ()
    #: The rows that it carries on of its parent's channel.
    where: str = ""


@cache
def identity_in(cell: str, name: str) -> Identity:
    """The identity of a node of a cell."""
    return Identity(NodeId(name), repeatable_seeds(f"tree {cell}")(name))


def manifest_of(plan: CellPlan, plans: tuple[CellPlan, ...]) -> Manifest:
    """The manifest of one of these cells."""
    brokers = [f"b{i}" for i in range(1, plan.n + 1)]
    children = [child for child in plans if child.parent == plan.name]
    uplinks = [f"{child.name}-b{i}" for child in children for i in range(1, child.n + 1)]
    clients = (*plan.clients, *uplinks)
    entry = ChannelEntry(plan.channel, plan.policy, schema=plan.schema)
    if plan.parent:
        above = next(other for other in plans if other.name == plan.parent)
        operator = identity_in(plan.parent, "operator").verify_key
        origin = ChannelOrigin(plan.parent, operator, above.channel, plan.where)
        entry = msgspec.structs.replace(entry, publishers=(), origin=origin)
    return make_cell(
        plan.name,
        [(name, "localhost", 7000 + i) for i, name in enumerate(brokers)],
        plan.f,
        clients,
        [entry],
        operator=identity_in(plan.name, "operator"),
        identities={NodeId(name): identity_in(plan.name, name) for name in (*brokers, *clients)},
    )[0]


class TreeCell(Network):
    """The nodes of one cell of a tree."""

    def __init__(self, tree: TreeNetwork, plan: CellPlan, manifest: Manifest) -> None:
        super().__init__(self._note)
        self._tree = tree
        self.plan = plan
        self.manifest = manifest
        self.faults: dict[NodeId, Fault] = {}
        self.delivered: dict[NodeId, list[Deliver]] = {}
        self.gaps: dict[NodeId, list[DeliverGap]] = {}
        self.suspected: list[tuple[NodeId, Suspect]] = []
        self.accused: list[Accuse] = []
        self.proven: list[Receipt] = []
        self.recalled: list[Recalled] = []
        self._lives: dict[NodeId, int] = {}

    def _note(self, now: int, node: NodeId, effect: Effect) -> None:
        match effect:
            case Deliver():
                self.delivered.setdefault(node, []).append(effect)
            case DeliverGap():
                self.gaps.setdefault(node, []).append(effect)
            case Proven(receipt=receipt):
                self.proven.append(receipt)
            case Recalled():
                self.recalled.append(effect)
            case Suspect():
                self.suspected.append((node, effect))
            case Accuse():
                self.accused.append(effect)
            case _:
                pass

    def carry_out(self, node: NodeId, effects: list[Effect]) -> None:
        fault = self.faults.get(node)
        for effect in effects if fault is None else fault.tamper(effects, Millis(self.now)):
            if isinstance(effect, Later):
                late = partial(super().carry_out, node, [effect.effect])
                self.later(effect.after_ms, node, late)
            elif isinstance(effect, RelayEvent):
                self._tree.hand_over(self, node, effect)
            else:
                super().carry_out(node, [effect])

    def enter(self, node: NodeId, machine: Machine) -> None:
        """A node starts, with what its disk holds, and is linked to all whom it may talk to."""
        self.machines[node] = machine
        if isinstance(machine, Broker):
            machine.read_from(self.disks[node])
        self.restore(node)
        for other in list(self.machines):
            if other != node and (node in self.brokers or other in self.brokers):
                self.connect(node, other)

    @property
    def brokers(self) -> tuple[NodeId, ...]:
        return self.manifest.broker_ids

    def broker(self, name: str) -> Broker:
        machine = self.machines[NodeId(name)]
        assert isinstance(machine, Broker)
        return machine

    def ledger(self, name: str, publisher: str = "alice") -> RelayLedger:
        """What a broker holds of a publisher's stream; of the order, if there is one."""
        names = (publisher, CELL)
        stream = next(s for s in self.broker(name).streams() if s.publisher in names)
        served = self.broker(name).served(stream)
        assert served is not None
        assert isinstance(served.carrier.ledger, RelayLedger)
        return served.carrier.ledger

    def start_broker(self, name: str, *, wiped: bool = False) -> None:
        """A broker's next life, without its uplink."""
        node = NodeId(name)
        if wiped:
            self.disks[node] = Disk()
        self._lives[node] = self._lives.get(node, 0) + 1
        keyring = self.manifest.keyring(identity_in(self.plan.name, name))
        life = hashlib.sha256(life_of(NodeId(f"{self.plan.name}/{name}"), self._lives[node]))
        self.enter(node, Broker(self.manifest, keyring, life=life.digest()))

    def corrupt(self, name: str, fault: str, *victims: str) -> None:
        """A broker lies from now on."""
        node = NodeId(name)
        keyring = self.manifest.keyring(identity_in(self.plan.name, name))
        context = FaultContext(node, self.manifest, keyring, random.Random(7), victims=victims)
        self.faults[node] = make_fault(fault, context)

    def publisher(self, name: str = "alice", incarnation: int = 2) -> None:
        """A publisher starts."""
        keyring = self.manifest.keyring(identity_in(self.plan.name, name))
        self.enter(NodeId(name), Publisher(self.manifest, keyring, incarnation))

    def publish(self, *bodies: bytes, name: str = "alice") -> None:
        """A publisher publishes."""
        self.happen(NodeId(name), Submit(self.plan.channel, bodies))

    def subscribe(self, name: str = "bob", start: int | None = 0, *where: str) -> None:
        """A subscriber starts."""
        keyring = self.manifest.keyring(identity_in(self.plan.name, name))
        self.enter(NodeId(name), Subscriber(self.manifest, keyring))
        self.happen(NodeId(name), Join(self.plan.channel, start=start, where=where))

    def got(self, name: str = "bob") -> list[bytes]:
        """What a subscriber accepted, in order."""
        return [deliver.body for deliver in self.delivered.get(NodeId(name), ())]

    def lost(self, name: str = "bob") -> list[tuple[Stream, int, int]]:
        """The gaps that a subscriber was told of."""
        return [(gap.stream, gap.first, gap.upto) for gap in self.gaps.get(NodeId(name), ())]


class TreeNetwork:
    """Cells of a tree, parents first."""

    def __init__(self, *plans: CellPlan) -> None:
        self.cells = {plan.name: TreeCell(self, plan, manifest_of(plan, plans)) for plan in plans}
        for cell in self.cells.values():
            for broker in cell.brokers:
                self.start(cell.plan.name, broker)

    def __getitem__(self, cell: str) -> TreeCell:
        return self.cells[cell]

    def start(self, cell: str, broker: str, *, wiped: bool = False) -> None:
        """A broker starts, and its uplink with it."""
        self.cells[cell].start_broker(broker, wiped=wiped)
        self.attach(cell, broker)

    def stop(self, cell: str, broker: str) -> None:
        """A broker and its uplink die."""
        self.detach(cell, broker)
        self.cells[cell].stop(NodeId(broker))

    def attach(self, cell: str, broker: str) -> None:
        """The uplink of a broker starts, if its cell has a parent."""
        child = self.cells[cell]
        if child.plan.parent:
            parent, name = self.cells[child.plan.parent], f"{cell}-{broker}"
            keyring = parent.manifest.keyring(identity_in(parent.plan.name, name))
            parent.enter(NodeId(name), Uplink(child.manifest, parent.manifest, keyring))

    def detach(self, cell: str, broker: str) -> None:
        """The uplink of a broker dies."""
        parent, name = self.cells[cell].plan.parent, NodeId(f"{cell}-{broker}")
        if parent and name in self.cells[parent].machines:
            self.cells[parent].stop(name)

    def hand_over(self, cell: TreeCell, node: NodeId, event: RelayEvent) -> None:
        """Give an uplink what its broker says, or the other way round."""
        if node in cell.brokers:
            uplink = NodeId(f"{cell.plan.name}-{node}")
            if uplink in self.cells[cell.plan.parent].machines:
                self.cells[cell.plan.parent].happen(uplink, event)
        else:
            child, _, broker = node.rpartition("-")
            self.cells[child].happen(NodeId(broker), event)

    def adopt(self, plan: CellPlan) -> None:
        """All nodes of a cell go on in its next epoch, with new links."""
        cell = self.cells[plan.name]
        plans = tuple(plan if c is cell else c.plan for c in self.cells.values())
        later = msgspec.structs.replace(manifest_of(plan, plans), epoch=cell.manifest.epoch + 1)
        cell.plan, cell.manifest = plan, later
        for node, machine in list(cell.machines.items()):
            assert isinstance(machine, Broker | Publisher | Subscriber | Uplink)
            keyring = later.keyring(identity_in(plan.name, node))
            cell.carry_out(node, machine.adopt(later, keyring))
        for one, other in combinations(cell.machines, 2):
            if one in cell.brokers or other in cell.brokers:
                cell.disconnect(one, other)
                cell.connect(one, other)

    def run(self, for_ms: int) -> None:
        """Let time pass in all cells."""
        for _ in range(for_ms):
            for cell in self.cells.values():
                cell.run(1)
