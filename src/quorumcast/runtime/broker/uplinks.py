"""The uplinks of a broker process: what makes it a subscriber of its parent cells.

Each parent has an uplink machine (`cell.subscribing.uplink`), with a driver and links of its own.
The machine of the broker and those of its uplinks hand `RelayEvent`s to one another, at once and in
order. Nothing of an uplink is on disk: after a restart the broker's machine says where it goes on.

Epochs: a broker of the parent that has adopted a later epoch refuses us and shows the proof. An
uplink adopts what f+1 brokers that it knows have signed, or else what the operator has copied to
the parent's file. What is wrong with the files of a parent stops a broker that starts. Later it is
logged and shown (`UplinkStatus.trouble`), and the broker serves what it has: it looks at the files
every second.

Back-pressure: while the broker's store lies far behind, or its disk is full, uplinks read nothing
and their clocks stand still. The parent then finds this broker slow, as any subscriber.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from quorumcast.broadcast.application import Refused
from quorumcast.broadcast.relayed import (
    Attach,
    Follow,
    ParentEnds,
    Relayed,
    RelayedGap,
    RelayEvent,
)
from quorumcast.cell.messages import CELL_FAMILY
from quorumcast.cell.subscribing.uplink import Uplink
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import DIGEST_SIZE, Channel, NodeId
from quorumcast.core.machine import Accuse, DialFailure, Suspect
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Opened
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.manifest import CellKey, Manifest
from quorumcast.runtime.broker.classifier import CellClassifier
from quorumcast.runtime.broker.epochs import decode_proof, proven_manifest
from quorumcast.runtime.broker.misbehaviour import MisbehaviourLog
from quorumcast.runtime.broker.parents import ParentFiles, Stamp, find_parent
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.transport import Transport
from quorumcast.runtime.logs import note
from quorumcast.runtime.telemetry import Telemetry

#: The interval at which files of parents are looked at.
LOOK_S = 1.0
#: The pause between two looks at a store that lies far behind.
PAUSE_S = 0.02


class UplinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One uplink, as the status page shows it."""

    parent: str
    #: The name of the broker there; "" as long as its identity could not be read.
    client: str
    epoch: int
    #: The brokers of the parent, and why there is no link to them; "" if there is one.
    brokers: dict[NodeId, str]
    #: How many of them must be linked, so that everything arrives.
    needed: int
    #: By channel: whether the parent's brokers have said where it goes on.
    joined: dict[Channel, bool]
    #: Whether nothing is read, because the store lies behind.
    paused: bool
    #: What keeps the uplink from working; "" if nothing is known.
    trouble: str
    #: Publications that were accepted, and gaps.
    accepted: int
    gaps: int
    suspicions: dict[NodeId, dict[str, int]]
    accusations: dict[NodeId, int]
    traffic: dict[str, int]


class UplinkHost(msgspec.Struct, frozen=True):
    """What uplinks need of the broker whose uplinks they are."""

    name: NodeId
    #: Hands an event to the broker's machine.
    feed: Callable[[RelayEvent], None]
    #: Whether the store lies far behind.
    is_clogged: Callable[[], bool]
    #: Stops the broker: an invariant is broken.
    fail: Callable[[BaseException], None]
    #: The directory for evidence against brokers of parents.
    evidence: Path | None
    limits: TransportLimits


class _Connection(msgspec.Struct, eq=False):
    """What there is once the files of a parent are right."""

    client: NodeId
    machine: Uplink
    driver: Driver
    transport: Transport
    #: The parent's present epoch.
    manifest: Manifest
    files: ParentFiles
    #: The files when they were read last.
    stamp: Stamp


class ParentUplink:
    """The uplink to one parent."""

    def __init__(self, host: UplinkHost, parents: Path, child: Manifest, key: CellKey) -> None:
        self._host = host
        self._parents = parents
        self._child = child
        self._key = key
        #: The channels of the child that come from the parent.
        self.entries = child.parents[key]
        self.telemetry = Telemetry()
        name = f"{host.name}@{self.cell.replace('/', '-')}"
        self._reports = MisbehaviourLog(NodeId(name), self.telemetry, host.evidence, cell=self.cell)
        #: None until the parent's files could be read.
        self._connection: _Connection | None = None
        self._trouble = ""
        self._paused = False
        self._closed = False
        self._gaps = 0

    @property
    def cell(self) -> str:
        """The name of the parent."""
        return self._key[0]

    # ------------------------------------------------------------- connecting

    def check(self) -> None:
        """Raise `UsageError` if a file is missing or cannot be used."""
        self._find().read_identity()

    def _find(self) -> ParentFiles:
        return find_parent(self._parents, self._child, self._key, self._host.name)

    def begin(self) -> None:
        """Connect to the parent, or note why that is impossible."""
        try:
            self._connection = self._connect(self._find())
        except UsageError as error:
            self._note_trouble(str(error))
            return
        self._trouble = ""
        self._connection.transport.call_peers()
        epoch, client = self._connection.manifest.epoch, self._connection.client
        note("calls its parent", parent=self.cell, epoch=epoch, client=client)

    def _connect(self, files: ParentFiles) -> _Connection:
        stamp = files.stamp()
        manifest, identity = read_manifest(files.manifest), files.read_identity()
        keyring = _client_keyring(manifest, identity)
        machine = Uplink(self._child, manifest, keyring)
        transport = Transport(
            manifest,
            Greeter(keyring, CELL_FAMILY),
            self,
            limits=self._host.limits,
            classifier=CellClassifier,
            telemetry=self.telemetry,
            on_other_epoch=lambda epoch: self._read(),
            on_proof=self._on_proof,
        )
        driver = Driver(
            machine,
            transport,
            telemetry=self.telemetry,
            application={
                Attach: self._host.feed,
                ParentEnds: self._host.feed,
                Relayed: self._on_relayed,
                RelayedGap: self._on_gap,
                Refused: self._on_refused,
                Suspect: self._reports.on_suspect,
                Accuse: self._reports.on_accuse,
            },
            on_failure=self._host.fail,
        )
        return _Connection(identity.name, machine, driver, transport, manifest, files, stamp)

    def _note_trouble(self, reason: str) -> None:
        if reason != self._trouble:
            self._trouble = reason
            note("uplink does not work", level=logging.ERROR, parent=self.cell, reason=reason)

    async def close(self) -> None:
        """End all links."""
        self._closed = True
        if self._connection is not None:
            self._connection.driver.stop()
            await self._connection.transport.close()

    # ------------------------------------------------------------ the machines

    def feed(self, event: RelayEvent) -> None:
        """Hand over what the broker's machine says."""
        if self._connection is not None:
            self._connection.driver.feed(event)

    def _on_relayed(self, effect: Relayed) -> None:
        self.telemetry.publications += len(effect.digests) // DIGEST_SIZE
        self._host.feed(effect)

    def _on_gap(self, effect: RelayedGap) -> None:
        self._gaps += 1
        note(
            "its parent no longer holds publications",
            level=logging.WARNING,
            parent=self.cell,
            stream=str(effect.stream),
            first=effect.first,
            upto=effect.upto,
        )
        self._host.feed(effect)

    def _on_refused(self, effect: Refused) -> None:
        name = effect.channel
        self._note_trouble(
            f"channel {name!r} does not go on, which comes from cell {self.cell!r}: {effect.reason}"
        )

    # ------------------------------------------------------------ the listener

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Take the messages of one packet from a broker of the parent."""
        if self._connection is None:
            return
        self._connection.driver.receive(peer, opened)
        if not self._paused and self._host.is_clogged():
            self._pause(self._connection)

    def _pause(self, connection: _Connection) -> None:
        """Read nothing more until the store has caught up."""
        self._paused = True
        connection.transport.pause_reading()
        connection.driver.hold()
        self._resume_later(connection)

    def _resume_later(self, connection: _Connection) -> None:
        asyncio.get_running_loop().call_later(PAUSE_S, self._maybe_resume, connection)

    def _maybe_resume(self, connection: _Connection) -> None:
        if self._closed:
            return
        if self._host.is_clogged():
            self._resume_later(connection)
            return
        self._paused = False
        connection.driver.release()
        connection.transport.resume_reading()

    def peer_up(self, peer: NodeId) -> None:
        """A broker of the parent can be reached."""
        note("parent's broker up", parent=self.cell, peer=peer)
        if self._connection is not None:
            self._connection.driver.peer_up(peer)

    def peer_down(self, peer: NodeId) -> None:
        """A broker of the parent cannot be reached."""
        note("parent's broker down", parent=self.cell, peer=peer)
        if self._connection is not None:
            self._connection.driver.peer_down(peer)

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed broker cannot be reached."""
        if self._connection is not None:
            self._connection.driver.unreachable(peer, reason)

    def cut(self) -> None:
        """For tests: break every link."""
        if self._connection is not None:
            self._connection.transport.cut()

    # ------------------------------------------------------------------ epochs

    def look(self) -> None:
        """Read the files if they have changed, or if something is missing."""
        connection = self._connection
        if connection is None:
            self.begin()
        elif connection.files.stamp() != connection.stamp:
            self._read()

    def _read(self) -> None:
        """Adopt the parent's epoch in the file, if it is newer."""
        connection = self._connection
        if connection is None:
            return
        connection.stamp = connection.files.stamp()
        present = connection.manifest
        try:
            manifest = read_manifest(connection.files.manifest, operator=present.operator)
            if manifest.key == self._key and manifest.epoch > present.epoch:
                self._adopt(connection, manifest)
        except UsageError as error:
            self._note_trouble(str(error))

    def _on_proof(self, shown: bytes) -> None:
        """A broker of the parent shows a later epoch; anybody might."""
        connection, proof = self._connection, decode_proof(shown)
        if proof is None or connection is None:
            return
        manifest = proven_manifest(connection.manifest, proof)
        if manifest is None:
            return
        try:
            self._adopt(connection, manifest)
        except UsageError as error:
            self._note_trouble(str(error))
            return
        connection.files.keep(proof.data, manifest)
        connection.stamp = connection.files.stamp()

    def _adopt(self, connection: _Connection, manifest: Manifest) -> None:
        """Go on in an epoch of the parent; raises `UsageError` if it has no place for us."""
        files = connection.files
        identity = files.read_identity()
        keyring = _client_keyring(manifest, identity)
        if identity.name != connection.client:
            raise UsageError(
                f"{files.identity} is now that of {identity.name!r} and was that of "
                f"{connection.client!r}; restart {self._host.name} to use it"
            )
        self._reports.begin_epoch(connection.manifest, manifest)
        connection.manifest, self._trouble = manifest, ""
        connection.driver.adopt(manifest, keyring)
        connection.transport.renew(manifest, Greeter(keyring, CELL_FAMILY))
        note("took its parent's epoch", parent=self.cell, epoch=manifest.epoch)

    # ------------------------------------------------------------------ status

    def status(self) -> UplinkStatus:
        """What the status page shows."""
        connection, telemetry = self._connection, self.telemetry
        brokers: dict[NodeId, str] = {}
        joined = {entry.name: False for entry in self.entries}
        if connection is not None:
            up, troubles = connection.transport.peers(), connection.transport.troubles()
            for peer in connection.manifest.broker_ids:
                why = troubles[peer].sentence if peer in troubles else "no answer yet"
                brokers[peer] = "" if peer in up else why
            joined = {channel: connection.machine.joined(channel) for channel in joined}
        return UplinkStatus(
            parent=self.cell,
            client="" if connection is None else connection.client,
            epoch=0 if connection is None else connection.manifest.epoch,
            brokers=brokers,
            needed=0 if connection is None else connection.manifest.quorums.responders,
            joined=joined,
            paused=self._paused,
            trouble=self._trouble,
            accepted=telemetry.publications,
            gaps=self._gaps,
            suspicions=telemetry.suspicions_by_node(),
            accusations=dict(telemetry.accusations),
            traffic=telemetry.traffic(),
        )

    def sizes(self) -> dict[str, int]:
        """How much each container that the parent's brokers can fill holds."""
        if self._connection is None:
            return {}
        machine, transport = self._connection.machine, self._connection.transport
        return {f"uplink.{n}": s for n, s in (machine.sizes() | transport.sizes()).items()}


class Uplinks:
    """All uplinks of a broker."""

    def __init__(self, host: UplinkHost, parents: Path, child: Manifest) -> None:
        self._host = host
        self._parents = parents
        self._child = child
        self._uplinks: dict[CellKey, ParentUplink] = {}
        self._watching: asyncio.Task[None] | None = None
        #: Uplinks of channels that have changed, or were deleted.
        self._closing: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        """Raise `UsageError` if the files of a parent are missing or cannot be used."""
        for key in self._child.parents:
            ParentUplink(self._host, self._parents, self._child, key).check()

    def start(self) -> None:
        """Connect to every parent."""
        self.adopt(self._child)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for uplink in self._uplinks.values():
                uplink.look()

    def adopt(self, child: Manifest) -> None:
        """Go on in a new epoch of the child.

        An uplink whose channels have changed, be it in a limit or a column, begins anew.
        """
        self._child = child
        for key, uplink in list(self._uplinks.items()):
            if child.parents.get(key) != uplink.entries:
                del self._uplinks[key]
                task = asyncio.get_running_loop().create_task(uplink.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        for key in child.parents:
            if key not in self._uplinks:
                self._uplinks[key] = ParentUplink(self._host, self._parents, child, key)
                self._uplinks[key].begin()

    def follow(self, event: Follow) -> None:
        """The broker's machine says where a channel goes on."""
        entry = self._child.channel(event.channel)
        uplink = None
        if entry is not None and entry.origin:
            uplink = self._uplinks.get(entry.origin.parent)
        if uplink is not None:
            uplink.feed(event)

    def cut(self) -> None:
        """For tests: break every link to parents."""
        for uplink in self._uplinks.values():
            uplink.cut()

    def status(self) -> list[UplinkStatus]:
        """What the status page shows."""
        return [uplink.status() for uplink in self._uplinks.values()]

    def sizes(self) -> dict[str, int]:
        """How much each container that brokers of parents can fill holds, added up."""
        total: dict[str, int] = {}
        for uplink in self._uplinks.values():
            for name, size in uplink.sizes().items():
                total[name] = total.get(name, 0) + size
        return total

    async def close(self) -> None:
        """End all links to parents."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*self._closing, *(one.close() for one in self._uplinks.values()))


def _client_keyring(manifest: Manifest, identity: Identity) -> Keyring:
    """The keys of a broker as a client of its parent."""
    if manifest.broker(identity.name) is not None:
        raise UsageError(
            f"{identity.name!r} is a broker of cell {manifest.cell!r} and not a client: give the "
            "child's broker an identity of its own there"
        )
    return manifest.keyring(identity)
