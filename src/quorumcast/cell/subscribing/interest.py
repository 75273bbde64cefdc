"""A subscriber's interest in one channel: where its streams begin, and what it lacks of them.

Where to begin: every broker says how far each stream is. Of n-f answers the (f+1)-th largest is
taken: f liars can push it neither beyond what a correct broker reported nor below it. Streams that
turn up later begin at 1. A stream counts only once f+1 brokers have named it, so that a lying
broker cannot make a subscriber keep streams that do not exist.

To begin at a time, brokers are asked for the first number of that time beside their oldest; the
answers are ranked in the same way, so no liar can say more than with its oldest. Correct brokers
may give different answers, for they look only so far at once: that is no loss.

What nobody holds any longer is announced as a gap, never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.broadcast.acceptance import Acceptor, rules_for
from quorumcast.broadcast.application import DeliverGap, Refused
from quorumcast.broadcast.messages import Cursor
from quorumcast.cell.messages import Positions, Subscribe
from quorumcast.cell.naming import name_in_turn
from quorumcast.cell.subscribing.archive import Archive
from quorumcast.cell.subscribing.excerpt import Excerpt
from quorumcast.cell.subscribing.reports import Reports
from quorumcast.cell.subscribing.silence import Silence, Tardiness
from quorumcast.core.ids import Channel, Lane, NodeId, Stream, total_order
from quorumcast.core.limits import MAX_ENDED
from quorumcast.core.machine import Effect
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View

#: Refreshes for which a beginning in the past waits for brokers that may know of more.
DOUBTFUL_TICKS = 4
#: Refreshes without any news after which a subscriber asks whether it missed the last word.
QUIET_TICKS = 8
#: Refreshes, about eight seconds, for which numbers that others let go of may still be with a
#: broker that does not answer. Where one broker's word is enough, all would wait for a dead one.
PATIENT_TICKS = 32


class Interest:
    """Everything that a subscriber keeps for one channel."""

    __slots__ = (
        "_doubts",
        "_floor",
        "_lost",
        "_named",
        "_reports",
        "_rules",
        "_since",
        "_start",
        "_view",
        "_waits",
        "acceptors",
        "archives",
        "begun",
        "channel",
        "ends",
        "entry",
        "excerpt",
        "pulls",
        "requested",
        "seen",
        "silence",
        "source",
        "tardiness",
        "ticks",
    )

    def __init__(
        self,
        view: View,
        entry: ChannelEntry,
        start: int | None = None,
        since: int = 0,
        excerpt: Excerpt | None = None,
    ) -> None:
        self.channel: Channel = entry.name
        self.entry = entry
        #: Where to begin: None with what comes next, 0 with the oldest, else at a position.
        self._start = start
        #: The time from which on publications are wanted, in microseconds; 0 for any.
        self._since = since
        #: Set where it ends somewhere.
        self.excerpt = excerpt
        self._view = view
        self._rules = rules_for(view.quorums, entry.policy, view.brokers)
        self._reports = Reports(view, entry.policy)
        #: Streams (data lanes) that too few brokers have named yet, and which ones have; of each
        #: publisher at most as many by each broker as a correct one may know of.
        self._named: dict[Stream, dict[NodeId, None]] = {}
        #: Incarnations of a publisher up to this one are over and forgotten.
        self._floor: dict[NodeId, int] = {}
        #: For how many refreshes it has not begun.
        self._doubts = 0
        #: Whether the beginnings are known.
        self.begun = False
        #: Streams (data lanes) of which something was there when the beginnings were known, and
        #: the number after the newest of each.
        self.ends: dict[Stream, int] = {}
        #: Gaps in streams that ended, until somebody is told.
        self._lost: list[Effect] = []
        #: One acceptor per stream and lane, one archive per stream.
        self.acceptors: dict[Stream, Acceptor] = {}
        self.archives: dict[Stream, Archive] = {}
        #: The broker that sends bodies with its votes.
        self.source: NodeId | None = None
        #: Cursors at the last request for a replay, to know when to ask for more.
        self.requested: dict[Stream, int] = {}
        self.tardiness = Tardiness()
        #: How often bodies of a stream were pulled in a row, and up to which number.
        self.pulls: dict[Stream, tuple[int, int]] = {}
        self.silence = Silence(chained=entry.policy.chained)
        #: `next` per stream at the last refresh, and refreshes since something moved.
        self.seen: dict[Stream, int] = {}
        self.ticks = 0
        #: Refreshes for which no broker that answers has held the next number of a stream.
        self._waits: dict[Stream, int] = {}

    def recount(self) -> None:
        """Go on in a new epoch with other rights and, perhaps, a broker more or less.

        Who lost the right to publish is not heard any more.
        """
        members = self._view.brokers
        self._rules = rules_for(self._view.quorums, self.entry.policy, members)
        self.silence.retain(members)
        self._reports.forget_gone()
        for data, named in list(self._named.items()):
            self._named[data] = {broker: None for broker in named if broker in members}
            if not self._named[data]:
                del self._named[data]
        if self.source not in members:
            self.source = None
        for acceptor in self.acceptors.values():
            acceptor.recount(self._rules[acceptor.stream.lane], members)
        for archive in self.archives.values():
            archive.forget_statements()
        for stream in [s for s in self.acceptors if not self._may_speak(s)]:
            self._end(stream)
            floor = self._floor.get(stream.publisher, -1)
            self._floor[stream.publisher] = max(floor, stream.incarnation)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        sizes = {"acceptors": len(self.acceptors), "named": len(self._named)}
        parts = [(stream, acceptor.sizes()) for stream, acceptor in self.acceptors.items()]
        parts += [(stream, archive.sizes()) for stream, archive in self.archives.items()]
        for stream, part in parts:
            sizes.update({f"{stream}/{name}": size for name, size in part.items()})
        return sizes

    def subscribe_to(self, broker: NodeId) -> Subscribe:
        """The request that (re)starts a broker's votes for us."""
        cursors = [Cursor(stream, a.next) for stream, a in self.acceptors.items()]
        since = 0 if self.begun else self._since
        until = self.excerpt.asked if self.excerpt else 0
        wants_bodies = broker == self.source
        return Subscribe(self.channel, name_in_turn(cursors), wants_bodies, since, until)

    def asked_again(self) -> None:
        """Every broker is about to be asked for everything from the cursors on."""
        self._reports.ask()
        self.requested = {s: a.next for s, a in self.acceptors.items()}
        if self.excerpt is not None:
            self.excerpt.again(self.requested.get(total_order(self.channel), 1))

    def chained(self, lane: Lane) -> bool:
        """Whether this lane comes by a chain."""
        return lane is Lane.DATA and self.entry.policy.chained

    def answered(self, broker: NodeId) -> bool:
        """Whether a broker has said what it holds."""
        return broker in self._reports

    def forget(self, broker: NodeId) -> None:
        """A broker that comes back may have forgotten everything."""
        if not self.begun:
            self._reports.forget(broker)

    # ------------------------------------------------------------ positions

    def on_positions(self, broker: NodeId, message: Positions) -> tuple[bool, list[Effect]]:
        """What a broker holds; says whether cursors should be sent anew."""
        held = {p.stream: p for p in message.positions if self._relevant(p.stream)}
        self._reports.hear(broker, held)
        if not self.begun:
            return self._maybe_begin()
        fresh = [stream for stream in held if self.name(broker, stream)]
        return bool(fresh), self._gaps(held)

    def _maybe_begin(self) -> tuple[bool, list[Effect]]:
        if len(self._reports) < self._view.quorums.responders:
            return False, []
        patient = self._start is not None and self._doubts < DOUBTFUL_TICKS
        if patient and self._reports.doubtful(self._start or 0):
            return False, []
        return True, self._begin()

    def wait_no_longer(self) -> tuple[bool, list[Effect]]:
        """A refresh finds that it has not begun; says whether it has now."""
        self._doubts += 1
        return self._maybe_begin()

    def _relevant(self, stream: Stream) -> bool:
        return (
            stream.channel == self.channel
            and stream.incarnation > self._floor.get(stream.publisher, -1)
            and self._may_speak(stream)
            and (stream.lane is Lane.DATA or self.entry.policy.has_history)
        )

    def _may_speak(self, stream: Stream) -> bool:
        """Publishers with the right to it; where there is one order, the cell speaks for all."""
        if self.entry.policy.total:
            return stream == total_order(self.channel)
        return self._view.may_publish(stream.publisher, stream.channel)

    def _begin(self) -> list[Effect]:
        self.begun = True
        effects: list[Effect] = []
        streams = self._reports.streams()
        if self.excerpt is not None:
            # Whoever knows where it ends knows that it is there.
            streams[total_order(self.channel)] = self._reports.enough
        for data, named in streams.items():
            if named >= self._reports.enough:
                first, news = self._beginning(data)
                effects += news
                end = self.excerpt.until if self.excerpt else self._reports.end(data)
                if first < end or news:
                    self.ends[data] = end
                self._accept_from(data, first)
                if self.entry.policy.has_history:
                    # Rather one history too many than a publication that none of them names. (Not
                    # the smallest of all: one liar could have us wait where nobody votes.)
                    begin = self._reports.end(data.history, highest=False)
                    if first < end and self.chained(data.lane):
                        # Of what did not come by its chain histories alone speak.
                        begin = min(begin, self._reports.agreed(data.history))
                    self._accept_from(data.history, begin)
        if self._start is not None and self._start > 1 and not self.acceptors:
            effects.append(self._refuse_start(self._start, 1))
        return effects

    def _refuse_start(self, start: int, end: int) -> Effect:
        reason = f"position {start} of {self.channel!r} does not exist yet; the next is {end}"
        return Refused(self.channel, reason)

    def _beginning(self, stream: Stream) -> tuple[int, list[Effect]]:
        """The number to begin with, and what is to be said about those before it."""
        end = self._reports.end(stream)
        start = self._start
        if start is None:
            return end, []
        if start > end and self.excerpt is None:
            return end, [self._refuse_start(start, end)]
        # Whoever claims to hold nothing before some far number must not keep us from what comes.
        oldest = min(self._reports.agreed(stream), end)
        start = start or min(self._reports.claimed(stream), end)
        return max(start, oldest), self._gap(stream, start, oldest)

    def _gap(self, stream: Stream, first: int, oldest: int) -> list[Effect]:
        """What is to be said of numbers that nobody holds any longer, if they were wanted."""
        stop = oldest if self.excerpt is None else min(oldest, self.excerpt.until)
        return [DeliverGap(stream, first, stop - 1)] if first < stop else []

    def name(self, broker: NodeId, stream: Stream) -> bool:
        """A broker speaks of a stream; True if that makes it one that we follow from now on."""
        if stream in self.acceptors or not self.begun or not self._relevant(stream):
            return False
        data = stream.data
        named = self._named.setdefault(data, {})
        named[broker] = None
        if len(named) >= self._reports.enough:
            del self._named[data]
            self._accept_from(data, 1)
            if self.entry.policy.has_history:
                self._accept_from(data.history, 1)
            return True
        self._forget_hearsay(broker, data.publisher)
        return False

    def _forget_hearsay(self, broker: NodeId, publisher: NodeId) -> None:
        """Of each publisher a broker may name so many streams that nobody else has named yet.

        Bounded per publisher: one that opens streams without end at one broker each must not use up
        what its brokers may say of others.
        """
        mine = [s for s, by in self._named.items() if broker in by and s.publisher == publisher]
        most = self.entry.policy.limits.streams_per_publisher + MAX_ENDED
        for stale in mine[: max(0, len(mine) - most)]:
            del self._named[stale][broker]
            if not self._named[stale]:
                del self._named[stale]

    def _accept_from(self, stream: Stream, first: int) -> None:
        limits = self.entry.policy.limits
        self.acceptors[stream] = Acceptor(
            stream,
            first,
            self._rules[stream.lane],
            self._view.hash,
            limits,
            may_split=self.entry.policy.may_split and stream.lane is Lane.DATA,
        )
        if stream.lane is Lane.DATA:
            self.archives[stream] = Archive(stream, self._view, limits)
        self._retire_old(stream, limits.streams_per_publisher)

    def _retire_old(self, stream: Stream, limit: int) -> None:
        incarnations = sorted(
            {s.incarnation for s in self.acceptors if s.publisher == stream.publisher}
        )
        for incarnation in incarnations[: max(0, len(incarnations) - limit)]:
            self._floor[stream.publisher] = incarnation
            over = (stream.publisher, incarnation)
            for stale in [s for s in self.acceptors if (s.publisher, s.incarnation) == over]:
                self._end(stale, self._reports.reached(stale))

    def _end(self, stream: Stream, end: int = 0) -> None:
        """Follow a stream no more: what is known to be there and is lacking never comes."""
        acceptor, end = self.acceptors.pop(stream), max(end, self.ends.pop(stream, 0))
        self.archives.pop(stream, None)
        self.pulls.pop(stream, None)
        if end > acceptor.next and stream.lane is Lane.DATA:
            self._lost.append(DeliverGap(stream, acceptor.next, end - 1))

    def take_lost(self) -> list[Effect]:
        """What has become of streams that ended, once."""
        lost, self._lost = self._lost, []
        return lost

    @property
    def end(self) -> int:
        """Where there is one order: the position that comes next, as far as is known."""
        stream = total_order(self.channel)
        if self.excerpt is not None:
            return self._reports.end(stream)
        acceptor = self.acceptors.get(stream)
        return 1 if acceptor is None else max(acceptor.next, self.ends.get(stream, 1))

    def oldest(self, stream: Stream, wanted: int = 0, *, of_those_who_answer: bool = False) -> int:
        """The first number that enough brokers may still hold to be accepted."""
        return self._reports.oldest(stream, wanted, of_those_who_answer=of_those_who_answer)

    def needed(self, lane: Lane) -> int:
        """How many brokers must hold a publication so that it can still be accepted."""
        return self._reports.needed(lane)

    def _gaps(self, streams: Iterable[Stream]) -> list[Effect]:
        effects: list[Effect] = []
        for stream in streams:
            acceptor = self.acceptors.get(stream)
            if acceptor is None:
                continue
            impatient = self._waits.get(stream, 0) >= PATIENT_TICKS
            # No further than a correct broker has got: of a stream that is over nobody holds more.
            first = min(
                self.oldest(stream, acceptor.next, of_those_who_answer=impatient),
                self._reports.reached(stream),
            )
            if first > acceptor.next:
                effects += self._gap(stream, acceptor.next, first)
                acceptor.skip_to(first)
        return effects

    # ------------------------------------------------------------- progress

    def note_progress(self) -> bool:
        """See what moved since the last refresh; says whether to ask all brokers again."""
        moved = any(a.next != self.seen.get(s) for s, a in self.acceptors.items())
        if self.finished:
            return False
        if self.entry.policy.crash_only:
            self._waits = {
                stream: self._waits.get(stream, 0) + 1
                for stream, acceptor in self.acceptors.items()
                if self.oldest(stream, acceptor.next, of_those_who_answer=True) > acceptor.next
            }
        stuck = self.excerpt is not None or any(a.stuck for a in self.acceptors.values())
        self.seen = {s: a.next for s, a in self.acceptors.items()}
        self.ticks = 0 if moved else self.ticks + 1
        # Stuck: at once, then ever more rarely. Quiet: now and then, for the last word may be lost.
        quiet = self.ticks % QUIET_TICKS == 0
        due = quiet or self.ticks & (self.ticks - 1) == 0
        return not moved and ((stuck and due) or quiet)

    def notice_silence(self) -> list[Effect]:
        """A broker that does not vote on what others have long voted on is suspected."""
        return self.silence.notice(self._view.brokers, self.acceptors, self.seen)

    @property
    def finished(self) -> bool:
        """Whether it ends somewhere and has come there."""
        if self.excerpt is None:
            return False
        return all(acceptor.next >= self.excerpt.until for acceptor in self.acceptors.values())

    def behind(self, stream: Stream) -> bool:
        """Whether a replay has been used up and brokers hold more."""
        asked = self.requested.get(stream)
        if asked is None or self.excerpt is not None:
            return False
        replay = self.entry.policy.limits.replayed
        acceptor = self.acceptors[stream]
        left = self._reports.reached(stream) - asked
        return left > replay // 2 and acceptor.next - asked >= min(replay // 2, left)
