"""Faults about signed statements, and brokers that conspire with a publisher.

`TwoFaced` is the broker's half of a conspiracy: a publisher that equivocates shares both versions
of everything with it (`FaultContext.shared`), and it sends each peer the version that fits.
`ForgeStatements` shows statements in the name of correct brokers; only a reader that does not
verify signatures believes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Matches, Ready
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import Millis, NodeId, split_digests
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import SegmentStatement, Signed, canonical, parse_statement
from quorumcast.faults.cell.base import Misleading, Tampering, other_digest, revouched
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Later


class FalseCheckpoints(Tampering):
    """Votes for the truth and signs statements about something else."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Checkpoint) and self.context.hits():
            return [replace(send, message=lying_checkpoint(send.message, self.context))]
        return [send]


def lying_checkpoint(message: Checkpoint, context: FaultContext) -> Checkpoint:
    """This node's own statement, signed again with another root: a lie that can be proven."""
    statement = parse_statement(message.statement.payload)
    if not isinstance(statement, SegmentStatement):
        return message
    lie = replace(statement, root=other_digest(statement.root))
    return Checkpoint(context.keyring.identity.sign(canonical(lie)))


class ForgeStatements(Tampering):
    """Shows statements that other brokers never signed."""

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


class TwoFaced(Misleading):
    """Sends its victims the other version of whatever a conspiring publisher made two of."""

    def choose_victims(self) -> Sequence[NodeId]:
        return [NodeId(victim) for victim in self.context.victims]

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        bodies = tuple(self.context.shared.get(body, body) for body in send.bodies)
        return [Send(send.to, self._other(send.message), bodies)]

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
            case Matches():
                return replace(message, values=self._digests(message.values))
            case _:
                return message

    def _digests(self, digests: bytes) -> bytes:
        shared = self.context.shared
        return b"".join(shared.get(digest, digest) for digest in split_digests(digests))
