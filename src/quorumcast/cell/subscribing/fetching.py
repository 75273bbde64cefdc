"""How a subscriber gets bodies: from its source, and by pulling what the source does not send.

Every broker votes; one of them, the *source*, also sends the bodies. Missing bodies are pulled from
brokers that voted for them, then from any broker. A source is replaced if pulls had to make up for
it a few times, whether it withholds bodies, is slow or has other contents; only the first makes it
a suspect. It withholds bodies if it votes without them again and again after its `Positions` said
that it knows that it is the source: votes that were under way before, or whose bodies found no room
here, say nothing about it.

A source whose bodies come before any pull, but always last, delays everything as well, because
publications are delivered in order. It is replaced if its bodies were missing at many looks in a
row. Each such change takes twice as many looks as the one before: with large bodies and slow links
every source is like that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.messages import Pull
from quorumcast.cell.subscribing import excerpt
from quorumcast.cell.subscribing.archive import Archive
from quorumcast.cell.subscribing.interest import Interest
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.limits import MAX_RUN
from quorumcast.core.machine import Effect, Send, SetTimer, Suspect, Suspicion, Timer
from quorumcast.manifest.view import View

PULL_MS = 40
#: Pulls in a row, with nothing from the source in between, after which it is replaced.
PULLS_BEFORE_CHANGE = 3
#: Looks in a row at which bodies were missing, after which the first source is replaced.
LATE_LOOKS = 8
#: Ranges of numbers that are pulled at the same time: a source that corrupts one body of each run
#: leaves many small holes, and brokers answer PULLS of them (`cell.serving.audience`) at once.
RANGES_AT_ONCE = 16


class PullDue(Timer, frozen=True, tag=True):
    """Bodies of this stream have been missing for a while."""

    stream: Stream


def first_source(subscriber: NodeId, brokers: Sequence[NodeId]) -> NodeId:
    """The first source of a subscriber: subscribers are spread over the brokers."""
    return brokers[sum(subscriber.encode()) % len(brokers)]


class Fetcher:
    """Chooses sources and pulls bodies for one subscriber."""

    __slots__ = ("_asked", "_pulling", "_up", "_view")

    def __init__(self, view: View, up: Collection[NodeId]) -> None:
        self._view = view
        #: Brokers that can be reached; the subscriber's own, which changes.
        self._up = up
        #: Streams for which PullDue is set, and the number that was missing then.
        self._pulling: dict[Stream, int] = {}
        #: Who was asked last for contents that a receipt needs, by place among those.
        self._asked = 0

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"pulling": len(self._pulling)}

    # -------------------------------------------------------------- sources

    def choose_source(self, interest: Interest) -> None:
        """Choose the first source among the brokers that can be reached."""
        up = [broker for broker in self._view.brokers if broker in self._up]
        if up:
            interest.source.use(first_source(self._view.me, up))

    def change_source(self, interest: Interest) -> list[Effect]:
        """Make the next broker that can be reached the source."""
        brokers = [b for b in self._view.brokers if b in self._up or b == interest.source.broker]
        old = interest.source.broker
        if old is None or len(brokers) < 2:
            if old not in self._up:
                interest.source.use(None)
            return []
        source = brokers[(brokers.index(old) + 1) % len(brokers)]
        interest.source.use(source)
        return [
            Send((broker,), interest.subscribe_to(broker))
            for broker in (old, source)
            if broker in self._up
        ]

    # ---------------------------------------------------------------- pulls

    def watch(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        """Give missing bodies a moment to come from the source."""
        stream = acceptor.stream
        lacked = self._pulling.get(stream)
        if lacked is not None:
            # What was pulled has come; other bodies are missing, and only since a moment ago.
            _, asked = interest.pulls.get(stream, (0, 0))
            if not lacked <= asked < acceptor.next:
                return []
        if not acceptor.lacking(1):
            return []
        return [self._await_bodies(acceptor, _pull_ms(interest, acceptor))]

    def _await_bodies(self, acceptor: Acceptor, after_ms: int) -> SetTimer:
        self._pulling[acceptor.stream] = acceptor.next
        return SetTimer(PullDue(acceptor.stream), after_ms)

    def on_pull_due(self, interest: Interest | None, stream: Stream) -> list[Effect]:
        """Pull what has been missing since the timer was set."""
        lacked = self._pulling.pop(stream, 0)
        acceptor = None if interest is None else interest.acceptors.get(stream)
        if interest is None or acceptor is None:
            return []
        if not acceptor.lacking(1):
            if stream.lane is Lane.DATA:
                interest.source.late = 0
            return []
        if acceptor.next > lacked:
            # Bodies do come; another number has been missing for a shorter time.
            effects: list[Effect] = [self._await_bodies(acceptor, _pull_ms(interest, acceptor))]
        else:
            effects = self.pull(interest, acceptor)
        return effects + self._maybe_replace_late(interest, acceptor)

    def _maybe_replace_late(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        """Count that bodies were missing after the votes; replace the source if too often."""
        lane = acceptor.stream.lane
        # Spans come in large pieces, from every source.
        if lane is not Lane.DATA or interest.chained(lane) or interest.far_behind(acceptor):
            return []
        interest.source.late += 1
        if interest.source.late < LATE_LOOKS << interest.source.replaced:
            return []
        interest.source.replaced += 1
        return self.change_source(interest)

    def pull(self, interest: Interest, acceptor: Acceptor) -> list[Effect]:
        """Ask one broker after the other for missing bodies."""
        stream = acceptor.stream
        lacking = acceptor.lacking(MAX_RUN)
        pulls, asked = interest.pulls.get(stream, (0, 0))
        # If more has come than was pulled, some came from the source.
        pulls = 1 if acceptor.next > asked + 1 else pulls + 1
        effects: list[Effect] = []
        # First those that voted for it, then any broker: others hold what a history names, too.
        voters = [broker for broker in acceptor.voters(lacking[0]) if broker in self._up]
        holders = voters + [broker for broker in self._up if broker not in voters]
        if holders:
            holder = holders[(pulls - 1) % len(holders)]
            where = b"" if acceptor.pulled_whole(lacking[0]) else acceptor.where
            for first, last in number_ranges(lacking)[:RANGES_AT_ONCE]:
                effects.append(Send((holder,), Pull(stream, first, last - first + 1, where)))
                asked = max(asked, last)
        interest.pulls[stream] = (pulls, asked)
        source = interest.source
        if not interest.chained(stream.lane) and source.owes(acceptor, lacking[0]):
            # The body should have come with its vote. (On a chain the last broker sends bodies.)
            source.withheld += 1
            source.bare += source.withholds(acceptor, lacking[0])
        if source.broker is not None and source.withheld >= PULLS_BEFORE_CHANGE:
            if source.bare >= PULLS_BEFORE_CHANGE:
                effects.append(Suspect(source.broker, Suspicion.WITHHOLDS, stream, lacking[0]))
            effects += self.change_source(interest)
        elif pulls % PULLS_BEFORE_CHANGE == 0:
            effects += self.change_source(interest)
        effects.append(self._await_bodies(acceptor, PULL_MS * min(2 + pulls, 16)))
        return effects

    def pull_cut(self, archive: Archive) -> list[Effect]:
        """Ask for the whole of publications for which receipts are awaited; each time another."""
        numbers, up = archive.lacking(), list(self._up)
        if not numbers or not up:
            return []
        self._asked = (self._asked + 1) % len(up)
        holder = (up[self._asked],)
        return [
            Send(holder, Pull(archive.stream, first, min(last - first + 1, MAX_RUN)))
            for first, last in number_ranges(sorted(numbers))[:RANGES_AT_ONCE]
        ]


def _pull_ms(interest: Interest, acceptor: Acceptor) -> int:
    """The time that missing bodies have to come from the source."""
    return excerpt.PULL_MS if interest.far_behind(acceptor) else PULL_MS


def number_ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each row of consecutive numbers."""
    ends = [a for a, b in pairwise(numbers) if b != a + 1] + numbers[-1:]
    starts = numbers[:1] + [b for a, b in pairwise(numbers) if b != a + 1]
    return list(zip(starts, ends, strict=True))
