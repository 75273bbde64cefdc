"""The total order of one channel at one broker: a stream by the cell itself, numbered by position.

To subscribers it is a stream like any other: brokers vote for runs of it, f+1 equal votes accept
(crash: one), and replays, pulls, signed segments and receipts work as everywhere. Correct brokers
cannot differ about a position, so a broker that signs otherwise is convicted by f+1 others.
"""

from __future__ import annotations

from collections import deque

from quorumcast.broadcast.contract import Surroundings, answer_pull, dropped
from quorumcast.broadcast.ledger import Ledger
from quorumcast.core.ids import Millis, Stream, split_digests
from quorumcast.core.machine import Bodies, DropReason, Effect, Forget, Receive, TimerFired, Vouch
from quorumcast.core.messages import Offer, Pull
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.state import Extent


class OrderedLog:
    """The broker side of a channel with total order: what was decided, by position."""

    __slots__ = ("_extents", "_offers", "birth", "ledger", "spare", "stream")

    def __init__(self, stream: Stream, around: Surroundings) -> None:
        self.stream = stream
        self.ledger = Ledger(around.policy.limits)
        #: The runs that the ledger holds at least a part of, in order.
        self._extents: deque[Extent] = deque()
        #: The offers that they are parts of, for brokers that lack them.
        self._offers: dict[tuple[Stream, int], tuple[Offer, Bodies]] = {}
        #: The birth of the log that the positions are of; b"" while there are none.
        self.birth = b""
        #: Where the last stable checkpoint ends. Whoever comes late executes what was ordered since
        #: and needs the contents, whatever their age.
        self.spare = 1

    def append(self, extent: Extent, offer: Offer, bodies: Bodies) -> list[Effect]:
        """Write the next positions, vouch for them, and let go of what is no longer retained."""
        digests = offer.digests
        self.skip_to(extent.position)
        self.ledger.extend(split_digests(digests), bodies)
        self._extents.append(extent)
        self._offers[extent.stream, extent.first] = (offer, bodies)
        return [Vouch(self.stream, extent.position, digests), *self._let_go()]

    def _let_go(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._extents and self._extents[0].next <= self.ledger.base:
            gone = self._extents.popleft()
            self._offers.pop((gone.stream, gone.first), None)
            effects.append(Forget(Stored, str(gone.stream), gone.first + 1))
        return effects

    def expire(self, now: Millis, retained_ms: int) -> list[Effect]:
        """Let go of what is too old, on disk as well: no restart executes it again."""
        self.ledger.expire(now, retained_ms, self.spare)
        return self._let_go()

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
    def upto(self) -> int:
        return self.ledger.next - 1

    @property
    def settled(self) -> int:
        return self.upto

    @property
    def final(self) -> int:
        return self.upto

    @property
    def final_from(self) -> int:
        return self.ledger.base

    @property
    def credit(self) -> int:
        return 0

    @property
    def history_wanted(self) -> bool:
        return False

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Pull() as message):
                return answer_pull(self.ledger, event, message)
            case Receive():
                return dropped(event, DropReason.UNEXPECTED)
            case _:
                return []

    def adopt(self, around: Surroundings) -> list[Effect]:
        return []

    def sizes(self) -> dict[str, int]:
        return {"ledger": len(self.ledger), "extents": len(self._extents)}
