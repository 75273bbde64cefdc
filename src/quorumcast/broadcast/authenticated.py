"""Authenticated broadcast, and the direct rows of the policy table: forward the first contents.

Guarantees: with 3f+1 brokers and acceptance at ⌈(n+f+1)/2⌉ equal votes no two correct subscribers
accept different contents for one number, even if the publisher lies (SC1), and what a correct
publisher sends reaches everybody (LC1). A lying publisher and a lying broker together can let one
subscriber accept what another never sees: totality needs `history`. With f+1 votes (trusted
publishers) or one vote (crash protection) the very same machine carries the direct rows.

    publisher ──Publish──▶ every broker ──Vote──▶ every subscriber

Source: Freeman §3.1 (algorithms 1–3), Jehl-Meling §3.1. Ours: runs instead of single publications,
and a subscriber takes the bodies from one broker and digests from the others.
"""

from __future__ import annotations

from quorumcast.broadcast.contract import Forwarder, Vouch, check_run, dropped
from quorumcast.broadcast.ledger import AppendResult
from quorumcast.broadcast.messages import Publish
from quorumcast.core.ids import Digest, Millis
from quorumcast.core.machine import (
    Drop,
    DropReason,
    Effect,
    Receive,
    Suspect,
    Suspicion,
    TimerFired,
)


class Relay(Forwarder):
    """The broker side of authenticated broadcast for one stream."""

    __slots__ = ()

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=Publish() as message):
                return self._on_publish(event, message)
            case _:
                return super().handle(event, now)

    def _on_publish(self, event: Receive, run: Publish) -> list[Effect]:
        if event.sender != self.stream.publisher:
            return dropped(event, DropReason.WRONG_SENDER)
        if run.first > self.ledger.next:
            return dropped(event, DropReason.OUT_OF_TURN)
        if self.ledger.settles and self._crowded(run.first, event.bodies):
            return dropped(event, DropReason.OVER_LIMIT)
        digests = check_run(self._view, event, run.digests)
        if isinstance(digests, DropReason):
            return dropped(event, digests)
        taken = self._take(run.first, digests, event.bodies)
        if taken.conflict:
            return [
                Drop(DropReason.CONFLICT, event.sender),
                Suspect(event.sender, Suspicion.EQUIVOCATION, self.stream, taken.conflict),
            ]
        if not taken.digests:
            return dropped(event, DropReason.DUPLICATE)
        return [Vouch(self.stream, taken.first, taken.digests)]

    def _take(self, first: int, digests: list[Digest], bodies: tuple[bytes, ...]) -> AppendResult:
        # Algorithm 2, line 5: only the first contents of a number is ever forwarded.
        return self.ledger.take(first, digests, bodies)
