"""A broker's logs: one for channels that fear lies, one for those that fear crashes alone.

All total-order channels of one kind share a log, so they share its batches, its leader and its
checkpoints; each channel has positions of its own. A log is durable if one of its channels is.
"""

from __future__ import annotations

from quorumcast.agents.desks import Desks
from quorumcast.core.ids import CELL, Channel, Millis, Stream, total_order
from quorumcast.core.limits import Limits
from quorumcast.core.machine import (
    Connected,
    Effect,
    Event,
    Persisted,
    Receive,
    Restored,
    TimerFired,
)
from quorumcast.core.messages import AnyMessage
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.execution import Surroundings
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.sequencer import Sequencer


class Sequencers:
    """The logs of one broker."""

    __slots__ = ("_by_log", "_desks", "_keyring", "_manifest")

    #: How a log is kept.
    kind: type[Sequencer] = Sequencer

    def __init__(self, manifest: Manifest, keyring: Keyring, desks: Desks) -> None:
        self._manifest = manifest
        self._keyring = keyring
        self._desks = desks
        self._by_log: dict[Protection, Sequencer] = {}
        self._found_logs()

    def adopt(self, manifest: Manifest) -> None:
        """Go on in a new epoch: a channel may be the first one of its log."""
        self._manifest = manifest
        self._found_logs()

    def _found_logs(self) -> None:
        for entry in self._manifest.channels:
            log = entry.policy.protection
            if entry.policy.total and log not in self._by_log:
                self._by_log[log] = self._found(log)

    def _found(self, log: Protection) -> Sequencer:
        manifest = self._manifest
        mine = [
            c.policy for c in manifest.channels if c.policy.total and c.policy.protection is log
        ]
        around = Surroundings(
            manifest.broker_ids,
            self._keyring,
            manifest.hash,
            limits=self._limits,
            may_publish=lambda stream: (
                self.log_of(stream.channel) is log
                and self._manifest.may_publish(stream.publisher, stream.channel)
            ),
            log_of=self._ordered,
        )
        quorums = OrderQuorums(manifest.quorums.n, manifest.quorums.f, log is Protection.BYZANTINE)
        return type(self).kind(
            log,
            quorums,
            around,
            durable=any(policy.journal for policy in mine),
            window=max(policy.limits.pipeline for policy in mine),
            checkpoint=max(policy.limits.checkpoint for policy in mine),
        )

    def log_of(self, channel: Channel) -> Protection | None:
        """The log that orders a channel, if one does."""
        entry = self._manifest.channel(channel)
        return entry.policy.protection if entry is not None and entry.policy.total else None

    def _limits(self, stream: Stream) -> Limits:
        entry = self._manifest.channel(stream.channel)
        return Limits() if entry is None else entry.policy.limits

    def _ordered(self, channel: Channel) -> OrderedLog | None:
        entry = self._manifest.channel(channel)
        if entry is None or not entry.policy.total:
            return None
        stream = total_order(channel)
        desk = self._desks.get(stream) or self._desks.open(stream, entry, CELL)
        carrier = None if desk is None else desk.carrier
        return carrier if isinstance(carrier, OrderedLog) else None

    def all(self) -> dict[Protection, Sequencer]:
        """Every log."""
        return self._by_log

    def late(self) -> list[str]:
        """Logs in which this broker is not where the others are, for people to look at."""
        return [f"the log {log.value!r}" for log, seq in self._by_log.items() if seq.late]

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            f"{log.value}/{name}": size
            for log, sequencer in self._by_log.items()
            for name, size in sequencer.sizes().items()
        }

    # ---------------------------------------------------------------- routing

    def handle(self, event: Event, now: Millis) -> list[Effect] | None:
        """What the log that an event concerns makes of it; None if it concerns none."""
        match event:
            case Receive(message=message):
                log = self._log_of_message(message)
            case TimerFired(timer=concerned):
                log = getattr(concerned, "log", None)
            case Persisted(record=Stored() as stored) | Restored(record=Stored() as stored):
                log = self.log_of(stored.offer.stream.channel)
            case Persisted(record=record) | Restored(record=record):
                log = getattr(record, "log", None)
            case Connected():
                return [
                    e for sequencer in self._by_log.values() for e in sequencer.handle(event, now)
                ]
            case _:
                return None
        sequencer = None if log is None else self._by_log.get(log)
        return None if sequencer is None else sequencer.handle(event, now)

    def _log_of_message(self, message: AnyMessage) -> Protection | None:
        named: Protection | None = getattr(message, "log", None)
        if named is not None:
            return named
        stream: Stream | None = getattr(message, "stream", None)
        return None if stream is None else self.log_of(stream.channel)
