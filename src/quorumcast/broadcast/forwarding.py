"""What the fast protocols share at a broker: each number is forwarded once, with one digest.

Their word is final as soon as it is given, they settle nothing among brokers (histories do), and
they take as much beyond what they hold as the window allows.
"""

from __future__ import annotations

from quorumcast.broadcast.contract import (
    Carrier,
    CarrierContext,
    answer_pull,
    dropped,
    publisher_of,
)
from quorumcast.broadcast.ledger import Ledger
from quorumcast.broadcast.messages import Open, Pull
from quorumcast.core.ids import Digest, Millis, Stream
from quorumcast.core.machine import Bodies, DropReason, Effect, Receive, TimerFired


class Forwarder(Carrier):
    """The broker side of a protocol that forwards runs; a protocol adds how it takes them."""

    __slots__ = ()

    def __init__(self, stream: Stream, around: CarrierContext) -> None:
        super().__init__(stream, around)
        #: Every number below ledger.next was forwarded, with exactly one digest.
        self.ledger = Ledger(around.policy.limits)

    @property
    def credit(self) -> int:
        return self.upto + self._policy.limits.window

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Open(base=base, fresh=fresh)):
                if not publisher_of(self.stream, event.sender):
                    return dropped(event, DropReason.WRONG_SENDER)
                self.ledger.join(base, fresh, trusted=self._policy.trusts_publishers)
                return []
            case Receive(message=Pull() as message):
                return answer_pull(self.ledger, event, message)
            case Receive():
                return dropped(event, DropReason.UNEXPECTED)
            case _:
                return []

    def _crowded(self, first: int, bodies: Bodies) -> bool:
        """Whether so much waits for histories that a new run has to wait as well."""
        is_new = first + len(bodies) > self.ledger.next
        return is_new and self.ledger.quota.refuses(len(bodies), sum(map(len, bodies)))

    def begin_at(self, number: int, history: int = 1) -> None:
        self.ledger.begin_at(number)

    def resume(self, number: int) -> None:
        self.ledger.skip_to(number)

    def recover(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        if first == self.ledger.next:
            self.ledger.extend(digests, bodies)
            return True
        at_base = first + len(digests) == self.ledger.base
        return at_base and self.ledger.prepend(digests, bodies)

    def sizes(self) -> dict[str, int]:
        return {"ledger": len(self.ledger)}
