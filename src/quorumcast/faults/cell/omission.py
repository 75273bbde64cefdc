"""Faults of omission and of time: brokers that say too little, too late or in the wrong order.

Nothing here is provable: to a third party a silent broker looks like a broken link.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import (
    Ack,
    ChainRun,
    Contents,
    Echo,
    Matches,
    Publish,
    Pull,
    Ready,
)
from quorumcast.cell.messages import Checkpoint, Positions, Vote
from quorumcast.core.ids import Lane, Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering, channel_of
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later

BRACHA = (Echo, Ready, Pull, Contents)
#: Messages that a broker may withhold, by the name that `victims` uses.
KINDS = {
    kind.__name__: kind
    for kind in (
        *(Vote, Echo, Ready, ChainRun, Ack, Positions, Contents, Checkpoint, Publish),
        Matches,
    )
}


class Silent(Tampering):
    """Says nothing."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [] if self.context.hits() else [send]


class Slow(Tampering):
    """Says everything, late (PubliyPrime's delay tactics)."""

    #: The shortest and the longest delay.
    DELAYS_MS = (20, 200)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._delay_ms = context.rng.randrange(*self.DELAYS_MS)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [Later(send, self._delay_ms)] if self.context.hits() else [send]


class Dropping(Tampering):
    """Freeman §6.7: no votes for anybody, no Bracha message to f brokers, no run down the chain.

    `percent` of these messages are withheld: he drops all, and alters a percentage (§6.7). Pulls,
    which his protocols do not have, are still answered. Together with a publisher that skips
    another broker this stops AB and chain, and histories repair it.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._shunned = context.broker_victims(context.manifest.f)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        kept: list[Effect | Later] = []
        match send.message:
            case ChainRun() | Matches():
                pass
            case Vote(stream=stream) if stream.lane is Lane.DATA:
                pass
            case message if isinstance(message, BRACHA):
                kept = self.without(send, self._shunned)
            case _:
                return [send]
        return kept if self.context.hits() else [send]


class DropKind(Tampering):
    """Never sends one kind of message."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._kinds = tuple(KINDS[name] for name in context.aims(KINDS))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        censored = isinstance(send.message, self._kinds) and self.context.hits()
        return [] if censored else [send]


class CensorNode(Tampering):
    """Treats one client as if it were not there."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._victims = context.aims(client.id for client in context.manifest.clients)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return self.without(send, self._victims)


class CensorChannel(Tampering):
    """Carries everything but one channel."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._channels = context.aims(context.channels())

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [] if channel_of(send.message) in self._channels else [send]


class WithholdBodies(Tampering):
    """Votes for everything and never hands over the contents."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        match send.message:
            case Contents():
                return []
            case Vote() | Matches():
                return [replace(send, bodies=())]
            case _:
                return [send]


class Reorder(Tampering):
    """Says everything, in any order."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not self.context.hits():
            return [send]
        return [Later(send, self.context.rng.randrange(0, 25))]
