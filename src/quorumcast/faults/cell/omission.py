"""Faults of omission and of time: brokers that say too little, too late or in the wrong order.

Nothing here is provable: to a third party a broker that stays silent looks like a broken cable.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import Ack, ChainRun, Contents, Echo, Publish, Pull, Ready
from quorumcast.cell.messages import Checkpoint, Positions, Vote
from quorumcast.core.ids import Lane, Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering, channel_of
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later

BRACHA = (Echo, Ready, Pull, Contents)
#: What a broker may keep to itself, by the name that `victims` uses.
KINDS = {
    kind.__name__: kind
    for kind in (Vote, Echo, Ready, ChainRun, Ack, Positions, Contents, Checkpoint, Publish)
}


class Silent(Tampering):
    """Says nothing."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [] if self.context.hits() else [send]


class Slow(Tampering):
    """Says everything, late (PubliyPrime's delay tactics)."""

    __slots__ = ("_delay_ms",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._delay_ms = context.rng.randrange(20, 200)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [Later(send, self._delay_ms)] if self.context.hits() else [send]


class Dropping(Tampering):
    """Freeman §6.7: no votes for anybody, no Bracha message to f brokers, no run down the chain.

    Pulls are still answered, as his brokers knew none; together with a publisher that skips
    another broker this stops AB and chain, and history repairs it.
    """

    __slots__ = ("_shunned",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._shunned = context.broker_victims(context.manifest.f)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        match send.message:
            case ChainRun():
                return []
            case Vote(stream=stream) if stream.lane is Lane.DATA:
                return []
            case message if isinstance(message, BRACHA):
                return self.without(send, self._shunned)
            case _:
                return [send]


class DropKind(Tampering):
    """Keeps one kind of message to itself."""

    __slots__ = ("_kinds",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        named = [KINDS[victim] for victim in context.victims if victim in KINDS]
        self._kinds = tuple(named) or (context.rng.choice(list(KINDS.values())),)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        censored = isinstance(send.message, self._kinds) and self.context.hits()
        return [] if censored else [send]


class CensorNode(Tampering):
    """Treats one client as if it were not there."""

    __slots__ = ("_victims",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        clients = [client.id for client in context.manifest.clients]
        named = [client for client in clients if client in context.victims]
        self._victims = named or ([context.rng.choice(clients)] if clients else [])

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return self.without(send, self._victims)


class CensorChannel(Tampering):
    """Carries everything but one channel."""

    __slots__ = ("_channels",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        channels = context.channels()
        named = [channel for channel in channels if channel in context.victims]
        self._channels = named or [context.rng.choice(channels)]

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [] if channel_of(send.message) in self._channels else [send]


class WithholdBodies(Tampering):
    """Votes for everything and never hands over the contents."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        match send.message:
            case Contents():
                return []
            case Vote():
                return [replace(send, bodies=())]
            case _:
                return [send]


class Reorder(Tampering):
    """Says everything, in any order."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not self.context.hits():
            return [send]
        return [Later(send, self.context.rng.randrange(0, 25))]
