"""Which lies a correct subscriber could have proven, seen from outside.

Complete blame asks that every provable lie ends in evidence. A lie is provable from the moment on
at which one correct subscriber has been sent what it takes: a broker's signed statement, and either
f+1 correct brokers' statements that settle the contrary, or the same broker's own contrary words.
Wrong contents prove nothing, and end in suspicion. Only what is sent while the network is calm
counts, since a packet may be lost before.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Send
from quorumcast.core.statements import Basis, SegmentStatement, parse_statement
from quorumcast.sim.cell.judges.facts import CellFacts

#: Wrong contents must have been sent this often before suspicion is due: the first may come late.
BAD_BODIES_DUE = 3

_Segment = tuple[Stream, int, int, Basis]


class Lies:
    """Notes who told provable lies."""

    __slots__ = ("_bad_bodies", "_f", "_said", "dubious", "told")

    def __init__(self, f: int) -> None:
        self._f = f
        #: Who said what to whom about which segment.
        self._said: dict[tuple[NodeId, _Segment], dict[NodeId, list[bytes]]] = {}
        self._bad_bodies: dict[NodeId, int] = {}
        #: Who told provable lies.
        self.told: dict[NodeId, None] = {}
        #: Who sent wrong contents often enough to be suspected.
        self.dubious: dict[NodeId, None] = {}

    def on_send(self, facts: CellFacts, sender: NodeId, send: Send) -> None:
        """A node has sent a statement or contents."""
        if not facts.calm:
            return
        if isinstance(send.message, Checkpoint):
            self._on_statement(facts, sender, send, send.message)
        elif isinstance(send.message, Vote | Contents) and not facts.adversary.is_correct(sender):
            self._on_bodies(facts, sender, send, send.message)

    def _on_statement(
        self, facts: CellFacts, sender: NodeId, send: Send, message: Checkpoint
    ) -> None:
        statement = parse_statement(message.statement.payload)
        if not isinstance(statement, SegmentStatement):
            return
        if not sender == statement.broker == message.statement.signer:
            return  # forged in the name of another, which proves nothing
        segment = (statement.stream, statement.first, statement.count, statement.basis)
        for reader in send.to:
            present = facts.reader(reader, statement.stream.channel)
            if present is None or present.upto(statement.stream) < statement.first:
                continue
            said = self._said.setdefault((reader, segment), {})
            said.setdefault(sender, []).append(statement.root)
            self._judge(facts, segment, said)

    def _judge(self, facts: CellFacts, segment: _Segment, said: dict[NodeId, list[bytes]]) -> None:
        truths = [roots[0] for broker, roots in said.items() if facts.adversary.is_correct(broker)]
        for broker, roots in said.items():
            if facts.adversary.is_correct(broker):
                continue
            contradicts_itself = any(root != roots[0] for root in roots)
            outvoted = (
                segment[3] is Basis.SETTLED
                and len(truths) > self._f
                and any(root != truths[0] for root in roots)
            )
            if contradicts_itself or outvoted:
                self.told[broker] = None

    def _on_bodies(
        self, facts: CellFacts, sender: NodeId, send: Send, message: Vote | Contents
    ) -> None:
        digests = b"".join(facts.manifest.hash(body) for body in send.bodies)
        if digests == message.digests:
            return
        for reader in send.to:
            present = facts.reader(reader, message.stream.channel)
            # Before it knows where streams begin, a subscriber looks at no contents.
            if present is None or present.standing_at is None:
                continue
            # Nor at what lies beyond the numbers that it counts votes for.
            entry = facts.manifest.channel(message.stream.channel)
            window = 0 if entry is None else entry.policy.limits.vote_window
            upto, last = present.upto(message.stream), message.first + len(send.bodies) - 1
            if upto < message.first and last <= upto + window:
                count = self._bad_bodies[sender] = self._bad_bodies.get(sender, 0) + 1
                if count >= BAD_BODIES_DUE:
                    self.dubious[sender] = None
