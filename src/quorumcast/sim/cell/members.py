"""Brokers that come and go in the middle of a run: the operator, its file, and who reads it when.

The operator takes one step at a time and takes the next once n-f brokers go by the last one, as the
command line does; where there is no log also once those that are new have caught up, as it is told
to. Brokers look at the file now and then; clients look when a broker refuses them
for their epoch. Greetings between epochs fail, and whoever is behind is shown what a farewell
shows. A broker that an epoch no longer names ends when it takes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import msgspec

from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import Adopt, Passage, Renewal
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed
from quorumcast.manifest.build import add_broker, remove_broker
from quorumcast.manifest.files import parse_manifest, sign_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.successor import check_successor
from quorumcast.sim.cell.cells import Cell, identity_of, operator_of
from quorumcast.sim.cell.world import CellWorld

#: How often brokers look at the file, and how often the operator asks whether it may go on.
LOOK_MS = 80
ASK_MS = 40


class KeptEpoch(msgspec.Struct, frozen=True):
    """What a broker keeps of its epoch."""

    manifest: Manifest
    older: tuple[Protection, ...] = ()
    words: tuple[Signed, ...] = ()


def first_epoch(cell: Cell, brokers: int) -> Cell:
    """The same cell with its first brokers only, and keyrings of this run alone."""
    size = len(cell.manifest.brokers)
    manifest = msgspec.structs.replace(cell.manifest, brokers=cell.manifest.brokers[:brokers])
    keyrings = {node.id: manifest.keyring(identity_of(size, node.id)) for node in manifest.nodes}
    return Cell(manifest, keyrings)


class Members:
    """Who goes by which epoch."""

    __slots__ = ("_data", "_file", "_founders", "_patient", "_pool", "_taken", "_wanted", "_world")

    def __init__(self, world: CellWorld, pool: Manifest, *, patient: bool) -> None:
        self._world = world
        #: Whether the operator waits for new brokers.
        self._patient = patient
        self._founders = world.cell.manifest.broker_ids
        #: Everybody who may ever be a broker.
        self._pool = pool
        self._file = world.cell.manifest
        self._data = {self._file.epoch: self._written(self._file)}
        #: The epoch that each broker took last, which its next life begins with.
        self._taken: dict[NodeId, KeptEpoch] = {}
        #: Steps that the operator has in mind, in order: each waits for the one before.
        self._wanted: deque[tuple[str, NodeId]] = deque()
        world.network.on_mismatch = self._meet
        world.take = self._take
        world.make_broker = self.make
        world.scheduler.after(LOOK_MS, self._look)

    def _written(self, manifest: Manifest) -> bytes:
        return msgspec.json.encode(sign_manifest(manifest, operator_of(len(self._pool.brokers))))

    def make(self, name: NodeId) -> Broker:
        """A broker's next life: with a log in the epoch that it took last, else in the file's.

        Without a log brokers keep no epoch beside their stores. One that went back to an epoch of
        which fewer than f+1 brokers are left would believe nobody where the others are.
        """
        taken = self._taken.get(name, KeptEpoch(self._file))
        logs = any(channel.policy.total for channel in taken.manifest.channels)
        if not logs and self._file.broker(name) is not None:
            taken = KeptEpoch(self._file)
        self._taken[name] = taken
        keyring = taken.manifest.keyring(identity_of(len(self._pool.brokers), name))
        self._world.cell.keyrings[name] = keyring
        return Broker(
            taken.manifest,
            keyring,
            taken.older,
            taken.words,
            life=self._world.draw_life(name),
        )

    # -------------------------------------------------------------- the operator

    def step(self, what: str, name: NodeId) -> None:
        """Add or remove a broker, once the last step has been taken by enough."""
        self._wanted.append((what, name))
        if len(self._wanted) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Take the next step, or ask again soon."""
        there = [n for n in self._file.broker_ids if self._epoch(n) == self._file.epoch]
        if len(there) >= self._file.quorums.responders and not self._new_and_late():
            self._advance(*self._wanted.popleft())
        if self._wanted:
            self._world.scheduler.after(ASK_MS, self._go_on)

    def _new_and_late(self) -> list[NodeId]:
        """Brokers that are new and have not caught up: each counts like one that forgot."""
        new = [n for n in self._file.broker_ids if self._patient and n not in self._founders]
        brokers = {name: self._world.nodes[name].machine for name in new}
        return [n for n, m in brokers.items() if isinstance(m, Broker) and m.catching_up()]

    def _advance(self, what: str, name: NodeId) -> None:
        world = self._world
        keys = self._pool.broker(name)
        if what == "add" and keys is not None:
            following = add_broker(self._file, name, keys, keys.host, keys.port)
        else:
            following = remove_broker(self._file, name)
        check_successor(self._file, following)
        before, self._file = self._file, following
        self._data[following.epoch] = self._written(following)
        world.facts.renew(following)
        if what == "add":
            world.add_broker(name, self._others(before))

    def _others(self, manifest: Manifest) -> Collection[NodeId]:
        known = [n for n in self._world.nodes if self._pool.broker(n) is not None]
        clients = [n for n in self._world.nodes if self._pool.client(n) is not None]
        return [*known, *clients]

    # ------------------------------------------------------------------- brokers

    def _epoch(self, name: NodeId) -> int:
        taken = self._taken.get(name)
        return 0 if taken is None else taken.manifest.epoch

    def _look(self) -> None:
        """Every broker looks at the file."""
        world = self._world
        for name, node in list(world.nodes.items()):
            if (
                isinstance(node.machine, Broker)
                and node.up
                and self._epoch(name) < self._file.epoch
            ):
                try:
                    check_successor(self._taken[name].manifest, self._file)
                except UsageError:
                    continue  # it will be shown the way
                node.feed(Renewal(self._data[self._file.epoch]))
        world.scheduler.after(LOOK_MS, self._look)

    def _take(self, name: NodeId, effect: Adopt) -> None:
        """A broker's machine says that it is time."""
        world = self._world
        node = world.nodes[name]
        manifest = parse_manifest(effect.data)
        machine = node.machine
        if not isinstance(machine, Broker) or manifest.epoch <= self._epoch(name):
            return
        if manifest.broker(name) is None:
            self._taken[name] = KeptEpoch(manifest)
            node.leave()
            world.network.break_all(name)
            return
        self._taken[name] = KeptEpoch(manifest, machine.membership.older_logs(), effect.words)
        keyring = manifest.keyring(identity_of(len(self._pool.brokers), name))
        node.carry_out(machine.adopt(manifest, keyring))
        world.network.break_all(name)

    # ------------------------------------------------------------------ greetings

    def _meet(self, behind: NodeId, ahead: NodeId) -> None:
        """Two nodes of different epochs have greeted each other."""
        world = self._world
        node, other = world.nodes[behind], world.nodes[ahead].machine
        if isinstance(node.machine, Publisher | Subscriber):
            keyring = self._file.keyring(identity_of(len(self._pool.brokers), behind))
            if keyring.epoch > world.cell.keyrings[behind].epoch:
                node.carry_out(node.machine.adopt(self._file, keyring))
                world.network.break_all(behind)
        elif isinstance(other, Broker):
            node.feed(Passage(self._data[self._epoch(ahead)], other.membership.words))
