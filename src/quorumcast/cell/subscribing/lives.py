"""How many lives of each publisher a subscriber follows, and which are over.

Beyond the limit a new life *displaces* the oldest one. What brokers have reported of that life may
be two seconds old, and votes cast since then may be lost. So it is followed for some more
refreshes, in which brokers are asked about it again. What is lacking then is a gap.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.cell.subscribing.rhythm import IDLE_TICKS
from quorumcast.core.ids import NodeId, Stream

#: Refreshes, about ten seconds, for which a displaced life is followed: in any such time brokers
#: are asked for the whole channel.
DISPLACED_TICKS = IDLE_TICKS + 8


class Lives:
    """The lives that one channel's publishers have begun."""

    __slots__ = ("_displaced", "_floor")

    def __init__(self) -> None:
        #: Incarnations of a publisher up to this one are over and forgotten.
        self._floor: dict[NodeId, int] = {}
        #: Refreshes since each displaced incarnation of a publisher was displaced.
        self._displaced: dict[tuple[NodeId, int], int] = {}

    def over(self, stream: Stream) -> bool:
        """Whether a stream is over and never comes back."""
        return stream.incarnation <= self._floor.get(stream.publisher, -1)

    def end(self, publisher: NodeId, incarnation: int) -> None:
        """An incarnation, and all before it, are over."""
        self._floor[publisher] = max(self._floor.get(publisher, -1), incarnation)
        for life in [at for at in self._displaced if at[0] == publisher and at[1] <= incarnation]:
            del self._displaced[life]

    def displace(self, publisher: NodeId, followed: Iterable[Stream], limit: int) -> list[int]:
        """Displace what is beyond the limit; returns the incarnations that end at once.

        These are what is beyond twice the limit: however fast lives follow one another, no more
        are followed.
        """
        known = sorted({stream.incarnation for stream in followed if stream.publisher == publisher})
        for incarnation in known[: max(0, len(known) - limit)]:
            self._displaced.setdefault((publisher, incarnation), 0)
        return known[: max(0, len(known) - 2 * limit)]

    def refresh(self) -> list[tuple[NodeId, int]]:
        """Note a refresh; returns the displaced incarnations that end now, the oldest first."""
        self._displaced = {life: ticks + 1 for life, ticks in self._displaced.items()}
        return sorted(life for life, ticks in self._displaced.items() if ticks >= DISPLACED_TICKS)
