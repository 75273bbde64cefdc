"""Claims: how far brokers say that they are, held against how far anybody got.

Brokers tell their positions seldom, and a node that has much to do knows little of where the others
are by now. So a claim that lies far beyond everybody is judged only after a while: a true one has
been reached by then.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.cell.messages import Positions
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.quorum import Quorums
from quorumcast.watch.observation import Kind, Notes, remember

#: Nobody is so far ahead of everybody else.
FAR_AHEAD = 1000
#: How long others have to get where somebody claims to be.
PROBATION_MS = 10_000


class Claims:
    """Where brokers claim to be on each stream."""

    def __init__(self, quorums: Quorums, notes: Notes) -> None:
        self._quorums = quorums
        self._notes = notes
        self._heard: OrderedDict[Stream, dict[NodeId, int]] = OrderedDict()
        #: How far publishers showed their streams to this node, and brokers voted.
        self._reached: OrderedDict[Stream, int] = OrderedDict()
        #: Claims on probation, and since when.
        self._doubtful: OrderedDict[tuple[Stream, NodeId, int], int] = OrderedDict()

    def reach(self, stream: Stream, last: int) -> None:
        """Somebody has shown, or voted for, so much of a stream."""
        remember(self._reached, stream, max(last, self._reached.get(stream, 0)))

    def hear(self, now: Millis, broker: NodeId, message: Positions) -> None:
        """A broker says where it is."""
        for position in message.positions:
            claim = (position.stream, broker, position.next)
            heard = self._heard.get(position.stream, {})
            heard[broker] = position.next
            remember(self._heard, position.stream, heard)
            if claim not in self._doubtful and self._is_beyond(position.stream, position.next):
                remember(self._doubtful, claim, now)

    def sweep(self, now: Millis, *, last: bool = False) -> None:
        """Judge claims whose time is over; all of them, if nothing more will happen."""
        while self._doubtful:
            claim, since = next(iter(self._doubtful.items()))
            if not last and now - since < PROBATION_MS:
                return
            del self._doubtful[claim]
            stream, broker, place = claim
            if self._is_beyond(stream, place) and self._is_alone(*claim):
                self._notes.add(now, Kind.BOASTS, broker, "ahead", "Positions", stream, place)

    def _is_beyond(self, stream: Stream, place: int) -> bool:
        """Whether it lies far beyond everything that was voted for or shown."""
        return place > FAR_AHEAD + self._reached.get(stream, 0)

    def _is_alone(self, stream: Stream, broker: NodeId, place: int) -> bool:
        """Whether f+1 others are far behind: one of these tells the truth."""
        others = [at for who, at in self._heard.get(stream, {}).items() if who != broker]
        return sum(place > FAR_AHEAD + at for at in others) >= self._quorums.one_correct
