"""One identity's connection to a cell: links to every broker, publishers, subscriptions.

A node may publish and subscribe. Each role (`outgoing`, `incoming`) is a machine with its own
driver, made when first used; both share the links. Acknowledgements go to the publisher machine,
all other messages to the subscriber machine. The subscribing role is also imported when first used:
a program that publishes one event would spend a third of its time on that.

Back-pressure: while the queue of a subscription is full, a node that only subscribes does not read
its sockets. A node that also publishes must read on, because a program that publishes inside its
subscription loop would otherwise wait forever for its own acknowledgements. Messages for the
subscriber machine are then dropped and counted, and requested again when there is room.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from quorumcast.broadcast.application import Deliver, Refused
from quorumcast.broadcast.protocol import protocol_of
from quorumcast.cell.messages import CELL_FAMILY, ONLY_FOR_PUBLISHERS, Refuse
from quorumcast.client.arguments import check_seat, check_seated, check_times
from quorumcast.client.options import (
    NamedSubscriptionOptions,
    PublisherOptions,
    SubscriptionOptions,
    takes,
)
from quorumcast.client.publishing.outgoing import Outgoing
from quorumcast.client.publishing.packing import Clock, Packer, wall_us
from quorumcast.client.publishing.publisher import Publisher, Publishers
from quorumcast.client.publishing.resuming import ResumedPublisher, check_resumable
from quorumcast.client.reach import ConnectedBrokers, ReachReporter
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Accuse, DialFailure, Machine, Suspect
from quorumcast.core.statements import Evidence
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.session import Opened
from quorumcast.faults.contract import Fault
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.paths import identity_path, manifest_path
from quorumcast.manifest.patterns import check_pattern, is_pattern
from quorumcast.manifest.rights import (
    matching_channels,
    publishable_channels,
    to_consume,
    to_publish,
    to_subscribe,
)
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.instrumentation import Instrumentation
from quorumcast.runtime.links.contract import Links
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.transport import Transport
from quorumcast.runtime.logs import note
from quorumcast.runtime.telemetry import Telemetry

if TYPE_CHECKING:
    from quorumcast.client.incoming import Incoming
    from quorumcast.client.named.subscription import NamedSubscription
    from quorumcast.client.subscription import Subscription
    from quorumcast.traces.recorder import Recorder

#: Pieces of evidence that a node keeps.
MAX_EVIDENCE = 256


class Node:
    """A connected client; made by `connect`."""

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        manifest_path: Path | None = None,
        instrumentation: Instrumentation | None = None,
        now_us: Clock = wall_us,
        on_reach: Callable[[str], None] | None = None,
    ) -> None:
        if manifest.broker(identity.name) is not None:
            raise UsageError(
                f"{identity.name!r} is a broker of the cell {manifest.cell!r}: "
                "connect with a client's identity"
            )
        if manifest.warning:
            note(manifest.warning, level=logging.WARNING)
        self.manifest = manifest
        self.identity = identity
        self.telemetry = Telemetry()
        #: Counts of suspicions by node and reason. Suspicion is no proof.
        self.suspicions: dict[NodeId, Counter[str]] = {}
        #: Proofs of misbehaviour that a third party can verify; at most MAX_EVIDENCE.
        self.evidence: list[Evidence] = []
        self.on_suspect: Callable[[Suspect], None] | None = None
        self.on_evidence: Callable[[Evidence], None] | None = None
        self.on_undecodable: Callable[[Deliver], None] | None = None
        #: The signed manifest, if there is no file of it.
        self.signed_manifest: bytes | None = None
        self._manifest_path = manifest_path
        self._instrumentation = instrumentation or Instrumentation()
        self._now_us = now_us
        self._keyring = manifest.keyring(identity)
        #: What each role does wrong, for tests; empty in a correct node.
        self._faults: dict[str, tuple[Fault, ...]] = {}
        self._links: Links | None = None
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None
        self._brokers = ConnectedBrokers()
        self._reporter: ReachReporter | None = None
        if on_reach is not None:
            self._reporter = ReachReporter(manifest.cell, on_reach, self.describe_brokers)
        self._failure: Exception | None = None

    # ---------------------------------------------------------------- connecting

    async def start(self, timeout_s: float) -> None:
        """Connect over TCP and wait until enough brokers answer."""
        transport = Transport(
            self.manifest,
            Greeter(self._keyring, CELL_FAMILY),
            self,
            telemetry=self.telemetry,
            on_other_epoch=lambda epoch: self.read_manifest(),
        )
        self._links = transport
        transport.call_peers()
        self._report_reach()
        try:
            await self.wait_connected(timeout_s)
        except BaseException:
            await self.close()
            raise

    def attach(self, links: Links) -> None:
        """Use these links instead of TCP."""
        self._links = links

    @property
    def links(self) -> Links:
        """The links to brokers."""
        if self._links is None:
            raise UsageError("this node is not connected: make it with 'await connect(…)'")
        return self._links

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until n-f brokers are connected; `UsageError` names the missing ones and why."""
        await self._brokers.wait(self.manifest, self.links, timeout_s)

    @property
    def name(self) -> NodeId:
        """Our node id."""
        return self.identity.name

    @property
    def connected(self) -> list[NodeId]:
        """The connected brokers."""
        return list(self._brokers.up)

    def describe_brokers(
        self, verb: str = "connected", missing: Sequence[NodeId] | None = None
    ) -> str:
        """Which brokers have done what `verb` says and which are missing, for time-outs."""
        if missing is None:
            missing = [one for one in self.manifest.broker_ids if one not in self._brokers.up]
        return self._brokers.describe(self.manifest, self.links, verb, missing)

    # ------------------------------------------------------ publishing, subscribing

    @takes(PublisherOptions)
    def publisher(self, options: PublisherOptions) -> Publisher:
        """A publisher of a channel: `async with node.publisher("orders") as orders`."""
        self._check_alive()
        entry = to_publish(self.manifest, self.name, options.channel)
        protocol_of(entry.policy)  # one that is not installed here is refused now
        if options.resume is not None:
            check_resumable(entry, urgent=options.urgent)
        if self._outgoing is None:
            self._outgoing = Outgoing(
                self.manifest,
                self._keyring,
                self._driver,
                self._on_publishing_refused,
                self._now_us,
                self.describe_brokers,
            )
        validity_ms = entry.policy.limits.validity_ms
        schema = entry.arrow_schema() if entry.schema else None
        packer = Packer(schema, self._now_us, valid_ms=validity_ms, urgent=options.urgent)
        publisher: Publisher
        if options.resume is None:
            publisher = Publisher(self._outgoing, packer, options)
            self._outgoing.add(publisher)
        else:
            publisher = ResumedPublisher(self._outgoing, packer, options, options.resume)
            self._outgoing.resume(publisher)
        self._on_suspended()
        return publisher

    @takes(PublisherOptions)
    def publishers(self, options: PublisherOptions) -> Publishers:
        """Publishers of all channels that match a pattern, by channel: `node.publishers("**")`."""
        if options.resume is not None:
            raise UsageError("a resumed stream is on one channel: use 'publisher'")
        check_pattern(options.channel)
        return Publishers(
            lambda: publishable_channels(self.manifest, self.name, options.channel),
            lambda channel: replace(options, channel=channel).call(self.publisher),
        )

    @takes(SubscriptionOptions)
    def subscribe(self, options: SubscriptionOptions) -> Subscription:
        """A subscription to a channel: `async with node.subscribe("orders") as orders`."""
        from quorumcast.client.incoming import Incoming
        from quorumcast.client.subscription import Subscription

        self._check_alive()
        # A pattern may match nothing yet, because channels are created later.
        find = matching_channels if is_pattern(options.channel) else to_subscribe
        entries = find(self.manifest, self.name, options.channel)
        subscription = Subscription(entries, options, self._now_us)
        if self._incoming is None:
            self._incoming = Incoming(
                self.manifest,
                self._keyring,
                self._driver,
                self.telemetry,
                on_refused=self._on_subscribing_refused,
                on_suspended=self._on_suspended,
                on_undecodable=self._on_undecodable,
                describe_brokers=self.describe_brokers,
            )
        self._incoming.add(subscription)
        return subscription

    @takes(NamedSubscriptionOptions)
    def subscribe_as(self, options: NamedSubscriptionOptions) -> NamedSubscription:
        """A named subscription, whose state the cell keeps; `async with node.subscribe_as(…) as …`.

        See `client.named.subscription`.
        """
        from quorumcast.client.named.subscription import NamedSubscription

        self._check_alive()
        entry = to_consume(self.manifest, self.name, options.channel)
        return NamedSubscription(self, entry, options)

    def charter(self) -> bytes:
        """The manifest as the operator signed it."""
        if self.signed_manifest is None and self._manifest_path is not None:
            return self._manifest_path.read_bytes()
        return self.signed_manifest or b""

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _driver(
        self, role: str, machine: Machine, application: dict[type, Callable[[Any], None]]
    ) -> Driver:
        driver = Driver(
            machine,
            self.links,
            telemetry=self.telemetry,
            application={**application, Suspect: self._on_suspect, Accuse: self._on_accuse},
            on_failure=self._fail,
        )
        driver.faults = self._faults.get(role, ())
        self._instrumentation.begin(driver, self.manifest, self.name, role)
        for peer in self._brokers.up:
            driver.peer_up(peer)
        return driver

    def faults(self, role: str) -> tuple[Fault, ...]:
        """What a role, "publisher" or "subscriber", does wrong."""
        return self._faults.get(role, ())

    def set_faults(self, role: str, faults: tuple[Fault, ...]) -> None:
        """Let a role misbehave from now on, for tests (`testing.make_client_lie`)."""
        self._faults[role] = faults
        user = self._outgoing if role == "publisher" else self._incoming
        if user is not None:
            user.driver.faults = faults

    # ---------------------------------------------------------- called by the links

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Pass the messages of one packet to the machines."""
        outgoing, incoming = self._outgoing, self._incoming
        if incoming is None:
            if outgoing is not None:
                outgoing.driver.receive(peer, opened)
            return
        if outgoing is not None:
            for_publisher = [
                item
                for item in opened
                if type(item[0]) in ONLY_FOR_PUBLISHERS or type(item[0]) is Refuse
            ]
            if for_publisher:
                outgoing.driver.receive(peer, for_publisher)
                opened = [item for item in opened if type(item[0]) not in ONLY_FOR_PUBLISHERS]
        if opened:
            incoming.receive(peer, opened)

    def peer_up(self, peer: NodeId) -> None:
        """Handle that a broker has connected."""
        self._brokers.add(peer)
        self._report_reach()
        for driver in self._drivers():
            driver.peer_up(peer)

    def peer_down(self, peer: NodeId) -> None:
        """Handle that a broker has disconnected."""
        self._brokers.remove(peer)
        self._report_reach()
        for driver in self._drivers():
            driver.peer_down(peer)

    def _report_reach(self) -> None:
        if self._reporter is not None and self._failure is None:
            self._reporter.changed(len(self._brokers.up) >= self.manifest.quorums.responders)

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """Handle that a dialed peer cannot be reached."""
        for driver in self._drivers():
            driver.unreachable(peer, reason)

    def _on_suspended(self) -> None:
        """Pause or resume reading, because the subscribing role was suspended or resumed.

        Also called when the node begins to publish, since it must read acknowledgements then.
        """
        incoming = self._incoming
        if incoming is None:
            return
        incoming.paused = incoming.suspended and not incoming.awaits and self._outgoing is None
        if incoming.paused:
            self.links.pause_reading()
            return
        self.links.resume_reading()
        if not incoming.suspended:
            incoming.catch_up(list(self._brokers.up))

    # ------------------------------------------------------------------ suspicions

    def _on_suspect(self, effect: Suspect) -> None:
        self.suspicions.setdefault(effect.node, Counter())[effect.reason.value] += 1
        if self.on_suspect is not None:
            self.on_suspect(effect)

    def _on_accuse(self, effect: Accuse) -> None:
        if len(self.evidence) < MAX_EVIDENCE:
            self.evidence.append(effect.evidence)
        if self.on_evidence is not None:
            self.on_evidence(effect.evidence)

    def _on_undecodable(self, delivered: Deliver) -> None:
        if self.on_undecodable is not None:
            self.on_undecodable(delivered)

    def _on_publishing_refused(self, effect: Refused) -> None:
        if self._outgoing is not None:
            self._outgoing.fail(self._refusal(effect), effect.channel)

    def _on_subscribing_refused(self, effect: Refused) -> None:
        if self._incoming is not None:
            self._incoming.fail(self._refusal(effect), effect.channel)

    def _refusal(self, effect: Refused) -> UsageError:
        return UsageError(f"the cell {self.manifest.cell!r} refuses: {effect.reason}")

    # --------------------------------------------------------------------- epochs

    def read_manifest(self) -> None:
        """Adopt the manifest file if its epoch is newer; called when a broker has another epoch."""
        if self._manifest_path is None or not isinstance(self._links, Transport):
            return
        try:
            manifest = read_manifest(
                self._manifest_path,
                operator=self.manifest.operator,
                newer_than=self.manifest.epoch,
            )
        except UsageError:
            return  # brokers say why they disconnect; the file may be replaced by a valid one
        try:
            keyring = manifest.keyring(self.identity)
        except UsageError as error:
            self._end(error)  # the epoch revokes this identity, or gives it other keys
            return
        self.manifest, self._keyring = manifest, keyring
        for driver in self._drivers():
            driver.adopt(manifest, keyring)
        for role in self._roles():
            role.adopt(manifest)
        self._links.renew(manifest, Greeter(keyring, CELL_FAMILY))

    # --------------------------------------------------------------------- ending

    def _roles(self) -> list[Outgoing | Incoming]:
        return [role for role in (self._outgoing, self._incoming) if role is not None]

    def _drivers(self) -> list[Driver]:
        return [role.driver for role in self._roles()]

    def _fail(self, error: BaseException) -> None:
        """Stop the node after a broken invariant: its state can no longer be trusted."""
        self._end(error if isinstance(error, Exception) else RuntimeError(str(error)))

    def _end(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            if self._reporter is not None:
                self._reporter.stop()
            for driver in self._drivers():
                driver.stop()
            for role in self._roles():
                role.fail(error)

    async def close(self) -> None:
        """Disconnect; sent messages are written, but acknowledgements are not awaited."""
        if self._incoming is not None:
            self._incoming.close()
        self._end(UsageError("this node is closed: connect again"))
        try:
            if self._links is not None:
                await self._links.close()
        finally:
            self._instrumentation.end()

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def connect(
    manifest: str | Path,
    identity: str | Path,
    *,
    timeout_s: float = 30.0,
    seat: int = 0,
    recorder: Recorder | None = None,
    observe: str | Path | None = None,
    on_reach: Callable[[str], None] | None = None,
) -> Node:
    """Connect to every broker of a cell; returns as soon as n-f of them answer.

    `manifest` is the manifest file or its directory. `identity` is an identity file, or the name of
    a client whose file is beside the manifest. The command line and Spark take the same.

    Processes that share an identity each take a `seat` of their own, 1 to 64; otherwise the
    newest would displace the others.

    `recorder` records everything published and accepted (for measurements). Observations of brokers
    are written below the directory `observe`, for 'quorumcast pipeline audit'. `on_reach` is called
    with a sentence when too few brokers can be reached for two seconds, and when enough can be
    reached again. Raises `UsageError` if the files are wrong or too few brokers answer.
    """
    check_times(timeout_s=timeout_s)
    check_seat(seat)
    path = manifest_path(Path(manifest))
    who = read_identity(identity_path(str(identity), path))
    check_seated(who.name, seat)
    instrumentation = Instrumentation(recorder, observe)
    node = Node(read_manifest(path), who.at_seat(seat), path, instrumentation, on_reach=on_reach)
    await node.start(timeout_s)
    return node
