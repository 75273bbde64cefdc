"""All streams that a broker serves, each with the carrier that the channel's policy asks for.

A new built-in protocol is plugged in here (`carriers`); one of another package is looked up by name
(`broadcast.protocol`). Streams are bounded per channel, publisher
and *introducer*, the node whose message made this broker open the stream: a lying broker that
invents streams displaces only its own inventions, never a stream that the publisher has opened.

Retention by count and bytes happens with every write; retention by time (`retained_ms`) is a timer
here, which also drops what the limits of a new epoch do not retain any longer, a part at a time. A
ledger notes its end a few times within the retained time, so ages cost nothing per publication, and
are at most an eighth too long. After a restart ages count anew. What a protocol still needs stays
whatever its age (`Carrier.spare`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import msgspec

from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.bracha import Bracha
from quorumcast.broadcast.chain import Chain
from quorumcast.broadcast.contract import Carrier, CarrierContext
from quorumcast.broadcast.history import History
from quorumcast.broadcast.ledger import AGES, Ledger, Quota
from quorumcast.broadcast.protocol import protocol_of
from quorumcast.broadcast.relayed import RelayCarrier
from quorumcast.broadcast.times import Search
from quorumcast.cell.messages import Position
from quorumcast.cell.naming import name_in_turn
from quorumcast.cell.serving.journal import Ended, EndedStreams, JournaledStream, Vouched
from quorumcast.cell.serving.notary import Notary
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.core.envelope import stamp_of
from quorumcast.core.ids import CELL, Channel, Lane, Millis, NodeId, Stream
from quorumcast.core.limits import FOREVER_MS
from quorumcast.core.machine import Effect, SetTimer, Timer
from quorumcast.core.quorum import Broadcast
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View
from quorumcast.ordering.log import OrderedLog

#: Streams per publisher and channel that were opened and not used, or that only brokers named.
MAX_UNUSED = 4
#: How long a life keeps all that it has after the next one has begun: long enough for some
#: retransmissions between brokers.
DISPLACED_AFTER_MS = 5000
#: The journal keeps streams that nobody came back to up to this multiple of what is retained.
UNCLAIMED = 3
#: The longest time between two sweeps.
LONGEST_MS = 60_000
#: Publications that a lower limit drops in one turn, and the time until the next turn.
SHRUNK_AT_ONCE = 4096
SHRINK_MS = 5

Owner = tuple[Channel, NodeId]
#: Streams of one publisher on one channel.
Lives = Mapping[Stream, ServedStream]


class Sweep(Timer, frozen=True, tag=True):
    """Remove what has become too old, or too much by the limits of a new epoch."""


class StreamStatus(msgspec.Struct, frozen=True):
    """What one broker holds of a stream: numbers from `base` to before `next`."""

    stream: str
    base: int
    next: int
    #: Every number up to this one is settled among brokers.
    settled: int


class WrittenTotals(msgspec.Struct):
    """Publications of a channel that one broker has written, and their bytes."""

    publications: int = 0
    size: int = 0


class ServedStreams:
    """All streams of a broker."""

    __slots__ = (
        "_by_owner",
        "_by_stream",
        "_ended",
        "_endings",
        "_peer_lives",
        "_quotas",
        "_readers",
        "_released",
        "_sweeping",
        "_view",
        "life",
        "now",
    )

    #: The broker side of each protocol; a new protocol is added here.
    carriers: ClassVar[dict[Broadcast, Callable[[Stream, CarrierContext], Carrier]]] = {
        Broadcast.DIRECT: Relay,
        Broadcast.AUTHENTICATED: Relay,
        Broadcast.BRACHA: Bracha,
        Broadcast.CHAIN: Chain,
        Broadcast.CONSENSUS: OrderedLog,
        Broadcast.RELAY: RelayCarrier,
        Broadcast.RELAYED_ORDER: RelayCarrier,
    }

    def __init__(
        self,
        view: View,
        readers: Callable[[Channel], Sequence[NodeId]],
        life: bytes,
        released: Callable[[Stream], int] = lambda _: 1,
    ) -> None:
        #: Drawn anew whenever the broker starts.
        self.life = life
        #: The time of the event that the broker handles.
        self.now = Millis(0)
        #: The newest life that each peer named; only brokers of the manifest.
        self._peer_lives: dict[NodeId, bytes] = {}
        self._view = view
        self._readers = readers
        #: The first number of a lane that an earlier life retained.
        self._released = released
        #: Streams by their data lane; bounded per channel, publisher and introducer.
        self._by_stream: dict[Stream, ServedStream] = {}
        #: The same by channel and publisher.
        self._by_owner: dict[Owner, dict[Stream, ServedStream]] = {}
        #: Streams that are over, per channel and publisher of the manifest.
        self._ended: dict[Owner, EndedStreams] = {}
        #: Streams that have ended since the last `take_endings`.
        self._endings: list[Stream] = []
        #: What retention counts together, per channel, publisher and lane.
        self._quotas: dict[tuple[Owner, Lane], Quota] = {}
        #: Whether Sweep is set.
        self._sweeping = False

    def recount(self) -> list[tuple[ServedStream, list[Effect]]]:
        """Go on in a new epoch; streams of a deleted channel are removed, and never come back.

        But for a total order: a channel of the same name goes on after its positions. A channel
        that has changed was deleted and created again while this broker was away.
        """
        for peer in [peer for peer in self._peer_lives if peer not in self._view.brokers]:
            del self._peer_lives[peer]  # in place: notaries share it
        for data, held in list(self._by_stream.items()):
            entry, old = self._view.channel(data.channel), held.entry
            if entry and (entry.policy.name, entry.since) == (old.policy.name, old.since):
                continue
            self._remove(data)
            # Streams of an origin are the same again.
            if data.publisher != CELL and not old.policy.relayed:
                over = self._over_of(data)
                over.upto = max(over.upto, data.incarnation)
        for (channel, _), over in self._ended.items():
            if self._view.channel(channel) is None:
                # Subscribers of a later channel of that name must not be told of these streams.
                over.ends.clear()
        for served in self.all():
            served.entry = self._view.channel(served.stream.channel) or served.entry
        return [(served, served.carrier.recount()) for served in self.all()]

    def __len__(self) -> int:
        return len(self._by_stream)

    @property
    def remembered(self) -> int:
        """The number of streams of which only the end is known."""
        return sum(len(over.ends) for over in self._ended.values())

    def note_life(self, peer: NodeId, life: bytes) -> None:
        """A peer names its life; streams that began before its first message take it, too."""
        if peer not in self._peer_lives:
            for served in self._by_stream.values():
                served.notary.peers.setdefault(peer, life)
        self._peer_lives[peer] = life

    def get(self, data: Stream) -> ServedStream | None:
        """A stream, if it is served."""
        return self._by_stream.get(data)

    def with_lane(self, stream: Stream) -> ServedStream | None:
        """The stream that a peer asks about, if it is served and has that lane.

        A liar may name the lane of histories where there are none.
        """
        served = self._by_stream.get(stream.data)
        if served is None or stream.lane is Lane.DATA or served.entry.policy.has_history:
            return served
        return None

    def sayable(self, stream: Stream) -> int:
        """The first number of a stream that may not be vouched for yet; 0 if it is over."""
        served = self.with_lane(stream)
        return 0 if served is None else served.sayable(stream.lane)

    def ledger(self, stream: Stream) -> Ledger | None:
        """The ledger of one lane of a stream."""
        served = self._by_stream.get(stream.data)
        return None if served is None else served.ledger(stream.lane)

    def synced(self, record: Vouched) -> None:
        """Note that the journal of a stream holds a record."""
        served = self._by_stream.get(record.stream.data)
        if served is not None:
            served.written(record)

    def over(self, data: Stream) -> bool:
        """Whether a stream has ended and never comes back."""
        ended = self._ended.get((data.channel, data.publisher))
        return ended is not None and data.incarnation <= ended.upto

    def newest(self, data: Stream) -> int:
        """The newest incarnation that a stream's publisher has begun on its channel; -1 if none.

        Streams that only other brokers named do not count: one of them may have invented it.
        """
        begun = [served.stream.incarnation for served in self._lives_of(data)]
        ended = self._ended.get((data.channel, data.publisher))
        return max(-1 if ended is None else max(ended.upto, ended.closed), *begun, -1)

    def all(self) -> list[ServedStream]:
        """Every stream, oldest first."""
        return list(self._by_stream.values())

    def of(self, owner: Owner) -> Lives:
        """The streams of a publisher on a channel."""
        return self._by_owner.get(owner, {})

    def by_owner(self) -> Mapping[Owner, Lives]:
        """Every stream, by channel and publisher."""
        return self._by_owner

    def status(self) -> dict[Stream, StreamStatus]:
        """What is held of every stream, for people to read."""
        carriers = {stream: served.carrier for stream, served in self._by_stream.items()}
        return {
            stream: StreamStatus(str(stream), held.ledger.base, held.ledger.next, held.settled)
            for stream, held in carriers.items()
        }

    def written(self) -> dict[Channel, WrittenTotals]:
        """What was written on each channel since the broker started, for people to read."""
        quotas = [
            (owner[0], quota) for (owner, lane), quota in self._quotas.items() if lane is Lane.DATA
        ]
        quotas += [
            (served.stream.channel, served.carrier.ledger.quota)
            for served in self.all()
            if served.entry.policy.log is not None
        ]
        found: dict[Channel, WrittenTotals] = {}
        for channel, quota in quotas:
            total = found.setdefault(channel, WrittenTotals())
            total.publications += quota.written
            total.size += quota.written_bytes
        return found

    def open(self, data: Stream, entry: ChannelEntry, introducer: NodeId) -> ServedStream | None:
        """Serve a stream that an entitled node named; None if the stream is over."""
        served = self._by_stream.get(data)
        if served is None and self.over(data):
            return None
        # State transfer opens streams in this broker's own name.
        closed = data.incarnation <= self._over_of(data).closed
        from_peers = introducer == self._view.me
        if served is None and closed and not from_peers:
            return None
        if served is None:
            policy = entry.policy
            # Without a journal a broker forgets the stream with its life.
            lasting = policy.log is not None or policy.journal
            peers = self._peer_lives if lasting else dict(self._peer_lives)
            segment = policy.limits.segment
            notary = Notary(data, self._view.keyring, entry.basis, segment, self.life, peers)
            served = ServedStream(data, entry, self._make_carrier(data, entry), notary)
            served.closed, served.from_peers = closed, from_peers
            self._by_stream[data] = served
            self._by_owner.setdefault((data.channel, data.publisher), {})[data] = served
            if policy.log is None:
                self._share(served)
        if served.introducer is None or introducer == data.publisher != served.introducer:
            served.begun_at = self.now
        served.introducer = introducer
        self._make_room(served, entry.policy.limits.streams_per_publisher)
        return self._by_stream.get(data)

    def _make_carrier(self, data: Stream, entry: ChannelEntry) -> Carrier:
        context = CarrierContext(self._view, entry.policy, self._readers)
        protocol = protocol_of(entry.policy)
        make = protocol.carrier if protocol else type(self).carriers[entry.policy.broadcast]
        carrier = make(data, context)
        if entry.policy.has_history:
            carrier = History(data, context, carrier)
        carrier.begin_at(self._released(data), self._released(data.history))
        return carrier

    # ------------------------------------------------------------- endings

    def _share(self, served: ServedStream) -> None:
        """Let retention count a stream together with its publisher's other lives."""
        limits = served.entry.policy.limits
        for stream, carrier in served.lanes():
            key = ((stream.channel, stream.publisher), stream.lane)
            quota = self._quotas.setdefault(key, Quota(limits))
            carrier.ledger.share(quota, stream.incarnation)
            # The life before it is not the newest any more, and may have nothing left.
            quota.emptied = True

    def _remove(self, data: Stream) -> None:
        served = self._by_stream.pop(data)
        owner = (data.channel, data.publisher)
        del self._by_owner[owner][data]
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        if served.entry.policy.log is not None:
            return
        served.close()
        for stream, carrier in served.lanes():
            carrier.ledger.quota.leave(stream.incarnation)

    def _over_of(self, data: Stream) -> EndedStreams:
        return self._ended.setdefault((data.channel, data.publisher), EndedStreams())

    def _make_room(self, new: ServedStream, limit: int) -> None:
        """Remove streams beyond the limits, oldest first.

        Streams that the publisher used never come back: a broker that forgot what it vouched for
        and opened the stream anew would contradict itself. Unused ones, and those that only brokers
        named, are removed first and may come back; an introducer displaces only its own. Streams of
        which nothing is settled are counted apart, because a lying publisher may begin any number
        of them at one broker alone.
        """
        rivals = [
            served
            for served in self.of((new.stream.channel, new.stream.publisher)).values()
            if served.genuine == new.genuine
            and (new.genuine or served.introducer == new.introducer)
        ]
        unused = [d for d in rivals if d is not new and (d.untouched or not d.genuine)]
        unused.sort(key=lambda served: served.stream.incarnation if served.genuine else 0)
        used = [served for served in rivals if served not in unused]
        used.sort(key=lambda served: served.stream.incarnation)
        few = min(limit, MAX_UNUSED)
        for stale in unused[: max(0, len(unused) + (new.untouched or not new.genuine) - few)]:
            self._remove(stale.stream)
            if stale.genuine and not stale.untouched:
                self._end(stale)
        settled = [served for served in used if not served.unsettled]
        for stale in settled[: max(0, len(settled) - limit)]:
            self._remove(stale.stream)
            self._end(stale)
        unsettled = [served for served in used if served.unsettled]
        for stale in unsettled[: max(0, len(unsettled) - limit)]:
            self._close(stale)

    def _close(self, served: ServedStream) -> None:
        """Drop what is not settled of a stream; all of it, if nothing is."""
        if not served.unsettled:
            served.close()
            return
        self._remove(served.stream)
        over = self._over_of(served.stream)
        over.closed = max(over.closed, served.stream.incarnation)
        self._endings.append(served.stream)

    def relieve(self, data: Stream) -> None:
        """Drop what is not settled of earlier lives until half of the quota is left.

        Not of the newest life, which its publisher may be about to have settled: more of it is
        refused instead.
        """
        lives = self._lives_of(data)
        for served in self._displaced(lives):
            quotas = [carrier.ledger.quota for _, carrier in served.lanes()]
            if all(quota.relieved for quota in quotas):
                break
            if not served.closed and served.waits:
                self._close(served)
        for served in lives[-1:]:
            for _, carrier in served.lanes():
                carrier.ledger.quota.crowded = False

    def _lives_of(self, data: Stream) -> list[ServedStream]:
        """The streams that a publisher itself has begun on a channel, oldest life first."""
        lives = self.of((data.channel, data.publisher)).values()
        found = [served for served in lives if served.genuine]
        return sorted(found, key=lambda served: served.stream.incarnation)

    def _displaced(self, lives: Sequence[ServedStream]) -> list[ServedStream]:
        """Those of these lives that a later one has displaced.

        Where brokers settle streams together, that takes DISPLACED_AFTER_MS. The last publications
        that brokers acknowledged before the publisher crashed may still be on their way, and a
        broker that was cut off may hear of the next life first.
        """
        begun = [
            served.stream.life
            for served in lives
            if self.now - served.begun_at >= DISPLACED_AFTER_MS or not served.entry.policy.settles
        ]
        return [served for served in lives if served.stream.life < max(begun, default=0)]

    def _end(self, served: ServedStream) -> None:
        self._over_of(served.stream).add(served.stream.incarnation, served.carrier.ledger.next)
        self._endings.append(served.stream)

    def take_endings(self) -> list[Stream]:
        """Streams that have ended since the last call."""
        endings, self._endings = self._endings, []
        return endings

    def end_exhausted(self, data: Stream) -> None:
        """End the streams of earlier lives of which retention has left nothing, oldest first.

        Not the newest life, which its publisher may continue, and none before an older one has
        ended: a single incarnation says up to where streams are over.
        """
        quota = self._quotas.get(((data.channel, data.publisher), Lane.DATA))
        if quota is not None:
            quota.emptied = False
        for served in self._displaced(self._lives_of(data)):
            if served.untouched or served.unsettled:
                continue
            if not served.carrier.ledger.exhausted or served.carrier.is_under_way:
                break  # the cell may be about to deliver it
            self._remove(served.stream)
            self._end(served)

    def end_unclaimed(self, data: Stream, journaled: Sequence[JournaledStream]) -> None:
        """End the oldest streams that only the journal knows, where there are too many.

        Neither their publisher nor another broker has come back to them since this broker started.
        One life of a broker leaves at most twice what is retained, settled or not.
        """
        quota = self._quotas.get(((data.channel, data.publisher), Lane.DATA))
        if quota is None or not journaled:
            return
        left, places = UNCLAIMED * quota.most, UNCLAIMED * quota.most_lives
        for life in sorted(journaled, key=lambda life: -life.stream.incarnation):
            left -= life.count
            places -= 1
            if (left < 0 or places < 0) and life.stream not in self._by_stream:
                self._over_of(data).add(life.stream.incarnation, life.next)
                self._endings.append(life.stream)

    def ended(self, data: Stream) -> Ended:
        """The journal record of a publisher's streams that are over."""
        over = self._over_of(data)
        ends = tuple(over.ends.items())
        return Ended(data.channel, data.publisher, over.upto, ends, over.closed)

    def remember(self, record: Ended) -> None:
        """Load a record of the journal."""
        over = EndedStreams(record.incarnation, record.closed, dict(record.ends))
        self._ended[record.channel, record.publisher] = over

    def learn_ending(self, data: Stream, end: int) -> None:
        """Enough peers say that a stream is over, and before which number it ended.

        What is held of it stays until retention removes it.
        """
        served = self._by_stream.get(data)
        if served is not None and len(served.carrier.ledger):
            served.over = True
            return
        if served is not None:
            self._remove(data)
            end = max(end, served.carrier.ledger.next)
        if self._over_of(data).learn(data.incarnation, end):
            self._endings.append(data)

    def positions_of_ended(
        self, channel: Channel, owners: Iterable[Owner] | None = None
    ) -> list[Position]:
        """The positions of streams that ended here, for subscribers and brokers that lack them.

        Of some owners, or of the whole channel.
        """
        ended = self._ended
        return [
            Position(Stream(channel, publisher, incarnation), end, end, over=True)
            for name, publisher in (ended if owners is None else owners)
            if name == channel and (name, publisher) in ended
            for incarnation, end in ended[name, publisher].ends.items()
        ]

    def positions(
        self,
        channel: Channel,
        expects: Callable[[Stream], bool],
        since_us: int = 0,
        wanted: Mapping[Stream, int] | None = None,
        *,
        few: bool = False,
    ) -> tuple[Position, ...]:
        """What is held of a channel's streams and their histories, or expected from peers.

        With a time, from the first publication of that time on. `wanted` are the next numbers of a
        subscriber, which may be in a hole of a ledger: then what is held begins behind it. `few`:
        only the streams of the publishers of these.
        """
        wanted = {} if wanted is None else wanted
        owners = {(stream.channel, stream.publisher): None for stream in wanted} if few else None
        found = self.positions_of_ended(channel, owners)
        search = Search(since_us)
        for owner in self._by_owner if owners is None else owners:
            if owner[0] == channel:
                for served in self.of(owner).values():
                    found += self._positions_of(served, expects, search, wanted)
        return name_in_turn(found)

    def _positions_of(
        self,
        served: ServedStream,
        expects: Callable[[Stream], bool],
        search: Search,
        wanted: Mapping[Stream, int],
    ) -> Iterator[Position]:
        """What is held of a stream, and of its histories."""
        if not served.genuine:
            return
        data, carrier, ledger = served.stream, served.carrier, served.carrier.ledger
        oldest, end = ledger.base, ledger.next
        if ledger.base > ledger.floor and expects(data):
            oldest = ledger.floor
        behind = ledger.behind_hole(wanted.get(data, 0)) if wanted else 0
        if behind and not expects(data):
            oldest = behind
        histories = carrier.histories
        if histories is not None:
            # A subscriber that begins with the next history must not wait for earlier numbers.
            end = max(end, carrier.settled + 1)
        if not served.over:
            # With Bracha's broadcast what is acknowledged need not be delivered yet. A reader
            # of the past that begins now must not end before it.
            end = max(end, carrier.upto + 1)
        if search.since_us:
            first = _first_since(ledger, search, labelled=served.entry.policy.total)
            # What is expected may begin earlier; the subscriber skips what is before the time.
            base = oldest if first == ledger.base else first
            yield Position(data, base, end, oldest, served.over)
        else:
            yield Position(data, oldest, end, over=served.over)
        if histories is not None:
            ledger = histories.ledger
            upto = min(ledger.next, histories.settled + 1)
            expected = ledger.base > ledger.floor and expects(data.history)
            oldest = ledger.floor if expected else ledger.base
            yield Position(data.history, oldest, max(ledger.base, upto))

    # ------------------------------------------------------------- retention

    def shrink(self, count: int = SHRUNK_AT_ONCE) -> list[Effect]:
        """Go by the limits of this epoch, and drop at most so many publications now.

        To drop millions of publications in one turn would hold up the broker.
        """
        done = True
        for ((channel, _), _), quota in self._quotas.items():
            entry = self._view.channel(channel)
            if entry is not None:
                held = quota.publications
                done = quota.narrow(entry.policy.limits, count) and done
                count -= held - quota.publications
        if done:
            return []
        self._sweeping = True
        return [SetTimer(Sweep(), SHRINK_MS)]

    def watch_ages(self) -> list[Effect]:
        """Set the timer, if a channel of this epoch limits ages and it is not set yet."""
        shortest = min(map(_expires_after, self._view.channels), default=FOREVER_MS)
        if self._sweeping or shortest >= FOREVER_MS:
            return []
        self._sweeping = True
        return [SetTimer(Sweep(), min(shortest // AGES, LONGEST_MS))]

    def sweep(self, now: Millis) -> list[Effect]:
        """Remove what is too old or too much, and set the timer again."""
        self._sweeping = False
        effects: list[Effect] = []
        for served in self.all():
            entry = self._view.channel(served.stream.channel)
            span = FOREVER_MS if entry is None else _expires_after(entry)
            if span < FOREVER_MS:
                effects += served.carrier.expire(now, span)
        return effects + self.shrink() + self.watch_ages()


def _first_since(ledger: Ledger, search: Search, *, labelled: bool) -> int:
    """The first held number of a time, or an earlier one; the oldest only if it is of that time.

    If it is, subscribers assume that the dropped numbers before it may be of that time as well.
    """
    first = ledger.since(search, labelled=labelled)
    if first == ledger.base:
        # The search may have ended early, or have compared only the largest stamp of the run.
        oldest = ledger.read(first, 1, 0)
        if oldest is not None and stamp_of(oldest.bodies[0], labelled) < search.since_us:
            return first + 1
    return first


def _expires_after(entry: ChannelEntry) -> int:
    """The age at which publications are removed here.

    With total order the log removes them: a restart needs what is newer than its checkpoint.
    """
    return FOREVER_MS if entry.policy.log is not None else entry.policy.limits.retained_ms
