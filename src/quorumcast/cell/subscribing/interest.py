"""A subscriber's interest in one channel: where its streams begin, and what it lacks of them.

Every broker reports the position of each stream. Of n-f reports the (f+1)-th largest is taken: f
liars can push it neither beyond what a correct broker reported nor below it. Streams that turn up
later begin at 1. A stream counts only once f+1 brokers have named it, so that a lying broker cannot
make a subscriber keep streams that do not exist.

To begin at a time, brokers report the first number of that time beside their oldest; these are
ranked in the same way. What nobody holds any longer is announced as a gap.

A subscription that begins with the oldest number wants no more than what is held, so the numbers
before it are no gap. They are in `dropped`, from which the application is told. With a time they
are there as well, unless f+1 brokers hold something that is older than the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from quorumcast.broadcast.acceptance import Acceptor, rules_for
from quorumcast.broadcast.application import DeliverGap, Refused
from quorumcast.broadcast.messages import Cursor
from quorumcast.cell.filters import filter_of
from quorumcast.cell.messages import Positions, Subscribe
from quorumcast.cell.naming import name_in_turn
from quorumcast.cell.subscribing.archive import Archive, HeldForm
from quorumcast.cell.subscribing.excerpt import FIRST_SPAN, Excerpt, Spans
from quorumcast.cell.subscribing.lives import Lives
from quorumcast.cell.subscribing.new_streams import NewStreams
from quorumcast.cell.subscribing.reports import Reports
from quorumcast.cell.subscribing.rhythm import Rhythm, is_due
from quorumcast.cell.subscribing.silence import SilenceWatch
from quorumcast.cell.subscribing.source import Source
from quorumcast.cell.subscribing.telling import Telling
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Lane, NodeId, Stream, total_order
from quorumcast.core.limits import MAX_ENDED
from quorumcast.core.machine import Effect, Send
from quorumcast.core.tally import reached_by
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter

#: Refreshes for which a beginning in the past waits for brokers that may know of more.
DOUBTFUL_TICKS = 4
#: Refreshes, about eight seconds, for which a broker that does not answer may still hold numbers
#: that others dropped. Where one broker suffices, all subscribers would wait for a dead one.
PATIENT_TICKS = 32


class Interest:
    """Everything that a subscriber keeps for one channel."""

    __slots__ = (
        "_doubts",
        "_lives",
        "_lost",
        "_named_from",
        "_resumed",
        "_rules",
        "_silence",
        "_since",
        "_start",
        "_unnamed",
        "_view",
        "_waits",
        "acceptors",
        "archives",
        "begun",
        "channel",
        "dropped",
        "ends",
        "entry",
        "excerpt",
        "filter",
        "join",
        "new",
        "pulls",
        "reports",
        "requested",
        "rhythm",
        "seen",
        "source",
        "spans",
        "telling",
        "to_ask",
        "where",
    )

    def __init__(
        self,
        view: View,
        entry: ChannelEntry,
        start: int | None = None,
        since: int = 0,
        excerpt: Excerpt | None = None,
        join: int = 0,
        heard: dict[NodeId, int] | None = None,
        cursors: tuple[Cursor, ...] = (),
        where: tuple[str, ...] = (),
    ) -> None:
        self.channel: Channel = entry.name
        self.entry = entry
        #: Where to begin: None with the next publication, 0 with the oldest, else at a position.
        self._start = start
        #: Where streams go on that were read before.
        self._resumed = {cursor.stream: cursor.next for cursor in cursors}
        #: The time from which on publications are wanted, in microseconds; 0 for all.
        self._since = since
        #: What is wanted of each publication, None for all of it; and as it was written.
        self.filter: Filter | None = filter_of(entry, where)
        self.where = where
        #: The number of this subscription, by which answers to earlier ones are told from its own.
        self.join = join
        #: Set if it has an end.
        self.excerpt = excerpt
        #: What was asked for of a total order.
        self.spans = excerpt or Spans(entry.policy.limits)
        self._view = view
        #: What brokers are told of how far this subscriber is.
        self.telling = Telling(entry.policy.limits)
        self._rules = rules_for(view.quorums, entry.policy, view.brokers)
        self.reports = Reports(view, entry.policy)
        #: Streams that too few brokers have named yet.
        self.new = NewStreams(per_publisher=not entry.policy.relayed)
        self._lives = Lives()
        #: Refreshes before it began.
        self._doubts = 0
        #: Whether the beginnings are known.
        self.begun = False
        #: Streams (data lanes) that were not read to their end when the channel began, and the next
        #: number of each at that time.
        self.ends: dict[Stream, int] = {}
        #: Numbers before the oldest that was held when the channel began, by stream; if it begins
        #: at a time, only those that may be of that time.
        self.dropped: list[DeliverGap] = []
        #: Gaps in streams that ended, until the application is told.
        self._lost: list[Effect] = []
        #: One acceptor per stream and lane, one archive per stream.
        self.acceptors: dict[Stream, Acceptor] = {}
        self.archives: dict[Stream, Archive] = {}
        #: The broker that sends bodies with its votes.
        self.source = Source()
        #: Cursors at the last request for a replay, to know when to ask for more, and the streams
        #: to ask for soon.
        self.requested: dict[Stream, int] = {}
        self.to_ask: dict[Stream, None] = {}
        #: How often bodies of a stream were pulled in a row, and up to which number.
        self.pulls: dict[Stream, tuple[int, int]] = {}
        #: Which brokers do not vote although others did.
        self._silence = SilenceWatch({} if heard is None else heard)
        #: `next` per stream at the last refresh, and when to ask again.
        self.seen: dict[Stream, int] = {}
        self.rhythm = Rhythm()
        #: Refreshes for which a broker has been silent while one that answers did not hold the next
        #: number of a stream, by stream and silent broker.
        self._waits: dict[Stream, dict[NodeId, int]] = {}
        #: Where the last accepted history begins, by data lane: what lies before it and is not
        #: decided yet will be named by none. And for how many refreshes that has lasted.
        self._named_from: dict[Stream, int] = {}
        self._unnamed: dict[Stream, int] = {}

    def recount(self) -> None:
        """Go on in a new epoch; publishers without the right to publish are dropped."""
        members = self._view.brokers
        self._rules = rules_for(self._view.quorums, self.entry.policy, members)
        entry = self._view.channel(self.channel)
        if entry is not None:
            self.telling.adopt(entry.policy.limits)
        self._silence.retain(members)
        self.reports.forget_gone()
        self.new.retain(members)
        if self.source.broker not in members:
            self.source.use(None)
        for acceptor in self.acceptors.values():
            acceptor.recount(self._rules[acceptor.stream.lane], members, self._view.quorums.f)
        for archive in self.archives.values():
            archive.forget_statements()
        for stream in [s for s in self.acceptors if not self._is_entitled(s)]:
            self._end(stream)
            self._lives.end(stream.publisher, stream.incarnation)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        sizes = {"acceptors": len(self.acceptors), "requested": len(self.requested)}
        sizes |= self.new.sizes()
        sizes.update(self._silence.sizes(), owed_from=len(self.source))
        parts = [(stream, acceptor.sizes()) for stream, acceptor in self.acceptors.items()]
        parts += [(stream, archive.sizes()) for stream, archive in self.archives.items()]
        for stream, part in parts:
            sizes.update({f"{stream}/{name}": size for name, size in part.items()})
        return sizes

    def subscribe_to(self, broker: NodeId, few: Collection[Stream] = ()) -> Subscribe:
        """The request that (re)starts a broker's votes for us, of all streams or of a few."""
        cursors = [Cursor(stream, self.acceptors[stream].next) for stream in few or self.acceptors]
        return Subscribe(
            self.channel,
            name_in_turn(cursors),
            bodies=broker == self.source.broker,
            since=0 if self.begun else self._since,
            until=self.excerpt.asked if self.excerpt else 0,
            join=self.join,
            where=self.where,
            few=bool(few),
        )

    def held(self, stream: Stream, number: int) -> HeldForm:
        """What brokers hold of a number, compared with what was accepted here."""
        for_others = number < self.acceptors[stream].start  # for the predicates before these
        if self.filter is None and not for_others:
            return HeldForm.RUN
        if not self.entry.carried:
            return HeldForm.PUBLICATION
        return HeldForm.WIDER_RESULT if self.where or for_others else HeldForm.RESULT

    def select(self, where: tuple[str, ...]) -> None:
        """Want other rows of all publications that are not accepted yet."""
        self.filter, self.where = filter_of(self.entry, where), where
        for stream, old in list(self.acceptors.items()):
            if stream.lane is not Lane.DATA:
                continue
            acceptor = self.acceptors[stream] = self._acceptor(stream, old.next)
            acceptor.follow(old)
        self.new.votes.clear()
        self.pulls.clear()
        self.requested.clear()

    def asked_again(self, few: Iterable[Stream] = ()) -> None:
        """Note that all brokers are asked from the cursors on: for everything, or a few streams."""
        self.reports.ask()
        if few:
            self.requested |= {stream: self.acceptors[stream].next for stream in few}
            return
        self.rhythm.asked()
        self.requested = {s: a.next for s, a in self.acceptors.items()}
        order = total_order(self.channel)
        self.spans.restart_at(self.requested.get(order, 1), self._end_of(order))

    def chained(self, lane: Lane) -> bool:
        """Whether this lane comes by a chain."""
        return lane is Lane.DATA and self.entry.policy.chained

    def reconnected(self, broker: NodeId) -> None:
        """Forget what a broker reported, and that it lagged: it may have restarted."""
        self._silence.forget(broker)
        self.source.doubt(broker)
        self.new.votes.clear(broker)
        if not self.begun:
            self.reports.forget(broker)

    # ------------------------------------------------------------ positions

    def on_positions(self, broker: NodeId, message: Positions) -> tuple[bool, list[Effect]]:
        """Note what a broker holds; returns whether to send cursors anew."""
        if message.join != self.join:
            # It answers an earlier subscription, so it may be from before this one was made.
            return False, []
        held = {p.stream: p for p in message.positions if self._relevant(p.stream)}
        if message.few:
            self.reports.amend(broker, held)
        else:
            self.reports.replace(broker, held)
        self.source.note(broker, self.acceptors, knows=message.bodies)
        if not self.begun:
            return self._maybe_begin()
        fresh = [stream for stream in held if self.name(broker, stream)]
        return bool(fresh), self._gaps(held)

    def _maybe_begin(self) -> tuple[bool, list[Effect]]:
        if len(self.reports) < self._view.quorums.responders:
            return False, []
        patient = self._start is not None and self._doubts < DOUBTFUL_TICKS
        # A range has an end of its own. An empty one is made to learn of the channel's.
        to_end = self.excerpt is None or self.excerpt.until == 1
        if patient and self.reports.doubtful(self._start or 0, to_end=to_end):
            return False, []
        return True, self._begin()

    def wait_no_longer(self) -> tuple[bool, list[Effect]]:
        """Begin, if the wait for more reports is over; returns whether it has begun."""
        self._doubts += 1
        return self._maybe_begin()

    @property
    def is_repeated(self) -> bool:
        """Whether it is time to ask brokers again that have not reported since it was made.

        At each refresh; ever more rarely with predicates: they are long, and a broker that is busy
        reading those of many subscribers should not get all of them again and again.
        """
        return not self.where or is_due(self._doubts)

    def _relevant(self, stream: Stream) -> bool:
        return (
            stream.channel == self.channel
            and not self._lives.over(stream)
            and self._is_entitled(stream)
            and (stream.lane is Lane.DATA or self.entry.policy.has_history)
        )

    def _is_entitled(self, stream: Stream) -> bool:
        """Whether its publisher has the right; under total order the only stream is the cell's."""
        if self.entry.policy.total:
            return stream == total_order(self.channel)
        return self._view.may_carry(stream.publisher, stream.channel)

    def _begin(self) -> list[Effect]:
        self.begun = True
        effects: list[Effect] = []
        streams = self.reports.streams()
        if self.excerpt is not None:
            # An excerpt has an end, so the stream exists.
            streams[total_order(self.channel)] = self.reports.enough
        for data, named in streams.items():
            if named >= self.reports.enough:
                first, news = self._beginning(data)
                effects += news
                end = self.excerpt.until if self.excerpt else self.reports.end(data)
                if first < end or news:
                    self.ends[data] = end
                self._accept_from(data, first)
                if self.entry.policy.has_history:
                    # Rather one history too many than a publication that no history names. (Not
                    # the smallest of all: one liar could make us wait where nobody votes.)
                    begin = self.reports.end(data.history, highest=False)
                    if first < end and self.chained(data.lane):
                        # Publications that did not come by their chain are only in histories.
                        begin = min(begin, self.reports.agreed(data.history))
                    self._accept_from(data.history, begin)
        if self._since:
            self._forget_lives_before_the_time()
        if self._start is not None and self._start > 1 and not self.acceptors:
            effects.append(self._refuse_start(self._start, 1))
        return effects

    def _forget_lives_before_the_time(self) -> None:
        """Leave out of `dropped` the lives that were over at the time that was asked for.

        If a publisher's life has a publication before that time, its earlier lives are older still.
        """
        passed: dict[NodeId, int] = {}
        for data in self.acceptors:
            if data.lane is Lane.DATA and self.reports.passed(data) > 1:
                passed[data.publisher] = max(data.life, passed.get(data.publisher, 0))
        self.dropped = [
            g for g in self.dropped if g.stream.life >= passed.get(g.stream.publisher, 0)
        ]

    def _refuse_start(self, start: int, end: int) -> Effect:
        reason = f"position {start} of {self.channel!r} does not exist yet; the next is {end}"
        return Refused(self.channel, reason)

    def _beginning(self, stream: Stream) -> tuple[int, list[Effect]]:
        """The number to begin with, and the gap or refusal before it."""
        end = self.reports.end(stream)
        start = self._resumed.get(stream, self._start)
        if start is None:
            return end, []
        if stream in self._resumed:
            end = max(end, start)  # brokers may not have got there again
        if start > end and self.excerpt is None:
            return end, [self._refuse_start(start, end)]
        # A broker that claims to hold nothing before a far number must not hide what follows.
        oldest = min(self.reports.agreed(stream), end)
        if not start:
            start = min(self.reports.claimed(stream), end)
            # Every stream has begun with number 1.
            first, stop = self.reports.passed(stream), min(start, self.reports.kept(stream))
            if first < stop:
                self.dropped.append(DeliverGap(stream, first, stop - 1))
        return max(start, oldest), self._gap(stream, start, oldest)

    def _gap(self, stream: Stream, first: int, oldest: int) -> list[Effect]:
        """The gap of wanted numbers that nobody holds any longer."""
        stop = oldest if self.excerpt is None else min(oldest, self.excerpt.until)
        return [DeliverGap(stream, first, stop - 1)] if first < stop else []

    def may_follow(self, stream: Stream) -> bool:
        """Whether a stream would be followed if enough brokers named it."""
        return self.begun and stream not in self.acceptors and self._relevant(stream)

    def name(self, broker: NodeId, stream: Stream) -> bool:
        """Note that a broker named a stream; True if it is followed from now on."""
        if not self.may_follow(stream):
            return False
        data, policy = stream.data, self.entry.policy
        most = policy.limits.streams_per_publisher + MAX_ENDED
        if not self.new.name(broker, data, self.reports.enough, most):
            return False
        self._accept_from(data, 1)
        if policy.has_history:
            self._accept_from(data.history, 1)
        return True

    def _accept_from(self, stream: Stream, first: int) -> None:
        limits = self.entry.policy.limits
        self.acceptors[stream] = self._acceptor(stream, first)
        if stream.lane is Lane.DATA:
            self.archives[stream] = Archive(stream, self._view, limits)
        publisher, limit = stream.publisher, limits.streams_per_publisher
        for incarnation in self._lives.displace(publisher, self.acceptors, limit):
            self._end_life(publisher, incarnation)

    def rebind(self) -> bool:
        """Bind the predicates to the columns of a new epoch; False if they are the same.

        Raises `UsageError`, and changes nothing, if the channel was made anew without the columns.
        """
        entry = self._view.channel(self.channel)
        if entry is None or entry.schema == self.entry.schema:
            return False
        before, self.entry = self.entry, entry
        if self.filter is None:
            return False
        try:
            self.select(self.where)
        except UsageError:
            self.entry = before
            raise
        return True

    def _acceptor(self, stream: Stream, first: int) -> Acceptor:
        policy = self.entry.policy
        rule, hash_ = self._rules[stream.lane], self._view.hash
        splits = policy.may_split and stream.lane is Lane.DATA
        liars = self._view.quorums.f if splits else None
        if self.filter is None or stream.lane is Lane.HISTORY:
            return Acceptor(stream, first, rule, hash_, policy.limits, may_split=liars)
        # Not at the top: it loads Arrow, which subscribers without a predicate do not need.
        from quorumcast.broadcast.filtered import FilteredAcceptor

        return FilteredAcceptor(
            stream,
            first,
            rule,
            hash_,
            policy.limits,
            filter_=self.filter,
            labelled=policy.total,
            may_split=liars,
        )

    def end_displaced(self) -> None:
        """End the lives that were displaced some time ago."""
        for publisher, incarnation in self._lives.refresh():
            self._end_life(publisher, incarnation)

    def _end_life(self, publisher: NodeId, incarnation: int) -> None:
        """End an incarnation and all before it, as far as brokers have reported or voted."""
        mine = [s for s in self.acceptors if s.publisher == publisher]
        for stale in [s for s in mine if s.incarnation <= incarnation]:
            votes = [number + 1 for number in self.acceptors[stale].last_vote.values()]
            voted = reached_by(votes, self.reports.enough)
            self._end(stale, max(self.reports.reached(stale), voted))
        self._lives.end(publisher, incarnation)

    def _end(self, stream: Stream, end: int = 0) -> None:
        """Follow a stream no more; what is missing of it is a gap."""
        acceptor, end = self.acceptors.pop(stream), max(end, self.ends.pop(stream, 0))
        self.archives.pop(stream, None)
        self.requested.pop(stream, None)
        self.to_ask.pop(stream, None)
        self._silence.end(stream)
        self.source.forget(stream)
        self.pulls.pop(stream, None)
        self.telling.forget(stream)
        self._named_from.pop(stream, None)
        self._unnamed.pop(stream, None)
        if end > acceptor.next and stream.lane is Lane.DATA:
            self._lost.append(DeliverGap(stream, acceptor.next, end - 1))

    def take_lost(self) -> list[Effect]:
        """The gaps of streams that ended, once."""
        lost, self._lost = self._lost, []
        return lost

    @property
    def end(self) -> int:
        """Under total order: the next position, as far as is known."""
        stream = total_order(self.channel)
        if self.excerpt is not None:
            return self.reports.end(stream)
        acceptor = self.acceptors.get(stream)
        return 1 if acceptor is None else max(acceptor.next, self.ends.get(stream, 1))

    def _gaps(self, streams: Iterable[Stream]) -> list[Effect]:
        effects: list[Effect] = []
        for stream in streams:
            acceptor = self.acceptors.get(stream)
            if acceptor is None:
                continue
            given_up = [
                broker
                for broker in self._waits.get(stream, ())
                if self._waited(acceptor, broker) >= PATIENT_TICKS
            ]
            # No further than a correct broker has reached: nobody holds more of an ended stream.
            first = min(
                self.reports.oldest(stream, acceptor.next, without=given_up),
                self.reports.reached(stream),
            )
            if first > acceptor.next:
                effects += self._gap(stream, acceptor.next, first)
                acceptor.skip_to(first)
        return effects

    def note_history(self, data: Stream, first: int) -> None:
        """A history has been accepted that names numbers from this one on."""
        self._named_from[data] = first

    def give_up_unnamed(self) -> list[DeliverGap]:
        """Gaps of numbers that no history names, if votes have not decided them for long either.

        The history is lost if more than f brokers have restarted. Enough brokers may still hold
        what it named, by which a subscriber waited for it; on a chain they cannot vote again.
        """
        if self.reports.answering < self._view.quorums.responders:
            return []
        gaps: list[DeliverGap] = []
        for data, first in self._named_from.items():
            acceptor = self.acceptors[data]
            count = acceptor.undecided(first)
            waits = count > 0 and acceptor.next == self.seen.get(data)
            self._unnamed[data] = self._unnamed.get(data, 0) + 1 if waits else 0
            if self._unnamed[data] >= PATIENT_TICKS:
                gaps.append(DeliverGap(data, acceptor.next, acceptor.next + count - 1))
                acceptor.skip_to(acceptor.next + count)
        return gaps

    # ------------------------------------------------------------- progress

    def refresh(self) -> Collection[Stream] | None:
        """Note a refresh; returns what to ask all brokers for again (`Rhythm.due`)."""
        self.reports.refresh()
        self.rhythm.note(self.acceptors, self.seen, self.reports.reached)
        if self.finished:
            return None
        policy = self.entry.policy
        if policy.crash_only or policy.relayed or not policy.live:
            # Counted for each broker apart, and also while another may still fetch the number:
            # else the two waits would follow one after the other.
            self._waits = {
                stream: {b: self._waited(acceptor, b) + 1 for b in self._awaited(acceptor)}
                for stream, acceptor in self.acceptors.items()
                if self.reports.dropped_by_some(stream, acceptor.next)
            }
        self.seen = {s: a.next for s, a in self.acceptors.items()}
        return self.rhythm.due(self.excerpt is not None, self._may_be_idle)

    def _may_be_idle(self) -> bool:
        """Whether nothing says that there is more, so that it need not ask so often."""
        if len(self.new):
            return False
        return not any(self.reports.claim_more(s, a.next) for s, a in self.acceptors.items())

    def _awaited(self, acceptor: Acceptor) -> list[NodeId]:
        """Brokers that may hold the next number of a stream, and give no sign of it.

        Where brokers only crash those that do not answer. A relayed channel may have no broker to
        spare, so there also those that answer without voting on the number. Or all, if all have
        voted and too few agree: one has lost the number and another lies about it.
        """
        if self.entry.policy.crash_only:
            return self.reports.silent()
        stream, number = acceptor.stream, acceptor.next
        held = self.reports.may_hold(stream, number)
        silent = [broker for broker in held if not acceptor.voted(broker, number)]
        if not self.entry.policy.live:
            return self._awaited_on_chain(acceptor, held, silent)
        return held if not silent and acceptor.undecided(number + 1) else silent

    def _awaited_on_chain(
        self, acceptor: Acceptor, held: list[NodeId], silent: list[NodeId]
    ) -> list[NodeId]:
        """The same for a chain without histories, if f+1 brokers no longer hold the number.

        Each chain has one of them in it, so none brings the number to others any more: who answers
        has voted or never will. With one that does not answer, those that have voted may be enough.
        """
        lacking = len(self.reports.voters) - len(held)
        if lacking < self._view.quorums.one_correct or not acceptor.undecided(acceptor.next + 1):
            return []
        if all(map(self.reports.is_fresh, held)):
            return held
        return [broker for broker in silent if self.reports.is_fresh(broker)]

    def _waited(self, acceptor: Acceptor, broker: NodeId) -> int:
        """For how many refreshes a broker has given no sign; one that answers, of this number."""
        if self.reports.is_fresh(broker) and acceptor.next != self.seen.get(acceptor.stream):
            return 0
        return self._waits.get(acceptor.stream, {}).get(broker, 0)

    def notice_silence(self, late_ms: int) -> list[Effect]:
        """Suspect brokers that do not vote on what others voted on before the last refresh.

        Not on a chain: there only the last brokers send to subscribers.
        """
        if self.entry.policy.chained:
            return []
        ask, effects = self._silence.look(
            self._view.brokers,
            {stream: number - 1 for stream, number in self.seen.items()},
            self.acceptors,
            lambda stream, number: self.reports.kept(stream) > number,
            late_ms,
        )
        for broker, numbers in ask.items():
            cursors = name_in_turn([Cursor(*cursor) for cursor in numbers.items()])
            asked = msgspec.structs.replace(self.subscribe_to(broker), cursors=cursors, few=True)
            effects.append(Send((broker,), asked))
        return effects

    def next_span(self, acceptor: Acceptor) -> tuple[int, int] | None:
        """The next span to ask for, in a total order of which brokers hold more."""
        return self.spans.next_span(acceptor.next, self._end_of(acceptor.stream))

    def _end_of(self, order: Stream) -> int:
        """The first position of a total order that is not wanted, or that brokers do not have."""
        return self.reports.reached(order) if self.excerpt is None else self.excerpt.until

    def far_behind(self, acceptor: Acceptor) -> bool:
        """Whether contents come in spans, which take longer than single publications."""
        if not self.entry.policy.total:
            return False
        ahead = self.reports.reached(acceptor.stream) - acceptor.next
        return self.excerpt is not None or ahead > FIRST_SPAN

    @property
    def finished(self) -> bool:
        """Whether it has an end and has reached it."""
        if self.excerpt is None:
            return False
        return all(acceptor.next >= self.excerpt.until for acceptor in self.acceptors.values())

    def behind(self, stream: Stream) -> bool:
        """Whether a replay has been used up and brokers hold more."""
        asked = self.requested.get(stream)
        if asked is None or self.entry.policy.total:
            return False
        replay = self.entry.policy.limits.replayed
        acceptor = self.acceptors[stream]
        left = self.reports.reached(stream) - asked
        return left > replay // 2 and acceptor.next - asked >= min(replay // 2, left)
