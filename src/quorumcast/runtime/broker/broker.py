"""A broker process: one broker machine with its links, store, status page and signals.

    SIGTERM, SIGINT   stop: write what waits, end all links, close the store
    SIGHUP            read the manifest file again (also done every second if it has changed, and
                      when a peer turns out to be in a newer epoch)

A new epoch is adopted without a restart: all links are ended and made again with the new keys. A
broker that the epoch no longer lists exits. A manifest that is not newer, or not signed by the same
operator, is refused with a line in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from quorumcast.broadcast.protocol import check_installed
from quorumcast.broadcast.relayed import Follow
from quorumcast.cell.accusations import SavedEvidence
from quorumcast.cell.filters import load_matching, takes_predicates
from quorumcast.cell.messages import CELL_FAMILY, Subscribe, Vote
from quorumcast.cell.serving.broker import RECORDS, Broker
from quorumcast.cell.serving.membership import Adopt, NewManifest
from quorumcast.cell.tracing import CELL_NOTES
from quorumcast.core.envelope import stamp_of as time_stamp
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import CELL, DIGEST_SIZE, Lane, NodeId
from quorumcast.core.machine import Accuse, DialFailure, Send, Suspect
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Opened
from quorumcast.manifest.files import parse_manifest, read_identity, read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.successor import check_successor
from quorumcast.runtime.broker.classifier import CellClassifier
from quorumcast.runtime.broker.control import Control, FaultOrder
from quorumcast.runtime.broker.epochs import (
    TORN,
    KeptEpoch,
    decode_proof,
    encode_proof,
    holds,
    kept_path,
    load_epoch,
    save_epoch,
    stamp_of,
)
from quorumcast.runtime.broker.http import HttpServer
from quorumcast.runtime.broker.identities import identity_for, settle_identity
from quorumcast.runtime.broker.misbehaviour import MisbehaviourLog
from quorumcast.runtime.broker.parents import parents_beside
from quorumcast.runtime.broker.uplinks import UplinkHost, Uplinks
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.runtime.links.tls import load_certificate, server_context
from quorumcast.runtime.links.transport import Transport
from quorumcast.runtime.logs import note, start_logging
from quorumcast.runtime.loop import run
from quorumcast.runtime.observations import observing
from quorumcast.runtime.store.contract import SQLITE, STORES, BrokerStore, StoreStatus
from quorumcast.runtime.store.directory import DiskStatus, look_at, place_for
from quorumcast.runtime.telemetry import Histogram, Telemetry
from quorumcast.traces.recorder import Recorder

MANIFEST_CHECK_S = 1.0
#: When a peer claims a newer epoch, the file is read so soon if it has changed, and otherwise so
#: late, since anybody can claim that.
READ_SOON_S = 0.1
READ_AGAIN_S = 10.0
#: A removed broker runs on for this long, to show late nodes the proof of the new epoch.
LEAVE_S = 3.0
#: Uplinks read nothing more while so many bytes wait for the disk.
CLOGGED_BYTES = 4 * 1024 * 1024


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a broker."""

    manifest: Path
    identity: Path
    #: Listen on this address instead of the manifest's (behind NAT, in a container).
    bind: str = ""
    #: The status page; None for none, port 0 for any free port.
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    #: Let anybody who reaches the status page install faults in this broker.
    allow_faults: bool = False
    #: Faults from the start (needs `allow_faults`).
    faults: tuple[str, ...] = ()
    #: The directory for evidence; none is saved without it.
    evidence: Path | None = None
    #: The directory of the store, for channels whose policy needs one.
    data: Path | None = None
    #: The kind of that store: the built-in one, or one of another package.
    store: str = SQLITE
    #: The directory of parent cells (`parents`); the one beside the manifest by default.
    parents: Path | None = None
    #: Directories for a trace of forwarded publications, and for observations of other nodes.
    trace: Path | None = None
    observe: Path | None = None
    #: A file descriptor that gets one line when the broker listens.
    ready_fd: int | None = None
    #: The reading end of a pipe that a supervisor holds open: the broker stops when it closes.
    lifeline_fd: int | None = None
    log_level: str = "info"
    limits: TransportLimits = TransportLimits()


class BrokerNode:
    """A running broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        manifest: Manifest,
        identity: Identity,
        kept: KeptEpoch | None = None,
    ) -> None:
        self.settings = settings
        self.manifest = manifest
        self.identity = identity
        self.keyring: Keyring = manifest.keyring(identity)
        if manifest.broker(identity.name) is None:
            raise UsageError(
                f"{identity.name!r} is a client of the cell {manifest.cell!r} and not a broker: "
                "start the broker with a broker's identity"
            )
        check_installed({channel.name: channel.policy for channel in manifest.channels})
        self.telemetry = Telemetry()
        self._kept = kept = kept or KeptEpoch(settings.manifest.read_bytes())
        #: The manifest as its operator signed it.
        self._data = kept.manifest
        life = os.urandom(DIGEST_SIZE)
        self.machine = Broker(
            manifest, self.keyring, kept.older, kept.words, life=life, signed=kept.manifest
        )
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._renewing: asyncio.TimerHandle | None = None
        #: The stamp of the manifest file when it was read last; None to read it soon.
        current = kept.manifest == settings.manifest.read_bytes()
        self._stamp = stamp_of(settings.manifest) if current else None
        self.transport = Transport(
            manifest,
            self._greeter(),
            self,
            limits=settings.limits,
            classifier=CellClassifier,
            telemetry=self.telemetry,
            on_other_epoch=lambda epoch: self._read_soon(),
            on_proof=self._on_proof,
        )
        self._reports = MisbehaviourLog(identity.name, self.telemetry, settings.evidence)
        self.uplinks = self._make_uplinks()
        self._replaying = False  # whether the packet at hand asks for publications of the past
        #: Whether no store existed when this process first needed one.
        self._began_empty = False
        self._store = self._open_store(manifest)
        self.driver = Driver(
            self.machine,
            self.transport,
            telemetry=self.telemetry,
            application=self._handlers(),
            publications=(Vote, self._on_vote),
            store=self._store,
            on_failure=self._fail,
        )
        self._recorder: Recorder | None = None
        if settings.trace is not None:
            path = settings.trace / f"{identity.name}.parquet"
            self._recorder = Recorder.to_file(path, "broker", identity.name)
            self.driver.record(self._recorder, CELL_NOTES, identity.name)
        self.control = Control(self, allow_faults=settings.allow_faults)
        self.http = HttpServer(self.control.routes())

    def _greeter(self) -> Greeter:
        """The handshake of the present epoch, with its proof for nodes in an older one."""
        return Greeter(
            self.keyring,
            CELL_FAMILY,
            proof=lambda: encode_proof(self._data, self.machine.membership.statements),
        )

    def _handlers(self) -> dict[type, Callable[[Any], None]]:
        """What is done with the effects of the machine that the driver does not know."""
        return {
            Suspect: self._reports.on_suspect,
            Accuse: self._reports.on_accuse,
            Adopt: self._on_adopt,
            Follow: self.uplinks.follow,
        }

    def _make_uplinks(self) -> Uplinks:
        """The uplinks to parent cells, not yet connected."""
        settings = self.settings
        host = UplinkHost(
            self.name,
            feed=lambda event: self.driver.feed(event),
            is_clogged=self._is_clogged,
            fail=self._fail,
            evidence=settings.evidence,
            limits=settings.limits,
        )
        parents = settings.parents or parents_beside(settings.manifest)
        uplinks = Uplinks(host, parents, self.manifest)
        uplinks.check()
        return uplinks

    def _is_clogged(self) -> bool:
        """Whether so much waits for the disk that nothing is to be added."""
        if self._store is None:
            return False
        status = self._store.status()
        return bool(status.full) or status.waiting_bytes > CLOGGED_BYTES

    def _open_store(self, manifest: Manifest) -> BrokerStore | None:
        """The store, if the policy of a channel or a log needs one."""
        kind = STORES.load(self.settings.store)
        if not manifest.needs_store:
            return None
        stored = [f"channel {c.name!r}" for c in manifest.channels if c.policy.needs_store]
        needed_by = stored[0] if stored else "the log of deleted channels"
        # Another name for another kind: none reads what another wrote.
        suffix = "" if self.settings.store == SQLITE else f"-{self.settings.store}"
        path = place_for(needed_by, self.settings.data) / f"{self.name}.store{suffix}"
        self._began_empty = not path.exists()
        if self._began_empty:
            note("has no store yet; starts empty", level=logging.WARNING, path=str(path))
        holder = f"{manifest.cell}/{self.name}"
        return kind.open(path, RECORDS, holder=holder, on_failure=self._fail)

    @property
    def name(self) -> NodeId:
        """The broker's own name."""
        return self.identity.name

    # ------------------------------------------------------------------ running

    async def start(self) -> None:
        """Listen, call the other brokers, open the status page."""
        entry = self.manifest.broker(self.name)
        if entry is None:
            raise UsageError(f"{self.name!r} is not in the manifest")
        settings, certificate = self.settings, entry.certificate
        if any(map(takes_predicates, self.manifest.channels)):
            load_matching()
        #: The TLS settings of the listening socket; an epoch may bring another certificate.
        self._tls = server_context(self.identity, certificate) if certificate else None
        self._keep(self.manifest, self._kept)
        self.driver.restore()
        for evidence in self._reports.saved(self.manifest.broker_ids):
            self.driver.feed(SavedEvidence(evidence))
        await self.transport.listen(settings.bind or entry.host, entry.port, self._tls)
        if settings.http_port is not None:
            await self.http.listen(settings.http_host, settings.http_port)
        for fault in settings.faults:
            if not settings.allow_faults:
                raise UsageError("faults from the start need --allow-faults")
            self.control.install(FaultOrder(fault))
        self.transport.call_peers()
        self.uplinks.start()
        note(
            "listens",
            address=entry.address,
            cell=self.manifest.cell,
            epoch=self.manifest.epoch,
            status_port=self.http.port,
        )

    async def run(self) -> None:
        """Serve until a signal or a broken invariant."""
        watcher = asyncio.create_task(self._watch_manifest())
        stop: asyncio.Future[bool] = asyncio.ensure_future(self._stop.wait())
        ending: list[asyncio.Future[Any]] = [stop, self._failure]
        try:
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watcher.cancel()
            stop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        if self._failure.done():
            self._failure.result()

    def request_stop(self) -> None:
        """Let `run` return."""
        self._stop.set()

    async def stop(self) -> None:
        """Write what waits and close everything."""
        await self.uplinks.close()
        await self.transport.close()
        self.driver.stop()
        await self.http.close()
        if self._store is not None:
            await self._store.close()
        if self._recorder is not None:
            self._recorder.close()
        note("stopped")

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    # ------------------------------------------------------------- the listener

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Messages of one packet."""
        self._replaying = Subscribe in [type(message) for message, _ in opened]
        self.driver.receive(peer, opened)
        self._replaying = False

    def _on_vote(self, send: Send) -> int:
        """The number of publications in a vote; the time that the first of them took is noted."""
        vote: Vote = send.message  # type: ignore[assignment]
        if send.bodies and not self._replaying:
            stream = vote.stream
            stamp_us = time_stamp(send.bodies[0], labelled=stream.publisher == CELL)
            if stamp_us >= 0 and stream.lane is Lane.DATA:
                latency = self.telemetry.latency.setdefault(stream.channel, Histogram())
                latency.observe(time.time() - stamp_us / 1e6)
        return len(vote.digests) // DIGEST_SIZE

    def peer_up(self, peer: NodeId) -> None:
        """A peer can be reached."""
        note("peer up", peer=peer)
        self.driver.peer_up(peer)

    def peer_down(self, peer: NodeId) -> None:
        """A peer cannot be reached."""
        note("peer down", peer=peer)
        self.driver.peer_down(peer)

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed peer cannot be reached."""
        self.driver.unreachable(peer, reason)

    # -------------------------------------------------------------------- epochs

    def _read_soon(self) -> None:
        if self._renewing is None:
            loop = asyncio.get_running_loop()
            changed = stamp_of(self.settings.manifest) != self._stamp
            pause = READ_SOON_S if changed else READ_AGAIN_S
            self._renewing = loop.call_later(pause, self.read_manifest)

    async def _watch_manifest(self) -> None:
        torn = False
        while True:
            await asyncio.sleep(MANIFEST_CHECK_S)
            stamp = stamp_of(self.settings.manifest)
            if stamp != self._stamp and stamp is not None:
                self.read_manifest()
            if self.machine.membership.torn and not torn:
                torn = True
                note("cannot take the next epoch", level=logging.ERROR, reason=TORN)

    def read_manifest(self) -> None:
        """Propose the epoch of the manifest file to the cell, if it can follow."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        self._stamp = stamp_of(self.settings.manifest)
        if holds(self.settings.manifest, self._data):
            return  # the present epoch: other brokers may have been faster than this file
        try:
            data = self.settings.manifest.read_bytes()
            manifest = parse_manifest(
                data, source=str(self.settings.manifest), operator=self.manifest.operator
            )
            present = self.manifest.epoch
            if manifest.epoch < present and manifest.cell == self.manifest.cell:
                # Peers were faster than a file of its own, which is copied later.
                note("has an older manifest file", file_epoch=manifest.epoch, epoch=present)
                return
            if manifest.epoch == present:
                raise UsageError(
                    f"{self.settings.manifest} is another epoch {present} than the one that the "
                    "cell has taken; get the present manifest from the operator"
                )
            check_successor(self.manifest, manifest)
            self._check_mine(manifest)
        except (UsageError, OSError) as error:
            note("keeps its manifest", level=logging.WARNING, reason=str(error))
            return
        self.driver.feed(NewManifest(data))

    def _check_mine(self, manifest: Manifest) -> None:
        """Refuse a manifest for which this broker lacks the keys or a data directory."""
        if manifest.broker(self.name) is not None:
            manifest.keyring(self._identity_for(manifest))
            check_installed({channel.name: channel.policy for channel in manifest.channels})
            if self._store is None and self.settings.data is None:
                self._open_store(manifest)

    def _on_proof(self, proof: bytes) -> None:
        """A peer has sent the proof of a newer epoch."""
        passage = decode_proof(proof)
        if passage is not None:
            self.driver.feed(passage)

    def _on_adopt(self, effect: Adopt) -> None:
        # Later messages of the same packet still belong to the epoch before.
        asyncio.get_running_loop().call_soon(self._adopt, effect)

    def _adopt(self, effect: Adopt) -> None:
        """Adopt the epoch that the machine has decided on."""
        if self.driver.stopped:
            return
        manifest = parse_manifest(effect.data, operator=self.manifest.operator)
        self._data = effect.data
        if manifest.broker(self.name) is None:
            note("has left the cell", epoch=manifest.epoch)
            self.transport.leave(manifest.epoch)
            asyncio.get_running_loop().call_later(LEAVE_S, self.request_stop)
            return
        identity = self._identity_for(manifest)
        try:
            keyring = manifest.keyring(identity)
            check_installed({channel.name: channel.policy for channel in manifest.channels})
            self._renew_certificate(manifest, identity)
            store = self._open_store(manifest) if self._store is None else None
            self._keep(
                manifest,
                KeptEpoch(effect.data, effect.statements, self.machine.membership.older_logs()),
            )
        except UsageError as error:
            # The other brokers go on; the operator reads the reason and can help this one.
            self._fail(error)
            return
        if any(map(takes_predicates, manifest.channels)):
            # Subscribers have to connect again first. It takes no time if it was loaded before.
            asyncio.get_running_loop().run_in_executor(None, load_matching)
        self._reports.begin_epoch(self.manifest, manifest)
        self.manifest, self.keyring, self.identity = manifest, keyring, identity
        settle_identity(self.settings.identity, manifest)
        if not holds(self.settings.manifest, effect.data):
            self._stamp = None  # a manifest that could not follow before may follow now
        if store is not None:
            # This epoch has the first channel that needs a store.
            self._store = store
            self.driver.use(store)
        self.driver.adopt(manifest, keyring)
        if store is not None:
            self.driver.restore()
        self.transport.renew(manifest, self._greeter())
        self.uplinks.adopt(manifest)
        note("took a new epoch", epoch=manifest.epoch)

    def _keep(self, manifest: Manifest, kept: KeptEpoch) -> None:
        """Save the epoch: a broker with a log must restart in the epoch that it adopted last."""
        path = kept_path(self.settings.data, self.name)
        if path is not None and manifest.logs:
            save_epoch(path, kept)

    def _renew_certificate(self, manifest: Manifest, identity: Identity) -> None:
        """Show the certificate that an epoch lists to everybody who connects from now on."""
        entry = manifest.broker(self.name)
        if self._tls is not None and entry is not None and entry.certificate:
            load_certificate(self._tls, identity, entry.certificate)

    def _identity_for(self, manifest: Manifest) -> Identity:
        """The identity of this broker in an epoch: another one if its keys were rotated."""
        entry = manifest.broker(self.name)
        if entry is None or entry.verify_key == self.identity.verify_key:
            return self.identity
        return identity_for(self.settings.identity, manifest)

    # -------------------------------------------------------------------- status

    def store_status(self) -> StoreStatus | None:
        """The state of the store; None if no channel needs one."""
        return None if self._store is None else self._store.status()

    def disk_status(self) -> DiskStatus | None:
        """The state of the data directory; None without one."""
        data = self.settings.data
        return None if data is None else look_at(data, self.name, began_empty=self._began_empty)


def _lifeline_cut(node: BrokerNode, descriptor: int) -> None:
    """Stop: the process that started this one has ended."""
    asyncio.get_running_loop().remove_reader(descriptor)
    node.request_stop()


async def run_broker(settings: BrokerSettings) -> None:
    """Start, serve until a signal, stop."""
    manifest, kept = read_manifest(settings.manifest), None
    path = kept_path(settings.data, read_identity(settings.identity).name)
    found = None if path is None else load_epoch(path, manifest.operator)
    if found is not None:
        kept, manifest = found  # the cell has not yet adopted what the file may say by now
    node = BrokerNode(settings, manifest, identity_for(settings.identity, manifest), kept)
    settle_identity(settings.identity, manifest)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop)
    loop.add_signal_handler(signal.SIGHUP, node.read_manifest)
    if settings.lifeline_fd is not None:
        loop.add_reader(settings.lifeline_fd, _lifeline_cut, node, settings.lifeline_fd)
    with observing(node.driver, settings.observe, manifest, node.name, "broker"):
        try:
            await node.start()
            if settings.ready_fd is not None:
                os.write(settings.ready_fd, f"{node.http.port}\n".encode())
                os.close(settings.ready_fd)
            await node.run()
        finally:
            await node.stop()


def serve_broker(settings: BrokerSettings) -> None:
    """Run a broker in this process until it is told to stop."""
    start_logging(settings.identity.stem, settings.log_level)
    # Messages are acyclic: collect garbage rarely, and never what was imported.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    run(run_broker(settings))
