"""A broker's desks: one per stream, with the carrier that the channel's policy asks for.

This is where a new broadcast protocol is plugged in (`carriers`). Streams are bounded per channel,
publisher and *introducer*, the node that first spoke of them: a lying broker that invents streams
displaces only its own inventions, never a stream that the publisher itself has opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.bracha import Bracha
from quorumcast.broadcast.chain import Chain
from quorumcast.broadcast.contract import Carrier, CarrierContext
from quorumcast.broadcast.history import History
from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.quota import Quota
from quorumcast.broadcast.times import Search
from quorumcast.cell.messages import Position
from quorumcast.cell.naming import name_in_turn
from quorumcast.cell.serving.desk import Desk
from quorumcast.cell.serving.notary import Lives, Notary
from quorumcast.cell.serving.pledges import Ended, EndedStreams, Life
from quorumcast.core.ids import Channel, Lane, NodeId, Stream
from quorumcast.core.machine import Effect
from quorumcast.core.quorum import Broadcast
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View
from quorumcast.ordering.log import OrderedLog

#: Streams per publisher and channel that were opened and not used, or are known by hearsay alone.
MAX_UNUSED = 4
#: The journal remembers so many times what is retained of streams that nobody came back to.
UNCLAIMED = 3

Owner = tuple[Channel, NodeId]


class StreamStatus(msgspec.Struct, frozen=True):
    """What one broker holds of a stream: numbers from `base` to before `next`."""

    stream: str
    base: int
    next: int
    #: Every number up to this one is settled among brokers.
    settled: int


class Desks:
    """All streams of a broker."""

    __slots__ = (
        "_by_stream",
        "_ended",
        "_endings",
        "_lives",
        "_quotas",
        "_readers",
        "_released",
        "_view",
    )

    #: The broker side of each protocol; a new protocol is added here.
    carriers: ClassVar[dict[Broadcast, Callable[[Stream, CarrierContext], Carrier]]] = {
        Broadcast.DIRECT: Relay,
        Broadcast.AUTHENTICATED: Relay,
        Broadcast.BRACHA: Bracha,
        Broadcast.CHAIN: Chain,
        Broadcast.CONSENSUS: OrderedLog,
    }
    history: ClassVar[Callable[[Stream, CarrierContext, Carrier], Carrier]] = History

    def __init__(
        self,
        view: View,
        readers: Callable[[Channel], Sequence[NodeId]],
        life: bytes,
        released: Callable[[Stream], int] = lambda _: 1,
    ) -> None:
        #: Whose memory reaches how far.
        self._lives = Lives(life)
        self._view = view
        self._readers = readers
        #: Where the part of a lane begins that an earlier life retained.
        self._released = released
        #: Desks by the data lane of their stream; bounded per channel, publisher and introducer.
        self._by_stream: dict[Stream, Desk] = {}
        #: Streams that are over, per channel and publisher of the manifest.
        self._ended: dict[Owner, EndedStreams] = {}
        #: Streams that have ended since somebody asked.
        self._endings: list[Stream] = []
        #: What retention counts together, per channel, publisher and lane.
        self._quotas: dict[tuple[Owner, Lane], Quota] = {}

    def recount(self) -> list[tuple[Desk, list[Effect]]]:
        """Go on in a new epoch; streams that are there already go on with its brokers.

        Those of a channel that is gone go with it, and never come back under its name.
        """
        self._lives.retain(self._view.brokers)
        for data in [s for s in self._by_stream if self._view.channel(s.channel) is None]:
            self._remove(data)
            over = self._over_of(data)
            over.upto = max(over.upto, data.incarnation)
        return [(desk, desk.carrier.recount()) for desk in self.all()]

    def __len__(self) -> int:
        return len(self._by_stream)

    @property
    def remembered(self) -> int:
        """How many streams are known by their end alone."""
        return sum(len(over.ends) for over in self._ended.values())

    @property
    def life(self) -> bytes:
        """The life in which this broker is."""
        return self._lives.own

    def hear_life(self, peer: NodeId, life: bytes) -> None:
        """A peer says in which life it is; streams that began before its first word take it."""
        if peer not in self._lives.others:
            for desk in self._by_stream.values():
                desk.notary.peers.setdefault(peer, life)
        self._lives.others[peer] = life

    def get(self, data: Stream) -> Desk | None:
        """The desk of a stream."""
        return self._by_stream.get(data)

    def ledger(self, stream: Stream) -> Ledger | None:
        """The ledger of one lane of a stream."""
        desk = self._by_stream.get(stream.data)
        return None if desk is None else desk.ledger(stream.lane)

    def over(self, data: Stream) -> bool:
        """Whether a stream has given way to later ones and never comes back."""
        ended = self._ended.get((data.channel, data.publisher))
        return ended is not None and data.incarnation <= ended.upto

    def newest(self, data: Stream) -> int:
        """The newest incarnation that a stream's publisher has begun on its channel; -1 if none.

        What only other brokers speak of does not count: one of them may have invented it.
        """
        begun = [desk.stream.incarnation for desk in self._lives_of(data)]
        ended = self._ended.get((data.channel, data.publisher))
        return max(-1 if ended is None else max(ended.upto, ended.closed), *begun, -1)

    def all(self) -> list[Desk]:
        """Every desk, oldest stream first."""
        return list(self._by_stream.values())

    def status(self) -> dict[Stream, StreamStatus]:
        """What is held of every stream, for people to look at."""
        carriers = {stream: desk.carrier for stream, desk in self._by_stream.items()}
        return {
            stream: StreamStatus(str(stream), held.ledger.base, held.ledger.next, held.settled)
            for stream, held in carriers.items()
        }

    def open(self, data: Stream, entry: ChannelEntry, introducer: NodeId) -> Desk | None:
        """The desk of a stream that somebody entitled speaks of; None if the stream is over."""
        desk = self._by_stream.get(data)
        if desk is None and self.over(data):
            return None
        # What other brokers have settled this one gets back from them, in its own name.
        closed = data.incarnation <= self._over_of(data).closed
        from_peers = introducer == self._view.me
        if desk is None and closed and not from_peers:
            return None
        if desk is None:
            policy = entry.policy
            segment, lives = policy.limits.segment, self._lives
            # Without a journal nobody remembers the stream longer than its life.
            lasting = policy.total or policy.journal
            peers = lives.others if lasting else dict(lives.others)
            notary = Notary(data, self._view.keyring, policy.basis, segment, lives.own, peers)
            desk = Desk(data, entry, self._make_carrier(data, entry), notary)
            desk.closed, desk.from_peers = closed, from_peers
            self._by_stream[data] = desk
            if not policy.total:
                self._share(desk)
        desk.introducer = introducer
        self._make_room(desk, entry.policy.limits.streams_per_publisher)
        return self._by_stream.get(data)

    def _make_carrier(self, data: Stream, entry: ChannelEntry) -> Carrier:
        around = CarrierContext(self._view, entry.policy, self._readers)
        carrier = type(self).carriers[entry.policy.broadcast](data, around)
        if entry.policy.has_history:
            carrier = type(self).history(data, around, carrier)
        carrier.begin_at(self._released(data), self._released(data.history))
        return carrier

    # ------------------------------------------------------------- endings

    def _share(self, desk: Desk) -> None:
        """Let retention count a stream together with its publisher's other lives."""
        for stream, carrier in desk.lanes():
            key = ((stream.channel, stream.publisher), stream.lane)
            quota = self._quotas.get(key)
            if quota is None:
                quota = self._quotas[key] = Quota(desk.entry.policy.limits)
            quota.limit(desk.entry.policy.limits)
            carrier.ledger.share(quota, stream.incarnation)
            # The life before it is not the newest any more, and may have nothing left.
            quota.emptied = True

    def _remove(self, data: Stream) -> None:
        desk = self._by_stream.pop(data)
        if desk.entry.policy.total:
            return
        desk.close()
        for stream, carrier in desk.lanes():
            carrier.ledger.quota.leave(stream.incarnation)

    def _over_of(self, data: Stream) -> EndedStreams:
        return self._ended.setdefault((data.channel, data.publisher), EndedStreams())

    def _make_room(self, new: Desk, limit: int) -> None:
        """Streams that the publisher opened give way by age, and never come back.

        A broker that forgot what it vouched for and opened the stream anew would contradict itself.
        Streams that were opened and not used have nothing to contradict: they give way first and
        may come back. Nor have those known by hearsay alone: of those each introducer may have a
        few, and displaces only its own. Streams of which nothing is settled give way among
        themselves: a lying publisher may begin any number of them at one broker alone.
        """
        rivals = [
            desk
            for desk in self._by_stream.values()
            if desk.stream.channel == new.stream.channel
            and desk.stream.publisher == new.stream.publisher
            and desk.genuine == new.genuine
            and (new.genuine or desk.introducer == new.introducer)
        ]
        unused = [d for d in rivals if d is not new and (d.untouched or not d.genuine)]
        unused.sort(key=lambda desk: desk.stream.incarnation if desk.genuine else 0)
        used = [desk for desk in rivals if desk not in unused]
        used.sort(key=lambda desk: desk.stream.incarnation)
        few = min(limit, MAX_UNUSED)
        for stale in unused[: max(0, len(unused) + (new.untouched or not new.genuine) - few)]:
            self._remove(stale.stream)
            if stale.genuine and not stale.untouched:
                self._end(stale)
        settled = [desk for desk in used if not desk.unsettled]
        for stale in settled[: max(0, len(settled) - limit)]:
            self._remove(stale.stream)
            self._end(stale)
        unsettled = [desk for desk in used if desk.unsettled]
        for stale in unsettled[: max(0, len(unsettled) - limit)]:
            self._close(stale)

    def _close(self, desk: Desk) -> None:
        """Give up what is not settled of a stream; all of it, if nothing is."""
        if not desk.unsettled:
            desk.close()
            return
        self._remove(desk.stream)
        over = self._over_of(desk.stream)
        over.closed = max(over.closed, desk.stream.incarnation)
        self._endings.append(desk.stream)

    def relieve(self, data: Stream) -> None:
        """Give up what is not settled of earlier lives until half of what may be is left.

        Not of the newest life, for its publisher may be about to have it settled: more of it is
        refused instead.
        """
        lives = self._lives_of(data)
        for desk in lives:
            quotas = [carrier.ledger.quota for _, carrier in desk.lanes()]
            if all(quota.relieved for quota in quotas):
                break
            if desk.stream.life < lives[-1].stream.life and not desk.closed and desk.waits:
                self._close(desk)
        for desk in lives[-1:]:
            for _, carrier in desk.lanes():
                carrier.ledger.quota.crowded = False

    def _lives_of(self, data: Stream) -> list[Desk]:
        """The streams that a publisher itself has begun on a channel, oldest life first."""
        owner = (data.channel, data.publisher)
        found = [
            desk
            for desk in self._by_stream.values()
            if (desk.stream.channel, desk.stream.publisher) == owner and desk.genuine
        ]
        return sorted(found, key=lambda desk: desk.stream.incarnation)

    def _end(self, desk: Desk) -> None:
        self._over_of(desk.stream).add(desk.stream.incarnation, desk.carrier.ledger.next)
        self._endings.append(desk.stream)

    def take_endings(self) -> list[Stream]:
        """Streams that have ended since somebody asked."""
        endings, self._endings = self._endings, []
        return endings

    def end_exhausted(self, data: Stream) -> None:
        """End the streams of earlier lives of which retention has left nothing, oldest first.

        Not the newest life, for its publisher may go on. And none before an older one has ended:
        what is over is told by a single incarnation.
        """
        quota = self._quotas.get(((data.channel, data.publisher), Lane.DATA))
        if quota is not None:
            quota.emptied = False
        lives = self._lives_of(data)
        for desk in lives:
            if desk.stream.life == lives[-1].stream.life:
                break
            if desk.untouched or desk.unsettled:
                continue
            if not desk.carrier.ledger.exhausted or desk.carrier.is_under_way:
                break  # the cell may be about to deliver it
            self._remove(desk.stream)
            self._end(desk)

    def end_unclaimed(self, data: Stream, pledged: Sequence[Life]) -> None:
        """End the oldest streams of which only the journal knows, where there are too many.

        They are of an earlier life of this broker, and neither their publisher nor another broker
        has come back to them. One life of a broker leaves up to twice what is retained, settled or
        not; three times that is more than it could have been asked to keep.
        """
        quota = self._quotas.get(((data.channel, data.publisher), Lane.DATA))
        if quota is None or not pledged:
            return
        left, places = UNCLAIMED * quota.most, UNCLAIMED * quota.most_lives
        for life in sorted(pledged, key=lambda life: -life.stream.incarnation):
            left -= life.count
            places -= 1
            if (left < 0 or places < 0) and life.stream not in self._by_stream:
                self._over_of(data).add(life.stream.incarnation, life.next)
                self._endings.append(life.stream)

    def ended(self, data: Stream) -> Ended:
        """What the journal should know of the streams of a publisher that are over."""
        over = self._over_of(data)
        ends = tuple(over.ends.items())
        return Ended(data.channel, data.publisher, over.upto, ends, over.closed)

    def remember(self, record: Ended) -> None:
        """Take in what the journal knows."""
        over = EndedStreams(record.incarnation, record.closed, dict(record.ends))
        self._ended[record.channel, record.publisher] = over

    def learn_ending(self, data: Stream, end: int) -> None:
        """Enough peers say that a stream is over, and before which number it ended.

        What is held of it stays as long as retention leaves it; nothing more will come.
        """
        desk = self._by_stream.get(data)
        if desk is not None and len(desk.carrier.ledger):
            desk.over = True
            return
        if desk is not None:
            self._remove(data)
            end = max(end, desk.carrier.ledger.next)
        if self._over_of(data).learn(data.incarnation, end):
            self._endings.append(data)

    def positions_of_ended(self, channel: Channel) -> list[Position]:
        """Streams of which nothing is held any longer: whoever lacks them must be told."""
        return [
            Position(Stream(channel, publisher, incarnation), end, end, over=True)
            for (name, publisher), over in self._ended.items()
            if name == channel
            for incarnation, end in over.ends.items()
        ]

    def positions(
        self, channel: Channel, expects: Callable[[Stream], bool], since_us: int = 0
    ) -> tuple[Position, ...]:
        """What is held of a channel's streams, or expected from peers; from a time on, if asked.

        Histories are included.
        """
        found = self.positions_of_ended(channel)
        search = Search(since_us)
        for data, desk in self._by_stream.items():
            if data.channel != channel or not desk.genuine:
                continue
            ledger, carrier = desk.carrier.ledger, desk.carrier
            oldest, end = ledger.base, ledger.next
            if ledger.base > ledger.floor and expects(data):
                oldest = ledger.floor
            histories = carrier.histories
            if histories is not None:
                # Who begins with the next history must not wait for what those before it name.
                end = max(end, carrier.settled + 1)
            if since_us:
                first = ledger.since(search, labelled=desk.entry.policy.total)
                # What is expected may begin earlier: whoever asked skips what lies before the time.
                base = oldest if first == ledger.base else first
                found.append(Position(data, base, end, oldest, desk.over))
            else:
                found.append(Position(data, oldest, end, over=desk.over))
            if histories is not None:
                ledger = histories.ledger
                upto = min(ledger.next, histories.settled + 1)
                expected = ledger.base > ledger.floor and expects(data.history)
                oldest = ledger.floor if expected else ledger.base
                found.append(Position(data.history, oldest, max(ledger.base, upto)))
        return name_in_turn(found)
