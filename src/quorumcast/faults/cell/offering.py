"""Faults of publishers on channels with total order.

A publisher signs its own offers, so it can make any number of versions of one; it cannot make
brokers decide two of them. None of these faults affects correct publishers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import Open
from quorumcast.core.ids import DIGEST_SIZE, Millis, NodeId
from quorumcast.core.labels import label
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.faults.cell.base import Misleading, Tampering, digests_of, other_body
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later
from quorumcast.ordering.messages import Offer
from quorumcast.ordering.offers import sign_offer

#: Streams that a flooding publisher opens.
FLOOD_SIZE = 100


class Offering(Misleading):
    """A fault that changes offers for some of the brokers."""

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        if not isinstance(send.message, Offer) or not self.context.hits():
            return None
        return self.other(send.to, send.message, send.bodies)

    def other(self, to: tuple[NodeId, ...], offer: Offer, bodies: Bodies) -> list[Send]:
        """What the victims are sent instead of an offer."""
        raise NotImplementedError

    def signed(self, offer: Offer, first: int, bodies: Bodies) -> Offer:
        """An offer of other contents, signed like any other."""
        digests = digests_of(bodies, self.context)
        signature = sign_offer(self.context.keyring, offer.stream, first, digests)
        return Offer(offer.stream, first, digests, signature)


class OfferToOne(Offering):
    """Offers everything to one broker only."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        told = context.broker_victims(1)[0]
        self._misled = [broker for broker in context.manifest.broker_ids if broker != told]

    def other(self, to: tuple[NodeId, ...], offer: Offer, bodies: Bodies) -> list[Send]:
        return []


class TwoOffers(Offering):
    """Two versions of one run, both signed, for different brokers."""

    def other(self, to: tuple[NodeId, ...], offer: Offer, bodies: Bodies) -> list[Send]:
        others = tuple(other_body(body) for body in bodies)
        return [Send(to, self.signed(offer, offer.first, others), others)]


class BadSignature(Offering):
    """A signature that does not hold, towards some brokers."""

    def other(self, to: tuple[NodeId, ...], offer: Offer, bodies: Bodies) -> list[Send]:
        return [Send(to, replace(offer, signature=bytes(64)), bodies)]


class BadLabel(Offering):
    """Contents that are labelled as somebody else's, or as another number."""

    def other(self, to: tuple[NodeId, ...], offer: Offer, bodies: Bodies) -> list[Send]:
        clients = [client.id for client in self.context.manifest.clients]
        stream = replace(offer.stream, publisher=self.context.rng.choice(clients))
        others = tuple(
            label(stream, number + 1) + b"mislabelled" for number, _ in enumerate(bodies, 1)
        )
        return [Send(to, self.signed(offer, offer.first, others), others)]


class OverlappingRuns(Offering):
    """The same publications in runs that are cut differently for different brokers."""

    #: The run before, to be offered together with the next one.
    _last: tuple[int, Bodies] = (0, ())

    def other(self, to: tuple[NodeId, ...], offer: Offer, bodies: Bodies) -> list[Send]:
        first, before = self._last
        self._last = (offer.first, bodies)
        if len(bodies) > 1:
            cut = self.context.rng.randrange(1, len(bodies))
            return [
                Send(to, self.signed(offer, offer.first, bodies[:cut]), bodies[:cut]),
                Send(to, self.signed(offer, offer.first + cut, bodies[cut:]), bodies[cut:]),
            ]
        if before and first + len(before) == offer.first and len(before) < FLOOD_SIZE:
            joined = (*before, *bodies)
            return [Send(to, self.signed(offer, first, joined), joined)]
        return [Send(to, offer, bodies)]


class OfferFlood(Tampering):
    """Opens stream after stream, and offers numbers far beyond its window."""

    _count = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Offer | Open) or self._count >= FLOOD_SIZE:
            return [send]
        self._count += 1
        rng = self.context.rng
        stream = replace(message.stream, incarnation=message.stream.incarnation + self._count)
        first = rng.choice((1, 1, 2, 60, 2**40))
        bodies = tuple(label(stream, first + n) + b"flood" for n in range(rng.choice((1, 3, 20))))
        digests = digests_of(bodies, self.context)[: DIGEST_SIZE * len(bodies)]
        signature = sign_offer(self.context.keyring, stream, first, digests)
        return [send, Send(send.to, Offer(stream, first, digests, signature), bodies)]
