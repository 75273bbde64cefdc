"""Attacks that aim at one mistake each: faults that only code with that mistake falls for.

The catalogue has the misbehaviour that everybody should expect; here are the sharper tools that
expose known-bad variants. They obey the same model: each acts with the keys of its own node only
(`ForeignHistory` also holds what the publisher itself signed for another cell).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Open, Publish, Ready
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.core.statements import HistoryStatement, Signed, canonical
from quorumcast.crypto.identity import Identity
from quorumcast.faults.cell.base import Tampering, digests_of, other_body, revouched, stream_of
from quorumcast.faults.cell.clients import EquivocatingPublisher
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.statements import TwoFaced
from quorumcast.faults.contract import Fault, Later

Attack = Callable[[FaultContext], Fault]


def attack(kind: type[Tampering]) -> Attack:
    """An attack as plans name it."""
    return lambda context: kind(kind.__name__, context)


class Confide(Tampering):
    """Echoes and votes only to its victims, and is never ready."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        match send.message:
            case Ready():
                return []
            case Echo() | Vote() | Contents():
                return self.without(send, [p for p in send.to if p not in self.context.victims])
            case _:
                return [send]


class Insist(Tampering):
    """Says each lie three times, in case someone counts words instead of speakers."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Vote):
            return [send]
        bodies = tuple(b"insisted %d" % n for n in range(len(message.digests) // DIGEST_SIZE))
        lie = replace(message, digests=digests_of(bodies, self.context))
        return [Send(send.to, lie, bodies)] * 3


class ShiftChain(Tampering):
    """Passes every run on twice: where it belongs, and once more under the next number."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, ChainRun):
            return [send]
        later = message.first + len(message.digests) // DIGEST_SIZE
        lie = revouched(replace(message, first=later), self.context)
        return [send, replace(send, message=lie)]


class CrossChain(Tampering):
    """Passes every run on twice: on its own channel and on the other one."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, ChainRun):
            return [send]
        stream = replace(message.stream, channel=Channel("quotes"))
        lie = revouched(replace(message, stream=stream), self.context)
        return [send, replace(send, message=lie)]


class SecondThoughts(Tampering):
    """A publisher that sends everybody other contents a little later."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Publish) or message.stream.lane is Lane.HISTORY:
            return [send]
        return [send, Later(_other(send, message, self.context), 60)]


class ChangeOfMind(Tampering):
    """A publisher that says one thing until a moment and another from then on."""

    __slots__ = ()
    #: The moment, in milliseconds of the world.
    WHEN = 140

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Publish) or now < self.WHEN or message.first < 2:
            return [send]
        return [_other(send, message, self.context)]


def _other(send: Send, message: Publish, context: FaultContext) -> Send:
    bodies = tuple(other_body(body) for body in send.bodies)
    return Send(send.to, replace(message, digests=digests_of(bodies, context)), bodies)


class DoubleTell(EquivocatingPublisher):
    """A publisher that, after a while, also tells broker 3 what it told its victims."""

    __slots__ = ()
    #: The moment, in milliseconds of the world.
    WHEN = 110

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        told = list(super().rewrite(send, now))
        third = self.context.manifest.broker_ids[2]
        if now >= self.WHEN and isinstance(told[-1], Send) and told[-1] != send:
            told.append(replace(told[-1], to=(third,)))
        return told


class Oblige(TwoFaced):
    """A two-faced broker that echoes to its victims whatever it is ready for."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        told: list[Effect | Later] = []
        for effect in super().rewrite(send, now):
            if isinstance(effect, Send) and isinstance(effect.message, Ready):
                ready = effect.message
                told.append(Send(effect.to, Echo(ready.stream, ready.first, ready.run)))
            told.append(effect)
        return told


class FalseHistory(EquivocatingPublisher):
    """A publisher that sends everybody the same and accounts for something else."""

    __slots__ = ()

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._misled = list(context.manifest.broker_ids)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if isinstance(message, Publish) and message.stream.lane is Lane.DATA:
            # Made up for the accomplices' benefit only.
            self._other(message, send.bodies)
            return [send]
        return super().rewrite(send, now)


class TellRestartedOtherwise(Tampering):
    """A publisher that, after a while, begins anew with every broker that it greets again."""

    __slots__ = ()
    #: The moment, in milliseconds of the world.
    WHEN = 400

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        stream = stream_of(message)
        if now < self.WHEN or stream is None or stream.lane is Lane.HISTORY:
            return [send]
        if not isinstance(message, Open):
            return []
        bodies = tuple(b"another story %d" % number for number in range(1, 9))
        lie = Send(send.to, Publish(stream, 1, digests_of(bodies, self.context)), bodies)
        return [Send(send.to, Open(stream, 1, 1)), Later(lie, 5), Later(lie, 60)]


class LeapAhead(Tampering):
    """A publisher that claims, after a while, to hold nothing before a far number."""

    __slots__ = ()
    #: The moment, in milliseconds of the world, and the number.
    WHEN = 600
    FAR = 4_000

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        stream = stream_of(send.message)
        if now < self.WHEN or stream is None:
            return [send]
        body = b"from far away"
        far = Publish(stream.data, self.FAR, digests_of((body,), self.context))
        return [
            Send(send.to, Open(stream.data, self.FAR, self.FAR)),
            Send(send.to, Open(stream.history, self.FAR, self.FAR)),
            Send(send.to, far, (body,)),
        ]


class SplitHistory(EquivocatingPublisher):
    """A publisher that sends one thing down the chain and accounts for another to its victims."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if isinstance(message, ChainRun):
            # Made up for the accomplices' benefit only.
            self._other(message, send.bodies)
            return [send]
        return super().rewrite(send, now)


class SplitChain(EquivocatingPublisher):
    """A publisher that sends another story down another chain, whose head is its victim."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, ChainRun):
            return [send]
        bodies, digests = self._other(message, send.bodies)
        order = (*self._misled, *message.order[:0:-1])
        first = tuple(
            replace(voucher, reader=reader)
            for voucher, reader in zip(message.vouchers, order, strict=False)
        )
        other = replace(message, digests=digests, order=order, vouchers=first)
        lie = revouched(other, self.context)
        return [send, Send(order[:1], lie, bodies)]


class SkipBoth(Tampering):
    """A publisher that leaves out one broker and all histories."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Publish) and send.message.stream.lane is Lane.HISTORY:
            return []
        return self.without(send, [p for p in send.to if p in self.context.victims])


class ForeignHistory(Tampering):
    """A broker that shows a history which the publisher signed for another cell."""

    __slots__ = ("_publisher",)

    def __init__(self, name: str, context: FaultContext, publisher: Identity) -> None:
        super().__init__(name, context)
        self._publisher = publisher

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Echo) or message.stream.lane is not Lane.HISTORY:
            return [send]
        other = HistoryStatement(
            cell="another cell",
            epoch=self.context.manifest.epoch,
            stream=message.stream.data,
            index=message.first,
            first=1,
            digests=self.context.manifest.hash(b"elsewhere"),
        )
        body = msgspec.msgpack.encode(self._signed(other))
        digest = self.context.manifest.hash(body)
        return [send, Send(send.to, Contents(message.stream, message.first, digest), (body,))]

    def _signed(self, statement: HistoryStatement) -> Signed:
        return self._publisher.sign(canonical(statement))
