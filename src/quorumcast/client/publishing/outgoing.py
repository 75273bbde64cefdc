"""The publishing role of a node: one publisher machine, its driver, and open publishers.

Several `Publisher`s may share a channel. They share its stream, and each knows the numbers of its
own publications. Urgent publishers of a channel share another stream. Each resumed publisher has a
stream of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from quorumcast.broadcast.application import (
    Acknowledged,
    Concluded,
    Contradicted,
    Refused,
    Renewed,
    Submit,
)
from quorumcast.cell.publishing.publisher import Publisher as PublisherMachine
from quorumcast.client.publishing.packing import Clock
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.client.publishing.resuming import ResumedPublisher
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import MAX_INCARNATION, Channel, NodeId, Stream
from quorumcast.core.machine import Machine
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.logs import log

#: Creates the driver of a role, with the node's links and telemetry.
MakeDriver = Callable[[str, Machine, dict[type, Callable[[Any], None]]], Driver]
#: Writes which brokers have done something, for time-outs. It takes the verb ("acknowledged") and
#: the brokers that have not; None stands for those that are not connected.
DescribeBrokers = Callable[[str, Sequence[NodeId] | None], str]

#: Random bits of an incarnation: two that begin in the same millisecond, because the clock stands
#: still across a restart, are the same once in 131,072 times. Times until the year 2248 fit beside.
_RANDOM_BITS = 17
#: Bits after the milliseconds: the random ones, and the one that is set in an urgent stream.
BITS_AFTER_MS = _RANDOM_BITS + 1
#: The latest time that fits; incarnations of later times differ by their random bits only.
_LATEST_MS = (MAX_INCARNATION >> BITS_AFTER_MS) - 1


def incarnation_at(now_us: int) -> int:
    """The incarnation of a publisher that starts now: clock milliseconds and random bits.

    It is even; the odd number after it is the incarnation of the urgent stream.
    """
    now_ms = min(max(now_us // 1_000, 0), _LATEST_MS)
    return now_ms << BITS_AFTER_MS | secrets.randbits(_RANDOM_BITS) << 1


class Outgoing:
    """The publishers of a node, and the machine that serves them.

    `resumed` is the incarnation of a resumed stream; 0 for the node's own.
    """

    def __init__(
        self,
        manifest: Manifest,
        keyring: Keyring,
        make_driver: MakeDriver,
        on_refused: Callable[[Refused], None],
        now_us: Clock,
        describe_brokers: DescribeBrokers,
    ) -> None:
        self._describe_brokers = describe_brokers
        self._machine = PublisherMachine(manifest, keyring, incarnation_at(now_us()))
        self.driver = make_driver(
            "publisher",
            self._machine,
            {
                Acknowledged: self._on_acknowledged,
                Renewed: self._on_renewed,
                Concluded: self._on_concluded,
                Contradicted: self._on_contradicted,
                Refused: on_refused,
            },
        )
        self._publishers: dict[Stream, list[Publisher]] = {}

    def add(self, publisher: Publisher) -> None:
        """Open a publisher: announce its stream to brokers."""
        channel, urgent = publisher.channel, publisher.urgent
        stream = self._machine.stream(channel, urgent)
        self._publishers.setdefault(stream, []).append(publisher)
        self.driver.carry_out(self._machine.open(channel, urgent))

    def room(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> int:
        """The number of publications that the machine accepts now."""
        return self._machine.room(channel, urgent, resumed)

    def submit(
        self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool = False, resumed: int = 0
    ) -> int:
        """Publish these contents; return the number of the last publication."""
        self.driver.feed(Submit(channel, bodies, urgent, resumed))
        return self._machine.published(channel, urgent, resumed)

    def describe_brokers(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> str:
        """Which brokers have acknowledged everything on a channel, and which have not."""
        lacking = self._machine.lacking(channel, urgent, resumed)
        return self._describe_brokers("acknowledged", lacking)

    def publisher_closed(self, publisher: Publisher) -> None:
        """Remove a publisher, and publish the history of its last publications."""
        channel, urgent = publisher.channel, publisher.urgent
        self._publishers[self._machine.stream(channel, urgent)].remove(publisher)
        self.driver.carry_out(self._machine.finish(channel, urgent))

    # ---------------------------------------------------------------- resuming

    def resume(self, publisher: ResumedPublisher) -> None:
        """Open a resumed publisher: ask brokers how far its stream is ordered."""
        channel, incarnation = publisher.channel, publisher.resume.incarnation
        stream = self._machine.stream(channel, resumed=incarnation)
        if self._publishers.get(stream):
            raise UsageError(
                f"this node publishes {publisher.resume.name!r}, epoch {publisher.resume.epoch}, "
                "already: close that publisher first"
            )
        self._publishers[stream] = [publisher]
        self.driver.carry_out(self._machine.open(channel, resumed=incarnation))

    def conclude(self, publisher: ResumedPublisher) -> None:
        """Ask whether the whole stream is ordered; `publisher.concluded` is called once it is."""
        effects = self._machine.conclude(publisher.channel, publisher.resume.incarnation)
        self.driver.carry_out(effects)

    def release(self, publisher: ResumedPublisher) -> None:
        """Remove a resumed publisher."""
        channel, incarnation = publisher.channel, publisher.resume.incarnation
        del self._publishers[self._machine.stream(channel, resumed=incarnation)]
        self.driver.carry_out(self._machine.release(channel, incarnation))

    # ------------------------------------------------------------ epochs, failures

    def adopt(self, manifest: Manifest) -> None:
        """Adopt a new epoch, in which the schemas of channels may have more columns."""
        for stream, publishers in self._publishers.items():
            entry = manifest.channel(stream.channel)
            for publisher in publishers:
                publisher.adopt(entry)

    def fail(self, error: Exception, channel: Channel | None = None) -> None:
        """End all publishers, or those of one channel, with an error."""
        for stream, publishers in self._publishers.items():
            if channel is None or channel == stream.channel:
                for publisher in publishers:
                    publisher.fail(error)

    # --------------------------------------------------------- told by the machine

    def _on_concluded(self, effect: Concluded) -> None:
        for publisher in self._publishers.get(effect.stream, ()):
            if isinstance(publisher, ResumedPublisher):
                publisher.concluded()

    def _on_contradicted(self, effect: Contradicted) -> None:
        for publisher in self._publishers.get(effect.stream, ()):
            if isinstance(publisher, ResumedPublisher):
                publisher.contradicted(effect.number)

    def _on_acknowledged(self, effect: Acknowledged) -> None:
        for publisher in self._publishers.get(effect.stream, ()):
            publisher.acknowledged(effect.upto)

    def _on_renewed(self, effect: Renewed) -> None:
        """Keep the publishers of a stream with the later one that replaces it."""
        if effect.former in self._publishers:
            self._publishers[effect.stream] = self._publishers.pop(effect.former)
        former, stream = effect.former, effect.stream
        behind_ms = (stream.incarnation - former.incarnation) >> BITS_AFTER_MS
        log.warning(
            f"{former.publisher} has published on {former.channel!r} with a clock that was "
            f"{behind_ms / 1000:,.1f} s ahead of this one: continuing after that incarnation, as "
            f"incarnation {stream.incarnation}; set the clock right"
        )
