"""A broker's budget for saying things again.

A run that is not delivered is repeated until it is. One publisher can have any number of such runs,
on any number of streams: if each stream repeated what it lacks whenever it likes, repeating would
take all the time that is needed to get on. So all streams of a broker together may say so many
things again in one tick. Publishers have their turn one after the other, whichever seats they use,
and so have the streams of each. A stream whose turn has not come waits for one of the next ticks.

What a peer makes this broker say again, by repeating itself, has a budget of its own for each peer.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.core.ids import Millis, NodeId, Stream, holder
from quorumcast.core.machine import Effect, Send, SetTimer, Timer

TICK_MS = 150
#: Messages that are repeated in one tick, to all peers together.
REPEATED = 512
#: Answers to one peer that asks, or says itself, again what is done; in one tick.
ANSWERED = 256


class RetransmissionTick(Timer, frozen=True, tag=True):
    """Streams wait for their turn to repeat themselves."""


class Retransmission:
    """Whose turn it is to repeat itself."""

    __slots__ = ("_answered", "_left", "_since", "_ticking", "_waiting")

    def __init__(self) -> None:
        #: When this tick began, and what may still be repeated in it; below 0 after a long one.
        self._since = Millis(-TICK_MS)
        self._left = REPEATED
        #: Answers to each peer in this tick; only brokers.
        self._answered: dict[NodeId, int] = {}
        #: Streams that wait for their turn, by who publishes them; no empty ones.
        self._waiting: dict[NodeId, dict[Stream, None]] = {}
        #: Whether RetransmissionTick is set.
        self._ticking = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def want(self, stream: Stream) -> None:
        """A stream has something to repeat."""
        self._waiting.setdefault(holder(stream.publisher), {})[stream] = None

    def tick(self) -> None:
        """The next tick has come."""
        self._ticking = False

    def next(self, now: Millis) -> Stream | None:
        """The stream whose turn it is; None if there is none, or nothing more may be repeated."""
        self._renew(now)
        if self._left <= 0 or not self._waiting:
            return None
        identity, streams = next(iter(self._waiting.items()))
        stream = next(iter(streams))
        del self._waiting[identity], streams[stream]
        self._left -= 1  # also if it has nothing to say
        if streams:
            self._waiting[identity] = streams  # at the end: the others come first
        return stream

    def spend(self, effects: Iterable[Effect]) -> None:
        """These are said again."""
        self._left -= sum(len(effect.to) for effect in effects if isinstance(effect, Send))

    def wait(self) -> list[Effect]:
        """See to it that there is a next tick if somebody waits for it."""
        if self._ticking or not self._waiting:
            return []
        self._ticking = True
        return [SetTimer(RetransmissionTick(), TICK_MS)]

    def may_answer(self, peer: NodeId, now: Millis) -> bool:
        """Whether a peer may be told once more what is done."""
        self._renew(now)
        count = self._answered[peer] = self._answered.get(peer, 0) + 1
        return count <= ANSWERED

    def _renew(self, now: Millis) -> None:
        if now - self._since >= TICK_MS:
            self._since, self._left = now, REPEATED
            self._answered.clear()
