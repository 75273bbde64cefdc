"""Attacks that aim at one mistake each: faults that only code with that mistake falls for.

The catalogue has the misbehaviour that everybody should expect; here are the sharper tools that
expose known-bad variants. They obey the same model: each acts with the keys of its own node only
(`ForeignHistory` also holds what the publisher itself signed for another cell).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from quorumcast.broadcast.signed_history import history_body
from quorumcast.core.ids import DIGEST_SIZE, Channel, Digest, Lane, Millis, Stream, split_digests
from quorumcast.core.machine import Effect, Send
from quorumcast.core.messages import (
    Attest,
    ChainRun,
    Contents,
    Echo,
    Open,
    Publish,
    Ready,
    Subscribe,
    Vote,
)
from quorumcast.core.statements import HistoryStatement, Signed, canonical
from quorumcast.crypto.identity import Identity
from quorumcast.faults.base import Tampering, digests_of, other_body, revouched
from quorumcast.faults.clients import EquivocatingPublisher
from quorumcast.faults.contract import Fault, FaultContext, Later
from quorumcast.faults.statements import TwoFaced

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


class HarkBack(Tampering):
    """A publisher that accounts for all but what it told its victims otherwise, and then goes back.

    It opens the lane of its histories further on each time, so that nobody can hold one against the
    one before.
    """

    __slots__ = ("_digests", "_told")
    #: What it tells its victims otherwise; and index and first number of the histories that it
    #: signs once the machine has more to account for than the first one did.
    SECRET = 5
    ASTRAY = ((3, 7), (5, 1))

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._digests: dict[int, Digest] = {}
        self._told = False

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Publish):
            return [send]
        if message.stream.lane is Lane.HISTORY:
            return [send] if message.first == 1 else self._astray(message.stream)
        numbered = dict(enumerate(split_digests(message.digests), message.first))
        self._digests |= numbered
        if self.SECRET not in numbered:
            return [send]
        victims = [peer for peer in send.to if peer in self.context.victims]
        lie = _other(replace(send, to=tuple(victims)), message, self.context)
        return [*self.without(send, victims), lie]

    def _astray(self, lane: Stream) -> list[Effect | Later]:
        if self._told:
            return []
        self._told = True
        brokers = self.context.manifest.broker_ids
        said: list[Effect | Later] = []
        for turn, (index, first) in enumerate(self.ASTRAY):
            statement = HistoryStatement(
                cell=self.context.manifest.cell,
                epoch=self.context.manifest.epoch,
                stream=lane.data,
                index=index,
                first=first,
                digests=self._digests[first] + self._digests[first + 1],
            )
            body = history_body(self.context.keyring.identity.sign(canonical(statement)))
            told = Publish(lane, index, self.context.manifest.hash(body))
            said.append(Later(Send(brokers, Open(lane, index, index)), 60 * turn))
            said.append(Later(Send(brokers, told, (body,)), 60 * turn + 10))
        return said


class AskAhead(Tampering):
    """A subscriber that wants brokers' signatures for more than it has, whenever it asks again."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Subscribe):
            return [send]
        lacking = [c for c in message.cursors if c.stream.lane is Lane.DATA]
        return [send, *(Send(send.to, Attest(c.stream, c.next + 3)) for c in lacking)]


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
        lie = replace(other, vouchers=self._vouchers(other, digests))
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
