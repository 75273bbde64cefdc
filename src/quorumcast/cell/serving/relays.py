"""A broker's relayed channels: what its uplinks accepted goes into streams that it serves.

Only the broker's own uplink, or f+1 other brokers (`recovery`), can bring a relayed stream: nobody
in this cell publishes on it.

When an uplink asks where to go on, the other brokers of the cell come first: they are near, and a
parent with many children should not send everything again to each broker that restarts. The broker
answers with `Follow` once they have brought what they hold, or after PATIENT_TICKS. A stream of
which they seemed to hold more than they brought is read anew from the parent, because up to f of
them may lie, and with 2f+1 brokers a restarted one has only f correct ones beside it. That is done
once in the life of a broker: later the parent may retain less than the broker holds.

Until a broker holds everything up to where the parent's streams ended when its uplink joined, it
does not tell readers that join where to begin. They would begin with what is past, which has come
to the child before, or was published while the child was away. A reader waits for at most
PATIENCE_MS: the parent may be out of reach, or a lying publisher have left a stream unfinished.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Cursor
from quorumcast.broadcast.relayed import (
    Attach,
    Follow,
    ParentEnds,
    RelayCarrier,
    Relayed,
    RelayedGap,
    RelayEvent,
)
from quorumcast.cell.serving.journal import Journal
from quorumcast.cell.serving.recovering.recovery import Recovery
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import DIGEST_SIZE, Channel, Millis, Stream, split_digests
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.machine import Drop, DropReason, Effect
from quorumcast.manifest.view import View

#: Ticks of the recovery for which other brokers may report, and for which they may bring the past.
REPORT_TICKS = 8
PATIENT_TICKS = 60
#: For how long readers that join wait for a broker that does not know where the parent's streams
#: end: longer than other brokers may take to bring the past.
PATIENCE_MS = 15_000


class Relays:
    """The relayed channels of one broker."""

    __slots__ = (
        "_attached",
        "_began",
        "_ends",
        "_journal",
        "_recovery",
        "_served",
        "_view",
        "_waits",
    )

    def __init__(
        self, view: View, served: ServedStreams, journal: Journal, recovery: Recovery
    ) -> None:
        self._view = view
        self._served = served
        self._journal = journal
        self._recovery = recovery
        #: For how many ticks the uplink of a channel of the manifest has waited.
        self._waits: dict[Channel, int] = {}
        #: By channel: where the parent's streams ended when the uplink joined, as far as this
        #: broker does not hold that much yet. Channels of which this is unknown are not there.
        self._ends: dict[Channel, dict[Stream, int]] = {}
        #: When uplinks first asked where to go on, by channel; and when this broker began.
        self._attached: dict[Channel, Millis] = {}
        self._began: Millis | None = None

    def handle(self, event: RelayEvent) -> tuple[ServedStream | None, list[Effect]]:
        """Take an event of an uplink; returns the stream that it concerns, and what follows."""
        match event:
            case Attach(channel=channel):
                self._waits[channel] = 0
                self._ends.pop(channel, None)
                self._attached[channel] = self._served.now
                return None, self._recovery.wake()
            case ParentEnds(channel=channel, ends=ends):
                self._ends[channel] = {cursor.stream: cursor.next for cursor in ends}
                return None, []
            case Relayed() | RelayedGap():
                return self._take(event)
            case _:
                return None, []

    def _take(self, event: Relayed | RelayedGap) -> tuple[ServedStream | None, list[Effect]]:
        served = self._open(event.stream)
        if served is None and self._served.over(event.stream):
            # A later life of its publisher has ended here before this one came. Readers of the
            # child are told how much of it they missed.
            if isinstance(event, RelayedGap):
                end = event.upto + 1
            else:
                end = event.first + len(event.bodies)
            self._served.learn_ending(event.stream, end)
        if served is None or not isinstance(served.carrier, RelayCarrier):
            return None, []
        carrier, effects = served.carrier, list[Effect]()
        is_new, end = not served.genuine, carrier.ledger.next
        if isinstance(event, RelayedGap):
            carrier.resume(event.upto + 1)
        elif self._contradicts(event):
            return None, [Drop(DropReason.CONFLICT, event.stream.publisher)]
        else:
            effects += carrier.take(event)
        if is_new:
            # It counts as genuine from now on, which may make it, or an earlier one, one too many.
            self._served.open(event.stream, served.entry, self._view.me)
            if self._served.get(event.stream) is None:
                return None, []
        if carrier.final_from > end:
            # Numbers were left out, which other brokers of this cell may hold.
            effects += self._recovery.left_out(event.stream)
        return served, effects

    def is_behind(self, channel: Channel) -> bool:
        """Whether this broker cannot tell yet where a reader that joins a channel begins."""
        entry = self._view.channel(channel)
        if entry is None or not entry.policy.relayed:
            return False
        ends = self._ends.get(channel)
        for stream, end in list({} if ends is None else ends.items()):
            if self._reached(stream) >= end:
                del self._ends[channel][stream]
        if ends is not None and not ends:
            return False
        now = self._served.now
        return now - self._attached.get(channel, self._begin(now)) < PATIENCE_MS

    def _begin(self, now: Millis) -> Millis:
        """When this broker began, as far as it matters here."""
        if self._began is None:
            self._began = now
        return self._began

    def _reached(self, stream: Stream) -> int:
        """The next number of a stream; one that is over here goes no further."""
        ledger = self._served.ledger(stream)
        if ledger is None:
            return MAX_NUMBER if self._served.over(stream) else 1
        return ledger.next

    def tick(self) -> list[Effect]:
        """Let uplinks go on for which other brokers can do no more."""
        self._begin(self._served.now)
        effects: list[Effect] = []
        for channel, ticks in list(self._waits.items()):
            self._waits[channel] = ticks + 1
            if self._is_due(channel, ticks):
                del self._waits[channel]
                effects.append(Follow(channel, self._cursors(channel)))
        return [*effects, *self._recovery.wake()] if self._waits else effects

    def _is_due(self, channel: Channel, ticks: int) -> bool:
        """Whether the uplink of a channel is to go on now."""
        if ticks >= PATIENT_TICKS:
            return True
        heard = self._recovery.has_heard(channel) or ticks >= REPORT_TICKS
        return heard and not self._recovery.is_filling(channel)

    def _open(self, stream: Stream) -> ServedStream | None:
        """The stream of a relayed channel; None if it is over, or the channel is not one."""
        entry = self._view.channel(stream.channel)
        if entry is None or not entry.policy.relayed:
            return None
        served = self._served.get(stream)
        if served is not None and served.genuine:
            return served
        return self._served.open(stream, entry, self._view.me)

    def _contradicts(self, run: Relayed) -> bool:
        """Whether this broker vouched for something else in an earlier life."""
        journaled = self._journal.digests(run.stream, run.first, len(run.digests) // DIGEST_SIZE)
        said = split_digests(run.digests)
        return any(
            known not in (None, digest) for known, digest in zip(journaled, said, strict=True)
        )

    def _cursors(self, channel: Channel) -> tuple[Cursor, ...]:
        """Where this broker goes on with the streams of which it has held something."""
        cursors: list[Cursor] = []
        for served in self._served.all():
            carrier = served.carrier
            if served.stream.channel != channel or not isinstance(carrier, RelayCarrier):
                continue
            ledger = carrier.ledger
            if self._recovery.has_failed(served.stream) and not carrier.relayed:
                ledger.begin_anew()
            elif len(ledger) or ledger.exhausted:
                cursors.append(Cursor(served.stream, ledger.next))
        return tuple(cursors)
