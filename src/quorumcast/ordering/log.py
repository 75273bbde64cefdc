"""The total order of one channel at one broker: a stream by the cell itself, numbered by position.

To subscribers it is a stream like any other: brokers vote for runs of it, f+1 equal votes accept
(crash: one), and replays, pulls, signed segments and receipts work as everywhere. Correct brokers
cannot differ about a position, so a broker that signs otherwise is convicted by f+1 others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from quorumcast.broadcast.contract import Carrier, CarrierContext, Vouch
from quorumcast.broadcast.messages import Cursor
from quorumcast.core.ids import Millis, Stream, split_digests
from quorumcast.core.machine import Bodies, Effect, Forget
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.state import Extent, extent_root


class OrderedLog(Carrier):
    """The broker side of a channel with total order: what was decided, by position."""

    __slots__ = ("_extents", "_offers", "log_id", "spare")

    #: Where the last stable checkpoint ends. A late broker executes what was ordered since, and
    #: needs the contents, whatever their age.
    spare: int

    def __init__(self, stream: Stream, context: CarrierContext) -> None:
        super().__init__(stream, context)
        #: The runs that the ledger holds at least a part of, in order.
        self._extents: deque[Extent] = deque()
        #: The offers that they are parts of, for brokers that lack them.
        self._offers: dict[tuple[Stream, int], tuple[Offer, Bodies]] = {}
        #: b"" while there are no positions.
        self.log_id = b""
        self.spare = 1

    def append(self, extent: Extent, offer: Offer, bodies: Bodies) -> list[Effect]:
        """Write the next positions, vouch for them, and drop what is no longer retained."""
        digests = offer.digests
        self.skip_to(extent.position)
        self.ledger.extend(split_digests(digests), bodies)
        self._extents.append(extent)
        self._offers[extent.stream, extent.first] = (offer, bodies)
        return [Vouch(self.stream, extent.position, digests), *self._drop_expired()]

    def _drop_expired(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._extents and self._extents[0].next <= self.ledger.base:
            gone = self._extents.popleft()
            self._offers.pop((gone.stream, gone.first), None)
            effects.append(Forget(Stored, str(gone.stream), gone.first + 1))
        return effects

    def expire(self, now: Millis, retained_ms: int) -> list[Effect]:
        # On disk as well: no restart executes it again.
        return super().expire(now, retained_ms) + self._drop_expired()

    def skip_to(self, position: int) -> None:
        """Go on at a later position: what lies before has been ordered without this broker."""
        if position > self.ledger.next:
            self.ledger.skip_to(position)
            self._extents.clear()
            self._offers.clear()

    def prepend(self, extent: Extent, offer: Offer, bodies: Bodies) -> bool:
        """Write what lies right before the oldest position; False if there is no room for it.

        Of a run that is retained in part only that part: a broker that restarts would otherwise
        hold less than its peers, and after a restart of all nobody would have the rest. The oldest
        may have gone since this was asked for: then there is no place for it either.
        """
        start = len(bodies) - self.ledger.fitting(bodies)
        digests = split_digests(offer.digests)
        if (
            extent.next != self.ledger.base
            or start == len(bodies)
            or not self.ledger.prepend(digests[start:], bodies[start:])
        ):
            return False
        self._extents.appendleft(extent)
        self._offers[extent.stream, extent.first] = (offer, bodies)
        return True

    def find(self, stream: Stream, first: int) -> tuple[Offer, Bodies] | None:
        """An offer that has been ordered and is retained."""
        return self._offers.get((stream, first))

    # ------------------------------------------------- what a broker asks of a carrier

    @property
    def settled(self) -> int:
        return self.upto

    @property
    def credit(self) -> int:
        return 0

    def sizes(self) -> dict[str, int]:
        return {"ledger": len(self.ledger), "extents": len(self._extents)}


#: Offers asked for at a time, and how often in vain before they are given up.
WANTED = 32
MAX_ATTEMPTS = 20


class MissingPositions:
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
    """Fetches positions that were ordered while this broker was away, or that its disk lost.

    The state names the offers behind the newest positions of a channel. After a state transfer the
    broker continues behind the state at once, and fills in what lies before it, newest first, so
    that its ledger never has a hole. The digests in the state decide what is taken, so the sender
    need not be trusted. What no broker holds any longer is given up.
    """

    __slots__ = ("_gaps",)

    def __init__(self) -> None:
        #: One gap at most per channel of the log.
        self._gaps: dict[str, MissingPositions] = {}

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def want(self, log: OrderedLog, extents: Iterable[Extent]) -> None:
        """These extents end where the log begins."""
        lacking = [extent for extent in extents if extent.next <= log.ledger.base]
        self._gaps.pop(log.stream.channel, None)
        if lacking:
            self._gaps[log.stream.channel] = MissingPositions(log, lacking)

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
        if gap.asked > MAX_ATTEMPTS:
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
