"""Faults of publishers and subscribers.

A client can lie about its own stream and waste the brokers' time; it has no key to speak for
another node. Two signed histories that differ convict a publisher; its other faults leave
suspicion or nothing.
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
)
from quorumcast.cell.messages import Attest, Checkpoint, Missed, Reached, Subscribe, Vote
from quorumcast.core.ids import Channel, Digest, Lane, Millis, NodeId, Stream, split_digests
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import HistoryStatement, Signed, canonical, parse_statement
from quorumcast.crypto.digest import root
from quorumcast.faults.cell.base import (
    Misleading,
    Tampering,
    digests_of,
    other_body,
    revouched,
    stream_of,
)
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later

#: Streams that a flooding publisher opens: its own acknowledgements would feed it for ever.
FLOOD_SIZE = 200

_signed = msgspec.msgpack.Decoder(Signed)


class SkipBroker(Tampering):
    """Sends nothing to f brokers (Freeman §7.3.4)."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._skipped = context.broker_victims(max(context.manifest.f, 1))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return self.without(send, self._skipped)


class EquivocatingPublisher(Misleading):
    """Different contents for different brokers, on both lanes, each with a history that matches.

    `percent` of all numbers have two versions; the same number always has the same two.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._salt = context.rng.randbytes(4)
        #: The digest that the misled brokers were sent instead of each true one.
        self._told: dict[Digest, Digest] = {}

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        message = send.message
        if not isinstance(message, Publish | ChainRun):
            return None
        bodies, digests = self._other(message, send.bodies)
        if digests == message.digests:
            return None
        lie: Publish | ChainRun = replace(message, digests=digests)
        if isinstance(lie, ChainRun):
            return [Send(send.to, revouched(lie, self.context), bodies)]
        return [Send(send.to, lie, bodies)]

    def _lies_about(self, number: int) -> bool:
        mark = hashlib.sha256(self._salt + number.to_bytes(8, "big")).digest()
        return mark[0] * 100 < self.context.percent * 256

    def _other(self, message: Publish | ChainRun, bodies: Bodies) -> tuple[Bodies, bytes]:
        """The other version of a run, which two-faced brokers get to know as well."""
        if message.stream.lane is Lane.HISTORY:
            changed = tuple(self._other_history(body) for body in bodies)
        else:
            changed = tuple(
                other_body(body, self._salt) if self._lies_about(number) else body
                for number, body in enumerate(bodies, message.first)
            )
        first, digests = message.first, digests_of(changed, self.context)
        pairs = list(zip(split_digests(message.digests), split_digests(digests), strict=True))
        self._told.update(pairs)
        shared = self.context.shared
        for one, other in (
            *pairs,
            *zip(bodies, changed, strict=True),
            (root(first, message.digests), root(first, digests)),
        ):
            shared[one], shared[other] = other, one
        return changed, digests

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


class SkipHistory(Tampering):
    """Publishes and never sends a history."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        stream = stream_of(send.message)
        return [] if stream is not None and stream.lane is Lane.HISTORY else [send]


class BadBodies(Misleading):
    """Contents that do not match their digests, to some brokers."""

    def choose_victims(self) -> Sequence[NodeId]:
        return self.context.broker_victims(self.context.rng.randrange(1, 3))

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        if not send.bodies or not self.context.hits():
            return None
        return [replace(send, bodies=tuple(other_body(body) for body in send.bodies))]


class Gaps(Misleading):
    """Leaves numbers out, for some brokers or for all."""

    def choose_victims(self) -> Sequence[NodeId]:
        rng = self.context.rng
        self._from = rng.randrange(2, 12)
        return self.context.broker_victims(rng.randrange(1, 5))

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        message = send.message
        if not isinstance(message, Publish) or message.first < self._from:
            return None
        return [replace(send, message=replace(message, first=message.first + 1))]


class PublisherFlood(Tampering):
    """Opens stream after stream and sends more than it has credit for."""

    _count = 0

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

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        extra: list[Effect | Later] = []
        for channel in self.context.channels():
            publisher = rng.choice(self.context.manifest.clients).id
            stream = Stream(channel, publisher, rng.choice((0, 1)))
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


class NeverReads(Tampering):
    """Tells brokers that it reads nothing more, so that publishers wait for it."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        #: What it told first of each stream.
        self._told: dict[Stream, int] = {}

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Reached | Subscribe) or not self.context.hits():
            return [send]
        cursors = tuple(
            Cursor(cursor.stream, self._told.setdefault(cursor.stream, cursor.next))
            for cursor in message.cursors
        )
        return [replace(send, message=replace(message, cursors=cursors))]


class FalseMissed(Tampering):
    """Claims to have missed what it received, so that publishers give up good chains."""

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

    _number = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        victims = [c.id for c in self.context.manifest.clients if c.id != self.context.node]
        if not victims:
            return [send]
        self._number += 1
        channel = self.context.any_channel()
        stream = Stream(channel, rng.choice(victims), rng.choice((1, 1000 + self._number)))
        body = b"impersonated"
        digest = self.context.manifest.hash(body)
        forged = Signed(rng.choice(self.context.manifest.broker_ids), b"nothing", b"\0" * 64)
        forgeries: list[Message] = [
            Open(stream, 1, 1),
            Publish(stream, rng.choice((1, self._number)), digest),
            Vote(stream, 1, digest),
            Echo(stream, 1, digest),
            Ready(stream, 1, digest),
            Checkpoint(forged),
        ]
        message = rng.choice(forgeries)
        bodies = (body,) if isinstance(message, Publish) else ()
        return [send, Send(send.to, message, bodies)]
