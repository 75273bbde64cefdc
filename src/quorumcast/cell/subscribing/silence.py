"""Brokers that keep silent or come late.

One that does not vote on what others have long voted on is suspected. Not on a chain: there only
the last brokers speak to subscribers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.machine import Effect, Suspect, Suspicion

#: Refreshes during which a broker may lag before it is suspected of silence.
SILENT_TICKS = 6


class Silence:
    """Who lags on one channel."""

    __slots__ = ("_chained", "_lagging")

    def __init__(self, *, chained: bool) -> None:
        self._chained = chained
        #: For how many refreshes a broker has not voted although others did.
        self._lagging: dict[NodeId, int] = {}

    def forgive(self, broker: NodeId) -> None:
        """It comes back, or has left."""
        self._lagging.pop(broker, None)

    def retain(self, brokers: Iterable[NodeId]) -> None:
        """Go on with these brokers."""
        self._lagging = {b: self._lagging[b] for b in brokers if b in self._lagging}

    def notice(
        self,
        brokers: Iterable[NodeId],
        acceptors: Mapping[Stream, Acceptor],
        seen: Mapping[Stream, int],
    ) -> list[Effect]:
        """At a refresh: suspect those who lag for too long behind what was seen at the last."""
        effects: list[Effect] = []
        for broker in () if self._chained else brokers:
            stream = _silent_on(broker, acceptors, seen)
            if stream is None:
                self._lagging.pop(broker, None)
                continue
            self._lagging[broker] = self._lagging.get(broker, 0) + 1
            if self._lagging[broker] == SILENT_TICKS:
                effects.append(Suspect(broker, Suspicion.SILENT, stream, seen[stream] - 1))
        return effects


def _silent_on(
    broker: NodeId, acceptors: Mapping[Stream, Acceptor], seen: Mapping[Stream, int]
) -> Stream | None:
    """A stream on which a broker has not voted for what was accepted by the last refresh."""
    for stream, acceptor in acceptors.items():
        last = seen.get(stream, 0) - 1
        # What lies before the start was never voted on here: it says nothing about anybody.
        voted = acceptor.last_vote.get(broker, 0)
        if stream.lane is Lane.DATA and acceptor.start <= last and voted < last:
            return stream
    return None


class Tardiness:
    """What is held against the broker that sends bodies."""

    __slots__ = ("late", "replaced", "withheld")

    def __init__(self) -> None:
        #: How often it voted without the body, which had to be pulled.
        self.withheld = 0
        #: At how many looks in a row its bodies were lacking, and how many sources left for that.
        self.late = 0
        self.replaced = 0
