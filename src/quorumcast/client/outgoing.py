"""The publishing role of a node: one publisher machine, its driver, and the open `Publisher`s.

Several `Publisher`s may share a channel; they share its stream, and each keeps track of its own
publications by their numbers. Urgent ones have a stream of their own, and so has each that resumes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from quorumcast.broadcast.application import (
    Acknowledged,
    Concluded,
    Contradicted,
    Refused,
    Renewed,
    Submit,
)
from quorumcast.cell.publishing import publisher as agent
from quorumcast.client.packing import Clock
from quorumcast.client.publishing import Publisher
from quorumcast.client.resuming import ResumedPublisher
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import MAX_INCARNATION, Channel, Stream
from quorumcast.core.machine import Machine
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.logs import log

#: Makes a driver for a role, with a node's links and telemetry.
MakeDriver = Callable[[str, Machine, dict[type, Callable[[Any], None]]], Driver]


#: Bits of an incarnation that are drawn, so that two lives in one millisecond differ.
RANDOM_BITS = 10
#: A clock that is further ahead counts as this one: lives that begin then differ by what is drawn.
_LATEST_MS = (MAX_INCARNATION >> RANDOM_BITS + 1) - 1


def incarnation_at(now_us: int) -> int:
    """The incarnation of a life that begins now: milliseconds of the clock, and some bits drawn.

    Each life has two, an even one and an odd one for what is urgent.
    """
    now_ms = min(max(now_us // 1_000, 0), _LATEST_MS)
    return (now_ms << RANDOM_BITS | secrets.randbits(RANDOM_BITS)) << 1


class Outgoing:
    """What a node publishes."""

    def __init__(
        self,
        manifest: Manifest,
        keyring: Keyring,
        make_driver: MakeDriver,
        on_refused: Callable[[Refused], None],
        now_us: Clock,
    ) -> None:
        self._machine = agent.Publisher(manifest, keyring, incarnation_at(now_us()))
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
        """Introduce its stream to the brokers."""
        channel, urgent = publisher.channel, publisher.urgent
        stream = self._machine.stream(channel, urgent)
        self._publishers.setdefault(stream, []).append(publisher)
        self.driver.carry_out(self._machine.open(channel, urgent))

    def adopt(self, manifest: Manifest) -> None:
        """Go on in a new epoch, in which channels may have more columns."""
        for stream, present in self._publishers.items():
            entry = manifest.channel(stream.channel)
            for publisher in present:
                publisher.adopt(entry)

    def room(self, channel: Channel, urgent: bool = False, resumed: int = 0) -> int:
        """How many more publications the machine takes now."""
        return self._machine.room(channel, urgent, resumed)

    def submit(
        self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool = False, resumed: int = 0
    ) -> int:
        """Publish these contents; the number of the last one."""
        self.driver.feed(Submit(channel, bodies, urgent, resumed))
        return self._machine.published(channel, urgent, resumed)

    def publisher_closed(self, publisher: Publisher) -> None:
        """It publishes no more."""
        channel, urgent = publisher.channel, publisher.urgent
        self._publishers[self._machine.stream(channel, urgent)].remove(publisher)
        self.driver.carry_out(self._machine.finish(channel, urgent))

    # ---------------------------------------------------------------- resuming

    def resume(self, publisher: ResumedPublisher) -> None:
        """Ask the brokers how far its stream is."""
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
        """Everything has been submitted; it is told what came of it."""
        effects = self._machine.conclude(publisher.channel, publisher.resume.incarnation)
        self.driver.carry_out(effects)

    def release(self, publisher: ResumedPublisher) -> None:
        """It publishes no more."""
        channel, incarnation = publisher.channel, publisher.resume.incarnation
        del self._publishers[self._machine.stream(channel, resumed=incarnation)]
        self.driver.carry_out(self._machine.release(channel, incarnation))

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
        if effect.former in self._publishers:
            self._publishers[effect.stream] = self._publishers.pop(effect.former)
        former, stream = effect.former, effect.stream
        behind_ms = (stream.incarnation - former.incarnation) >> RANDOM_BITS + 1
        log.warning(
            f"{former.publisher} has published on {former.channel!r} with a clock that was "
            f"{behind_ms / 1000:,.1f} s ahead of this one: going on after that life, as "
            f"incarnation {stream.incarnation}; set the clock right"
        )

    def fail(self, error: Exception, channel: Channel | None = None) -> None:
        """Nothing will be published any more (on this channel)."""
        for stream, present in self._publishers.items():
            if channel is None or channel == stream.channel:
                for publisher in present:
                    publisher.fail(error)
