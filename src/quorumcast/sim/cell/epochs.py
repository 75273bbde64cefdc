"""Epoch changes during a run: other keys, brokers added or removed, and channels deleted.

`change_key` gives every node the next manifest at once; `call_with_stolen_key` then shows whether
the cell still honours the keys of the old epoch. `Members` changes the brokers as the command line
does, one step at a time. The next step waits until n-f brokers have adopted the last one and, on
channels without total order, until new brokers have caught up. Brokers read the manifest file from
time to time. Clients read it when a broker refuses their epoch. A broker that lags behind is shown
the next manifest by one that is ahead, and a broker that the manifest no longer names stops.
"""

from __future__ import annotations

from collections import deque

import msgspec

from quorumcast.broadcast.messages import Open, Publish
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import Adopt, EpochProof, NewManifest
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import encode_parcel
from quorumcast.manifest.build import (
    add_broker,
    next_epoch,
    remove_broker,
    repeatable_seeds,
    rotate,
)
from quorumcast.manifest.files import parse_manifest, sign_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.successor import check_successor
from quorumcast.sim.cell.cells import CELL_NAME, Cell, identity_of, operator_of
from quorumcast.sim.cell.world import CellWorld

#: Interval at which brokers read the manifest file, and at which the operator tries the next step.
READ_MS, STEP_MS = 80, 40


def own_keyrings(cell: Cell) -> Cell:
    """The same cell with keyrings that no other run shares, so that they may change."""
    size = len(cell.manifest.brokers)
    keyrings = {n: cell.manifest.keyring(identity_of(size, n)) for n in cell.keyrings}
    return Cell(cell.manifest, keyrings)


def first_epoch(cell: Cell, brokers: int) -> Cell:
    """The same cell with its first brokers only, and keyrings of this run alone."""
    size = len(cell.manifest.brokers)
    manifest = msgspec.structs.replace(cell.manifest, brokers=cell.manifest.brokers[:brokers])
    keyrings = {node.id: manifest.keyring(identity_of(size, node.id)) for node in manifest.nodes}
    return Cell(manifest, keyrings)


# ------------------------------------------------------------------------ keys


def change_key(world: CellWorld, client: NodeId) -> None:
    """Start an epoch in which a client has another key, at all nodes but the client."""
    cell = world.cell
    fresh = Identity(client, repeatable_seeds(f"{CELL_NAME} rotated")(client))
    following = rotate(cell.manifest, client, fresh)
    world.facts.renew(following)
    cell.manifest = following  # for nodes that restart
    for name, node in world.nodes.items():
        if name == client:
            continue
        keyring = following.keyring(identity_of(len(following.brokers), name))
        machine = node.machine
        if not node.up:
            cell.keyrings[name].adopt(keyring)
        elif isinstance(machine, Broker | Publisher | Subscriber):
            node.carry_out(machine.adopt(following, keyring))
        world.network.break_all(name)


def call_with_stolen_key(world: CellWorld, client: NodeId, channel: Channel) -> None:
    """Connect to every broker with a client's key of the first epoch, and publish."""
    epochs = world.facts.manifests
    first = epochs[min(epochs)]
    stolen = first.keyring(identity_of(len(first.brokers), client))
    body, stream = b"stolen", Stream(channel, client, 1)
    parcels = [
        encode_parcel(Open(stream, 1, 1)),
        encode_parcel(Publish(stream, 1, world.cell.manifest.hash(body)), (body,)),
    ]
    for broker in world.cell.manifest.broker_ids:
        world.network.impersonate(stolen, broker, parcels)


# --------------------------------------------------------------------- members


class AdoptedEpoch(msgspec.Struct, frozen=True):
    """The epoch that a broker has adopted, as it would be stored."""

    manifest: Manifest
    older: tuple[Protection, ...] = ()
    #: Statements of brokers that confirm the epoch.
    words: tuple[Signed, ...] = ()


class Members:
    """The operator's steps, the manifest file, and the epoch of each broker."""

    __slots__ = (
        "_adopted",
        "_file",
        "_founders",
        "_pool",
        "_steps",
        "_waits_for_new",
        "_world",
        "_written",
    )

    def __init__(self, world: CellWorld, pool: Manifest, *, waits_for_new: bool) -> None:
        self._world = world
        #: Whether the operator waits until new brokers have caught up.
        self._waits_for_new = waits_for_new
        self._founders = world.cell.manifest.broker_ids
        #: A manifest of all nodes that may ever be brokers.
        self._pool = pool
        self._file = world.cell.manifest
        #: The signed manifest of each epoch.
        self._written = {self._file.epoch: self._signed(self._file)}
        #: The epoch that each broker adopted last; it restarts in this epoch.
        self._adopted: dict[NodeId, AdoptedEpoch] = {}
        #: Steps that have not been taken yet.
        self._steps: deque[tuple[str, str]] = deque()
        world.network.on_mismatch = self._on_mismatch
        world.on_adopt = self._on_adopt
        world.make_broker = self.make
        world.scheduler.after(READ_MS, self._read_file)

    def _signed(self, manifest: Manifest) -> bytes:
        return msgspec.json.encode(sign_manifest(manifest, operator_of(len(self._pool.brokers))))

    def _keyring(self, manifest: Manifest, name: NodeId) -> Keyring:
        return manifest.keyring(identity_of(len(self._pool.brokers), name))

    def make(self, name: NodeId) -> Broker:
        """A broker's machine: in the epoch it adopted last if it has a log, else in the file's.

        Without a log, brokers store no epoch. One that went back to an epoch of which fewer than
        f+1 brokers are left could not learn of the present one.
        """
        adopted = self._adopted.get(name, AdoptedEpoch(self._file))
        has_log = any(channel.policy.total for channel in adopted.manifest.channels)
        if not has_log and self._file.broker(name) is not None:
            adopted = AdoptedEpoch(self._file)
        self._adopted[name] = adopted
        keyring = self._world.cell.keyrings[name] = self._keyring(adopted.manifest, name)
        life = self._world.next_life(name)
        return Broker(adopted.manifest, keyring, adopted.older, adopted.words, life=life)

    # -------------------------------------------------------------- the operator

    def step(self, what: str, name: str) -> None:
        """Add or remove a broker or delete a channel, once enough brokers have the step before."""
        self._steps.append((what, name))
        if len(self._steps) == 1:
            self._try_step()

    def _try_step(self) -> None:
        """Take the next step if possible; try again later while steps are left."""
        there = [n for n in self._file.broker_ids if self._epoch(n) == self._file.epoch]
        if len(there) >= self._file.quorums.responders and not self._new_and_lagging():
            self._take_step(*self._steps.popleft())
        if self._steps:
            self._world.scheduler.after(STEP_MS, self._try_step)

    def _new_and_lagging(self) -> list[NodeId]:
        """New brokers that have not caught up: each counts like one that lost its memory."""
        new = [n for n in self._file.broker_ids if self._waits_for_new and n not in self._founders]
        brokers = {name: self._world.nodes[name].machine for name in new}
        return [n for n, m in brokers.items() if isinstance(m, Broker) and m.catching_up()]

    def _take_step(self, what: str, name: str) -> None:
        world, keys = self._world, self._pool.broker(name)
        if what == "add" and keys is not None:
            following = add_broker(self._file, keys.id, keys, keys.host, keys.port)
        elif what == "delete":
            self._end_use(Channel(name))
            left = tuple(entry for entry in self._file.channels if entry.name != name)
            following = next_epoch(self._file, channels=left)
        else:
            following = remove_broker(self._file, NodeId(name))
        check_successor(self._file, following)
        self._file = following
        self._written[following.epoch] = self._signed(following)
        world.facts.renew(following)
        if what == "add":
            brokers = [n for n in world.nodes if self._pool.broker(n) is not None]
            clients = [n for n in world.nodes if self._pool.client(n) is not None]
            world.add_broker(NodeId(name), [*brokers, *clients])

    def _end_use(self, channel: Channel) -> None:
        """Let all subscribers leave a channel that is about to be deleted."""
        world = self._world
        for name, node in world.nodes.items():
            if isinstance(node.machine, Subscriber) and node.up:
                world.leave(name, channel)

    # ------------------------------------------------------------------- brokers

    def _epoch(self, name: NodeId) -> int:
        adopted = self._adopted.get(name)
        return 0 if adopted is None else adopted.manifest.epoch

    def _read_file(self) -> None:
        """Let every broker read the manifest file."""
        world, epoch = self._world, self._file.epoch
        for name, node in list(world.nodes.items()):
            if isinstance(node.machine, Broker) and node.up and self._epoch(name) < epoch:
                try:
                    check_successor(self._adopted[name].manifest, self._file)
                except UsageError:
                    continue  # more than one epoch behind: other brokers show it the next one
                node.feed(NewManifest(self._written[epoch]))
        world.scheduler.after(READ_MS, self._read_file)

    def _on_adopt(self, name: NodeId, effect: Adopt) -> None:
        """Give a broker the manifest that its machine asks to adopt."""
        node = self._world.nodes[name]
        manifest = parse_manifest(effect.data)
        machine = node.machine
        if not isinstance(machine, Broker) or manifest.epoch <= self._epoch(name):
            return
        if manifest.broker(name) is None:
            self._adopted[name] = AdoptedEpoch(manifest)
            node.leave()
        else:
            older = machine.membership.older_logs()
            self._adopted[name] = AdoptedEpoch(manifest, older, effect.statements)
            node.carry_out(machine.adopt(manifest, self._keyring(manifest, name)))
        self._world.network.break_all(name)

    def _on_mismatch(self, behind: NodeId, ahead: NodeId) -> None:
        """Help a node that met another of a later epoch."""
        world = self._world
        node, other = world.nodes[behind], world.nodes[ahead].machine
        if isinstance(node.machine, Publisher | Subscriber):
            keyring = self._keyring(self._file, behind)
            if keyring.epoch > world.cell.keyrings[behind].epoch:
                node.carry_out(node.machine.adopt(self._file, keyring))
                world.network.break_all(behind)
        elif isinstance(other, Broker):
            node.feed(EpochProof(self._written[self._epoch(ahead)], other.membership.statements))
