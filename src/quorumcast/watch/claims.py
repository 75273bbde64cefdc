"""Positions that a broker reports although no other node is near them.

A `Positions` message says how far a broker is on each stream. A position is suspicious if it is
more than FAR_AHEAD beyond everything that this node was sent or saw votes for. Brokers report
seldom and this node may lag, so a suspicious position is judged only after PROBATION_MS: by then
other nodes have reached an honest one.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.cell.messages import Positions
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.quorum import Quorums
from quorumcast.watch.observation import Kind, Notes, remember

#: No correct node is this many numbers ahead of all others.
FAR_AHEAD = 1000
#: Time for other nodes to reach a suspicious position.
PROBATION_MS = 10_000


class PositionClaims:
    """The positions that brokers report, per stream."""

    def __init__(self, quorums: Quorums, notes: Notes) -> None:
        self._one_correct = quorums.one_correct
        self._notes = notes
        #: The last position that each broker reported.
        self._reported: OrderedDict[Stream, dict[NodeId, int]] = OrderedDict()
        #: The highest number that the publisher sent to this node or a broker voted for.
        self._reached: OrderedDict[Stream, int] = OrderedDict()
        #: Suspicious positions, with the time of the report; the oldest comes first.
        self._suspicious: OrderedDict[tuple[Stream, NodeId, int], int] = OrderedDict()

    def on_reached(self, stream: Stream, last: int) -> None:
        """The publisher sent, or a broker voted for, numbers up to `last`."""
        remember(self._reached, stream, max(last, self._reached.get(stream, 0)))

    def on_positions(self, now: Millis, broker: NodeId, message: Positions) -> None:
        """A broker reports its positions."""
        for position in message.positions:
            claim = (position.stream, broker, position.next)
            reported = self._reported.get(position.stream, {})
            reported[broker] = position.next
            remember(self._reported, position.stream, reported)
            if claim not in self._suspicious and self._is_beyond(position.stream, position.next):
                remember(self._suspicious, claim, now)

    def sweep(self, now: Millis, *, final: bool = False) -> None:
        """Judge the claims whose probation is over; all of them if this is the `final` sweep."""
        while self._suspicious:
            claim, since = next(iter(self._suspicious.items()))
            if not final and now - since < PROBATION_MS:
                return
            del self._suspicious[claim]
            stream, broker, number = claim
            if self._is_beyond(stream, number) and self._is_refuted(*claim):
                self._notes.add(now, Kind.BOASTS, broker, "ahead", "Positions", stream, number)

    def _is_beyond(self, stream: Stream, number: int) -> bool:
        """Whether a number is far beyond everything that was sent or voted for."""
        return number > FAR_AHEAD + self._reached.get(stream, 0)

    def _is_refuted(self, stream: Stream, broker: NodeId, number: int) -> bool:
        """Whether f+1 other brokers are far behind: at least one of them is correct."""
        others = [at for other, at in self._reported.get(stream, {}).items() if other != broker]
        return sum(number > FAR_AHEAD + at for at in others) >= self._one_correct
