"""Attacks on channels without total order, each of which only code with one mistake falls for.

They obey the fault model: each acts with the keys of its own node only, except that
`ForeignHistory` also has what the publisher signed for another cell. Times are in milliseconds of
virtual time.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Open, Publish, Ready
from quorumcast.cell.messages import Regained, Vote
from quorumcast.core.ids import DIGEST_SIZE, Channel, Lane, Millis
from quorumcast.core.machine import Effect, Send
from quorumcast.core.statements import HistoryStatement, canonical
from quorumcast.crypto.identity import Identity
from quorumcast.faults.cell.base import Tampering, digests_of, other_body, revouched, stream_of
from quorumcast.faults.cell.clients import EquivocatingPublisher
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.statements import TwoFaced
from quorumcast.faults.contract import Later
from quorumcast.sim.cell.known_bad.plans import Rewritten

# ------------------------------------------------------------------ brokers


def confide(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Echoes and votes only to its victims, and never sends READY."""
    match send.message:
        case Ready():
            return []
        case Echo() | Vote() | Contents():
            return fault.without(send, [p for p in send.to if p not in fault.context.victims])
        case _:
            return [send]


def vote_thrice(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Sends each false vote three times, in case messages are counted instead of senders."""
    message = send.message
    if not isinstance(message, Vote):
        return [send]
    bodies = tuple(b"insisted %d" % n for n in range(len(message.digests) // DIGEST_SIZE))
    lie = replace(message, digests=digests_of(bodies, fault.context))
    return [Send(send.to, lie, bodies)] * 3


def shift_chain(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Forwards every run twice: with its own number, and with the next one."""
    message = send.message
    if not isinstance(message, ChainRun):
        return [send]
    later = message.first + len(message.digests) // DIGEST_SIZE
    return [send, replace(send, message=revouched(replace(message, first=later), fault.context))]


def cross_chain(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Forwards every run twice: on its own channel and on the other one."""
    message = send.message
    if not isinstance(message, ChainRun):
        return [send]
    stream = replace(message.stream, channel=Channel("quotes"))
    lie = revouched(replace(message, stream=stream), fault.context)
    return [send, replace(send, message=lie)]


def false_memory(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Claims to hold other contents than everybody else, always the same."""
    message = send.message
    if not isinstance(message, Vote | Contents | Regained):
        return [send]
    count = len(message.digests) // DIGEST_SIZE
    bodies = tuple(b"false %d" % n for n in range(message.first, message.first + count))
    lie = replace(message, digests=digests_of(bodies, fault.context))
    return [Send(send.to, lie, bodies if send.bodies else ())]


class EchoReadies(TwoFaced):
    """A two-faced broker that echoes to its victims everything for which it sends READY."""

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        told: list[Effect | Later] = []
        for effect in super().rewrite(send, now):
            if isinstance(effect, Send) and isinstance(effect.message, Ready):
                ready = effect.message
                told.append(Send(effect.to, Echo(ready.stream, ready.first, ready.run)))
            told.append(effect)
        return told


class ForeignHistory(Tampering):
    """A broker that shows a history which the publisher signed for another cell."""

    def __init__(self, name: str, context: FaultContext, publisher: Identity) -> None:
        super().__init__(name, context)
        self._publisher = publisher

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
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
        body = msgspec.msgpack.encode(self._publisher.sign(canonical(other)))
        digest = self.context.manifest.hash(body)
        return [send, Send(send.to, Contents(message.stream, message.first, digest), (body,))]


# --------------------------------------------------------------- publishers

#: Time from which `change_contents`, `TellThird`, `tell_restarted` and `leap_ahead` lie.
CHANGE_AT, TELL_THIRD_AT, RETELL_AT, LEAP_AT = 140, 110, 400, 600
#: The number to which `leap_ahead` leaps.
FAR = 4_000


def _other(send: Send, message: Publish, context: FaultContext) -> Send:
    bodies = tuple(other_body(body) for body in send.bodies)
    return Send(send.to, replace(message, digests=digests_of(bodies, context)), bodies)


def send_second_contents(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Sends everybody other contents a little later."""
    message = send.message
    if not isinstance(message, Publish) or message.stream.lane is Lane.HISTORY:
        return [send]
    return [send, Later(_other(send, message, fault.context), 60)]


def change_contents(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Sends other contents than before from a moment on."""
    message = send.message
    if not isinstance(message, Publish) or now < CHANGE_AT or message.first < 2:
        return [send]
    return [_other(send, message, fault.context)]


def tell_restarted(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """After a while, starts its stream anew with every broker that it connects to again."""
    message = send.message
    stream = stream_of(message)
    if now < RETELL_AT or stream is None or stream.lane is Lane.HISTORY:
        return [send]
    if not isinstance(message, Open):
        return []
    bodies = tuple(b"another story %d" % number for number in range(1, 9))
    lie = Send(send.to, Publish(stream, 1, digests_of(bodies, fault.context)), bodies)
    return [Send(send.to, Open(stream, 1, 1)), Later(lie, 5), Later(lie, 60)]


def leap_ahead(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Claims, after a while, to hold nothing before a far number."""
    stream = stream_of(send.message)
    if now < LEAP_AT or stream is None:
        return [send]
    body = b"from far away"
    return [
        Send(send.to, Open(stream.data, FAR, FAR)),
        Send(send.to, Open(stream.history, FAR, FAR)),
        Send(send.to, Publish(stream.data, FAR, digests_of((body,), fault.context)), (body,)),
    ]


def skip_broker_and_histories(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """Sends nothing to its victims, and no histories to anybody."""
    if isinstance(send.message, Publish) and send.message.stream.lane is Lane.HISTORY:
        return []
    return fault.without(send, [p for p in send.to if p in fault.context.victims])


class TellThird(EquivocatingPublisher):
    """After a while, also tells broker 3 what it told its victims."""

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        told = list(super().rewrite(send, now))
        third = self.context.manifest.broker_ids[2]
        if now >= TELL_THIRD_AT and isinstance(told[-1], Send) and told[-1] != send:
            told.append(replace(told[-1], to=(third,)))
        return told


class FalseHistory(EquivocatingPublisher):
    """Sends everybody the same contents, and histories of others to its victims or to all."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        if not context.victims:
            self._misled = list(context.manifest.broker_ids)

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        message = send.message
        if isinstance(message, Publish | ChainRun) and message.stream.lane is Lane.DATA:
            self._other(message, send.bodies)  # known to the accomplices only
            return [send]
        return super().rewrite(send, now)


class SplitChain(EquivocatingPublisher):
    """Sends another version along another chain, which its victim heads."""

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
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
