"""State transfer of channels without total order: a broker gets back what the others retain.

A broker that restarts, was wiped or fell behind fetches what it lacks from its peers. It never has
holes in its ledger: it goes on after what it holds, and back from there, newest first.

    broker ──Survey──▶ peers ──Positions──▶ broker      of what are you sure, stream by stream?
    broker ──Regain──▶ peers ──Regained──▶ broker       digests from all, contents from one

It takes what enough peers give their final word for (`holdings`):

    crash protection                                    1
    correct brokers cannot differ (Basis.SETTLED)       f+1: one of them is correct
    a bare fast path, after what is held                f+1: it has vouched for nothing else there
    a bare fast path, before what is held               as many as make a subscriber accept

The last because it may have vouched for something else before it forgot: whatever it says now can
bring nobody to accept what others would not have accepted without it. It may itself be one of
them, if its journal says so. Contents are checked against their digests. What the cell has settled
overrules the journal: no subscriber can have accepted anything else.

A publisher cannot move a broker that has begun: one that claims to hold nothing before a far number
would make brokers drop what subscribers still lack. The broker asks its peers instead (`left_out`).
An honest publisher lets go only of what n-f brokers hold, so f+1 correct ones can supply it. What
they no longer retain, the broker leaves out as well. On a chain it takes what it lacks in order to
go on, and does not vote on it, for nobody can without the MACs that came with a number.

A stream that nobody opens here, because its publisher is gone, begins where enough peers end; one
that stands still while others are further goes on there, and so does one that its publisher keeps
behind (`Pace`). Histories are fetched in the same way, on their own lane.

One range of one stream is under way at a time, and one may wait for the disk. A liar is one voice
of many, and contents are asked of one peer after the other. What too few peers hold or agree on is
given up, until a peer says something new; all are asked again now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from quorumcast.broadcast.contract import Vouch, match
from quorumcast.broadcast.messages import Open
from quorumcast.cell.messages import Positions, Regain, Regained, Survey
from quorumcast.cell.serving.desk import Desk
from quorumcast.cell.serving.desks import Desks
from quorumcast.cell.serving.holdings import Holdings, recoverable
from quorumcast.cell.serving.lost_range import Job, borders, front, is_after, own_words
from quorumcast.cell.serving.outpaced import GRACE, UNANSWERED, Outpaced, Pace
from quorumcast.cell.serving.pledges import Attested, Pledge, Pledges
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, NodeId, Stream, split_digests
from quorumcast.core.machine import (
    Drop,
    DropReason,
    Effect,
    Persist,
    Receive,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    Timer,
)
from quorumcast.core.statements import Basis
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View

TICK_MS = 150
#: How long a broker waits before it asks all peers again; one that lacks nothing does only that.
IDLE_MS = 3_000
IDLE_TICKS = IDLE_MS // TICK_MS
#: Publications asked for at a time.
CHUNK = 256
#: Streams looked at in one tick, and for the next range: the rest has its turn in the next ticks.
SLICE = 128
#: Ticks for one range before it is made smaller, and at last given up.
PATIENCE = 4


class RecoveryTick(Timer, frozen=True, tag=True):
    """See what is lacking, and ask again."""


class Recovery:
    """What one broker fetches from its peers."""

    __slots__ = (
        "_at",
        "_desks",
        "_done",
        "_holdings",
        "_idle",
        "_job",
        "_late",
        "_outpaced",
        "_paces",
        "_pledges",
        "_round",
        "_set",
        "_size",
        "_surveyed",
        "_turn",
        "_unasked",
        "_up",
        "_view",
        "_writing",
    )

    #: How peers' words are kept and weighed.
    holdings: type[Holdings] = Holdings

    def __init__(self, view: View, desks: Desks, pledges: Pledges) -> None:
        self._view = view
        self._desks = desks
        #: What this broker vouched for in an earlier life.
        self._pledges = pledges
        self._holdings = type(self).holdings(view)
        #: Peers that can be reached.
        self._up: dict[NodeId, None] = {}
        #: For how many ticks an answer has been awaited, by channel and peer.
        self._surveyed: dict[tuple[Channel, NodeId], int] = {}
        #: Streams with which nothing can be done before, or after (True), what is held, for now.
        self._done: dict[tuple[Stream, bool], None] = {}
        self._paces: dict[Stream, Pace] = {}
        #: Streams of which too few peers knew enough to judge by.
        self._outpaced = Outpaced(desks, self._holdings, pledges, self._entry)
        self._job: Job | None = None
        #: A range that the journal does not hold yet; channels without one need not wait for it.
        self._writing: tuple[Pledge, Job] | None = None
        #: Publications of the next range; smaller after a failure.
        self._size = CHUNK
        #: Whose turn it is to send contents.
        self._turn = 0
        #: Streams that are not looked at yet in this round, which ends when all have been.
        self._round: deque[Stream] = deque()
        #: Whether something is late of the streams looked at in this round.
        self._late = False
        #: Where in the streams of the peers to look for the next range.
        self._at = 0
        #: Whether RecoveryTick is set, and whether it is the one after a long while.
        self._set = self._idle = False
        #: Ticks since all peers were asked.
        self._unasked = 0

    def begin_anew(self) -> None:
        """Go on in a new epoch, in which a channel or a broker may be gone."""
        self._holdings.forget_gone()
        self._job = self._writing = None

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        under_way = [self._job, None if self._writing is None else self._writing[1]]
        regained = sum(job.count for job in under_way if job is not None)
        return {"told": len(self._holdings), "regained": regained}

    def lacking(self) -> list[str]:
        """What this broker still waits for, for people to look at."""
        outpaced = self._outpaced.now()
        late = [stream for stream in self._holdings.streams() if self._is_late(stream)]
        waits = [f"publications of {stream}" for stream in outpaced | dict.fromkeys(late)]
        return waits + self._unanswered()

    def _is_late(self, stream: Stream) -> bool:
        """Whether peers have something of a stream that this broker lacks."""
        return bool(self._wanted(stream)) or self._holdings.ahead_of(self._desks.get(stream))

    def _unanswered(self) -> list[str]:
        """Channels of which too few peers have said what they hold, for people to look at."""
        waits: list[str] = []
        quorums = self._view.quorums
        for entry in self._entries():
            told = self._holdings.answered(entry.name)
            asked = any(name == entry.name and peer not in told for name, peer in self._surveyed)
            enough = max(quorums.other_responders, self._holdings.needed(entry))
            if asked or len(told) < min(quorums.others, enough):
                waits.append(f"what the other brokers hold of {entry.name!r}")
        return waits

    def expects(self, stream: Stream) -> bool:
        """Whether what lies before a lane may come yet: subscribers need not give it up."""
        return self._outpaced.includes(stream) or self._wanted(stream) is not None

    # --------------------------------------------------------------- asking

    def _entries(self) -> list[ChannelEntry]:
        return [entry for entry in self._view.channels if not entry.policy.total]

    def _channels(self) -> list[Channel]:
        return [entry.name for entry in self._entries()]

    def connected(self, peer: NodeId) -> list[Effect]:
        """A peer can be reached: what does it hold?"""
        if peer not in self._view.brokers:
            return []
        self._up[peer] = None
        return self._survey((peer,), self._channels())

    def disconnected(self, peer: NodeId) -> None:
        """A peer cannot be reached."""
        self._up.pop(peer, None)
        self._surveyed = {key: n for key, n in self._surveyed.items() if key[1] != peer}

    def left_out(self, stream: Stream) -> list[Effect]:
        """A publisher could not repeat what this broker lacks of a stream: perhaps peers can."""
        return self._survey(tuple(self._up), [c for c in self._channels() if c == stream.channel])

    def _survey(self, peers: Iterable[NodeId], channels: list[Channel]) -> list[Effect]:
        effects: list[Effect] = []
        for peer in peers:
            for channel in channels:
                if (channel, peer) not in self._surveyed:
                    self._surveyed[channel, peer] = 0
                    effects.append(Send((peer,), Survey(channel, self._desks.life)))
        return effects + self._wake(TICK_MS) if effects else []

    def _wake(self, after_ms: int) -> list[Effect]:
        if self._set and after_ms > TICK_MS:
            return []
        self._set = True
        self._idle = after_ms == IDLE_MS
        return [SetTimer(RecoveryTick(), after_ms)]

    # -------------------------------------------------------------- hearing

    def hear(self, event: Receive) -> list[Effect]:
        """A peer answers."""
        message = event.message
        if isinstance(message, Positions):
            return self._on_positions(event.sender, message)
        return self._on_regained(event, message) if isinstance(message, Regained) else []

    def _on_positions(self, sender: NodeId, message: Positions) -> list[Effect]:
        if self._surveyed.pop((message.channel, sender), None) is None:
            return [Drop(DropReason.UNEXPECTED, sender)]
        first = sender not in self._holdings.answered(message.channel)
        streams = self._holdings.hear(sender, message)
        for stream in streams:
            self._done.pop((stream, False), None)
            self._done.pop((stream, True), None)
        if first:
            self._outpaced.hear_first(streams)
        for stream, end in self._holdings.endings(message.channel).items():
            self._desks.learn_ending(stream, end)
        return []

    def _on_regained(self, event: Receive, message: Regained) -> list[Effect]:
        """A peer's word on the range under way, perhaps with its contents."""
        job, sender, digests = self._job, event.sender, message.digests
        if job is None or (message.stream, message.first) != (job.stream, job.first):
            return [Drop(DropReason.DUPLICATE, sender)]
        if event.bodies and not match(split_digests(digests), event.bodies, self._view.hash):
            return [
                Drop(DropReason.BAD_BODY, sender),
                Suspect(sender, Suspicion.BAD_BODY, job.stream, job.first),
            ]
        if event.bodies and len(event.bodies) < job.count:
            # As many as fit into a frame. The newest must come first: ask for as many of them.
            self._size = len(event.bodies)
            self._begin(job.stream, job.first + job.count - self._size, self._size)
            return self._ask()
        if len(digests) != job.count * DIGEST_SIZE:
            return [Drop(DropReason.BAD_RUN, sender)]
        if event.bodies:
            job.bodies = (digests, event.bodies)
        job.words.vote(sender, digests)
        return self._maybe_take(job)

    # --------------------------------------------------------------- taking

    def _maybe_take(self, job: Job) -> list[Effect]:
        entry = self._view.channel(job.stream.channel)
        if entry is None:
            return []
        after = is_after(job, self._desks.get(job.stream.data))
        needed = self._holdings.needed(entry, job.stream.lane, after=after)
        value = job.words.leader(needed)
        if value is None or job.bodies is None or job.bodies[0] != value:
            return []
        pledged = self._pledges.of(job.stream, job.first, job.count)
        if any(p not in (None, d) for p, d in zip(pledged, split_digests(value), strict=True)):
            if not entry.policy.settles:
                # What it vouched for it does not take back; it says nothing about it any more.
                return self._give_up(job)
            # The cell has settled it otherwise, so no subscriber accepted what it vouched for.
            self._pledges.overrule(job.stream, job.first, value)
        self._job = None
        if not borders(job, self._desks.get(job.stream.data)):
            # Its publisher has spoken: the journal must not say otherwise, and it may go on.
            self._paces.pop(job.stream, None)
            return self._next()
        if not entry.policy.journal:
            return self._write(job)
        record = Attested(job.stream, job.first, value)
        ledger = self._desks.ledger(job.stream)
        written = None if ledger is None else self._pledges.whole(record, ledger)
        if written is None:
            return self._write(job)
        self._writing = (written, job)
        return [Persist(written), *self._next()]

    def journaled(self, record: Attested) -> list[Effect]:
        """The journal holds what this broker will vouch for from now on."""
        if self._writing is None or self._writing[0] != record:
            return []
        job, self._writing = self._writing[1], None
        return self._write(job)

    def _write(self, job: Job) -> list[Effect]:
        desk = self._desks.get(job.stream.data)
        if desk is None or job.bodies is None:
            return []
        self._size = min(CHUNK, 2 * self._size)
        digests, bodies = job.bodies
        after = is_after(job, desk)
        # There may be less room than when it asked: its publisher has gone on meanwhile.
        ledger = desk.ledger(job.stream.lane)
        lacked = 0 if after else max(0, min(job.count, ledger.base - job.first))
        cut = lacked - ledger.fitting(bodies[:lacked])
        run = split_digests(digests)[cut:]
        is_history, carrier = job.stream.lane is Lane.HISTORY, desk.carrier
        recover = carrier.recover_histories if is_history else carrier.recover
        if not run or not recover(job.first + cut, run, bodies[cut:]):
            self._done[job.stream, after] = None
        elif after and (recoverable(desk.entry) or is_history):
            vouch = Vouch(job.stream, job.first, digests)
            return [vouch, *self._ask_for_more(job.stream), *self._next()]
        return self._ask_for_more(job.stream) + self._next() if after else self._next()

    def _ask_for_more(self, stream: Stream) -> list[Effect]:
        """It was behind, and the others have gone on meanwhile."""
        if self._ahead(stream) is not None:
            return []
        return self._survey(tuple(self._up), [stream.channel])

    def _give_up(self, job: Job) -> list[Effect]:
        """Perhaps a part of it can be had: the newest, or the oldest after what is held."""
        self._job = None
        if job.count > 1:
            self._size = max(1, job.count // 4)
        else:
            self._size = CHUNK
            self._done[job.stream, is_after(job, self._desks.get(job.stream.data))] = None
        return self._next()

    # ------------------------------------------------------------- choosing

    def _entry(self, stream: Stream) -> ChannelEntry | None:
        """The channel of a lane that a broker without memory gets back from its peers.

        Histories also on a chain: whoever delivered one may vote on it.
        """
        entry = self._view.channel(stream.channel)
        if entry is None or not (recoverable(entry) or stream.lane is Lane.HISTORY):
            return None
        return entry

    def _wanted(self, stream: Stream) -> tuple[int, int] | None:
        """What peers hold and this broker does not, after or before what it holds."""
        return self._ahead(stream) or self._before(stream)

    def _ahead(self, stream: Stream) -> tuple[int, int] | None:
        """The range after what is held, first and one past the last."""
        entry, desk = self._view.channel(stream.channel), self._desks.get(stream.data)
        if entry is None or (stream, True) in self._done:
            return None
        ledger = None if desk is None else desk.ledger(stream.lane)
        if ledger is None or not ledger.begun:
            if stream.lane is Lane.HISTORY or self._entry(stream) is None:
                return None
            if desk is None and self._desks.over(stream):
                return None
            held = 1 if ledger is None else ledger.next
            end = self._holdings.boundary(entry, stream)
        else:
            held, end = front(desk, stream), self._holdings.end(entry, stream)
            if stream.lane is Lane.DATA and not recoverable(entry):
                # A broker beside the chain lacks everything; one that comes back only the past.
                end = min(end, ledger.unrepeated)
        return (held, end) if end > held else None

    def _before(self, stream: Stream) -> tuple[int, int] | None:
        """The range before what is held, as far as it would be retained."""
        entry, desk = self._entry(stream), self._desks.get(stream.data)
        if entry is None or desk is None or (stream, False) in self._done:
            return None
        carrier = desk.lane(stream.lane)
        ledger, end = carrier.ledger, carrier.final_from
        own = own_words(entry, self._pledges, stream, end)
        first = max(self._holdings.beginning(entry, stream, end, own), ledger.floor)
        if first < end:
            first = max(first, end - ledger.room)
        return (first, end) if first < end else None

    def _next(self) -> list[Effect]:
        """Begin with the next range, of one stream after the other."""
        if self._job is not None:
            return []
        streams = self._holdings.streams()
        for _ in range(min(SLICE, len(streams))):
            self._at %= len(streams)
            stream = streams[self._at]
            entry = self._view.channel(stream.channel)
            is_next = not self._writing or entry is None or not entry.policy.journal
            chosen = self._choose(stream) if is_next else None
            if chosen is not None:
                self._begin(stream, *chosen)
                return self._ask()
            self._at += 1
        return []

    def _choose(self, stream: Stream) -> tuple[int, int] | None:
        """First number and length of what to ask for now."""
        ahead, desk = self._ahead(stream), self._desks.get(stream.data)
        pace = self._paces.get(stream, Pace(0))
        ledger = None if desk is None else desk.ledger(stream.lane)
        if ahead is not None:
            first, end = ahead
            if ledger is None or not ledger.begun:
                if pace.stands:
                    self._resume(stream, end)
            # Otherwise its publisher may be about to send it.
            elif pace.lags or ledger.left_behind:
                entry = self._view.channel(stream.channel)
                held = 0 if entry is None else self._holdings.end_from(entry, stream, first)
                if held > first:
                    return first, min(self._size, held - first)
                if entry is not None:
                    # So few retain it that nobody can have it any more.
                    oldest = self._holdings.beginning(entry, stream, end, after=True)
                    self._resume(stream, max(first, oldest))
        elif desk is not None and pace.stands:
            self._go_on_settled(desk, stream)
        wanted = self._before(stream)
        if wanted is None:
            return None
        first, end = wanted
        count = min(self._size, end - first)
        return end - count, count

    def _go_on_settled(self, desk: Desk, stream: Stream) -> None:
        """Go on after what f+1 peers have settled, where nobody brings its histories any more.

        All may have lost the first ones in restarts, and the publisher repeats nothing settled.
        """
        ledger, end = desk.ledger(stream.lane), self._holdings.end(desk.entry, stream)
        if stream.lane is Lane.HISTORY:
            gone = not ledger.begun and end > ledger.next
        else:
            lacks = self._holdings.ahead_of(desk) and not self._ahead(stream.history)
            gone = lacks and ledger.next >= end
        if gone:
            self._resume(stream, end)

    def may_begin(self, opened: Open) -> Open | None:
        """The part of a publisher's word that a broker without the stream may follow, if any.

        A lying publisher would have brokers begin at different places, each beyond what the others
        deliver, and none of them could help the others to deliver it. So a broker begins later only
        if f+1 peers have everything before; until then it waits for their answers.
        """
        reach = self._reach(opened.stream)
        if max(opened.base, opened.fresh) <= reach:
            return opened
        if opened.base <= reach:
            return Open(opened.stream, opened.base, opened.base)
        return None

    def _follow_claims(self, streams: Iterable[Stream]) -> None:
        """Begin streams where their publishers said, now that the peers have answered.

        Either enough of them have everything before; or none knows of the stream, and there is
        nothing that beginning later could leave out.
        """
        waits = {channel for channel, _ in self._surveyed}
        enough = self._view.quorums.other_responders
        for desk in filter(None, map(self._desks.get, streams)):
            for stream, carrier in desk.lanes() if desk.entry.policy.settles else ():
                claim = carrier.ledger.unrepeated
                if carrier.ledger.begun or claim <= carrier.ledger.start:
                    continue
                answers = (
                    0 if stream.channel in waits else len(self._holdings.answered(stream.channel))
                )
                unknown = answers >= enough and not self._holdings.of(stream)
                if unknown or claim <= self._reach(stream):
                    self._resume(stream, claim)

    def _reach(self, stream: Stream) -> int:
        """Up to where a stream is settled, by the word of enough peers or by the journal."""
        entry, ledger = self._view.channel(stream.channel), self._desks.ledger(stream)
        start = 1 if ledger is None else ledger.start
        own = self._pledges.settled(stream) + 1
        return start if entry is None else max(start, own, self._holdings.end(entry, stream))

    def _resume(self, stream: Stream, number: int) -> None:
        """Begin, or go on, at a number up to which enough peers have everything."""
        entry = self._view.channel(stream.channel)
        if entry is None:
            return
        data = stream.data
        desk = self._desks.get(data) or self._desks.open(data, entry, self._view.me)
        if desk is not None:
            desk.lane(stream.lane).resume(number)
            # It is no hearsay any more, and may be one too many.
            self._desks.open(data, entry, desk.introducer or self._view.me)

    def _begin(self, stream: Stream, first: int, count: int) -> None:
        self._job = job = Job(stream, first, count)
        entry = self._view.channel(stream.channel)
        pledged = [p for p in self._pledges.of(stream, first, count) if p is not None]
        if entry is not None and entry.policy.basis is Basis.FORWARDED and len(pledged) == count:
            job.words.vote(self._view.me, b"".join(pledged))

    def _ask(self) -> list[Effect]:
        job = self._job
        if job is None:
            return []
        holders = [
            peer
            for peer, word in self._holdings.of(job.stream).items()
            if word.base <= job.first and word.next >= job.first + job.count and peer in self._up
        ]
        if not holders:
            return []
        source = holders[self._turn % len(holders)]
        self._turn += 1
        rest = tuple(p for p in holders if p != source and job.words.vote_of(p) is None)
        effects: list[Effect] = []
        if rest:
            effects.append(Send(rest, Regain(job.stream, job.first, job.count)))
        if job.bodies is None:
            effects.append(Send((source,), Regain(job.stream, job.first, job.count, bodies=True)))
        return effects

    # ---------------------------------------------------------------- clock

    def tick(self) -> list[Effect]:
        """Ask again what was not answered, and see what else is lacking."""
        self._set = False
        streams = self._next_streams()
        self._follow_claims(streams)
        self._watch(streams)
        effects: list[Effect] = []
        self._unasked += 1
        # Also if something is lacking, which may never come: the others go on meanwhile.
        asks_again = self._outpaced.watch(streams, GRACE)
        if self._idle or self._unasked >= IDLE_TICKS or asks_again:
            self._idle = False
            self._unasked = 0
            effects += self._survey(tuple(self._up), self._channels())
        for key, ticks in list(self._surveyed.items()):
            self._surveyed[key] = ticks + 1
            if ticks >= UNANSWERED:
                del self._surveyed[key]
            elif ticks and ticks & (ticks - 1) == 0:
                effects.append(Send((key[1],), Survey(key[0], self._desks.life)))
        if self._job is not None:
            effects += self._urge(self._job)
        effects += self._next()
        if not self._channels():
            return effects
        self._late |= any(self._outpaced.includes(s) or self._is_late(s) for s in streams)
        busy = self._surveyed or self._round or self._late or self._unanswered()
        self._late &= bool(self._round)
        return effects + self._wake(TICK_MS if busy else IDLE_MS)

    def _next_streams(self) -> list[Stream]:
        """The streams to look at in this tick: as many as a tick may cost, all in turn."""
        if not self._round:
            self._round.extend(self._outpaced.known())
            self._paces = {s: p for s, p in self._paces.items() if self._holdings.of(s)}
        return [self._round.popleft() for _ in range(min(SLICE, len(self._round)))]

    def _urge(self, job: Job) -> list[Effect]:
        job.ticks += 1
        if job.ticks > PATIENCE:
            return self._give_up(job)
        job.doubt()
        return self._ask()

    def _watch(self, streams: Iterable[Stream]) -> None:
        """See which streams move by themselves."""
        for stream in streams:
            if not self._holdings.of(stream):
                continue
            desk, entry = self._desks.get(stream.data), self._view.channel(stream.channel)
            at = 1 if desk is None else desk.ledger(stream.lane).next
            end = 0 if entry is None else self._holdings.end(entry, stream)
            self._paces[stream] = self._paces.get(stream, Pace(at)).tick(at, end)
