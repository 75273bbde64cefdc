"""State transfer of channels without total order: a broker fetches what its peers retain.

A broker that restarts, was wiped or fell behind fetches what it lacks. Its ledger never has holes:
it continues after what it holds, and before that backwards, newest first.

    broker ──Survey──▶ peers ──Positions──▶ broker      which final numbers do you hold?
    broker ──Regain──▶ peers ──Regained──▶ broker       digests from all, contents from one

It takes a digest that enough peers report (`holdings.peers_needed`):

    crash protection                                    1
    correct brokers cannot differ (Basis.SETTLED)       f+1: one of them is correct
    a bare fast path, after what is held                f+1: it has vouched for nothing else there
    a bare fast path, before what is held               as many as make a subscriber accept

The last because the broker may have vouched for something else before it forgot: its vote must not
make a subscriber accept what it would not accept without it. The broker's own journal counts as one
peer. What the cell has settled overrules the journal: no subscriber can have accepted otherwise.

A publisher cannot move a broker that has begun: by claiming to hold nothing before a far number it
would make brokers drop what subscribers still lack. The broker asks its peers instead (`left_out`).
An honest publisher drops only what n-f brokers hold, so f+1 correct ones can supply it. What they
no longer retain, the broker skips as well. On a chain a broker fetches what it needs to continue
and does not vote on it, for nobody can without the MACs that came with a number.

A stream whose publisher is gone begins where enough peers end; a stream that stalls, or that a
publisher which may lie keeps behind, continues there (`StreamProgress`). One range of one stream is
fetched at a time, and one more may wait for the disk. A range that too few peers hold or agree on
is given up until a peer reports something new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from quorumcast.broadcast.contract import Vouch, match, match_results
from quorumcast.broadcast.messages import Open
from quorumcast.cell.messages import Positions, Regain, Regained
from quorumcast.cell.serving.journal import Attested, Journal, VouchRecord
from quorumcast.cell.serving.recovering.holdings import (
    Holdings,
    StreamProgress,
    StreamsInDoubt,
    Surveys,
    recoverable,
)
from quorumcast.cell.serving.recovering.lacking import Lacks
from quorumcast.cell.serving.served_stream import ServedStream
from quorumcast.cell.serving.served_streams import ServedStreams
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, NodeId, Stream, split_digests
from quorumcast.core.machine import (
    Bodies,
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
from quorumcast.core.tally import Tally
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.view import View

TICK_MS = 150
#: The time after which a broker asks all peers again, also if it lacks nothing.
IDLE_MS = 3_000
IDLE_TICKS = IDLE_MS // TICK_MS
#: Publications fetched at a time.
CHUNK = 256
#: Streams looked at in one tick, and for the next range; the rest follows in the next ticks.
SLICE = 128
#: Ticks for one range before it is made smaller, and at last given up.
RANGE_TICKS = 4


class RecoveryTick(Timer, frozen=True, tag=True):
    """Look for what is missing, and ask again."""


class RangeFetch:
    """A range of publications that is being fetched."""

    __slots__ = ("bodies", "count", "first", "stream", "ticks", "votes")

    def __init__(self, stream: Stream, first: int, count: int) -> None:
        self.stream = stream
        self.first = first
        self.count = count
        #: The digests of the whole range, by each broker.
        self.votes: Tally[bytes] = Tally()
        #: Digests and contents that match them, from one peer.
        self.bodies: tuple[bytes, Bodies] | None = None
        #: For how many ticks it has been fetched.
        self.ticks = 0

    def drop_minority_bodies(self) -> None:
        """Drop contents that differ from what most peers report, to ask another peer."""
        best = max(self.votes.values(), key=self.votes.count, default=None)
        if self.bodies is not None and self.bodies[0] != best:
            self.bodies = None

    def is_after(self, served: ServedStream | None) -> bool:
        """Whether the range lies right after what is held."""
        return served is not None and self.first == served.lane(self.stream.lane).front

    def borders(self, served: ServedStream | None) -> bool:
        """Whether the range still lies right after, or right before, what is held."""
        if served is None:
            return False
        before = self.first + self.count == served.lane(self.stream.lane).final_from
        return before or self.is_after(served)


class Recovery:
    """What one broker fetches from its peers."""

    __slots__ = (
        "_at",
        "_fetch",
        "_holdings",
        "_idle",
        "_in_doubt",
        "_journal",
        "_lacks",
        "_late",
        "_progress",
        "_round",
        "_served",
        "_set",
        "_size",
        "_surveys",
        "_turn",
        "_unasked",
        "_up",
        "_view",
        "_writing",
    )

    def __init__(self, view: View, served: ServedStreams, journal: Journal) -> None:
        self._view = view
        self._served = served
        self._journal = journal
        self._holdings = Holdings(view)
        #: Peers that can be reached.
        self._up: dict[NodeId, None] = {}
        self._surveys = Surveys(served)
        self._lacks = Lacks(view, served, journal, self._holdings)
        self._progress: dict[Stream, StreamProgress] = {}
        self._in_doubt = StreamsInDoubt(served, self._holdings, journal, self._lacks.entry)
        self._fetch: RangeFetch | None = None
        #: A range that the journal does not hold yet; channels without one need not wait for it.
        self._writing: tuple[VouchRecord, RangeFetch] | None = None
        #: Publications of the next range; smaller after a failure.
        self._size = CHUNK
        #: Counts requests for contents, so that peers take turns.
        self._turn = 0
        #: Streams that remain to be looked at in this round.
        self._round: deque[Stream] = deque()
        #: Whether something is missing of the streams looked at in this round.
        self._late = False
        #: Index into the streams of the peers, for the next range.
        self._at = 0
        #: Whether RecoveryTick is set, and whether it is the one after IDLE_MS.
        self._set = self._idle = False
        #: Ticks since all peers were asked.
        self._unasked = 0

    def begin_anew(self) -> None:
        """Go on in a new epoch, in which a channel or a broker may be gone."""
        self._holdings.forget_gone()
        self._fetch = self._writing = None

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        under_way = [self._fetch, None if self._writing is None else self._writing[1]]
        regained = sum(fetch.count for fetch in under_way if fetch is not None)
        return {"told": len(self._holdings), "regained": regained}

    def lacking(self) -> list[str]:
        """What this broker still waits for, for people to read."""
        in_doubt = self._in_doubt.now()
        late = [stream for stream in self._holdings.streams() if self._lacks.is_late(stream)]
        waits = [f"publications of {stream}" for stream in in_doubt | dict.fromkeys(late)]
        return waits + self._unanswered()

    def _unanswered(self) -> list[str]:
        """Channels on which too few peers have reported, for people to read."""
        waits: list[str] = []
        quorums = self._view.quorums
        for entry in self._entries():
            told = self._holdings.answered(entry.name)
            asked = any(peer not in told for peer in self._surveys.awaited(entry.name))
            enough = max(quorums.other_responders, self._holdings.needed(entry))
            if asked or len(told) < min(quorums.others, enough):
                waits.append(f"what the other brokers hold of {entry.name!r}")
        return waits

    def is_filling(self, channel: Channel) -> bool:
        """Whether peers may still bring the past of a channel: what they held when they reported.

        They have gone on since, which its publishers or its origin will bring.
        """
        streams = dict.fromkeys((*self._in_doubt.now(), *self._holdings.streams()))
        return any(
            self._in_doubt.includes(stream)
            or self._lacks.before(stream) is not None
            or (not self._is_begun(stream) and self._lacks.ahead(stream) is not None)
            for stream in streams
            if stream.channel == channel
        )

    def _is_begun(self, stream: Stream) -> bool:
        ledger = self._served.ledger(stream)
        return ledger is not None and ledger.begun

    def has_failed(self, stream: Stream) -> bool:
        """Whether peers did not bring what they seemed to hold before what this broker holds."""
        return self._lacks.has_failed(stream)

    def has_heard(self, channel: Channel) -> bool:
        """Whether all peers have reported on a channel."""
        return len(self._holdings.answered(channel)) >= self._view.quorums.others

    def wake(self) -> list[Effect]:
        """Look again soon."""
        return self._wake(TICK_MS)

    def expects(self, stream: Stream) -> bool:
        """Whether what lies before a lane may still be fetched: subscribers can wait for it."""
        return self._in_doubt.includes(stream) or self._lacks.expected(stream)

    # --------------------------------------------------------------- asking

    def _entries(self) -> list[ChannelEntry]:
        return [entry for entry in self._view.channels if entry.policy.log is None]

    def _channels(self) -> list[Channel]:
        return [entry.name for entry in self._entries()]

    def connected(self, peer: NodeId) -> list[Effect]:
        """Ask a peer that can be reached for what it holds."""
        if peer not in self._view.brokers:
            return []
        self._up[peer] = None
        return self._survey((peer,), self._channels())

    def disconnected(self, peer: NodeId) -> None:
        """A peer cannot be reached."""
        self._up.pop(peer, None)
        self._surveys.disconnected(peer)

    def left_out(self, stream: Stream) -> list[Effect]:
        """A publisher could not repeat what this broker lacks of a stream: ask the peers."""
        return self._survey(tuple(self._up), [c for c in self._channels() if c == stream.channel])

    def _survey(self, peers: Iterable[NodeId], channels: list[Channel]) -> list[Effect]:
        asked = self._surveys.ask(peers, channels)
        return [*asked, *self._wake(TICK_MS)] if asked else []

    def _wake(self, after_ms: int) -> list[Effect]:
        if self._set and after_ms > TICK_MS:
            return []
        self._set = True
        self._idle = after_ms == IDLE_MS
        return [SetTimer(RecoveryTick(), after_ms)]

    # -------------------------------------------------------------- answers

    def on_answer(self, event: Receive) -> list[Effect]:
        """Handle a peer's answer."""
        message = event.message
        if isinstance(message, Positions):
            return self._on_positions(event.sender, message)
        return self._on_regained(event, message) if isinstance(message, Regained) else []

    def _on_positions(self, sender: NodeId, message: Positions) -> list[Effect]:
        if not self._surveys.answered(message.channel, sender):
            return [Drop(DropReason.UNEXPECTED, sender)]
        first = sender not in self._holdings.answered(message.channel)
        streams = self._holdings.replace(sender, message)
        self._lacks.try_again(streams)
        if first:
            self._in_doubt.add_first_report(streams)
        for stream, end in self._holdings.endings(message.channel).items():
            self._served.learn_ending(stream, end)
        return []

    def _on_regained(self, event: Receive, message: Regained) -> list[Effect]:
        """A peer's digests of the range that is being fetched, perhaps with its contents."""
        fetch, sender, digests = self._fetch, event.sender, message.digests
        if fetch is None or (message.stream, message.first) != (fetch.stream, fetch.first):
            return [Drop(DropReason.DUPLICATE, sender)]
        fits = match_results if self._carries_results(fetch.stream) else match
        if event.bodies and not fits(split_digests(digests), event.bodies, self._view.hash):
            return [
                Drop(DropReason.BAD_BODY, sender),
                Suspect(sender, Suspicion.BAD_BODY, fetch.stream, fetch.first),
            ]
        if event.bodies and len(event.bodies) < fetch.count:
            # As many as fit into a frame. The newest must come first: ask for as many of them.
            self._size = len(event.bodies)
            return self._begin(fetch.stream, fetch.first + fetch.count - self._size, self._size)
        if len(digests) != fetch.count * DIGEST_SIZE:
            return [Drop(DropReason.BAD_RUN, sender)]
        if event.bodies:
            fetch.bodies = (digests, event.bodies)
        fetch.votes.vote(sender, digests)
        return self._maybe_take(fetch)

    # --------------------------------------------------------------- taking

    def _maybe_take(self, fetch: RangeFetch) -> list[Effect]:
        entry = self._view.channel(fetch.stream.channel)
        if entry is None:
            return []
        after = fetch.is_after(self._served.get(fetch.stream.data))
        needed = self._holdings.needed(entry, fetch.stream.lane, after=after)
        value = fetch.votes.leader(needed)
        if value is None or fetch.bodies is None or fetch.bodies[0] != value:
            return []
        journaled = self._journal.digests(fetch.stream, fetch.first, fetch.count)
        if any(p not in (None, d) for p, d in zip(journaled, split_digests(value), strict=True)):
            if not entry.policy.settles:
                # It does not contradict what it vouched for; it does not vouch for it again either.
                return self._give_up(fetch)
            # The cell has settled something else: no subscriber accepted what it vouched for.
            self._journal.overrule(fetch.stream, fetch.first, value)
        self._fetch = None
        if not fetch.borders(self._served.get(fetch.stream.data)):
            # Its publisher has continued it meanwhile, which the journal must not contradict.
            self._progress.pop(fetch.stream, None)
            return self._next()
        if not entry.policy.journal:
            return self._write(fetch)
        record = Attested(fetch.stream, fetch.first, value)
        ledger = self._served.ledger(fetch.stream)
        written = None if ledger is None else self._journal.extended(record, ledger)
        if written is None:
            return self._write(fetch)
        self._writing = (written, fetch)
        return [Persist(written), *self._next()]

    def journaled(self, record: Attested) -> list[Effect]:
        """Write a range to the ledger, now that the journal holds its digests."""
        if self._writing is None or self._writing[0] != record:
            return []
        fetch, self._writing = self._writing[1], None
        return self._write(fetch)

    def _write(self, fetch: RangeFetch) -> list[Effect]:
        served = self._served.get(fetch.stream.data)
        if served is None or fetch.bodies is None:
            return []
        self._size = min(CHUNK, 2 * self._size)
        digests, bodies = fetch.bodies
        after = fetch.is_after(served)
        # There may be less room than when it asked: its publisher has continued meanwhile.
        ledger = served.ledger(fetch.stream.lane)
        lacked = 0 if after else max(0, min(fetch.count, ledger.base - fetch.first))
        cut = lacked - ledger.fitting(bodies[:lacked])
        run = split_digests(digests)[cut:]
        is_history, carrier = fetch.stream.lane is Lane.HISTORY, served.carrier
        recover = carrier.recover_histories if is_history else carrier.recover
        if not run or not recover(fetch.first + cut, run, bodies[cut:]):
            self._lacks.give_up(fetch.stream, after=after)
        elif after and (recoverable(served.entry) or is_history):
            vouch = Vouch(fetch.stream, fetch.first, digests)
            return [vouch, *self._ask_for_more(fetch.stream), *self._next()]
        return self._ask_for_more(fetch.stream) + self._next() if after else self._next()

    def _ask_for_more(self, stream: Stream) -> list[Effect]:
        """Survey again after the last known range: the peers have gone on meanwhile."""
        if self._lacks.ahead(stream) is not None:
            return []
        return self._survey(tuple(self._up), [stream.channel])

    def _give_up(self, fetch: RangeFetch) -> list[Effect]:
        """Try a smaller range: the newest part, or the oldest after what is held."""
        self._fetch = None
        if fetch.count > 1:
            self._size = max(1, fetch.count // 4)
        else:
            self._size = CHUNK
            after = fetch.is_after(self._served.get(fetch.stream.data))
            self._lacks.give_up(fetch.stream, after=after)
        return self._next()

    # ------------------------------------------------------------- choosing

    def _carries_results(self, stream: Stream) -> bool:
        entry = self._view.channel(stream.channel)
        return entry is not None and entry.carried != ""

    def _next(self) -> list[Effect]:
        """Begin to fetch the next range, of one stream after the other."""
        if self._fetch is not None:
            return []
        streams = self._holdings.streams()
        for _ in range(min(SLICE, len(streams))):
            self._at %= len(streams)
            stream = streams[self._at]
            entry = self._view.channel(stream.channel)
            if entry is not None and not (self._writing and entry.policy.journal):
                chosen = self._choose(entry, stream)
                if chosen is not None:
                    return self._begin(stream, *chosen)
            self._at += 1
        return []

    def _choose(self, entry: ChannelEntry, stream: Stream) -> tuple[int, int] | None:
        """First number and length of the range of a stream to fetch now."""
        ahead, served = self._lacks.ahead(stream), self._served.get(stream.data)
        progress = self._progress.get(stream, StreamProgress(0))
        if ahead is not None:
            first, end = ahead
            if served is None or not served.continues(stream.lane):
                if progress.stalled:
                    self._resume(stream, end)
            # Otherwise its publisher may be about to send it.
            elif progress.lags or served.ledger(stream.lane).left_behind:
                held = self._holdings.end(entry, stream, first)
                if held > first:
                    return first, min(self._size, held - first)
                if not self._is_coming(served, stream.lane, progress):
                    # Too few retain it: nobody can fetch it any more.
                    oldest = self._holdings.beginning(entry, stream, end, after=True)
                    self._resume(stream, max(first, oldest))
        elif served is not None and progress.stalled and stream.lane is Lane.DATA:
            self._skip_settled(served)
        wanted = self._lacks.before(stream)
        if wanted is None:
            return None
        first, end = wanted
        count = min(self._size, end - first)
        return end - count, count

    def _is_coming(self, served: ServedStream, lane: Lane, progress: StreamProgress) -> bool:
        """Whether an honest publisher, however slow, is still sending what this broker lacks.

        A publisher that may lie could send a little now and then, and keep the broker behind.
        """
        moves = not (progress.stalled or served.ledger(lane).left_behind)
        return moves and served.entry.policy.trusts_publishers

    def _skip_settled(self, served: ServedStream) -> None:
        """Continue after what f+1 peers have settled, if nobody has its histories any more.

        All may have lost the first ones in restarts, and the publisher repeats nothing settled.
        """
        stream, ledger = served.stream, served.carrier.ledger
        end = self._holdings.end(served.entry, stream)
        lacks = self._holdings.ahead_of(served) and not self._lacks.ahead(stream.history)
        # Nothing else brings a broker of a chain past publications whose histories it skipped.
        skipped = not ledger.begun and served.ledger(Lane.HISTORY).begun
        if lacks and (skipped or ledger.next >= end):
            self._resume(stream, end)

    def may_begin(self, opened: Open) -> Open | None:
        """The part of a publisher's `Open` that a broker without the stream may follow, if any.

        A lying publisher could make brokers begin at different numbers, each beyond what the others
        deliver, so that none could help the others to deliver. So a broker begins later only if f+1
        peers have everything before; until then it waits for their reports.
        """
        reach = self._reach(opened.stream)
        if max(opened.base, opened.fresh) <= reach:
            return opened
        if opened.base <= reach:
            return Open(opened.stream, opened.base, opened.base)
        return None

    def _follow_claims(self, streams: Iterable[Stream]) -> None:
        """Begin streams where their publishers said, once enough peers have everything before.

        Or if no peer knows the stream: then beginning later leaves nothing out.
        """
        enough = self._view.quorums.other_responders
        for served in filter(None, map(self._served.get, streams)):
            for stream, carrier in served.lanes() if served.entry.policy.settles else ():
                claim = carrier.ledger.unrepeated
                if carrier.ledger.begun or claim <= carrier.ledger.start:
                    continue
                waits = self._surveys.awaited(stream.channel)
                answers = 0 if waits else len(self._holdings.answered(stream.channel))
                unknown = answers >= enough and not self._holdings.of(stream)
                if unknown or claim <= self._reach(stream):
                    self._resume(stream, claim)

    def _reach(self, stream: Stream) -> int:
        """The number before which a stream is settled, by enough peers or by the journal."""
        entry, ledger = self._view.channel(stream.channel), self._served.ledger(stream)
        start = 1 if ledger is None else ledger.start
        own = self._journal.settled(stream) + 1
        return start if entry is None else max(start, own, self._holdings.end(entry, stream))

    def _resume(self, stream: Stream, number: int) -> None:
        """Begin, or continue, at a number before which enough peers have everything."""
        entry = self._view.channel(stream.channel)
        if entry is None:
            return
        data = stream.data
        served = self._served.get(data) or self._served.open(data, entry, self._view.me)
        if served is not None:
            served.lane(stream.lane).resume(number)
            # It counts as genuine from now on, which may make it one too many.
            self._served.open(data, entry, served.introducer or self._view.me)

    def _begin(self, stream: Stream, first: int, count: int) -> list[Effect]:
        self._fetch = fetch = RangeFetch(stream, first, count)
        entry = self._view.channel(stream.channel)
        journaled = [p for p in self._journal.digests(stream, first, count) if p is not None]
        if entry is not None and entry.policy.basis is Basis.FORWARDED and len(journaled) == count:
            fetch.votes.vote(self._view.me, b"".join(journaled))
        return self._ask()

    def _ask(self) -> list[Effect]:
        fetch = self._fetch
        if fetch is None:
            return []
        holders = [
            peer
            for peer, held in self._holdings.of(fetch.stream).items()
            if held.base <= fetch.first
            and held.next >= fetch.first + fetch.count
            and peer in self._up
        ]
        if not holders:
            return []
        source = holders[self._turn % len(holders)]
        self._turn += 1
        rest = tuple(p for p in holders if p != source and fetch.votes.vote_of(p) is None)
        wanted = Regain(fetch.stream, fetch.first, fetch.count)
        effects: list[Effect] = [Send(rest, wanted)] if rest else []
        if fetch.bodies is None:
            effects.append(Send((source,), msgspec.structs.replace(wanted, bodies=True)))
        return effects

    # ---------------------------------------------------------------- clock

    def tick(self) -> list[Effect]:
        """Repeat requests that were not answered, and look for what else is missing."""
        self._set = False
        streams = self._next_streams()
        self._follow_claims(streams)
        self._watch(streams)
        effects: list[Effect] = []
        self._unasked += 1
        # Also while something is missing, which may never come: the peers go on meanwhile.
        asks_again = self._in_doubt.tick(streams)
        if self._idle or self._unasked >= IDLE_TICKS or asks_again:
            self._idle = False
            self._unasked = 0
            effects += self._survey(tuple(self._up), self._channels())
        effects += self._surveys.tick()
        if self._fetch is not None:
            effects += self._urge(self._fetch)
        effects += self._next()
        if not self._channels():
            return effects
        self._late |= any(self._in_doubt.includes(s) or self._lacks.is_late(s) for s in streams)
        busy = self._surveys or self._round or self._late or self._unanswered()
        self._late &= bool(self._round)
        return effects + self._wake(TICK_MS if busy else IDLE_MS)

    def _next_streams(self) -> list[Stream]:
        """The streams to look at in this tick: a slice, all in turn."""
        if not self._round:
            self._round.extend(self._in_doubt.known())
            self._progress = {s: p for s, p in self._progress.items() if self._holdings.of(s)}
        return [self._round.popleft() for _ in range(min(SLICE, len(self._round)))]

    def _urge(self, fetch: RangeFetch) -> list[Effect]:
        fetch.ticks += 1
        if fetch.ticks > RANGE_TICKS:
            return self._give_up(fetch)
        fetch.drop_minority_bodies()
        return self._ask()

    def _watch(self, streams: Iterable[Stream]) -> None:
        """Note which streams advance by themselves."""
        for stream in streams:
            if not self._holdings.of(stream):
                continue
            served, entry = self._served.get(stream.data), self._view.channel(stream.channel)
            at = 1 if served is None else served.ledger(stream.lane).next
            end = 0 if entry is None else self._holdings.end(entry, stream)
            self._progress[stream] = self._progress.get(stream, StreamProgress(at)).tick(at, end)
