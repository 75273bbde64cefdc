"""Turnout: which members send a message that enough others have sent, how late, and which never do.

Every node knows when a quorum of brokers has spoken: a subscriber when it accepts a publication, a
publisher when its publication is acknowledged, a broker when it delivers a run. Every other correct
broker must then send the same message. Later ones are counted by their lateness. One that has not
come after OVERDUE_MS is missing if the link to its sender was up and lost nothing all that time.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.ordering.leader_change import MAX_LEADER_TIMEOUT_MS
from quorumcast.watch.observation import Kind, Notes, forget, remember

#: A message is missing after this time. It is the longest leader timeout of a correct broker, and
#: twelve round trips between continents: a distant node omits nothing.
OVERDUE_MS = MAX_LEADER_TIMEOUT_MS
#: Reason: the link lost packets shortly before, so a retransmission may be under way.
MENDED = "mended"
#: Reason: the peer sent nothing at all since then, so it may be stopped.
MUTE = "mute"
#: A few round trips: after this time without a loss a peer's earlier messages have arrived.
SETTLED_MS = 1000
#: After this time without a loss all retransmissions are over.
MENDED_MS = 3000
#: Limits per kind of message: remembered numbers of a stream, and streams.
MAX_MOMENTS = 2048
MAX_STREAMS = 256
#: Upper bounds, in milliseconds, of the histogram of lateness.
BUCKETS = (5, 10, 20, 40, 80, 160, 320, 640, 1280, 10**9)

#: A number of a stream.
Place = tuple[Stream, int]


def bucket_of(late_ms: int) -> int:
    """Return the upper bound of the bucket that a lateness falls into."""
    return next(bound for bound in BUCKETS if late_ms < bound)


class LinkHistory:
    """For each peer: when its session began, and when packets were last lost."""

    def __init__(self) -> None:
        self.up_since: dict[NodeId, int] = {}
        #: The later of the beginning of the session and its last loss.
        self.clear_since: dict[NodeId, int] = {}
        self.heard_at: dict[NodeId, int] = {}
        #: The last loss on any link.
        self.lost_at: int | None = None
        #: The number of sessions so far.
        self.sessions: dict[NodeId, int] = {}

    def on_connected(self, peer: NodeId, now: Millis) -> None:
        """A session begins."""
        self.up_since[peer] = self.clear_since[peer] = now
        self.sessions[peer] = self.sessions.get(peer, 0) + 1

    def on_disconnected(self, peer: NodeId) -> None:
        """A session ends."""
        self.up_since.pop(peer, None)
        self.clear_since.pop(peer, None)

    def on_heard(self, peer: NodeId, now: Millis) -> None:
        """A message arrives."""
        self.heard_at[peer] = now

    def on_lost(self, peer: NodeId, now: Millis) -> None:
        """Packets of a peer did not arrive."""
        self.lost_at = now
        if peer in self.clear_since:
            self.clear_since[peer] = now

    def is_complete(self, peer: NodeId, since: int) -> bool:
        """Whether everything that a peer sent since shortly before that time has arrived."""
        clear = self.clear_since.get(peer)
        return clear is not None and since - clear >= SETTLED_MS

    def loss_reason(self, peer: NodeId, since: int) -> str:
        """Return MENDED if a loss may explain that something due at a time is missing, else "".

        A loss on any link counts: our own packets may be lost as well, and we cannot see that. A
        first session that lost nothing has nothing to retransmit.
        """
        clear, up = self.clear_since.get(peer), self.up_since.get(peer)
        unbroken = clear == up and self.sessions.get(peer) == 1
        whole = clear is not None and (unbroken or since - clear >= MENDED_MS)
        calm = self.lost_at is None or since - self.lost_at >= MENDED_MS
        return "" if whole and calm else MENDED


class _Moment(msgspec.Struct):
    """The time at which a quorum had spoken of a number, and the members that had not."""

    since: int
    waiting: dict[NodeId, None]
    number: int = 0


class _Expected:
    """One kind of message that these members must send."""

    def __init__(
        self, message: str, members: tuple[NodeId, ...], links: LinkHistory, notes: Notes
    ) -> None:
        self._message = message
        self._members = members
        self._links = links
        self._notes = notes

    def _note_arrival(self, now: Millis, member: NodeId, stream: Stream, late_ms: int) -> None:
        bucket = bucket_of(late_ms)
        self._notes.add(now, Kind.CAME, member, "", self._message, stream, bucket=bucket)


class Turnout(_Expected):
    """One kind of message that every member must send about each place."""

    def __init__(
        self, message: str, members: tuple[NodeId, ...], links: LinkHistory, notes: Notes
    ) -> None:
        super().__init__(message, members, links, notes)
        self._moments: OrderedDict[Place, _Moment] = OrderedDict()
        #: Members that have spoken of a place before a quorum has.
        self._early: OrderedDict[Place, dict[NodeId, None]] = OrderedDict()
        #: Places whose moment is over: nothing is expected there any more.
        self._over: OrderedDict[Place, None] = OrderedDict()

    def on_quorum(self, now: Millis, place: Place) -> None:
        """A quorum has spoken of this place; all other members must follow."""
        if place in self._moments or place in self._over:
            return
        early, expected = self._early.pop(place, {}), self._expected(place)
        for member in expected:
            if member in early:
                self._note_arrival(now, member, place[0], 0)
        waiting = {member: None for member in expected if member not in early}
        remember(self._moments, place, _Moment(now, waiting))

    def on_message(self, now: Millis, member: NodeId, place: Place) -> None:
        """A member speaks of this place."""
        moment = self._moments.get(place)
        if moment is not None:
            if member in moment.waiting:
                del moment.waiting[member]
                self._note_arrival(now, member, place[0], now - moment.since)
        elif place not in self._over:
            remember(self._early, place, {**self._early.get(place, {}), member: None})

    def sweep(self, now: Millis) -> None:
        """Note the messages that have not come in time."""
        while self._moments:
            place, moment = next(iter(self._moments.items()))
            since = moment.since
            if now - since < OVERDUE_MS:
                return
            del self._moments[place]
            remember(self._over, place, None)
            for member in moment.waiting:
                if self._links.is_complete(member, since) and self._can_speak(member, place[0]):
                    reason = self._reason(member, since)
                    self._notes.add(now, Kind.MISSING, member, reason, self._message, *place)

    def _expected(self, place: Place) -> tuple[NodeId, ...]:
        """Return the members that must speak of a place."""
        return self._members

    def _can_speak(self, member: NodeId, stream: Stream) -> bool:
        """Whether a member is able to speak of a stream."""
        return True

    def _reason(self, member: NodeId, since: int) -> str:
        """Return the reason column of a missing message."""
        return "" if self._links.heard_at.get(member, since) > since else MUTE


class PublisherTurnout(Turnout):
    """Runs that a publisher must send to this broker because other brokers have them.

    A broker that hears from others of a settled or proposed run must get it from the publisher as
    well, sooner or later. A restarted publisher does not owe the runs of an earlier incarnation.
    """

    def __init__(self, message: str, links: LinkHistory, notes: Notes) -> None:
        super().__init__(message, (), links, notes)
        #: The highest incarnation that each publisher used towards this broker.
        self._incarnations: OrderedDict[NodeId, int] = OrderedDict()

    def on_publisher_message(self, now: Millis, place: Place) -> None:
        """The publisher itself sends a run."""
        publisher, incarnation = place[0].publisher, place[0].incarnation
        latest = max(incarnation, self._incarnations.get(publisher, 0))
        remember(self._incarnations, publisher, latest)
        self.on_message(now, publisher, place)

    def _expected(self, place: Place) -> tuple[NodeId, ...]:
        return (place[0].publisher,)

    def _can_speak(self, member: NodeId, stream: Stream) -> bool:
        return stream.incarnation >= self._incarnations.get(member, 0)

    def _reason(self, member: NodeId, since: int) -> str:
        return self._links.loss_reason(member, since)


class CumulativeTurnout(_Expected):
    """One kind of message in which every broker says how far it is on a stream.

    Only one number per APART_MS is checked. Until a broker has answered our Subscribe in this
    session, nothing counts as missing: the Subscribe may have been lost.
    """

    #: Least time between two numbers of a stream that are checked.
    APART_MS = 2

    def __init__(
        self, message: str, members: tuple[NodeId, ...], links: LinkHistory, notes: Notes
    ) -> None:
        super().__init__(message, members, links, notes)
        #: Numbers that a quorum has reached; the oldest comes first.
        self._moments: dict[Stream, deque[_Moment]] = {}
        #: The highest number of each member.
        self._reached: OrderedDict[tuple[Stream, NodeId], int] = OrderedDict()
        #: The time of the last number that was checked.
        self._checked_at: dict[Stream, int] = {}
        #: The highest number that a quorum has reached.
        self._settled: OrderedDict[Stream, int] = OrderedDict()
        #: Numbers that a correct broker has reached, and the time.
        self._backed: dict[Stream, deque[tuple[int, int]]] = {}
        #: Brokers that report on a channel in this session, or on all channels (None).
        self._reporting: dict[tuple[NodeId, Channel | None], None] = {}
        #: Cancelled subscriptions: a broker's reports may be from before the cancellation.
        self._cancelled: dict[tuple[NodeId, Channel], None] = {}

    def on_new_session(self, peer: NodeId) -> None:
        """A new session begins; the broker must answer again."""
        forget(peer, self._reporting, self._cancelled)

    def on_unsubscribe(self, peer: NodeId, channel: Channel) -> None:
        """This node no longer wants the messages of a channel."""
        self._reporting.pop((peer, channel), None)
        self._cancelled[peer, channel] = None

    def on_answer(self, peer: NodeId, channel: Channel | None = None) -> None:
        """A broker has answered that it is going to report."""
        self._reporting[peer, channel] = None
        if channel is not None:
            self._cancelled.pop((peer, channel), None)

    def on_report(self, peer: NodeId, channel: Channel) -> None:
        """A broker reports, so it knows of the subscription even if its answer was lost."""
        if (peer, channel) not in self._cancelled:
            self._reporting[peer, channel] = None

    def begin_anew(self, channel: Channel) -> None:
        """Members send other messages on a channel from now on: nothing before is due any more."""
        for memory in (self._settled, self._checked_at, self._moments, self._backed):
            for stream in [stream for stream in memory if stream.channel == channel]:
                del memory[stream]
        for key in [key for key in self._reached if key[0].channel == channel]:
            del self._reached[key]

    def on_quorum(self, now: Millis, stream: Stream, number: int) -> None:
        """A quorum has reached this number; all other members must follow."""
        remember(self._settled, stream, max(number, self._settled.get(stream, 0)))
        if now - self._checked_at.get(stream, -1000) < self.APART_MS:
            return
        if stream not in self._moments and len(self._moments) >= MAX_STREAMS:
            return
        self._checked_at[stream] = now
        waiting: dict[NodeId, None] = {}
        for member in self._members:
            if self._reached.get((stream, member), 0) >= number:
                self._note_arrival(now, member, stream, 0)
            else:
                waiting[member] = None
        moments = self._moments.setdefault(stream, deque(maxlen=MAX_MOMENTS))
        if waiting:
            moments.append(_Moment(now, waiting, number))

    def on_correct_broker(self, now: Millis, stream: Stream, number: int) -> None:
        """A correct broker has reached this number, so all may, even if no quorum ever does."""
        if stream not in self._backed and len(self._backed) >= MAX_STREAMS:
            return
        backed = self._backed.setdefault(stream, deque(maxlen=MAX_MOMENTS))
        if not backed or now - backed[-1][1] >= self.APART_MS:
            backed.append((number, now))

    def on_progress(self, now: Millis, member: NodeId, stream: Stream, number: int) -> int:
        """A member reports a number; return how many members have reached it."""
        key = (stream, member)
        self._reached[key] = max(number, self._reached.get(key, 0))
        if len(self._reached) > MAX_MOMENTS:
            self._reached.popitem(last=False)
        for moment in self._moments.get(stream, ()):
            if moment.number > number:
                break
            if member in moment.waiting:
                del moment.waiting[member]
                self._note_arrival(now, member, stream, now - moment.since)
        return sum(self._reached.get((stream, other), 0) >= number for other in self._members)

    def sweep(self, now: Millis) -> None:
        """Note the members that have not reached a number in time."""
        for stream, moments in self._moments.items():
            while moments and (now - moments[0].since >= OVERDUE_MS or not moments[0].waiting):
                moment = moments.popleft()
                for member in moment.waiting:
                    self._note_missing(now, member, stream, moment.number, moment.since)
        for stream, backed in self._backed.items():
            while backed and now - backed[0][1] >= OVERDUE_MS:
                number, since = backed.popleft()
                if number <= self._settled.get(stream, 0):
                    continue
                for member in self._members:
                    if self._reached.get((stream, member), 0) >= number:
                        self._note_arrival(now, member, stream, 0)
                    else:
                        self._note_missing(now, member, stream, number, since)

    def _note_missing(
        self, now: Millis, member: NodeId, stream: Stream, number: int, since: int
    ) -> None:
        reporting = any((member, channel) in self._reporting for channel in (None, stream.channel))
        if reporting and self._links.is_complete(member, since):
            self._notes.add(now, Kind.MISSING, member, "", self._message, stream, number)
