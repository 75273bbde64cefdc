"""An excerpt: a part of a channel's order that is read once, from one position up to another.

A subscription runs on for ever, and brokers send it whatever comes. Whoever reads a known range
(a task of a data pipeline, of which many read side by side) wants nothing beyond it, nothing twice,
and everybody's word on it. So an excerpt asks for one *span* after the other, each with its end
(`Subscribe.until`), the next one while the last is still coming; brokers do not count its reader
among those who listen. A span holds about SPAN_BYTES, by what publications of this excerpt were
like so far.

Enough equal votes decide, as always. But what is decided is held back until every broker has voted
on it, also one whose link is still being made, so that votes and dissent do not depend on who was
quicker. Nobody gains by being slow: whoever keeps one position waiting for HEAR_MS, or is what is
waited for STRIKES times when that time is over, is not waited for in this excerpt and in the next
PARDON ones; whose link has broken is not waited for until there is another.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.application import Deliver
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Effect, Timer

SPAN_BYTES = 4 * 1024 * 1024
#: Publications of the first span: nothing is known of their size.
FIRST_SPAN = 32
HEAR_MS = 1000
STRIKES = 3
PARDON = 16
#: Bodies that lack are on their way for longer than where they come one by one.
PULL_MS = 400


class HearDue(Timer, frozen=True, tag=True):
    """What is decided on this channel has waited for everybody's vote."""

    channel: Channel


class SkippedBrokers:
    """Who is not waited for; of all excerpts of one subscriber, one after the other."""

    __slots__ = ("_away", "_lost")

    def __init__(self) -> None:
        #: For how many excerpts more a broker is not waited for.
        self._lost: dict[NodeId, int] = {}
        #: Brokers whose links have broken.
        self._away: dict[NodeId, None] = {}

    def left(self, broker: NodeId) -> None:
        """Its link has broken."""
        self._away[broker] = None

    def back(self, broker: NodeId) -> None:
        """It has a link again."""
        self._away.pop(broker, None)

    def renew(self) -> None:
        """Another excerpt begins."""
        self._lost = {broker: left - 1 for broker, left in self._lost.items() if left > 1}

    def lose(self, broker: NodeId) -> None:
        """It has been waited for long enough."""
        self._lost[broker] = PARDON

    def awaited(self, brokers: Iterable[NodeId]) -> tuple[NodeId, ...]:
        """Whose votes are waited for, of these."""
        return tuple([b for b in brokers if b not in self._lost and b not in self._away])


class Excerpt:
    """How far an excerpt has been asked for, and whose word on it is awaited."""

    __slots__ = (
        "_asked",
        "_blocked",
        "_bytes",
        "_most",
        "_patience",
        "_publications",
        "_strikes",
        "until",
    )

    def __init__(self, until: int, limits: Limits, patience: SkippedBrokers) -> None:
        self._patience = patience
        patience.renew()
        #: The first position that is not wanted.
        self.until = until
        #: Publications of a span: brokers replay, and votes count, no further.
        self._most = max(1, min(limits.replay, limits.vote_window // 4))
        #: Everything before it has been asked for.
        self._asked = 0
        #: What has been delivered.
        self._publications = 0
        self._bytes = 0
        #: How often each broker was what was waited for when time was over.
        self._strikes: dict[NodeId, int] = {}
        #: The position that began to wait for votes when the time began; 0 if none does.
        self._blocked = 0

    @property
    def asked(self) -> int:
        """Everything before it has been asked for, or will be."""
        return self._asked or self.until

    def again(self, position: int) -> None:
        """Everything is asked for once more, from here on."""
        self._asked = min(position + self._span, self.until)

    def more(self, position: int) -> tuple[int, int] | None:
        """The next span, first and stop, when half of the last one has come."""
        first = self._asked
        if first >= self.until or first - position > self._span // 2:
            return None
        self._asked = min(first + self._span, self.until)
        return first, self._asked

    def keep(self, effects: Iterable[Effect]) -> list[Effect]:
        """What of this belongs to the excerpt; see what publications are like.

        Votes of a subscription that has just ended may still come, also on what lies beyond.
        """
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Deliver):
                if effect.number >= self.until:
                    continue
                self._publications += 1
                self._bytes += len(effect.body)
            kept.append(effect)
        return kept

    @property
    def _span(self) -> int:
        if not self._publications:
            return min(FIRST_SPAN, self._most)
        mean = self._bytes // self._publications + 1
        return max(1, min(SPAN_BYTES // mean, self._most))

    # ------------------------------------------------------------ everybody's word

    def awaited(self, brokers: Iterable[NodeId]) -> tuple[NodeId, ...]:
        """Whose votes are waited for."""
        return self._patience.awaited(brokers)

    def blocks(self, acceptor: Acceptor) -> bool:
        """Whether something has just begun to wait for votes."""
        if self._blocked or not acceptor.complete or acceptor.next >= self.until:
            return False
        self._blocked = acceptor.next
        return True

    def time_over(self, acceptor: Acceptor, brokers: Iterable[NodeId]) -> None:
        """See who keeps us waiting."""
        same, self._blocked = self._blocked == acceptor.next, 0
        if not acceptor.complete:
            return
        for broker in self._patience.awaited(brokers):
            if not acceptor.voted(broker, acceptor.next):
                self._strikes[broker] = self._strikes.get(broker, 0) + 1
                if same or self._strikes[broker] >= STRIKES:
                    self._patience.lose(broker)
