"""One identity's connection to a cell: links to every broker, publishers, subscriptions.

A node may publish and subscribe. Each role (`outgoing`, `incoming`) is a machine with a driver of
its own, made when first used; both share the links. Acknowledgements go to the publisher machine,
everything else to the subscriber.

Back-pressure: while a subscription's queue is full, a node that only subscribes reads nothing from
its sockets. A node that publishes as well goes on reading, since otherwise a program that publishes
from inside its subscription loop would wait for ever for its own acknowledgements: what arrives for
the subscriber machine meanwhile is dropped and counted, and asked for again when there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from quorumcast.broadcast.application import Deliver, Refused
from quorumcast.broadcast.messages import Ack
from quorumcast.cell.messages import CELL_FAMILY, Refuse
from quorumcast.client.arguments import LATEST, Start, check_overflow, check_start, check_until
from quorumcast.client.incoming import Incoming
from quorumcast.client.named.subscription import MANUAL, NamedSubscription
from quorumcast.client.outgoing import Outgoing
from quorumcast.client.packing import Clock, Packer, wall_us
from quorumcast.client.publishing import Publisher
from quorumcast.client.reach import Reach
from quorumcast.client.resuming import ResumedPublisher, Resumption, check_resumable
from quorumcast.client.rights import to_consume, to_publish, to_subscribe
from quorumcast.client.subscription import Subscription
from quorumcast.client.watching import Watching
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import Overflow
from quorumcast.core.machine import Accuse, DialFailure, Machine, Suspect
from quorumcast.core.statements import Evidence
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.session import Opened
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.contract import Links
from quorumcast.runtime.links.greeting import Greeter
from quorumcast.runtime.links.transport import Transport
from quorumcast.runtime.telemetry import Telemetry

#: Pieces of evidence that a node remembers.
MAX_EVIDENCE = 256


class Node:
    """A connected client; made by `connect`."""

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        manifest_path: Path | None = None,
        watching: Watching | None = None,
        now_us: Clock = wall_us,
    ) -> None:
        if manifest.broker(identity.name) is not None:
            raise UsageError(
                f"{identity.name!r} is a broker of the cell {manifest.cell!r}: "
                "connect with a client's identity"
            )
        self.manifest = manifest
        self.identity = identity
        self.telemetry = Telemetry()
        #: How often each node was suspected, and of what. Suspicion is no proof.
        self.suspicions: dict[NodeId, Counter[str]] = {}
        #: Proofs of lies that anybody can verify; at most MAX_EVIDENCE.
        self.evidence: list[Evidence] = []
        self.on_suspect: Callable[[Suspect], None] | None = None
        self.on_evidence: Callable[[Evidence], None] | None = None
        self.on_undecodable: Callable[[Deliver], None] | None = None
        #: The signed manifest, where there is no file of it.
        self.signed_manifest: bytes | None = None
        self._manifest_path = manifest_path
        self._watching = watching or Watching()
        self._now_us = now_us
        self._keyring = manifest.keyring(identity)
        self._links: Links | None = None
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None
        #: Brokers that are connected, in the order in which they came.
        self._reach = Reach()
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
        try:
            await self.wait_connected(timeout_s)
        except BaseException:
            await self.close()
            raise

    def attach(self, links: Links) -> None:
        """Use these links instead of sockets."""
        self._links = links

    @property
    def links(self) -> Links:
        """The way to the brokers."""
        if self._links is None:
            raise UsageError("this node is not connected: make it with 'await connect(…)'")
        return self._links

    async def wait_connected(self, timeout_s: float) -> None:
        """Until n-f brokers are connected, or a sentence that names the others and why."""
        await self._reach.wait(self.manifest, self.links, timeout_s)

    @property
    def name(self) -> NodeId:
        """Who we are."""
        return self.identity.name

    @property
    def connected(self) -> list[NodeId]:
        """Brokers that are connected now."""
        return list(self._reach.up)

    # ------------------------------------------------------ publishing, subscribing

    def publisher(
        self,
        channel: str,
        *,
        batching: bool = True,
        max_batch: int = 4096,
        linger_ms: float = 0.0,
        buffer: int = 65_536,
        buffer_bytes: int = 64 * 1024 * 1024,
        timeout_s: float | None = None,
        valid_for_s: float | None = None,
        urgent: bool = False,
        resume: Resumption | None = None,
    ) -> Publisher:
        """Publish on a channel; use it as `async with node.publisher("orders") as orders`.

        `timeout_s` bounds how long `publish` and `flush` wait for an acknowledgement. Subscribers
        skip what is older than `valid_for_s` seconds; 0 is for ever, None as the channel says.
        What an `urgent` publisher publishes overtakes what this node's others have queued. One that
        is to `resume` goes on with a stream of that name and epoch: see `client.resuming`.
        """
        self._check_alive()
        entry = to_publish(self.manifest, self.name, channel)
        if self._outgoing is None:
            self._outgoing = Outgoing(
                self.manifest,
                self._keyring,
                self._driver,
                self._on_publishing_refused,
                self._now_us,
            )
        packer = Packer(
            entry.arrow_schema(),
            self._now_us,
            valid_ms=entry.policy.limits.validity_ms,
            urgent=urgent,
        )
        if resume is not None:
            check_resumable(entry, urgent=urgent)
            resumed = ResumedPublisher(
                self._outgoing,
                entry.name,
                packer,
                resume,
                timeout_s=timeout_s,
                valid_for_s=valid_for_s,
            )
            self._outgoing.resume(resumed)
            self._on_held()
            return resumed
        publisher = Publisher(
            self._outgoing,
            entry.name,
            packer,
            batching=batching,
            max_batch=max_batch,
            linger_ms=linger_ms,
            buffer=buffer,
            buffer_bytes=buffer_bytes,
            timeout_s=timeout_s,
            valid_for_s=valid_for_s,
            urgent=urgent,
        )
        self._outgoing.add(publisher)
        self._on_held()
        return publisher

    def subscribe(
        self,
        channel: str,
        *,
        start: Start = LATEST,
        until: int | None = None,
        queue: int | None = None,
        queue_bytes: int = 64 * 1024 * 1024,
        overflow: str | Overflow | None = None,
        expired: bool = False,
    ) -> Subscription:
        """Subscribe to a channel; use it as `async with node.subscribe("orders") as orders`.

        `channel` may be a pattern, "plant/*/temp" or "plant/**": what matches comes together, also
        from channels that are made later. `start` is "latest" (what comes from now on), "earliest"
        (everything that is still held), a time (an aware datetime: the first publication stamped
        then or later), or, on a channel with total order, a position. There, `until` is a position
        that exists, at which it ends: brokers send what lies before it and nothing more, and each
        publication comes with the votes of every broker that can be reached. At most
        `queue` publications and about `queue_bytes` wait for the application; beyond that
        `overflow` says what happens: "wait" (read no more from the brokers), or discard the
        "oldest" or the "newest", which leaves a `Gap`. What is not said here is as the channel
        says. `expired` asks for publications that are not valid any more as well.
        """
        self._check_alive()
        entries = to_subscribe(self.manifest, self.name, channel)
        beginning, since_us = check_start(start, entries)
        check_until(until, beginning, entries)
        if queue is None:
            queue = max(entry.policy.limits.queue for entry in entries)
        if overflow is None:
            agreed = {entry.overflow for entry in entries}
            overflow = agreed.pop() if len(agreed) == 1 else Overflow.WAIT
        if self._incoming is None:
            self._incoming = Incoming(
                self.manifest,
                self._keyring,
                self._driver,
                self.telemetry,
                on_refused=self._on_listening_refused,
                on_held=self._on_held,
                on_undecodable=self._on_undecodable,
            )
        subscription = Subscription(
            self._incoming,
            channel,
            entries,
            self._incoming.prove,
            start=beginning,
            since_us=since_us,
            until=until or 0,
            queue=queue,
            queue_bytes=queue_bytes,
            overflow=check_overflow(overflow),
            expired=expired,
            now_us=self._now_us,
        )
        self._incoming.add(subscription)
        return subscription

    def subscribe_as(
        self,
        channel: str,
        name: str,
        *,
        start: Start = LATEST,
        anew: bool = False,
        ack: str = MANUAL,
        prefetch: int = 32,
        ack_timeout_s: float | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
    ) -> NamedSubscription:
        """A subscription that goes on where it stopped; `async with node.subscribe_as(…) as …`.

        `start` counts the first time only, `anew` begins again from there. With `ack="auto"` taking
        the next delivery acknowledges the last. At most `prefetch` are claimed ahead. The others
        are for names that the operator has not declared as shared; see `client.named`.
        """
        self._check_alive()
        entry = to_consume(self.manifest, self.name, channel)
        return NamedSubscription(
            self,
            entry,
            name,
            start=start,
            anew=anew,
            ack=ack,
            prefetch=prefetch,
            ack_timeout_s=ack_timeout_s,
            max_attempts=max_attempts,
            dead_letter=dead_letter,
        )

    def charter(self) -> bytes:
        """The manifest as its operator signed it, for others to see."""
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
        self._watching.begin(driver, self.manifest, self.name, role)
        for peer in self._reach.up:
            driver.peer_up(peer)
        return driver

    # --------------------------------------------------------- what the links say

    def receive(self, peer: NodeId, opened: Opened) -> None:
        """Messages of one packet: acknowledgements here, votes there."""
        outgoing, incoming = self._outgoing, self._incoming
        if incoming is None:
            if outgoing is not None:
                outgoing.driver.receive(peer, opened)
            return
        if outgoing is not None:
            acks = [item for item in opened if type(item[0]) is Ack or type(item[0]) is Refuse]
            if acks:
                outgoing.driver.receive(peer, acks)
                opened = [item for item in opened if type(item[0]) is not Ack]
        if opened:
            incoming.receive(peer, opened)

    def peer_up(self, peer: NodeId) -> None:
        """A broker is connected."""
        self._reach.gain(peer)
        for driver in self._drivers():
            driver.peer_up(peer)

    def peer_down(self, peer: NodeId) -> None:
        """A broker is not connected any more."""
        self._reach.lose(peer)
        for driver in self._drivers():
            driver.peer_down(peer)

    def unreachable(self, peer: NodeId, reason: DialFailure) -> None:
        """A dialed peer cannot be reached."""
        for driver in self._drivers():
            driver.unreachable(peer, reason)

    def _on_held(self) -> None:
        """The subscriber is held or goes on, or the node has begun to publish."""
        incoming = self._incoming
        if incoming is None:
            return
        incoming.paused = incoming.held and not incoming.awaits and self._outgoing is None
        if incoming.paused:
            self.links.pause_reading()
            return
        self.links.resume_reading()
        if not incoming.held:
            incoming.go_on(list(self._reach.up))

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

    def _on_listening_refused(self, effect: Refused) -> None:
        if self._incoming is not None:
            self._incoming.fail(self._refusal(effect), effect.channel)

    def _refusal(self, effect: Refused) -> UsageError:
        return UsageError(f"the cell {self.manifest.cell!r} refuses: {effect.reason}")

    # --------------------------------------------------------------------- epochs

    def read_manifest(self) -> None:
        """Take the manifest file's epoch if it is newer (brokers said that there is one)."""
        if self._manifest_path is None or not isinstance(self._links, Transport):
            return
        try:
            manifest = read_manifest(
                self._manifest_path,
                operator=self.manifest.operator,
                newer_than=self.manifest.epoch,
            )
            keyring = manifest.keyring(self.identity)
        except UsageError:
            return  # as long as it is wrong, the brokers' farewell says what is
        self.manifest, self._keyring = manifest, keyring
        for driver in self._drivers():
            driver.adopt(manifest, keyring)
        for role in (self._outgoing, self._incoming):
            if role is not None:
                role.adopt(manifest)
        self._links.renew(manifest, Greeter(keyring, CELL_FAMILY))

    # --------------------------------------------------------------------- ending

    def _drivers(self) -> list[Driver]:
        return [role.driver for role in (self._outgoing, self._incoming) if role is not None]

    def _fail(self, error: BaseException) -> None:
        """A broken invariant: nothing that this node says can be trusted any more."""
        self._end(error if isinstance(error, Exception) else RuntimeError(str(error)))

    def _end(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            for driver in self._drivers():
                driver.stop()
            for role in (self._outgoing, self._incoming):
                if role is not None:
                    role.fail(error)

    async def close(self) -> None:
        """Leave the cell: what was sent is written, what was not acknowledged is not waited for."""
        if self._incoming is not None:
            self._incoming.close()
        self._end(UsageError("this node is closed: connect again"))
        try:
            if self._links is not None:
                await self._links.close()
        finally:
            self._watching.end()

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
