"""An excerpt: a range of a channel's total order that is read once.

A task of a data pipeline, many of which run side by side, wants nothing beyond its range, nothing
twice, and the vote of every broker. So it asks for one *span* after the other, each with an end
(`Subscribe.until`), the next one while the last is still coming. Brokers do not count it among
their subscribers. A span holds about SPAN_BYTES, by the mean size of publications so far. A
subscription that is far behind catches up in the same spans.

Enough equal votes decide, as always. But a decided position is held back until every broker has
voted on it, so that votes and dissent do not depend on who was quicker. A slow broker cannot abuse
this: one that delays a position for ALL_VOTES_MS, or is late STRIKES times, is not waited for in
this excerpt and the next SKIPPED_FOR ones; nor is one whose link has broken, until it is back.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.application import Deliver, Passed
from quorumcast.cell.serving.audience import REPLAY_BYTES
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Effect, Timer

SPAN_BYTES = 4 * 1024 * 1024
#: Publications of the first span: nothing is known of their size.
FIRST_SPAN = 32
ALL_VOTES_MS = 1000
STRIKES = 3
SKIPPED_FOR = 16
#: Missing bodies of an excerpt take longer than those of single publications.
PULL_MS = 400


class VotesDue(Timer, frozen=True, tag=True):
    """A decided position of this channel has waited for the votes of all brokers."""

    channel: Channel


class SkippedBrokers:
    """Brokers that the excerpts of one subscriber do not wait for."""

    __slots__ = ("_away", "_skips")

    def __init__(self) -> None:
        #: The number of excerpts that still skip a broker.
        self._skips: dict[NodeId, int] = {}
        #: Brokers whose links have broken.
        self._away: dict[NodeId, None] = {}

    def disconnected(self, broker: NodeId) -> None:
        """Do not wait for a broker whose link has broken."""
        self._away[broker] = None

    def connected(self, broker: NodeId) -> None:
        """Wait for a broker again that has a link."""
        self._away.pop(broker, None)

    def begin_excerpt(self) -> None:
        """Count down the excerpts that skip a broker."""
        self._skips = {broker: left - 1 for broker, left in self._skips.items() if left > 1}

    def skip(self, broker: NodeId) -> None:
        """Skip a broker that has been waited for long enough."""
        self._skips[broker] = SKIPPED_FOR

    def awaited(self, brokers: Iterable[NodeId]) -> tuple[NodeId, ...]:
        """Those of the brokers whose votes are waited for."""
        return tuple([b for b in brokers if b not in self._skips and b not in self._away])


class Spans:
    """How far a total order has been asked for, one span after the other."""

    __slots__ = ("_asked", "_begin", "_bytes", "_end", "_limits", "_most", "_publications")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: Publications of a span: brokers replay, and votes count, no further.
        self._most = max(1, min(limits.replay, limits.vote_window // 4))
        #: Everything before it has been asked for; 0 if that is not known yet.
        self._asked = 0
        #: Where the last replay without an end began, and how far brokers were at that time.
        self._begin = 1
        self._end = 1
        #: What has been delivered.
        self._publications = 0
        self._bytes = 0

    def restart_at(self, position: int, end: int) -> None:
        """Brokers, which are at `end`, replay from a position on, as much as they do at once."""
        self._begin, self._asked, self._end = position, 0, end

    def next_span(self, position: int, until: int) -> tuple[int, int] | None:
        """The next span, first and stop, as soon as only the last one is still to come."""
        if not self._asked:
            if not self._publications:
                return None
            self._asked = self._begin + min(self._fitting(REPLAY_BYTES), self._limits.replayed)
        first = max(self._asked, position)
        if until - first <= FIRST_SPAN:
            # What was ordered since comes by itself. Each answer tells of a later end: who asked
            # for the little that is left would never stop asking.
            until = min(until, self._end)
        # Until publications have come, their sizes are unknown: one span at a time is requested.
        ahead = self._span if self._publications else 0
        if first >= until or first - position > ahead:
            return None
        self._asked = min(first + self._span, until)
        return first, self._asked

    def note(self, publications: int, effects: Iterable[Effect]) -> None:
        """Note how many publications had their turn, and the size of what came of them."""
        self._publications += publications
        self._bytes += sum(len(effect.body) for effect in effects if isinstance(effect, Deliver))

    @property
    def _span(self) -> int:
        if not self._publications:
            return min(FIRST_SPAN, self._most)
        return min(self._fitting(SPAN_BYTES), self._most)

    def _fitting(self, size: int) -> int:
        """How many publications of the mean size so far have so many bytes."""
        return max(1, size // (self._bytes // self._publications + 1))


class Excerpt(Spans):
    """How far an excerpt has been requested, and whose votes it waits for."""

    __slots__ = ("_blocked", "_skipped", "_strikes", "until")

    def __init__(self, until: int, limits: Limits, skipped: SkippedBrokers) -> None:
        super().__init__(limits)
        self._skipped = skipped
        skipped.begin_excerpt()
        #: The first position that is not wanted.
        self.until = until
        #: How often each broker was late.
        self._strikes: dict[NodeId, int] = {}
        #: The position that waited for votes when the timer was set; 0 if it is not set.
        self._blocked = 0

    @property
    def asked(self) -> int:
        """Everything before it has been asked for, or will be."""
        return self._asked or self.until

    def restart_at(self, position: int, end: int) -> None:
        """Everything up to the end is asked for once more, from a position on."""
        self._asked, self._end = min(position + self._span, end), end

    def keep(self, effects: Iterable[Effect]) -> list[Effect]:
        """The effects that belong to the excerpt.

        Votes of a subscription that has just ended may still come, also for positions beyond.
        """
        kept: list[Effect] = []
        for effect in effects:
            match effect:
                case Deliver(number=number) if number >= self.until:
                    continue
                case Passed(stream=stream, first=first, upto=upto):
                    if first < self.until:
                        kept.append(Passed(stream, first, min(upto, self.until - 1)))
                case _:
                    kept.append(effect)
        return kept

    # ------------------------------------------------------------ votes of all brokers

    def awaited(self, brokers: Iterable[NodeId]) -> tuple[NodeId, ...]:
        """The brokers whose votes are waited for."""
        return self._skipped.awaited(brokers)

    def blocks(self, acceptor: Acceptor) -> bool:
        """Whether a position has just begun to wait for votes."""
        if self._blocked or not acceptor.complete or acceptor.next >= self.until:
            return False
        self._blocked = acceptor.next
        return True

    def time_over(self, acceptor: Acceptor, brokers: Iterable[NodeId]) -> None:
        """Note which brokers are late, and skip them if they were too often."""
        same, self._blocked = self._blocked == acceptor.next, 0
        if not acceptor.complete:
            return
        for broker in self._skipped.awaited(brokers):
            if not acceptor.voted(broker, acceptor.next):
                self._strikes[broker] = self._strikes.get(broker, 0) + 1
                if same or self._strikes[broker] >= STRIKES:
                    self._skipped.skip(broker)
