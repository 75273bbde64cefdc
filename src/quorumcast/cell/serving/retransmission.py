"""A broker's budget for retransmissions.

A run that is not delivered is retransmitted until it is. One publisher can have any number of such
runs, on any number of streams, which would leave no time for progress. So all streams of a broker
share a budget per tick. Publishers take turns, whichever seats they use, and so do the streams of
each. Answers to a peer that repeats itself have a budget of their own per peer.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.core.ids import Millis, NodeId, Stream, holder
from quorumcast.core.machine import Effect, Send, SetTimer, Timer

TICK_MS = 150
#: Messages that are retransmitted in one tick, to all peers together.
REPEATED = 512
#: Answers in one tick to one peer that repeats messages about what is delivered.
ANSWERED = 256


class RetransmissionTick(Timer, frozen=True, tag=True):
    """Streams wait for their turn to retransmit."""


class Retransmission:
    """The order in which streams retransmit, within the budget."""

    __slots__ = ("_answered", "_left", "_since", "_ticking", "_waiting")

    def __init__(self) -> None:
        #: When this tick began, and what is left of its budget; a long retransmission overdraws it.
        self._since = Millis(-TICK_MS)
        self._left = REPEATED
        #: Answers to each peer in this tick; only brokers.
        self._answered: dict[NodeId, int] = {}
        #: Streams that wait for their turn, by publisher; no empty ones.
        self._waiting: dict[NodeId, dict[Stream, None]] = {}
        #: Whether RetransmissionTick is set.
        self._ticking = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def want(self, stream: Stream) -> None:
        """Queue a stream that has something to retransmit."""
        self._waiting.setdefault(holder(stream.publisher), {})[stream] = None

    def tick(self) -> None:
        """The next tick has come."""
        self._ticking = False

    def next(self, now: Millis) -> Stream | None:
        """The stream whose turn it is; None if none waits or the budget is used up."""
        self._renew(now)
        if self._left <= 0 or not self._waiting:
            return None
        identity, streams = next(iter(self._waiting.items()))
        stream = next(iter(streams))
        del self._waiting[identity], streams[stream]
        self._left -= 1  # also if it turns out to have nothing to send
        if streams:
            self._waiting[identity] = streams  # at the end: other publishers come first
        return stream

    def spend(self, effects: Iterable[Effect]) -> None:
        """Charge what a stream retransmits to the budget."""
        self._left -= sum(len(effect.to) for effect in effects if isinstance(effect, Send))

    def wait(self) -> list[Effect]:
        """Set the timer of the next tick if a stream waits for it."""
        if self._ticking or not self._waiting:
            return []
        self._ticking = True
        return [SetTimer(RetransmissionTick(), TICK_MS)]

    def may_answer(self, peer: NodeId, now: Millis) -> bool:
        """Whether the budget of a peer allows another answer."""
        self._renew(now)
        count = self._answered[peer] = self._answered.get(peer, 0) + 1
        return count <= ANSWERED

    def _renew(self, now: Millis) -> None:
        if now - self._since >= TICK_MS:
            self._since, self._left = now, REPEATED
            self._answered.clear()
