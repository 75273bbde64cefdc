"""Epoch changes during a run: other keys, brokers, f, retention, and channels that are replaced.

`change_key` gives every node the next manifest at once; `call_with_stolen_key` then shows whether
the cell still honours the keys of the old epoch. `Members` changes the brokers as the command line
does, one step at a time. The next step waits until n-f brokers have adopted the last one and, on
channels without total order, until new brokers have caught up. Brokers read the manifest file from
time to time. Clients read it when a broker refuses their epoch. A broker that lags behind is shown
the next manifest by one that is ahead, and a broker that the manifest no longer names stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from quorumcast.broadcast.messages import Open, Publish
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import Adopt, EpochProof, NewManifest
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import CELL, Channel, NodeId, Stream
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
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.successor import check_successor
from quorumcast.sim.cell.cells import CELL_NAME, Cell, identity_of, operator_of
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.rows import COLUMNS, MORE
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.plan import Act

#: Interval at which brokers read the manifest file, and at which the operator tries the next step.
READ_MS, STEP_MS = 80, 40
#: Acts of the operator that begin an epoch by way of the manifest file.
STEPS = ("add", "remove", "faults", "retain", "delete", "create", "widen")


def own_keyrings(cell: Cell) -> Cell:
    """The same cell with keyrings that no other run shares, so that they may change."""
    keyrings = {n: cell.manifest.keyring(identity_of(n)) for n in cell.keyrings}
    return Cell(cell.manifest, keyrings)


def first_epoch(cell: Cell, brokers: int) -> Cell:
    """The same cell with its first brokers only, and keyrings of this run alone."""
    manifest = msgspec.structs.replace(cell.manifest, brokers=cell.manifest.brokers[:brokers])
    keyrings = {node.id: manifest.keyring(identity_of(node.id)) for node in manifest.nodes}
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
        keyring = following.keyring(identity_of(name))
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
    stolen = first.keyring(identity_of(client))
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

    #: The promise that the operator's steps are taken, and reach every correct broker.
    name = "Epochs"

    __slots__ = (
        "_adopted",
        "_channels",
        "_corrupt",
        "_ends",
        "_file",
        "_founders",
        "_late_liars",
        "_pool",
        "_steps",
        "_then",
        "_waits_for_new",
        "_world",
        "_written",
    )

    def __init__(
        self,
        world: CellWorld,
        pool: Manifest,
        *,
        waits_for_new: bool,
        corrupt: Callable[[NodeId], None],
    ) -> None:
        self._world = world
        #: Makes a late liar lie.
        self._corrupt = corrupt
        #: Whether the operator waits until new brokers have caught up.
        self._waits_for_new = waits_for_new
        self._founders = world.cell.manifest.broker_ids
        #: A manifest of all nodes that may ever be brokers.
        self._pool = pool
        self._file = world.cell.manifest
        #: The channels of the first epoch, which may be created again.
        self._channels = {entry.name: entry for entry in self._file.channels}
        #: The last position of each channel that was deleted.
        self._ends: dict[Channel, int] = {}
        #: Brokers that begin to lie, by the epoch that every running broker must have before.
        self._late_liars: dict[int, NodeId] = {}
        #: The signed manifest of each epoch.
        self._written = {self._file.epoch: self._signed(self._file)}
        #: The epoch that each broker adopted last; it restarts in this epoch.
        self._adopted: dict[NodeId, AdoptedEpoch] = {}
        #: Steps that have not been taken yet.
        self._steps: deque[Act] = deque()
        #: What happens after the last of them.
        self._then: Callable[[], None] | None = None
        world.network.on_mismatch = self._on_mismatch
        world.on_adopt = self._on_adopt
        world.make_broker = self.make
        world.read_manifest = self._read_as_client
        world.scheduler.after(READ_MS, self._read_file)

    def _signed(self, manifest: Manifest) -> bytes:
        return msgspec.json.encode(sign_manifest(manifest, operator_of()))

    def _keyring(self, manifest: Manifest, name: NodeId) -> Keyring:
        return manifest.keyring(identity_of(name))

    def make(self, name: NodeId) -> Broker:
        """A broker's machine: in the epoch it adopted last if it has a log, else in the file's.

        Without a log, brokers store no epoch. One that went back to an epoch of which fewer than
        f+1 brokers are left could not learn of the present one.
        """
        adopted = self._adopted.get(name, AdoptedEpoch(self._file))
        if not adopted.manifest.logs and self._file.broker(name) is not None:
            adopted = AdoptedEpoch(self._file)
        self._adopted[name] = adopted
        keyring = self._world.cell.keyrings[name] = self._keyring(adopted.manifest, name)
        life = self._world.next_life(name)
        signed = self._written[adopted.manifest.epoch]
        return Broker(
            adopted.manifest, keyring, adopted.older, adopted.words, life=life, signed=signed
        )

    # -------------------------------------------------------------- the operator

    def step(self, act: Act) -> None:
        """Begin the next epoch, once enough brokers have the one before."""
        self._steps.append(act)
        if len(self._steps) == 1:
            self._try_step()

    def after_steps(self, then: Callable[[], None]) -> None:
        """Call this as soon as no step is left."""
        if self._steps:
            self._then = then
        else:
            then()

    def pending(self, facts: CellFacts) -> str | None:
        """The first step that was not taken, or broker that does not know of the last one."""
        if self._steps:
            waiting = self._steps[0].what
            return f"the operator's step {waiting!r} waits for epoch {self._file.epoch}"
        for name in self._file.broker_ids:
            late = self._epoch(name) < self._file.epoch
            if late and facts.adversary.is_correct(name) and self._world.nodes[name].up:
                epochs = f"{self._epoch(name)}, and the cell in {self._file.epoch}"
                return f"{name} is still in epoch {epochs}"
        return None

    def is_behind(self, client: NodeId, channel: Channel) -> bool:
        """Whether a client does not know of the present channel of that name yet."""
        created = self._world.facts.created.get(channel, 0)
        keyring = self._world.cell.keyrings.get(client)
        return keyring is not None and keyring.epoch < created

    def _try_step(self) -> None:
        """Take the next step if possible; try again later while steps are left."""
        there = [n for n in self._file.broker_ids if self._epoch(n) == self._file.epoch]
        if len(there) >= self._file.quorums.responders and not self._new_and_lagging():
            self._take_step(self._steps.popleft())
        if self._steps:
            self._world.scheduler.after(STEP_MS, self._try_step)
        elif self._then is not None:
            then, self._then = self._then, None
            then()

    def _new_and_lagging(self) -> list[NodeId]:
        """New brokers that have not caught up: each counts like one that lost its memory."""
        new = [n for n in self._file.broker_ids if self._waits_for_new and n not in self._founders]
        brokers = {name: self._world.nodes[name].machine for name in new}
        return [n for n, m in brokers.items() if isinstance(m, Broker) and m.catching_up()]

    def _take_step(self, act: Act) -> None:
        world, following = self._world, self._next(act)
        check_successor(self._file, following)
        if act.what == "delete":
            self._end_use(act.channel)
        self._file = world.cell.manifest = following
        self._written[following.epoch] = self._signed(following)
        world.facts.renew(following)
        if act.what == "add":
            brokers = [n for n in world.nodes if self._pool.broker(n) is not None]
            clients = [n for n in world.nodes if self._pool.client(n) is not None]
            world.add_broker(act.node, [*brokers, *clients])
        elif act.what == "create":
            world.facts.replace_channel(act.channel, self._ends.get(act.channel, 0))
            self._begin_use(act.channel)
        elif act.what == "faults" and act.node:
            self._late_liars[following.epoch] = act.node

    def _next(self, act: Act) -> Manifest:
        """The manifest after a step."""
        file, name = self._file, act.channel
        match act.what:
            case "add":
                new = next(broker for broker in self._pool.brokers if broker.id == act.node)
                return add_broker(file, new.id, new, new.host, new.port)
            case "remove":
                return remove_broker(file, act.node)
            case "faults":
                return next_epoch(file, f=act.amount)
            case "retain":
                changed = [self._retaining(entry, act) for entry in file.channels]
                return next_epoch(file, channels=tuple(changed))
            case "widen":
                wider = [self._widened(entry, act) for entry in file.channels]
                return next_epoch(file, channels=tuple(wider))
            case "create":
                return next_epoch(file, channels=(*file.channels, self._channels[name]))
            case _:
                left = tuple(entry for entry in file.channels if entry.name != name)
                return next_epoch(file, channels=left)

    def _retaining(self, entry: ChannelEntry, act: Act) -> ChannelEntry:
        if entry.name != act.channel:
            return entry
        limits = msgspec.structs.replace(entry.policy.limits, retained_publications=act.amount)
        policy = msgspec.structs.replace(entry.policy, limits=limits)
        return msgspec.structs.replace(entry, policy=policy)

    def _widened(self, entry: ChannelEntry, act: Act) -> ChannelEntry:
        """A channel with one more column, if it has any and lacks this one."""
        if entry.name != act.channel or entry.schema != COLUMNS:
            return entry
        return msgspec.structs.replace(entry, schema=(*COLUMNS, MORE))

    def _end_use(self, channel: Channel) -> None:
        """Let all subscribers leave a channel that is about to be deleted."""
        world = self._world
        for name, node in world.nodes.items():
            if isinstance(node.machine, Subscriber) and node.up:
                world.leave(name, channel)

    def _begin_use(self, channel: Channel) -> None:
        """Publishers are started anew for a new channel, and subscribers read it from its start."""
        world = self._world
        for name, node in world.nodes.items():
            if isinstance(node.machine, Publisher) and node.up:
                world.adversary.crash(name)
                world.facts.stopped(name, world.scheduler.now)
                world.adversary.restart(name)
            elif isinstance(node.machine, Subscriber):
                self._read_from_start(name, channel)

    def _read_from_start(self, name: NodeId, channel: Channel) -> None:
        """Let a subscriber read a new channel as soon as it knows of it."""
        world, entry = self._world, self._file.channel(channel)
        if entry is None or not self._file.may_subscribe(name, channel):
            return
        if world.nodes[name].up and not self.is_behind(name, channel):
            world.read(name, channel)
        else:
            world.scheduler.after(STEP_MS, lambda: self._read_from_start(name, channel))

    # ------------------------------------------------------------------- brokers

    def _epoch(self, name: NodeId) -> int:
        adopted = self._adopted.get(name)
        return 0 if adopted is None else adopted.manifest.epoch

    def _read_as_client(self, name: NodeId) -> tuple[Manifest, Keyring]:
        """What a publisher or subscriber reads when it starts."""
        keyring = self._world.cell.keyrings[name] = self._keyring(self._file, name)
        return self._file, keyring

    def _note_epochs(self) -> None:
        """Tell the facts which epochs are over, and let late liars begin."""
        world = self._world
        members = [name for name in self._file.broker_ids if name in world.nodes]
        world.facts.leave_epochs_before(
            min(self._epoch(name) for name in members if world.adversary.is_correct(name))
        )
        oldest = min(self._epoch(name) for name in members if world.nodes[name].up)
        for epoch in [epoch for epoch in self._late_liars if epoch <= oldest]:
            liar = self._late_liars.pop(epoch)
            del world.facts.honest_yet[liar]
            self._corrupt(liar)

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
            self._note_ends(name, machine, manifest)
            older = machine.membership.older_logs()
            self._adopted[name] = AdoptedEpoch(manifest, older, effect.statements)
            node.carry_out(machine.adopt(manifest, self._keyring(manifest, name)))
        self._world.network.break_all(name)
        self._note_epochs()

    def _note_ends(self, name: NodeId, broker: Broker, following: Manifest) -> None:
        """Note the last positions of channels that a correct broker is about to drop.

        Of the n-f brokers that have the epoch one has executed all that was ordered before it.
        """
        if not self._world.adversary.is_correct(name):
            return
        for stream in broker.streams():
            served, channel = broker.served(stream), stream.channel
            gone = stream.publisher == CELL and following.channel(channel) is None
            if gone and served is not None:
                last = served.carrier.ledger.next - 1
                self._ends[channel] = max(last, self._ends.get(channel, 0))

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
