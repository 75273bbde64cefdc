"""What a broker is sure of, told to its peers, and what they told: the ground of state transfer.

A broker's *final* word on a number is the one that it would sign (`Carrier.final`): it does not
change any more. `needed` says how many equal final words decide what a number is.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumcast.cell.messages import Position, Positions, Regain, Regained, Survey
from quorumcast.cell.naming import name_in_turn
from quorumcast.cell.serving.desk import Desk
from quorumcast.cell.serving.desks import Desks
from quorumcast.core.ids import Channel, Lane, NodeId, Stream
from quorumcast.core.limits import MAX_FRAME_BYTES
from quorumcast.core.machine import Drop, DropReason, Effect, Send
from quorumcast.core.quorum import Quorums, accept_votes
from quorumcast.core.statements import Basis
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View


def recoverable(entry: ChannelEntry) -> bool:
    """Whether brokers of this channel get back from one another what they lost.

    A log has its own way. On a chain nobody can vote without the MACs that came with a number.
    """
    return not (entry.policy.total or entry.policy.chained)


def words_needed(
    quorums: Quorums, policy: Policy, lane: Lane = Lane.DATA, *, after: bool = False
) -> int:
    """How many equal final words decide what a number is.

    `after`: the number lies after all that this broker holds, so it has vouched for nothing else
    there. It may then repeat what one correct broker vouched for, as if it had heard it from the
    publisher.
    """
    if policy.crash_only:
        return 1
    if after or lane is Lane.HISTORY or policy.basis is Basis.SETTLED:
        return quorums.one_correct
    return accept_votes(quorums, policy.protection, policy.broadcast)


def desk_of(desks: Desks, stream: Stream) -> Desk | None:
    """The desk of a stream that a peer asks about, if the stream has such a lane.

    A liar may name the lane of histories where there are none: nothing is to be vouched for under
    that name.
    """
    desk = desks.get(stream.data)
    if desk is None or stream.lane is Lane.DATA or desk.entry.policy.has_history:
        return desk
    return None


def testify(desks: Desks, sender: NodeId, message: Survey | Regain) -> list[Effect]:
    """The answer to a peer that asks of what this broker is sure."""
    if isinstance(message, Survey):
        desks.hear_life(sender, message.life)
        held = [
            Position(stream, carrier.final_from, end)
            for desk in desks.all()
            if desk.stream.channel == message.channel and desk.genuine
            for stream, carrier in desk.lanes()
            for end in (min(carrier.final + 1, desk.sayable(stream.lane)),)
            # Also if it holds nothing: peers may begin where it is.
            if end > 1 and end >= carrier.final_from
        ]
        named = name_in_turn(desks.positions_of_ended(message.channel) + held)
        return [Send((sender,), Positions(message.channel, named))]
    desk = desk_of(desks, message.stream)
    if desk is None:
        return [Drop(DropReason.NOT_HELD, sender)]
    carrier = desk.lane(message.stream.lane)
    last = message.first + message.count - 1
    sure = min(carrier.final + 1, desk.sayable(message.stream.lane))
    if message.first < carrier.final_from or last >= sure:
        return [Drop(DropReason.NOT_HELD, sender)]
    ledger = carrier.ledger
    if not message.bodies:
        digests = ledger.digests(message.first, message.count)
        if digests is None:
            return [Drop(DropReason.NOT_HELD, sender)]
        return [Send((sender,), Regained(message.stream, message.first, digests))]
    held_run = ledger.read(message.first, message.count, MAX_FRAME_BYTES // 4)
    if held_run is None or held_run.first != message.first:
        return [Drop(DropReason.NOT_HELD, sender)]
    regained = Regained(message.stream, held_run.first, held_run.digests)
    return [Send((sender,), regained, held_run.bodies)]


class Holdings:
    """Of what each peer is sure, by its own account."""

    __slots__ = ("_by_stream", "_ended", "_streams", "_told", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        #: What each peer last said of each channel; only streams of entitled publishers.
        self._told: dict[tuple[Channel, NodeId], dict[Stream, Position]] = {}
        #: The same by stream: a liar may name a thousand on every channel, and is asked often.
        self._by_stream: dict[Stream, dict[NodeId, Position]] = {}
        #: What `streams` returns, until somebody says something new.
        self._streams: list[Stream] | None = None
        #: Streams that are over, and where they ended, as each peer last said of each channel.
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

    def hear(self, peer: NodeId, message: Positions) -> list[Stream]:
        """A peer's account of a channel; the streams in it that are not over."""
        self._streams = None
        for stream in self._told.get((message.channel, peer), ()):
            words = self._by_stream[stream]
            del words[peer]
            if not words:
                del self._by_stream[stream]
        named = [
            position
            for position in message.positions
            if position.stream.channel == message.channel
            and self._has_lane(position.stream)
            and position.base <= position.next
            and self._view.may_publish(position.stream.publisher, message.channel)
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
        """Who has ever said what it holds of a channel."""
        return [peer for name, peer in self._told if name == channel]

    def streams(self) -> list[Stream]:
        """Every stream of which so many speak that it exists: liars alone may invent any number."""
        if self._streams is None:
            enough = {
                entry.name: min(self.needed(entry), self._view.quorums.one_correct)
                for entry in self._view.channels
            }
            self._streams = [
                stream
                for stream, words in self._by_stream.items()
                if len(words) >= enough.get(stream.channel, 0)
            ]
        return self._streams

    def endings(self, channel: Channel) -> dict[Stream, int]:
        """Streams that are over by the word of enough peers, and before which number they ended.

        Enough: as many as do not all lie. One correct broker lets go of whole streams by retention
        alone, and so may all others.
        """
        entry = self._view.channel(channel)
        enough = 0 if entry is None else self.needed(entry, after=True)
        ends: dict[Stream, list[int]] = {}
        for (name, _), ended in self._ended.items():
            for stream, end in ended.items() if name == channel else ():
                ends.setdefault(stream, []).append(end)
        return {
            stream: sorted(told, reverse=True)[enough - 1]
            for stream, told in ends.items()
            if len(told) >= enough
        }

    def of(self, stream: Stream) -> Mapping[NodeId, Position]:
        """Who is sure of what in a stream."""
        return self._by_stream.get(stream, {})

    def needed(self, entry: ChannelEntry, lane: Lane = Lane.DATA, *, after: bool = False) -> int:
        """How many equal words decide what a number is."""
        return words_needed(self._view.quorums, entry.policy, lane, after=after)

    def end(self, entry: ChannelEntry, stream: Stream) -> int:
        """Where enough peers end to go on after what is held; 0 if too few speak of the stream."""
        needed = self.needed(entry, stream.lane, after=True)
        ends = sorted((word.next for word in self.of(stream).values()), reverse=True)
        return ends[needed - 1] if len(ends) >= needed else 0

    def end_from(self, entry: ChannelEntry, stream: Stream, first: int) -> int:
        """Up to where enough peers hold a stream from a number on; 0 if too few hold it."""
        needed = self.needed(entry, stream.lane, after=True)
        ends = sorted((w.next for w in self.of(stream).values() if w.base <= first), reverse=True)
        return ends[needed - 1] if len(ends) >= needed else 0

    def boundary(self, entry: ChannelEntry, stream: Stream) -> int:
        """Where a broker that holds nothing may begin; 0 if that cannot be told.

        Where votes are about runs, a liar could make it begin within one, which would never be
        completed: there, enough peers must name the same number.
        """
        needed = self.needed(entry, stream.lane)
        ends = sorted((word.next for word in self.of(stream).values()), reverse=True)
        if entry.policy.whole_runs:
            return max((end for end in ends if ends.count(end) >= needed), default=0)
        return ends[needed - 1] if len(ends) >= needed else 0

    def ahead_of(self, desk: Desk | None) -> bool:
        """Whether enough peers have settled, by histories, what this broker has not.

        It may hold all of it; but its votes on those histories, and its echoes, are still lacking.
        """
        if desk is None or not desk.entry.policy.has_history:
            return False
        return self.end(desk.entry, desk.stream) - 1 > desk.carrier.settled

    def beginning(
        self, entry: ChannelEntry, stream: Stream, end: int, own: int = 0, *, after: bool = False
    ) -> int:
        """From where on enough peers hold what lies before a number; the number if they do not.

        `own`: how many words this broker itself can add (0 or 1).
        """
        needed = self.needed(entry, stream.lane, after=after)
        needed = max(needed - own, 1)  # somebody must have the contents
        bases = sorted(word.base for word in self.of(stream).values() if word.next >= end)
        return min(bases[needed - 1], end) if len(bases) >= needed else end

    def reach(self, entry: ChannelEntry, stream: Stream, end: int, own: int) -> bool:
        """Whether enough peers had got so far when they were asked."""
        far = sum(word.next >= end for word in self.of(stream).values())
        return far >= self.needed(entry) - own

    def believed(self, entry: ChannelEntry, stream: Stream) -> bool:
        """Whether so many speak of a stream that it may exist, and too few for anything more.

        With 2f+1 brokers one is enough, perhaps a liar (`correct_responders`).
        """
        needed, words, quorums = self.needed(entry), len(self.of(stream)), self._view.quorums
        return min(needed, quorums.one_correct, quorums.correct_responders) <= words < needed
