"""Faults of publishers and subscribers.

A client can lie about its own stream and waste the brokers' time; it holds no key that would let
it speak for anybody else. A publisher that tells brokers different things is convicted by the two
histories that it signed; everything else it does leaves suspicion or nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from quorumcast.broadcast.messages import (
    ChainRun,
    Cursor,
    Echo,
    Open,
    Publish,
    Pull,
    Ready,
    Voucher,
)
from quorumcast.cell.messages import Attest, Checkpoint, Missed, Subscribe, Vote
from quorumcast.core.ids import Channel, Digest, Lane, Millis, NodeId, Stream, split_digests
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import HistoryStatement, Signed, canonical, parse_statement
from quorumcast.crypto.digest import root
from quorumcast.faults.cell.base import Tampering, digests_of, other_body, stream_of
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later

#: Streams that a flooding publisher opens: its own acknowledgements would feed it for ever.
FLOOD_SIZE = 200

_signed = msgspec.msgpack.Decoder(Signed)


class SkipBroker(Tampering):
    """Sends nothing to f brokers (Freeman §7.3.4)."""

    __slots__ = ("_skipped",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._skipped = context.broker_victims(max(context.manifest.f, 1))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return self.without(send, self._skipped)


class EquivocatingPublisher(Tampering):
    """Different contents for different brokers, on both lanes; each history matches its lie.

    `percent` of all numbers are told in two versions; the same number always in the same two.
    """

    __slots__ = ("_misled", "_salt", "_told")

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        count = context.rng.randrange(1, max(2, len(context.manifest.brokers)))
        self._misled = context.broker_victims(count)
        self._salt = context.rng.randbytes(4)
        #: What the misled brokers were told instead of each digest.
        self._told: dict[Digest, Digest] = {}

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Publish | ChainRun):
            return [send]
        to = tuple(peer for peer in send.to if peer in self._misled)
        if not to:
            return [send]
        bodies, digests = self._other(message, send.bodies)
        if digests == message.digests:
            return [send]
        lie: Message
        if isinstance(message, ChainRun):
            lie = replace(message, digests=digests, vouchers=self._vouchers(message, digests))
        else:
            lie = replace(message, digests=digests)
        return [*self.without(send, self._misled), Send(to, lie, bodies)]

    def _lies_about(self, number: int) -> bool:
        mark = hashlib.sha256(self._salt + number.to_bytes(8, "big")).digest()
        return mark[0] * 100 < self.context.percent * 256

    def _other(
        self, message: Publish | ChainRun, bodies: tuple[bytes, ...]
    ) -> tuple[tuple[bytes, ...], bytes]:
        if message.stream.lane is Lane.HISTORY:
            changed = tuple(self._other_history(body) for body in bodies)
            digests = digests_of(changed, self.context)
            self._conspire(message.first, message.digests, bodies, digests, changed)
            return changed, digests
        changed = tuple(
            other_body(body, self._salt) if self._lies_about(number) else body
            for number, body in enumerate(bodies, message.first)
        )
        digests = digests_of(changed, self.context)
        self._told.update(zip(split_digests(message.digests), split_digests(digests), strict=True))
        self._conspire(message.first, message.digests, bodies, digests, changed)
        return changed, digests

    def _conspire(
        self,
        first: int,
        digests: bytes,
        bodies: tuple[bytes, ...],
        others: bytes,
        changed: tuple[bytes, ...],
    ) -> None:
        """Let two-faced brokers know both versions of this run."""
        shared = self.context.shared
        for one, other in (
            *zip(split_digests(digests), split_digests(others), strict=True),
            *zip(bodies, changed, strict=True),
            (root(first, digests), root(first, others)),
        ):
            shared[one], shared[other] = other, one

    def _other_history(self, body: bytes) -> bytes:
        """The same history with the digests that the misled brokers were sent."""
        try:
            signed = _signed.decode(body)
        except (msgspec.MsgspecError, ValueError):
            return body
        statement = parse_statement(signed.payload)
        if not isinstance(statement, HistoryStatement):
            return body
        told = [self._told.get(digest, digest) for digest in split_digests(statement.digests)]
        lie = replace(statement, digests=b"".join(told))
        return msgspec.msgpack.encode(self.context.keyring.identity.sign(canonical(lie)))

    def _vouchers(self, message: ChainRun, digests: bytes) -> tuple[Voucher, ...]:
        keyring = self.context.keyring
        return tuple(
            Voucher(
                voucher.author,
                voucher.reader,
                keyring.vouch(
                    voucher.reader, message.stream, message.first, digests, message.order
                ),
            )
            for voucher in message.vouchers
        )


class SkipHistory(Tampering):
    """Publishes and never accounts for it."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        stream = stream_of(send.message)
        return [] if stream is not None and stream.lane is Lane.HISTORY else [send]


class BadBodies(Tampering):
    """Contents that do not match their digests, to some brokers."""

    __slots__ = ("_misled",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._misled = context.broker_victims(context.rng.randrange(1, 3))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        to = tuple(peer for peer in send.to if peer in self._misled)
        if not to or not send.bodies or not self.context.hits():
            return [send]
        bad = tuple(other_body(body) for body in send.bodies)
        return [*self.without(send, self._misled), replace(send, to=to, bodies=bad)]


class Gaps(Tampering):
    """Leaves numbers out, for some brokers or for all."""

    __slots__ = ("_from", "_misled")

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._from = context.rng.randrange(2, 12)
        self._misled = context.broker_victims(context.rng.randrange(1, 5))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Publish) or message.first < self._from:
            return [send]
        to = tuple(peer for peer in send.to if peer in self._misled)
        if not to:
            return [send]
        shifted = replace(message, first=message.first + 1)
        return [*self.without(send, self._misled), replace(send, to=to, message=shifted)]


class PublisherFlood(Tampering):
    """Opens stream after stream and sends more than it has credit for."""

    __slots__ = ("_count",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._count = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        stream = stream_of(send.message)
        if stream is None or self._count >= FLOOD_SIZE or not self.context.hits():
            return [send]
        self._count += 1
        fresh = replace(stream, incarnation=stream.incarnation + rng.randrange(1, 50))
        body = b"flood %d" % self._count
        digest = self.context.manifest.hash(body)
        return [
            send,
            Send(send.to, Open(fresh, 1, rng.choice((1, rng.randrange(1, 1000))))),
            Send(send.to, Publish(fresh, rng.choice((1, 2, 2**40)), digest), (body,)),
        ]


class PullFlood(Tampering):
    """Asks for everything, again and again."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        extra: list[Effect | Later] = []
        for channel in self.context.channels():
            stream = Stream(channel, self._somebody(), rng.choice((0, 1)))
            cursors = tuple(
                Cursor(replace(stream, incarnation=rng.randrange(100)), rng.randrange(1, 2**40))
                for _ in range(5)
            )
            extra += [
                Send(send.to, Pull(stream, rng.choice((1, 2**40)), 1024)),
                Send(send.to, Subscribe(channel, cursors, bodies=True)),
                Send(send.to, Attest(stream, rng.choice((1, 2**40)))),
            ]
        return [send, *extra]

    def _somebody(self) -> NodeId:
        return self.context.rng.choice(self.context.manifest.clients).id


class FalseMissed(Tampering):
    """Claims to have missed what it got, so that publishers give up good chains."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        stream = stream_of(send.message)
        claims = [(1, 10**9), (10**9, 10**9)]
        if isinstance(send.message, Subscribe) and send.message.cursors:
            cursor = send.message.cursors[0]
            stream = cursor.stream
            if cursor.next > 1:
                claims.append((cursor.next - 1, 1))
        if stream is None:
            return [send]
        return [send, Send(send.to, Missed(stream.data, *self.context.rng.choice(claims)))]


class Unauthorised(Tampering):
    """Subscribes and publishes where it has no right to."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        result: list[Effect | Later] = [send]
        for channel in (*self.context.channels(), Channel("no-such-channel")):
            stream = Stream(channel, self.context.node, 1)
            body = b"unauthorised"
            digest = self.context.manifest.hash(body)
            result += [
                Send(send.to, Subscribe(channel, (), bodies=True)),
                Send(send.to, Open(stream, 1, 1)),
                Send(send.to, Publish(stream, 1, digest), (body,)),
            ]
        return result


class Impersonate(Tampering):
    """Speaks for other nodes through its own session."""

    __slots__ = ("_number",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._number = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        victims = [c.id for c in self.context.manifest.clients if c.id != self.context.node]
        if not victims:
            return [send]
        self._number += 1
        channel = rng.choice(self.context.channels())
        stream = Stream(channel, rng.choice(victims), rng.choice((1, 1000 + self._number)))
        body = b"impersonated"
        digest = self.context.manifest.hash(body)
        forged = Signed(rng.choice(self.context.manifest.broker_ids), b"nothing", b"\0" * 64)
        words: list[Message] = [
            Open(stream, 1, 1),
            Publish(stream, rng.choice((1, self._number)), digest),
            Vote(stream, 1, digest),
            Echo(stream, 1, digest),
            Ready(stream, 1, digest),
            Checkpoint(forged),
        ]
        message = rng.choice(words)
        bodies = (body,) if isinstance(message, Publish) else ()
        return [send, Send(send.to, message, bodies)]
