"""Fetching again what was ordered while this broker was away, or what its disk lost.

The state says which offers the newest positions of a channel came from. A broker that jumped to a
state goes on after it at once and fills in what lies before, newest first, so that its ledger has
no holes at any moment. The digests in the state decide what is taken, so whoever sends it need not
be trusted. What nobody holds any longer is given up: the others have let go of it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quorumcast.core.ids import Stream
from quorumcast.core.machine import Bodies
from quorumcast.core.messages import Cursor, Offer
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.state import Extent, extent_root

#: Offers asked for at a time, and how often in vain before they are given up.
WANTED = 32
PATIENCE = 20


class Gap:
    """What one channel lacks before its oldest position."""

    __slots__ = ("asked", "extents", "fetched", "log")

    def __init__(self, log: OrderedLog, extents: list[Extent]) -> None:
        self.log = log
        #: In order; the last one comes first.
        self.extents = extents
        #: Offers that came before their turn; at most WANTED.
        self.fetched: dict[Cursor, tuple[Offer, Bodies]] = {}
        #: How often the next one was asked for.
        self.asked = 0

    def near(self) -> list[Extent]:
        """Those whose turn is near, nearest first."""
        return self.extents[: -WANTED - 1 : -1]

    def fill(self) -> None:
        """Write what has come and whose turn it is."""
        while self.extents:
            extent = self.extents[-1]
            found = self.fetched.pop(Cursor(extent.stream, extent.first), None)
            if found is None:
                return
            self.extents.pop()
            self.asked = 0
            if not self.log.prepend(extent, *found):
                self.extents.clear()
        self.fetched.clear()


class Backfill:
    """What all channels of a log lack."""

    __slots__ = ("_gaps",)

    def __init__(self) -> None:
        #: One gap at most per channel of the log.
        self._gaps: dict[str, Gap] = {}

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def want(self, log: OrderedLog, extents: Iterable[Extent]) -> None:
        """These extents end where the log begins."""
        lacking = [extent for extent in extents if extent.next <= log.ledger.base]
        self._gaps.pop(log.stream.channel, None)
        if lacking:
            self._gaps[log.stream.channel] = Gap(log, lacking)

    def fill_from(self, find: Callable[[Stream, int], tuple[Offer, Bodies] | None]) -> None:
        """Take what can be had at once."""
        for channel, gap in list(self._gaps.items()):
            while gap.extents:
                extent = gap.extents[-1]
                found = find(extent.stream, extent.first)
                if found is None or extent_root(found[0].digests) != extent.root:
                    break
                gap.fetched[Cursor(extent.stream, extent.first)] = found
                gap.fill()
            if not gap.extents:
                del self._gaps[channel]

    def wanted(self) -> list[Cursor]:
        """What to ask for now, of one channel after the other.

        What was asked for too often is given up.
        """
        if not self._gaps:
            return []
        channel, gap = next(iter(self._gaps.items()))
        del self._gaps[channel]
        gap.asked += 1
        if gap.asked > PATIENCE:
            return []
        self._gaps[channel] = gap
        named = [Cursor(extent.stream, extent.first) for extent in gap.near()]
        return [cursor for cursor in named if cursor not in gap.fetched]

    def wants(self, offer: Offer) -> bool:
        """Whether an offer is one that is lacking, by what it says."""
        gap = self._gaps.get(offer.stream.channel)
        return gap is not None and any(
            (extent.stream, extent.first) == (offer.stream, offer.first) for extent in gap.near()
        )

    def take(self, offer: Offer, bodies: Bodies) -> bool:
        """An offer; whether it is one that is lacking."""
        gap = self._gaps.get(offer.stream.channel)
        if gap is None:
            return False
        root = extent_root(offer.digests)
        for extent in gap.near():
            if (extent.stream, extent.first, extent.root) == (offer.stream, offer.first, root):
                gap.fetched[Cursor(offer.stream, offer.first)] = (offer, bodies)
                gap.fill()
                if not gap.extents:
                    del self._gaps[offer.stream.channel]
                return True
        return False
