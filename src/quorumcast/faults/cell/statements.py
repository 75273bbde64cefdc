"""Faults about signed words, and conspiracies of brokers with their publisher.

`TwoFaced` is the broker's half of a conspiracy: a publisher that equivocates tells it, through
`FaultContext.shared`, both versions of everything, and it gives to each of its peers the version
that suits the plot. `ForgeStatements` puts words into correct brokers' mouths, which only a reader
that does not verify signatures believes.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Ready
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import Millis, split_digests
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import SegmentStatement, Signed, canonical, parse_statement
from quorumcast.faults.cell.base import Tampering, other_digest, revouched
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later


class FalseCheckpoints(Tampering):
    """Votes honestly and signs otherwise."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Checkpoint) and self.context.hits():
            return [replace(send, message=lying_checkpoint(send.message, self.context))]
        return [send]


def lying_checkpoint(message: Checkpoint, context: FaultContext) -> Checkpoint:
    """Our own statement, signed again with another root: the lie that can be proven."""
    statement = parse_statement(message.statement.payload)
    if not isinstance(statement, SegmentStatement):
        return message
    lie = replace(statement, root=other_digest(statement.root))
    return Checkpoint(context.keyring.identity.sign(canonical(lie)))


class ForgeStatements(Tampering):
    """Shows statements that other brokers never signed."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not isinstance(send.message, Checkpoint):
            return [send]
        statement = parse_statement(send.message.statement.payload)
        if not isinstance(statement, SegmentStatement):
            return [send]
        forged: list[Effect | Later] = []
        for broker in self.context.brokers():
            lie = replace(statement, broker=broker, root=other_digest(statement.root))
            signed = self.context.keyring.identity.sign(canonical(lie))
            false = Signed(broker, signed.payload, signed.signature)
            forged.append(Send(send.to, Checkpoint(false)))
        return [*forged, send]


class TwoFaced(Tampering):
    """Tells its victims the other version of whatever a conspiring publisher made two of."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        misled = tuple(peer for peer in send.to if peer in self.context.victims)
        if not misled:
            return [send]
        lie = self._other(send.message)
        bodies = tuple(self.context.shared.get(body, body) for body in send.bodies)
        return [*self.without(send, misled), Send(misled, lie, bodies)]

    def _other(self, message: Message) -> Message:
        shared = self.context.shared
        match message:
            case Echo() | Ready():
                return replace(message, run=shared.get(message.run, message.run))
            case ChainRun() | Vote():
                changed: ChainRun | Vote = replace(message, digests=self._digests(message.digests))
                return revouched(changed, self.context)
            case Contents():
                return replace(message, digests=self._digests(message.digests))
            case _:
                return message

    def _digests(self, digests: bytes) -> bytes:
        shared = self.context.shared
        return b"".join(shared.get(digest, digest) for digest in split_digests(digests))
