"""A broker's logs: one for channels whose brokers may lie, one for those whose brokers only crash.

All total-order channels of one kind share a log, so they share its batches, its leader and its
checkpoints; each channel has positions of its own. A log is durable if one of its channels is. It
outlives all of them: it decides which epoch follows, and the manifest keeps its terms.

A broker that adopts an epoch, or starts in one, removes from its disk everything of channels that
the epoch does not have. The state of the log still knows how far their positions went: a new
channel of the same name goes on after them, so no signed statement is ever contradicted.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import CELL, EPOCHS, Channel, Millis, NodeId, Stream, total_order
from quorumcast.core.limits import MAX_NUMBER, Limits
from quorumcast.core.machine import (
    ArchiveReader,
    Connected,
    Effect,
    Event,
    Forget,
    Persisted,
    Receive,
    Record,
    Restored,
    TimerFired,
)
from quorumcast.core.message import Message
from quorumcast.core.quorum import Protection, Quorums
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.successor import check_successor
from quorumcast.manifest.view import View
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.epochs import within_epoch
from quorumcast.ordering.log import Held, OrderedLog
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.past import Placed
from quorumcast.ordering.sequencer import Sequencer


def anchored(manifest: Manifest, f: int) -> int:
    """Brokers that must hold what the logs decided so that others can learn it; 1 without one."""
    quorums = Quorums(manifest.quorums.n, f)
    return max([quorums.of_log(log).anchored for log in manifest.logs], default=1)


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of a log, and the progress of one broker in it."""

    leader: NodeId
    #: Leader changes in this epoch.
    regency: int
    #: Instances decided, executed, and covered by the last stable checkpoint.
    decided: int
    executed: int
    checkpoint: int
    #: The last instance of which this broker may have forgotten its votes.
    forgotten: int


class Sequencers:
    """The logs of one broker."""

    __slots__ = (
        "_archive",
        "_by_log",
        "_clean",
        "_contexts",
        "_judged",
        "_life",
        "_logs",
        "_older",
        "_served",
        "_view",
    )

    def __init__(
        self,
        view: View,
        served: ServedStreams,
        older: Collection[Protection] = (),
        *,
        life: bytes,
    ) -> None:
        #: Drawn anew whenever the broker starts.
        self._life = life
        self._view = view
        self._served = served
        #: Logs that there were in the epoch before the one in which this broker starts.
        self._older = older
        #: The last manifest that was checked, and its epoch; 0 if it may not follow this one.
        self._judged = (b"", 0)
        #: The log of every channel that has one, and when it was created, in the present epoch.
        self._logs = self._logs_now()
        #: Whether the disk was rid of deleted channels since this broker started.
        self._clean = False
        #: The disk of this broker, if it has one.
        self._archive: ArchiveReader | None = None
        self._by_log: dict[Protection, Sequencer] = {}
        #: The context of each log; it changes with the epoch.
        self._contexts: dict[Protection, LogContext] = {}
        self._start_logs()

    def begin_epoch(self) -> list[Effect]:
        """Go on in a new epoch, perhaps with other brokers and another log."""
        view = self._view
        self._older = ()
        self._judged = (b"", 0)
        # The driver has stored the manifest; the offer of it is not needed any more.
        effects: list[Effect] = [Forget(Stored, str(EPOCHS), view.epoch + 1)] * bool(self._by_log)
        effects += self._clear()
        before, self._logs = self._logs, self._logs_now()
        deleted = [channel for channel in before if before[channel] != self._logs.get(channel)]
        for log, sequencer in self._by_log.items():
            context = self._contexts[log]
            context.members, context.epoch = view.brokers, view.epoch
            effects += sequencer.begin_epoch(view.quorums.of_log(log), deleted)
        self._start_logs()
        return effects

    def _clear(self) -> list[Effect]:
        """Remove from disk what belongs to channels that this epoch does not have."""
        archive = self._archive
        if archive is None:
            return []
        now = self._logs_now()
        # One that has changed was deleted and created again while this broker was away.
        kept = {EPOCHS.channel} | {c for c in now if self._logs.get(c, now[c]) == now[c]}
        kinds: tuple[type[Record], ...] = (Placed, Held, Stored)
        return [
            Forget(kind, owner, MAX_NUMBER + 1)
            for kind in kinds
            for owner in archive.owners(kind)
            # The owner of an offer is its stream; names of publishers contain no slash.
            if (owner.rpartition("/")[0] if kind is Stored else owner) not in kept
        ]

    def _logs_now(self) -> dict[Channel, tuple[Protection, int]]:
        return {
            entry.name: (entry.policy.log, entry.since)
            for entry in self._view.channels
            if entry.policy.log is not None
        }

    # ----------------------------------------------------------------- epochs

    def offer_epoch(self, data: bytes, now: Millis) -> list[Effect]:
        """Let every log order this manifest."""
        return [e for log in self._by_log.values() for e in log.offer_epoch(data, now)]

    @property
    def passed(self) -> bytes | None:
        """The manifest that follows, once every log has executed it."""
        found = [sequencer.passed for sequencer in self._by_log.values()]
        return found[0] if found and all(data == found[0] for data in found) else None

    def _follows(self, data: bytes) -> int:
        if self._judged[0] != data:
            self._judged = (data, self._judge(data))
        return self._judged[1]

    def _judge(self, data: bytes) -> int:
        try:
            following = parse_manifest(data, operator=self._view.manifest.operator)
            if following.epoch <= self._view.epoch:
                return 0
            check_successor(self._view.manifest, following)
        except UsageError:
            return 0
        return following.epoch

    def _start_logs(self) -> None:
        for log in self._view.manifest.logs:
            if log not in self._by_log:
                self._by_log[log] = self._start(log)

    def _start(self, log: Protection) -> Sequencer:
        view = self._view
        terms = view.manifest.logs[log]
        context = LogContext(
            view.brokers,
            view.keyring,
            view.hash,
            limits=self._limits,
            may_publish=lambda stream: (
                self.log_of(stream.channel) is log
                and self._view.may_publish(stream.publisher, stream.channel)
            ),
            log_of=lambda channel: self._ordered(channel, log),
            life=self._life,
            hear_life=self._served.note_life,
            epoch=view.epoch,
            follows=self._follows,
            archive=self._archive if self._is_durable(log) else None,
        )
        self._contexts[log] = context
        return Sequencer(
            log,
            view.quorums.of_log(log),
            context,
            durable=terms.durable,
            window=terms.pipeline,
            checkpoint=terms.checkpoint,
            follows=log in self._older,
        )

    def log_of(self, channel: Channel) -> Protection | None:
        """The log that orders a channel, if one does."""
        entry = self._view.channel(channel)
        return None if entry is None else entry.policy.log

    def _limits(self, stream: Stream) -> Limits:
        entry = self._view.channel(stream.channel)
        return Limits() if entry is None else entry.policy.limits

    def _ordered(self, channel: Channel, log: Protection) -> OrderedLog | None:
        entry = self._view.channel(channel)
        if entry is None or entry.policy.log is not log:
            return None
        stream = total_order(channel)
        served = self._served.get(stream)
        begins = served is None
        served = served or self._served.open(stream, entry, CELL)
        carrier = None if served is None else served.carrier
        if not isinstance(carrier, OrderedLog):
            return None
        if begins:
            carrier.ledger.archive = self._contexts[log].archive
        return carrier

    def read_from(self, archive: ArchiveReader) -> None:
        """Read archived records here, for the logs that are durable."""
        self._archive = archive
        for log, context in self._contexts.items():
            context.archive = archive if self._is_durable(log) else None

    def _is_durable(self, log: Protection) -> bool:
        terms = self._view.manifest.logs.get(log)
        return terms is not None and terms.durable

    def all(self) -> dict[Protection, Sequencer]:
        """Every log."""
        return self._by_log

    def is_behind(self, channel: Channel) -> bool:
        """Whether this broker cannot tell yet up to where a channel is ordered."""
        entry = self._view.channel(channel)
        log = None if entry is None else entry.policy.log
        return log in self._by_log and self._by_log[log].is_behind

    def late(self) -> list[str]:
        """Logs in which this broker is behind, for people to read."""
        return [f"the log {log.value!r}" for log, seq in self._by_log.items() if seq.late]

    def status(self) -> dict[str, LogStatus]:
        """The leader of each log and the progress of this broker, for people to read."""
        return {
            log.value: LogStatus(
                leader=sequencer.leader,
                regency=within_epoch((standing := sequencer.standing()).regency),
                decided=standing.decided,
                executed=sequencer.executed,
                checkpoint=standing.checkpoint,
                forgotten=0 if standing.fresh else sequencer.blind,
            )
            for log, sequencer in self._by_log.items()
        }

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            f"{log.value}/{name}": size
            for log, sequencer in self._by_log.items()
            for name, size in sequencer.sizes().items()
        }

    # ---------------------------------------------------------------- routing

    def handle(self, event: Event, now: Millis) -> list[Effect] | None:
        """Hand an event to the log that it concerns; None if it concerns none."""
        effects = self._route(event, now)
        if self._clean or effects is None or isinstance(event, Restored):
            return effects
        # The first event after the start. An epoch that was ordered may have more channels.
        self._clean = True
        halted = any(sequencer.halted for sequencer in self._by_log.values())
        return effects if halted else effects + self._clear()

    def _route(self, event: Event, now: Millis) -> list[Effect] | None:
        match event:
            case Receive(message=Offer() as offer) | Persisted(record=Stored(offer=offer)) if (
                offer.stream == EPOCHS
            ):
                return self._to_all(event, now)
            case Receive(message=message):
                log = self._log_of_message(message)
            case TimerFired(timer=concerned):
                log = getattr(concerned, "log", None)
            case Persisted(record=Stored(offer=Offer(stream=Stream(channel=channel))) as record) | (
                Persisted(record=Placed(channel=channel) | Held(channel=channel) as record)
            ):
                log = self.log_of(channel)
                if log is None:  # it was on its way to disk when the channel was deleted
                    return [Forget(type(record), record.owner, record.place + 1, record.place)]
            case Persisted(record=record) | Restored(record=record):
                log = getattr(record, "log", None)
            case Connected():
                return self._to_all(event, now)
            case _:
                return None
        sequencer = None if log is None else self._by_log.get(log)
        return None if sequencer is None else sequencer.handle(event, now)

    def _to_all(self, event: Event, now: Millis) -> list[Effect]:
        return [e for sequencer in self._by_log.values() for e in sequencer.handle(event, now)]

    def _log_of_message(self, message: Message) -> Protection | None:
        named: Protection | None = getattr(message, "log", None)
        if named is not None:
            return named
        stream: Stream | None = getattr(message, "stream", None)
        return None if stream is None else self.log_of(stream.channel)
