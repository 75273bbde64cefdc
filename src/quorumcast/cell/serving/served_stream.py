"""A stream that a broker serves: its state around the carrier of the channel's protocol."""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.contract import Carrier
from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import Ack, Echo, Ready
from quorumcast.broadcast.signed_history import read_history
from quorumcast.cell.serving.journal import Attested, Vouched, VouchRecord
from quorumcast.cell.serving.notary import Notary
from quorumcast.core.ids import Lane, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_NUMBER, MAX_RUN
from quorumcast.core.machine import Effect, Send
from quorumcast.manifest.manifest import ChannelEntry

#: Reports of missed publications that are believed at once, per subscriber: more than it takes to
#: exclude f faulty brokers from a chain.
COMPLAINTS = 8


class Place(msgspec.Struct):
    """How far a subscriber has accepted a stream."""

    number: int
    #: Bytes of what lies before it, by the running total of its ledger (`Ledger.gone_bytes`).
    before: int


class ServedStream:
    """What a broker keeps for one stream that it serves."""

    __slots__ = (
        "_acked",
        "_acked_histories",
        "_complaints",
        "_journaled",
        "_quarter",
        "_unsynced",
        "begun_at",
        "carrier",
        "closed",
        "entry",
        "from_peers",
        "introducer",
        "limit",
        "missed",
        "missed_upto",
        "notary",
        "over",
        "reached",
        "refused_for",
        "settled",
        "stream",
    )

    def __init__(
        self, stream: Stream, entry: ChannelEntry, carrier: Carrier, notary: Notary
    ) -> None:
        self.stream = stream
        self.entry = entry
        self.carrier = carrier
        self.notary = notary
        #: Whether peers have ended this stream, so that nothing more of it will come.
        self.over = False
        #: When its publisher opened it here; until then, when another node did.
        self.begun_at = Millis(0)
        #: The node whose message made this broker open the stream, until its publisher opens it.
        self.introducer: NodeId | None = None
        #: Whether it began by state transfer, and whether that is the only way it continues.
        self.from_peers = False
        self.closed = False
        #: Publications that subscribers reported as missed on the fast path.
        self.missed = 0
        self.missed_upto = 0
        #: How far each subscriber is for which the publisher waits; only entitled ones.
        self.reached: dict[NodeId, Place] = {}
        #: Those of them for whose sake a run was refused, until they make progress.
        self.refused_for: dict[NodeId, None] = {}
        #: The publisher may send numbers up to this one, for the sake of these subscribers.
        self.limit = MAX_NUMBER
        #: Reports of each subscriber that were believed, and the number from which on the next one
        #: will be; only those with the right to subscribe.
        self._complaints: dict[NodeId, tuple[int, int]] = {}
        #: What was acknowledged last, on either lane.
        self._acked: tuple[int, ...] = ()
        self._acked_histories: tuple[int, ...] = ()
        self._quarter = max(1, entry.policy.limits.window // 4)
        #: Writes of a run that are under way, by lane and first number; at most a window of them.
        self._unsynced: dict[tuple[Lane, int], int] = {}
        #: Where each lane begins according to the journal, and up to where it is settled.
        self._journaled = {lane: self.ledger(lane).floor for lane in Lane}
        self.settled = dict.fromkeys(Lane, 0)

    def lane(self, lane: Lane) -> Carrier:
        """The carrier of a lane."""
        histories = self.carrier.histories if lane is Lane.HISTORY else None
        return self.carrier if histories is None else histories

    def lanes(self) -> list[tuple[Stream, Carrier]]:
        """Both lanes of the stream, or the only one."""
        histories = self.carrier.histories
        lanes = [(self.stream, self.carrier)]
        return lanes if histories is None else [*lanes, (self.stream.history, histories)]

    @property
    def genuine(self) -> bool:
        """Whether the publisher itself opened this stream, or the protocol delivered part of it.

        Others are not reported to anybody: a lying broker can name streams that do not exist.
        """
        return self.introducer == self.stream.publisher or self.carrier.ledger.next > 1

    @property
    def unsettled(self) -> bool:
        """Whether brokers settle this stream together, and have settled nothing of it so far."""
        ledger = self.carrier.ledger
        known = self.from_peers or ledger.kept > 0 or ledger.floor > ledger.start
        return self.entry.policy.settles and not known

    @property
    def waits(self) -> bool:
        """Whether something is held that waits to be settled."""
        return any(carrier.waits for _, carrier in self.lanes())

    def close(self) -> None:
        """Drop what is not settled; the rest of the stream can only come from other brokers."""
        self.closed = True
        self.carrier.give_up()

    @property
    def untouched(self) -> bool:
        """Whether nothing was published on this stream, and no vote received."""
        return self.carrier.ledger.next == 1 and not any(self.carrier.sizes().values())

    def ledger(self, lane: Lane) -> Ledger:
        """What is held of a lane."""
        return self.lane(lane).ledger

    def continues(self, lane: Lane) -> bool:
        """Whether a lane is fetched from where it is; an empty data lane may begin later.

        Histories are fetched from the first one: on a chain nothing else brings what they name.
        """
        return lane is Lane.HISTORY or self.ledger(lane).begun

    def echoes(self, lane: Lane) -> bool:
        """Whether brokers echo the runs of a lane before they vote for them."""
        return lane is Lane.HISTORY or self.entry.policy.whole_runs

    def echoed(self, vote: Echo | Ready) -> list[VouchRecord]:
        """The records that an echo of ours needs: its run, and the numbers that a history names."""
        run = self.lane(vote.stream.lane).echoed(vote.first)
        if run is None:
            return []
        records: list[VouchRecord] = [Vouched(vote.stream, vote.first, run[0])]
        if vote.stream.lane is Lane.HISTORY and (found := read_history(run[1][0], self.stream)):
            records.append(Attested(self.stream, found[1].first, found[1].digests))
        return records

    def writing(self, record: VouchRecord) -> None:
        """Note that a record is on its way to the journal."""
        if isinstance(record, Vouched):
            key = (record.stream.lane, record.first)
            self._unsynced[key] = self._unsynced.get(key, 0) + 1

    def written(self, record: Vouched) -> None:
        """Note that the journal holds a record."""
        key = (record.stream.lane, record.first)
        left = self._unsynced.pop(key, 1) - 1
        if left:
            self._unsynced[key] = left

    def sayable(self, lane: Lane) -> int:
        """The first number of a lane that may not be sent again yet: its journal record is late."""
        return min(
            (first for unsynced, first in self._unsynced if unsynced is lane),
            default=self.ledger(lane).next,
        )

    def released(self) -> list[tuple[Stream, int]]:
        """Lanes of which so much was released that the journal should shrink, with their floor.

        Not with every publication: a journal that is a little longer than the ledger costs less.
        """
        limits = self.entry.policy.limits
        step = max(1, min(limits.retained_publications // 4, MAX_RUN))
        found: list[tuple[Stream, int]] = []
        for stream, carrier in self.lanes():
            floor = carrier.ledger.floor
            if floor - self._journaled[stream.lane] >= step:
                self._journaled[stream.lane] = floor
                found.append((stream, floor))
        return found

    @property
    def complaints(self) -> int:
        """The number of subscribers that ever reported missed publications."""
        return len(self._complaints)

    def note_missed(self, reader: NodeId, first: int, last: int) -> bool:
        """A subscriber missed these on the fast path; False if it reports that too often.

        Nobody can check a report, and it makes the publisher change its chain and lower α. So a
        subscriber is believed a few times at once, and then only after twice as many publications
        as the time before. An honest one loses speed at worst: histories bring it everything. What
        several subscribers miss counts once.
        """
        if not self.missed_upto < last < self.carrier.ledger.next:
            return True
        times, after = self._complaints.get(reader, (0, 0))
        if last < after:
            return False
        pause = 0 if times + 1 < COMPLAINTS else self._quarter << min(times + 1 - COMPLAINTS, 60)
        self._complaints[reader] = (times + 1, last + pause)
        self.missed += last - max(self.missed_upto, first - 1)
        self.missed_upto = last
        return True

    def ack(self, lane: Lane, *, told: bool) -> list[Effect]:
        """Acknowledgements that are due: if the publisher sent something (`told`), or progress."""
        carrier = self.carrier
        sends: list[Effect] = []
        if self.closed or self.entry.policy.relayed:
            return sends  # a relayed stream has no publisher in this cell
        if (histories := carrier.histories) is not None:
            sends += self._ack_histories(histories, told and lane is Lane.HISTORY)
        upto, settled = carrier.upto, carrier.settled
        quarters = carrier.ledger.next // self._quarter
        progress = (upto, settled, self.missed, quarters, self.limit)
        if told or progress != self._acked:
            self._acked = progress
            credit = max(0, min(carrier.credit, self.limit))
            answer = Ack(self.stream, upto, credit, settled, self.missed)
            sends.append(Send((self.stream.publisher,), answer))
        return sends

    def _ack_histories(self, carrier: Carrier, told: bool) -> list[Effect]:
        progress = (carrier.upto, carrier.settled)
        if not told and progress == self._acked_histories:
            return []
        self._acked_histories = progress
        answer = Ack(self.stream.history, carrier.upto, carrier.credit, carrier.settled)
        return [Send((self.stream.publisher,), answer)]
