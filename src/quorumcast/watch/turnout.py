"""Turnout: who says what enough others have said, how much later, and who never does.

A subscriber that accepts a publication, a publisher whose publication is held by enough brokers and
a broker that delivers a run all know a moment at which *enough* brokers had spoken. Every other
broker ought to say the same. What it says later is counted by how much later; what it has not said
after PATIENCE_MS is counted as missing, if the link to it was up, and lost nothing, all that time.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.ordering.patience import MOST_PATIENCE_MS
from quorumcast.watch.observation import Kind, Notes, remember

#: After so long something counts as never said. It is the longest time that a correct broker waits
#: for anything, and twelve times the round trip between continents: distance is not omission.
PATIENCE_MS = MOST_PATIENCE_MS
#: The reason of what was noticed of a peer of which something had got lost before.
MENDED = "mended"
#: … and of a peer that has not been heard at all since then.
MUTE = "mute"
#: After so long without a loss everybody has had time to catch up: a few round trips.
SETTLED_MS = 1000
#: … and after so long there is nothing left that anybody would say again.
MENDED_MS = 3000
#: Moments that are remembered per kind of message, and streams.
MAX_MOMENTS = 2048
MAX_STREAMS = 256
#: Upper bounds, in milliseconds, of the classes by which lateness is counted.
BUCKETS = (5, 10, 20, 40, 80, 160, 320, 640, 1280, 10**9)

#: What is spoken of: a number of a stream.
Place = tuple[Stream, int]


def bucket_of(late_ms: int) -> int:
    """The class that a lateness belongs to."""
    return next(bound for bound in BUCKETS if late_ms < bound)


class Links:
    """Since when each peer could be heard without interruption."""

    def __init__(self) -> None:
        self.up_since: dict[NodeId, int] = {}
        #: … and without losing anything.
        self.clear_since: dict[NodeId, int] = {}
        self.heard_at: dict[NodeId, int] = {}
        #: When packets of anybody got lost last, if ever.
        self.lost_at: int | None = None
        #: How many there have been.
        self.sessions: dict[NodeId, int] = {}

    def up(self, peer: NodeId, now: Millis) -> None:
        """A session has begun."""
        self.up_since[peer] = self.clear_since[peer] = now
        self.sessions[peer] = self.sessions.get(peer, 0) + 1

    def down(self, peer: NodeId) -> None:
        """A session has ended."""
        self.up_since.pop(peer, None)
        self.clear_since.pop(peer, None)

    def heard(self, peer: NodeId, now: Millis) -> None:
        """Something came."""
        self.heard_at[peer] = now

    def owed(self, peer: NodeId, since: int) -> bool:
        """Whether all that a peer said of something at a time, or shortly before, has come."""
        clear = self.clear_since.get(peer)
        return clear is not None and since - clear >= SETTLED_MS

    def state(self, peer: NodeId, since: int) -> str:
        """What to add to an observation of what was due at a time, if mending may explain it.

        Where packets of anybody get lost, some of ours may as well, and that we do not see. What
        never got lost there is no need to make up for.
        """
        clear, up = self.clear_since.get(peer), self.up_since.get(peer)
        unbroken = clear == up and self.sessions.get(peer) == 1
        whole = clear is not None and (unbroken or since - clear >= MENDED_MS)
        calm = self.lost_at is None or since - self.lost_at >= MENDED_MS
        return "" if whole and calm else MENDED

    def lost(self, peer: NodeId, now: Millis) -> None:
        """Packets of this peer have not arrived."""
        self.lost_at = now
        if peer in self.clear_since:
            self.clear_since[peer] = now


class Turnout:
    """One kind of message that every broker ought to send about each place."""

    def __init__(
        self,
        message: str,
        members: tuple[NodeId, ...],
        links: Links,
        notes: Notes,
    ) -> None:
        self._message = message
        self._members = members
        self._links = links
        self._notes = notes
        #: When enough had spoken of a place, and who had not yet.
        self._moments: OrderedDict[Place, tuple[int, dict[NodeId, None]]] = OrderedDict()
        #: Who has spoken of places at which not enough have yet.
        self._said: OrderedDict[Place, dict[NodeId, None]] = OrderedDict()
        #: Places that nobody waits for any more: what is said of them again is owed by nobody.
        self._over: OrderedDict[Place, None] = OrderedDict()

    def enough(self, now: Millis, place: Place) -> None:
        """Enough have spoken of this place now."""
        if place in self._moments or place in self._over:
            return
        said, owing = self._said.pop(place, {}), self._owing(place)
        for member in owing:
            if member in said:
                self._came(now, member, place[0], 0)
        waiting = {member: None for member in owing if member not in said}
        remember(self._moments, place, (now, waiting))

    def spoke(self, now: Millis, member: NodeId, place: Place) -> int:
        """A member has spoken of this place now; returns how many have before enough had."""
        moment = self._moments.get(place)
        if moment is not None:
            since, waiting = moment
            if member in waiting:
                del waiting[member]
                self._came(now, member, place[0], now - since)
            return 0
        if place in self._over:
            return 0
        said = {**self._said.get(place, {}), member: None}
        remember(self._said, place, said)
        return len(said)

    def _came(self, now: Millis, member: NodeId, stream: Stream, late_ms: int) -> None:
        self._notes.add(
            now, Kind.CAME, member, message=self._message, stream=stream, bucket=bucket_of(late_ms)
        )

    def sweep(self, now: Millis) -> None:
        """What has not come by now is missing."""
        while self._moments:
            place, (since, waiting) = next(iter(self._moments.items()))
            if now - since < PATIENCE_MS:
                return
            del self._moments[place]
            remember(self._over, place, None)
            for member in waiting:
                if self._links.owed(member, since) and self._ought(member, place[0]):
                    state = self._state(member, since)
                    self._notes.add(now, Kind.MISSING, member, state, self._message, *place)

    def _owing(self, place: Place) -> tuple[NodeId, ...]:
        """Those who ought to speak of a place."""
        return self._members

    def _ought(self, member: NodeId, stream: Stream) -> bool:
        """Whether a member can speak of a stream."""
        return True

    def _state(self, member: NodeId, since: int) -> str:
        """The reason of what is missing: a node that has said nothing at all may stand still."""
        return "" if self._links.heard_at.get(member, since) > since else MUTE


class Showings(Turnout):
    """A publisher owes every broker what it shows to the others.

    A broker that learns from other brokers of a run that is settled, or about to be ordered, ought
    to have been shown it by its publisher, or to be soon. A publisher that crashed and lives again
    does not owe what an earlier life of it showed to others.
    """

    def __init__(self, message: str, links: Links, notes: Notes) -> None:
        super().__init__(message, (), links, notes)
        #: The latest life of each publisher, by what it showed this broker.
        self._lives: OrderedDict[NodeId, int] = OrderedDict()

    def shown(self, now: Millis, place: Place) -> None:
        """The publisher itself has shown this."""
        publisher, life = place[0].publisher, place[0].incarnation
        remember(self._lives, publisher, max(life, self._lives.get(publisher, 0)))
        self.spoke(now, publisher, place)

    def _owing(self, place: Place) -> tuple[NodeId, ...]:
        return (place[0].publisher,)

    def _ought(self, member: NodeId, stream: Stream) -> bool:
        return stream.incarnation >= self._lives.get(member, 0)

    def _state(self, member: NodeId, since: int) -> str:
        return self._links.state(member, since)


class Progress:
    """One kind of message by which every broker tells how far it is; who is further has said all.

    Of the numbers that enough brokers have reached one is looked at every few milliseconds. Nothing
    is missing of a broker that has not shown in this session that it is going to tell: what asked
    it to may have got lost.
    """

    #: Numbers that are looked at are so far apart, in milliseconds.
    APART_MS = 2

    def __init__(
        self, message: str, members: tuple[NodeId, ...], links: Links, notes: Notes
    ) -> None:
        self._message = message
        self._members = members
        self._links = links
        self._notes = notes
        #: Number, time and who has not got there, for each stream; at most MAX_MOMENTS in all.
        self._moments: dict[Stream, deque[tuple[int, int, dict[NodeId, None]]]] = {}
        #: How far each member is on each stream.
        self._reached: OrderedDict[tuple[Stream, NodeId], int] = OrderedDict()
        self._last: dict[Stream, int] = {}
        #: How far enough are, and numbers of which a correct broker has told, with the time.
        self._settled: OrderedDict[Stream, int] = OrderedDict()
        self._backed: dict[Stream, deque[tuple[int, int]]] = {}
        #: Who has shown that it is going to tell, of which channels; None: of all.
        self._willing: dict[tuple[NodeId, Channel | None], None] = {}
        #: What was wanted of whom, and then no more: what it tells may be of that time.
        self._left: dict[tuple[NodeId, Channel], None] = {}

    def forget(self, peer: NodeId, channel: Channel | None = None) -> None:
        """A new session, or nothing of this channel is wanted any more."""
        for key in [k for k in self._willing if k[0] == peer and channel in (None, k[1])]:
            del self._willing[key]
        for left in [k for k in self._left if k[0] == peer and channel is None]:
            del self._left[left]
        if channel is not None:
            self._left[peer, channel] = None

    def agreed(self, peer: NodeId, channel: Channel | None = None) -> None:
        """A broker has answered that it is going to tell."""
        self._willing[peer, channel] = None
        if channel is not None:
            self._left.pop((peer, channel), None)

    def tells(self, peer: NodeId, channel: Channel) -> None:
        """A broker tells: it knows that it is asked to, though its answer may have got lost."""
        if (peer, channel) not in self._left:
            self._willing[peer, channel] = None

    def is_willing(self, peer: NodeId, stream: Stream) -> bool:
        return (peer, None) in self._willing or (peer, stream.channel) in self._willing

    def enough(self, now: Millis, stream: Stream, number: int) -> None:
        """Enough are as far as this now."""
        remember(self._settled, stream, max(number, self._settled.get(stream, 0)))
        if now - self._last.get(stream, -1000) < self.APART_MS:
            return
        if stream not in self._moments and len(self._moments) >= MAX_STREAMS:
            return
        self._last[stream] = now
        waiting: dict[NodeId, None] = {}
        for member in self._members:
            if self._reached.get((stream, member), 0) >= number:
                self._came(now, member, stream, 0)
            else:
                waiting[member] = None
        moments = self._moments.setdefault(stream, deque(maxlen=MAX_MOMENTS))
        if waiting:
            moments.append((number, now, waiting))

    def backed(self, now: Millis, stream: Stream, number: int) -> None:
        """A correct broker is as far as this, and so may all be, though never enough are."""
        if stream not in self._backed and len(self._backed) >= MAX_STREAMS:
            return
        backed = self._backed.setdefault(stream, deque(maxlen=MAX_MOMENTS))
        if not backed or now - backed[-1][1] >= self.APART_MS:
            backed.append((number, now))

    def spoke(self, now: Millis, member: NodeId, stream: Stream, number: int) -> int:
        """A member says that it is as far as this; returns how many are."""
        key = (stream, member)
        self._reached[key] = max(number, self._reached.get(key, 0))
        if len(self._reached) > MAX_MOMENTS:
            self._reached.popitem(last=False)
        for reached, since, waiting in self._moments.get(stream, ()):
            if reached > number:
                break
            if member in waiting:
                del waiting[member]
                self._came(now, member, stream, now - since)
        return sum(self._reached.get((stream, other), 0) >= number for other in self._members)

    def _came(self, now: Millis, member: NodeId, stream: Stream, late_ms: int) -> None:
        self._notes.add(
            now, Kind.CAME, member, message=self._message, stream=stream, bucket=bucket_of(late_ms)
        )

    def sweep(self, now: Millis) -> None:
        """Who is not there by now is not going to be."""
        for stream, moments in self._moments.items():
            while moments and (now - moments[0][1] >= PATIENCE_MS or not moments[0][2]):
                number, since, waiting = moments.popleft()
                for member in waiting:
                    self._miss(now, member, stream, number, since)
        for stream, backed in self._backed.items():
            while backed and now - backed[0][1] >= PATIENCE_MS:
                number, since = backed.popleft()
                if number <= self._settled.get(stream, 0):
                    continue
                for member in self._members:
                    if self._reached.get((stream, member), 0) >= number:
                        self._came(now, member, stream, 0)
                    else:
                        self._miss(now, member, stream, number, since)

    def _miss(self, now: Millis, member: NodeId, stream: Stream, number: int, since: int) -> None:
        if self.is_willing(member, stream) and self._links.owed(member, since):
            self._notes.add(
                now, Kind.MISSING, member, message=self._message, stream=stream, number=number
            )
