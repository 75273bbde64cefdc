"""Faults of commission: brokers that send false messages.

Votes, echoes and acknowledgements only have MACs, so a lie in them leaves suspicion. Statements are
signed: a broker whose statements repeat its lie can be convicted where the cell has settled the
truth (`Footprint`, `CatalogueEntry.provable_under`).
"""

from __future__ import annotations

from collections import deque
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
    Voucher,
)
from quorumcast.cell.messages import Checkpoint, Position, Positions, Vote
from quorumcast.core.ids import Channel, Lane, Millis, Stream
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.crypto.digest import root
from quorumcast.faults.cell.base import (
    RUNS,
    Tampering,
    digests_of,
    on_stream,
    other_body,
    other_digest,
    result_digest,
    revouched,
    with_other_digests,
    with_other_results,
)
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.statements import lying_checkpoint
from quorumcast.faults.contract import Later

#: The fields that Freeman's altering broker changes (listing 6.14).
FIELDS = ("number", "publisher", "channel", "contents", "vouchers", "incarnation")


def altered(message: Message, field: str, context: FaultContext) -> Message:
    """The message with one field changed, as far as it has that field."""
    if isinstance(message, Checkpoint):
        return lying_checkpoint(message, context)
    if isinstance(message, Echo | Ready):
        if field == "number":
            return replace(message, first=message.first + 1)
        return replace(message, run=other_digest(message.run))
    if not isinstance(message, (*RUNS, Matches)):
        return message
    stream = message.stream
    match field:
        case "number":
            return replace(message, first=message.first + 1)
        case "publisher":
            names = [client.id for client in context.manifest.clients]
            return on_stream(message, replace(stream, publisher=context.rng.choice(names)))
        case "channel":
            return on_stream(message, replace(stream, channel=context.any_channel()))
        case "incarnation":
            return on_stream(message, replace(stream, incarnation=stream.incarnation + 1))
        case "vouchers" if isinstance(message, ChainRun | Vote) and message.vouchers:
            return replace(message, vouchers=())
        case _:
            if isinstance(message, Matches):
                return with_other_results(message)
            return with_other_digests(message)


class Alter(Tampering):
    """Changes one field of what it forwards, and signs statements to match (Freeman §6.7).

    Where `victims` name brokers, the other brokers get the truth except down the chain (Freeman
    §7.3.4: one broker and all subscribers are lied to); where they name fields, only those change.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        named = tuple(field for field in FIELDS if field in context.victims)
        self._fields = named or FIELDS
        aimed = any(broker in context.victims for broker in context.brokers())
        self._spared = [b for b in context.brokers() if aimed and b not in context.victims]

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not self.context.hits():
            return [send]
        chained = isinstance(send.message, ChainRun)
        spared = () if chained else tuple(peer for peer in send.to if peer in self._spared)
        to = tuple(peer for peer in send.to if peer not in spared)
        truth: list[Effect | Later] = [replace(send, to=spared)] if spared else []
        return [*truth, *self._lie(replace(send, to=to))] if to else truth

    def _lie(self, send: Send) -> Sequence[Effect | Later]:
        said = send.message
        lie = altered(said, self.context.rng.choice(self._fields), self.context)
        bodies = send.bodies
        if bodies and isinstance(lie, RUNS) and lie.digests != getattr(said, "digests", b""):
            bodies = (other_body(bodies[0]), *bodies[1:])
            lie = replace(lie, digests=digests_of(bodies, self.context))
        if bodies and isinstance(lie, Matches) and lie.values != getattr(said, "values", b""):
            bodies = (other_body(bodies[0]), *bodies[1:])
            values = [result_digest(body, self.context) for body in bodies]
            lie = replace(lie, values=b"".join(values))
        if isinstance(lie, ChainRun):
            lie = revouched(lie, self.context)
        return [replace(send, message=lie, bodies=bodies)]


class AlterBody(Tampering):
    """Changes the contents and leaves the digest."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not send.bodies or not self.context.hits():
            return [send]
        return [replace(send, bodies=(other_body(send.bodies[0]), *send.bodies[1:]))]


class Equivocate(Tampering):
    """Tells half of its peers one thing and the other half another, for every number."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        lie: Message
        match message:
            case Echo() | Ready():
                lie = replace(message, run=other_digest(message.run))
            case Vote() | Contents() | ChainRun():
                lie = with_other_digests(message)
            case Matches():
                lie = with_other_results(message)
            case Checkpoint():
                # Both versions to every reader: two statements that conflict convict it.
                return [send, replace(send, message=lying_checkpoint(message, self.context))]
            case _:
                return [send]
        order = sorted(send.to)
        half = [peer for index, peer in enumerate(order) if (index + len(send.to)) % 2]
        if len(send.to) == 1:
            half = [peer for peer in send.to if sum(peer.encode()) % 2 == 0]
        told = self.without(send, half)
        return told + ([Send(tuple(half), lie)] if half else [])


class CorruptHistory(Tampering):
    """Lies about histories only."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        match message:
            case Echo(stream=stream) | Ready(stream=stream) if stream.lane is Lane.HISTORY:
                return [replace(send, message=replace(message, run=other_digest(message.run)))]
            case Vote(stream=stream) | Contents(stream=stream) if stream.lane is Lane.HISTORY:
                bodies = tuple(other_body(body) for body in send.bodies)
                if bodies:
                    lie = replace(message, digests=digests_of(bodies, self.context))
                else:
                    lie = with_other_digests(message)  # type: ignore[assignment]
                return [replace(send, message=lie, bodies=bodies)]
            case _:
                return [send]


class LieAcks(Tampering):
    """Acknowledges everything and forwards nothing, so the publisher feels safe."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        match send.message:
            case Ack(credit=credit) as ack:
                return [replace(send, message=replace(ack, upto=credit, settled=credit))]
            case Vote() | Matches() | ChainRun() | Echo() | Ready():
                return []
            case _:
                return [send]


class FalsePositions(Tampering):
    """Absurd numbers in positions and acknowledgements."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        match send.message:
            case Positions() as message:
                absurd = rng.choice((1, 10**6, 2**61))
                lies = tuple(
                    Position(p.stream, base=rng.choice((1, absurd)), next=absurd)
                    for p in message.positions
                )
                return [replace(send, message=replace(message, positions=lies))]
            case Ack() as ack:
                lie = replace(
                    ack,
                    upto=rng.choice((0, ack.upto, 2**61)),
                    credit=rng.choice((0, 2**61)),
                    missed=rng.choice((0, 2**61)),
                    settled=rng.choice((0, 2**61)),
                )
                return [replace(send, message=lie)]
            case _:
                return [send]


class Replaying(Tampering):
    """Sends old messages again, to anybody."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._said: deque[Send] = deque(maxlen=64)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        result: list[Effect | Later] = [send]
        if self._said and self.context.hits():
            old = rng.choice(self._said)
            result.append(Later(replace(old, to=send.to), rng.randrange(30)))
        self._said.append(send)
        return result


class Counterfeit(Tampering):
    """Vouches for publications that nobody published, ahead of those that somebody did."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        kinds = Vote | Matches | ChainRun | Echo | Ready
        if not isinstance(message, kinds) or not self.context.hits():
            return [send]
        body = b"counterfeit %d" % message.first
        digest = self.context.manifest.hash(body)
        stream = self._stream(message.stream)
        ahead = message.first + 1 if stream == message.stream else 1
        fakes: list[Effect | Later] = []
        match message:
            case Vote() | ChainRun():
                vouchers = tuple(
                    Voucher(author, peer, b"\0" * 16)
                    for author in message.order
                    for peer in send.to
                )
                fake = replace(
                    message, stream=stream, first=ahead, digests=digest, vouchers=vouchers[:32]
                )
                fakes.append(Send(send.to, fake, (body,)))
                fakes.append(Send(send.to, Contents(stream, ahead, digest), (body,)))
            case Matches(where=where):
                fakes.append(Send(send.to, Matches(stream, ahead, 1, where, (0,), digest), (body,)))
            case Echo() | Ready():
                run = root(ahead, digest)
                fakes += [Send(send.to, kind(stream, ahead, run)) for kind in (Echo, Ready)]
                fakes.append(Send(send.to, Contents(stream, ahead, digest), (body,)))
                # In the name of the publisher, although the session says who really sent it.
                fakes.append(Send(send.to, Publish(stream, ahead, digest), (body,)))
        return [*fakes, send]

    def _stream(self, real: Stream) -> Stream:
        if self.context.rng.randrange(2):
            return real
        names = [client.id for client in self.context.manifest.clients]
        return replace(
            real, publisher=self.context.rng.choice(names), incarnation=real.incarnation + 7
        )


class Flood(Tampering):
    """Buries its peers under messages that cost them work and memory."""

    _count = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        rng = self.context.rng
        result: list[Effect | Later] = [send]
        for _ in range(rng.randrange(4)):
            self._count += 1
            result.append(Send(send.to, self._nonsense(self.context.any_channel())))
        return result

    def _nonsense(self, channel: Channel) -> Message:
        rng = self.context.rng
        names = [client.id for client in self.context.manifest.clients]
        stream = Stream(channel, rng.choice(names), self._count, Lane(rng.randrange(2)))
        first = rng.choice((1, rng.randrange(1, 2**40)))
        digest = rng.randbytes(32)
        return rng.choice(
            (
                Vote(stream, first, digest * rng.randrange(1, 8)),
                Matches(stream, first, rng.randrange(1, 8), digest[:16], (0, 7), digest * 2),
                Echo(stream, first, digest),
                Ready(stream, first, digest),
                Contents(stream, first, digest),
                Pull(stream, first, 1024),
                Ack(stream, first, first, first, first),
                Positions(channel, (Position(stream, 1, first),)),
            )
        )
