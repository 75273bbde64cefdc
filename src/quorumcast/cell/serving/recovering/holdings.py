"""What peers hold: the reports on which a broker bases state transfer, and asking for them.

A broker reports only *final* digests, which it would sign (`Carrier.final`) and which do not change
any more. `peers_needed` says how many peers must report the same digest of a number. Streams that
too few peers report are in doubt (`StreamsInDoubt`); `StreamProgress` says whether a stream gets
where enough peers are by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from quorumcast.cell.messages import Position, Positions, Regain, Regained, Survey
from quorumcast.cell.naming import name_in_turn
from quorumcast.cell.serving.journal import Journal
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import Channel, Lane, NodeId, Stream
from quorumcast.core.limits import MAX_FRAME_BYTES
from quorumcast.core.machine import Drop, DropReason, Effect, Send
from quorumcast.core.quorum import Quorums, accept_votes
from quorumcast.core.statements import Basis
from quorumcast.core.tally import reached_by
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View


def recoverable(entry: ChannelEntry) -> bool:
    """Whether brokers of this channel get back from one another what they lost.

    Total order recovers through its log (`ordering`). On a chain nobody can vote without the MACs
    that came with a number.
    """
    return entry.policy.log is None and not entry.policy.chained


def peers_needed(
    quorums: Quorums, policy: Policy, lane: Lane = Lane.DATA, *, after: bool = False
) -> int:
    """How many equal final digests decide a number.

    `after`: the number lies after everything that this broker holds, so it has vouched for nothing
    else there. It may then repeat what one correct broker vouched for, as if it had received it
    from the publisher.
    """
    if policy.crash_only:
        return 1
    if after or lane is Lane.HISTORY or policy.basis is Basis.SETTLED:
        return quorums.one_correct
    return accept_votes(quorums, policy.protection, policy.broadcast)


def answer_peer(streams: ServedStreams, sender: NodeId, message: Survey | Regain) -> list[Effect]:
    """The answer to a peer that asks for positions, digests or contents."""
    if isinstance(message, Survey):
        streams.note_life(sender, message.life)
        held = [
            Position(stream, carrier.final_from, end)
            for served in streams.all()
            if served.stream.channel == message.channel and served.genuine
            for stream, carrier in served.lanes()
            for end in (min(carrier.final + 1, served.sayable(stream.lane)),)
            # Also if it holds nothing: peers may begin where it is.
            if end > 1 and end >= carrier.final_from
        ]
        named = name_in_turn(streams.positions_of_ended(message.channel) + held)
        return [Send((sender,), Positions(message.channel, named))]
    stream, first, count = message.stream, message.first, message.count
    not_held: list[Effect] = [Drop(DropReason.NOT_HELD, sender)]
    served = streams.with_lane(stream)
    if served is None:
        return not_held
    carrier = served.lane(stream.lane)
    final = min(carrier.final + 1, served.sayable(stream.lane))
    if first < carrier.final_from or first + count > final:
        return not_held
    if not message.bodies:
        digests = carrier.ledger.digests(first, count)
        return not_held if digests is None else [Send((sender,), Regained(stream, first, digests))]
    run = carrier.ledger.read(first, count, MAX_FRAME_BYTES // 4)
    if run is None or run.first != first:
        return not_held
    return [Send((sender,), Regained(stream, first, run.digests), run.bodies)]


class Holdings:
    """What each peer holds, by its last report on each channel."""

    __slots__ = ("_by_stream", "_ended", "_streams", "_told", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        #: The last report of each peer on each channel; only streams of entitled publishers.
        self._told: dict[tuple[Channel, NodeId], dict[Stream, Position]] = {}
        #: The same by stream, since `of` is called often; a liar may name thousands of streams.
        self._by_stream: dict[Stream, dict[NodeId, Position]] = {}
        #: What `streams` returns, until the next report.
        self._streams: list[Stream] | None = None
        #: Streams that are over, and where they ended, by the last report of each peer.
        self._ended: dict[tuple[Channel, NodeId], dict[Stream, int]] = {}

    def __len__(self) -> int:
        sizes = (len(told) + len(self._ended[key]) for key, told in self._told.items())
        return max(sizes, default=0)

    def forget_gone(self) -> None:
        """Go on in a new epoch, in which a channel or a broker may be gone."""
        self._told = {
            (channel, peer): told
            for (channel, peer), told in self._told.items()
            if self._view.channel(channel) is not None and peer in self._view.brokers
        }
        self._ended = {key: self._ended[key] for key in self._told}
        self._by_stream = {}
        self._streams = None
        for (_, peer), told in self._told.items():
            for stream, position in told.items():
                self._by_stream.setdefault(stream, {})[peer] = position

    def replace(self, peer: NodeId, message: Positions) -> list[Stream]:
        """Replace a peer's report on a channel; returns the streams in it that are not over."""
        self._streams = None
        for stream in self._told.get((message.channel, peer), ()):
            reports = self._by_stream[stream]
            del reports[peer]
            if not reports:
                del self._by_stream[stream]
        named = [
            position
            for position in message.positions
            if position.stream.channel == message.channel
            and self._has_lane(position.stream)
            and position.base <= position.next
            and self._view.may_carry(position.stream.publisher, message.channel)
        ]
        told = {position.stream: position for position in named if not position.over}
        self._told[message.channel, peer] = told
        self._ended[message.channel, peer] = {
            position.stream: position.next
            for position in named
            if position.over and position.stream.lane is Lane.DATA
        }
        for stream, position in told.items():
            self._by_stream.setdefault(stream, {})[peer] = position
        return list(told)

    def _has_lane(self, stream: Stream) -> bool:
        entry = self._view.channel(stream.channel)
        return stream.lane is Lane.DATA or (entry is not None and entry.policy.has_history)

    def answered(self, channel: Channel) -> list[NodeId]:
        """The peers that have ever reported on a channel."""
        return [peer for name, peer in self._told if name == channel]

    def streams(self) -> list[Stream]:
        """Streams that one correct peer at least reports; liars may invent any number."""
        if self._streams is None:
            enough = {
                entry.name: min(self.needed(entry), self._view.quorums.one_correct)
                for entry in self._view.channels
            }
            self._streams = [
                stream
                for stream, reports in self._by_stream.items()
                if len(reports) >= enough.get(stream.channel, 0)
            ]
        return self._streams

    def endings(self, channel: Channel) -> dict[Stream, int]:
        """Streams that enough peers report to be over, and before which number they ended.

        Enough: so many that one is correct. A correct broker ends a whole stream only when
        retention allows it, so all others may end it too.
        """
        entry = self._view.channel(channel)
        if entry is None:
            return {}
        enough = self.needed(entry, after=True)
        ends: dict[Stream, list[int]] = {}
        for (name, _), ended in self._ended.items():
            for stream, end in ended.items() if name == channel else ():
                ends.setdefault(stream, []).append(end)
        return {
            stream: reached_by(told, enough) for stream, told in ends.items() if len(told) >= enough
        }

    def of(self, stream: Stream) -> Mapping[NodeId, Position]:
        """The report of each peer on a stream."""
        return self._by_stream.get(stream, {})

    def needed(self, entry: ChannelEntry, lane: Lane = Lane.DATA, *, after: bool = False) -> int:
        """How many equal final digests decide a number."""
        return peers_needed(self._view.quorums, entry.policy, lane, after=after)

    def end(self, entry: ChannelEntry, stream: Stream, first: int | None = None) -> int:
        """Up to where enough peers hold a stream for this broker to go on there; 0 if too few do.

        With `first`, of those peers that hold the stream from that number on.
        """
        reports = self.of(stream).values()
        ends = [report.next for report in reports if first is None or report.base <= first]
        return reached_by(ends, self.needed(entry, stream.lane, after=True))

    def boundary(self, entry: ChannelEntry, stream: Stream) -> int:
        """The number at which a broker that holds nothing may begin; 0 if that is not known.

        Where votes are about runs, a liar could make it begin within one, which would never be
        completed: there, enough peers must name the same number.
        """
        needed = self.needed(entry, stream.lane)
        ends = [report.next for report in self.of(stream).values()]
        if entry.policy.whole_runs:
            return max((end for end in ends if ends.count(end) >= needed), default=0)
        return reached_by(ends, needed)

    def ahead_of(self, served: ServedStream | None) -> bool:
        """Whether enough peers have settled, by histories, what this broker has not.

        It may hold all of it; but it has not echoed, nor voted on, those histories.
        """
        if served is None or not served.entry.policy.has_history:
            return False
        return self.end(served.entry, served.stream) - 1 > served.carrier.settled

    def beginning(
        self, entry: ChannelEntry, stream: Stream, end: int, own: int = 0, *, after: bool = False
    ) -> int:
        """The number from which on enough peers hold everything before `end`; `end` if too few do.

        `own`: how many of them this broker itself counts for (0 or 1).
        """
        needed = self.needed(entry, stream.lane, after=after)
        needed = max(needed - own, 1)  # at least one peer must have the contents
        bases = sorted(report.base for report in self.of(stream).values() if report.next >= end)
        return min(bases[needed - 1], end) if len(bases) >= needed else end

    def reach(self, entry: ChannelEntry, stream: Stream, end: int, own: int) -> bool:
        """Whether enough peers had reached a number when they reported."""
        reports = self.of(stream).values()
        return (
            sum(report.next >= end for report in reports) >= self.needed(entry, stream.lane) - own
        )

    def may_exist(self, entry: ChannelEntry, stream: Stream) -> bool:
        """Whether so many peers report a stream that it may exist, but too few to fetch it.

        With 2f+1 brokers one is enough, perhaps a liar (`correct_responders`).
        """
        needed, reports, quorums = self.needed(entry), len(self.of(stream)), self._view.quorums
        return min(needed, quorums.one_correct, quorums.correct_responders) <= reports < needed


#: Ticks after which a broker stops waiting for a peer's answer, or for a stream in doubt.
UNANSWERED = 20
#: Ticks that a publisher has to open or continue its stream before peers are asked.
GRACE = 6
#: Ticks in which a stream that moves must get where enough peers were: a publisher that lies may
#: send this broker a little now and then, and keep it behind for ever.
MOVING_GRACE = 2 * GRACE


class Surveys:
    """The requests for peers' reports on channels that are not answered yet."""

    __slots__ = ("_served", "_ticks")

    def __init__(self, served: ServedStreams) -> None:
        self._served = served
        #: For how many ticks an answer has been awaited, by channel and peer.
        self._ticks: dict[tuple[Channel, NodeId], int] = {}

    def __len__(self) -> int:
        return len(self._ticks)

    def ask(self, peers: Iterable[NodeId], channels: Iterable[Channel]) -> list[Effect]:
        """Ask these peers about these channels, unless their answer is awaited already."""
        pairs = [(channel, peer) for peer in peers for channel in channels]
        fresh = [pair for pair in pairs if pair not in self._ticks]
        self._ticks.update(dict.fromkeys(fresh, 0))
        return [self._request(*pair) for pair in fresh]

    def _request(self, channel: Channel, peer: NodeId) -> Effect:
        return Send((peer,), Survey(channel, self._served.life))

    def answered(self, channel: Channel, peer: NodeId) -> bool:
        """Note that a peer has reported on a channel; False if it was not asked."""
        return self._ticks.pop((channel, peer), None) is not None

    def disconnected(self, peer: NodeId) -> None:
        """Wait no longer for a peer that cannot be reached."""
        self._ticks = {key: ticks for key, ticks in self._ticks.items() if key[1] != peer}

    def awaited(self, channel: Channel) -> list[NodeId]:
        """The peers whose reports on a channel are awaited."""
        return [peer for name, peer in self._ticks if name == channel]

    def tick(self) -> list[Effect]:
        """Repeat requests, ever more rarely, and give them up in the end."""
        effects: list[Effect] = []
        for key, ticks in list(self._ticks.items()):
            self._ticks[key] = ticks + 1
            if ticks >= UNANSWERED:
                del self._ticks[key]
            elif ticks and ticks & (ticks - 1) == 0:
                effects.append(self._request(*key))
        return effects


class StreamProgress(msgspec.Struct, frozen=True):
    """Where a stream is, and since when it has not come further."""

    #: The next number, and for how many ticks it has been that.
    at: int
    still: int = 0
    #: The end that enough peers had, and for how many ticks this broker has not reached it.
    goal: int = 0
    late: int = 0

    def tick(self, at: int, end: int) -> StreamProgress:
        """One tick later: the next number here, and the end that enough peers have."""
        still = self.still + 1 if at == self.at else 0
        late = self.late + 1 if at < self.goal else 0
        return StreamProgress(at, still, self.goal if late else end, late)

    @property
    def stalled(self) -> bool:
        """Whether its publisher does not continue it."""
        return self.still >= GRACE

    @property
    def lags(self) -> bool:
        """Whether its publisher does not bring it where peers are."""
        return self.stalled or self.late >= MOVING_GRACE


class StreamsInDoubt:
    """Streams that this broker may have forgotten, where too few peers hold enough to tell.

    A broker that restarts hears of a stream from too few peers to believe them. Either it forgot
    the stream or they lie. The publisher may be about to send the stream to the other peers: if
    this broker counted as recovered, and a rolling restart went on to the next one, the stream
    would be lost. So it reports the stream as lacking (`Recovery.lacking`) until peers reach it, or
    for UNANSWERED ticks without progress. The same holds for streams of which it has only the part
    from some number on, which too few peers have reached.
    """

    __slots__ = ("_entry", "_holdings", "_journal", "_reached", "_reported", "_served", "_ticks")

    def __init__(
        self,
        served: ServedStreams,
        holdings: Holdings,
        journal: Journal,
        entry: Callable[[Stream], ChannelEntry | None],
    ) -> None:
        self._served = served
        self._holdings = holdings
        self._journal = journal
        self._entry = entry
        #: Ticks for which each stream has been waited for while its peers made no progress.
        self._ticks: dict[Stream, int] = {}
        #: The highest sum, over peers, of how far each had come towards this broker's beginning.
        self._reached: dict[Stream, int] = {}
        #: Streams of peers' first reports, as long as this broker may have forgotten them; of each
        #: peer, channel and publisher at most streams_per_publisher.
        self._reported: dict[Stream, None] = {}

    def add_first_report(self, streams: Iterable[Stream]) -> None:
        """Note the streams of a peer's first report on a channel.

        Not of later reports, in which a liar could name new ones for ever; nor more streams than a
        correct broker can have.
        """
        named: Counter[NodeId] = Counter()
        for stream in streams:
            entry = self._entry(stream)
            named[stream.publisher] += 1
            if stream.lane is Lane.HISTORY or entry is None:
                continue
            if named[stream.publisher] <= entry.policy.limits.streams_per_publisher:
                self._reported[stream] = None

    def now(self) -> dict[Stream, None]:
        """The streams that are waited for."""
        return {stream: None for stream in self._known() if self.includes(stream)}

    def includes(self, stream: Stream) -> bool:
        """Whether peers may still turn out to hold what is missing of a stream."""
        entry, served = self._entry(stream), self._served.get(stream.data)
        if entry is None or self._ticks.get(stream, 0) >= UNANSWERED:
            return False
        if served is None or not served.ledger(stream.lane).begun:
            # A history is not in doubt alone: its stream is.
            in_doubt = stream.lane is Lane.DATA and not self._served.over(stream)
            return in_doubt and self._holdings.may_exist(entry, stream)
        carrier = served.lane(stream.lane)
        end = carrier.final_from
        own = own_report(entry, self._journal, stream, end)
        return end > carrier.ledger.floor and not self._holdings.reach(entry, stream, end, own)

    def tick(self, streams: Iterable[Stream]) -> bool:
        """Count a tick for these; True if peers are to be asked again about one of them.

        That is at the first tick, and after every GRACE more.
        """
        due = False
        for stream in streams:
            if self.includes(stream):
                waited = 0 if self._comes_closer(stream) else self._ticks.get(stream, 0)
                ticks = self._ticks[stream] = waited + 1
                due |= ticks % GRACE == 1 and ticks < UNANSWERED
            else:
                self._reported.pop(stream, None)
        return due

    def _comes_closer(self, stream: Stream) -> bool:
        """Whether peers have come closer than ever to where this broker begins.

        A peer far from the publisher may take long, and must not be taken for one that never gets
        there. What liars claim beyond the beginning of this broker does not count.
        """
        served = self._served.get(stream.data)
        end = 0 if served is None else served.lane(stream.lane).final_from
        reached = sum(min(report.next, end) for report in self._holdings.of(stream).values())
        closer = reached > self._reached.get(stream, 0)
        if closer:
            self._reached[stream] = reached
        return closer

    def known(self) -> dict[Stream, None]:
        """Streams that this broker or a peer has, or may have; others are forgotten."""
        known = self._known()
        self._ticks = {stream: ticks for stream, ticks in self._ticks.items() if stream in known}
        self._reached = {stream: n for stream, n in self._reached.items() if stream in known}
        return known

    def _known(self) -> dict[Stream, None]:
        mine = [stream for served in self._served.all() for stream, _ in served.lanes()]
        return dict.fromkeys((*mine, *self._holdings.streams(), *self._reported))


def own_report(entry: ChannelEntry, journal: Journal, stream: Stream, end: int) -> int:
    """1 if this broker's journal has the digest before a number, and it counts; else 0.

    It counts where each broker vouches for what it forwarded, and not where they settle it.
    """
    known = end > 1 and journal.digests(stream, end - 1, 1) != [None]
    return int(known and entry.policy.basis is Basis.FORWARDED)
