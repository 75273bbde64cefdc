"""The lies that a correct subscriber could have proven, seen from outside the machines.

*Complete blame* requires that every provable lie ends in evidence. A broker's signed statement is a
provable lie once one correct subscriber was also sent either f+1 correct brokers' statements that
settle the contrary, or a contrary statement signed by the same broker. Contents that do not match
their digest prove nothing and end in suspicion. Only messages sent while the network is calm count,
since earlier ones may have been lost.
"""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Checkpoint, Vote
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Send
from quorumcast.core.statements import Basis, SegmentStatement, parse_statement
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.judges.twin import value_of_body

#: Number of wrong contents after which suspicion is due; the subscriber may ignore late ones.
BAD_BODIES_DUE = 3


class _Segment(msgspec.Struct, frozen=True):
    """The subject of a signed statement."""

    stream: Stream
    first: int
    count: int
    basis: Basis


class Lies:
    """Collects the brokers whose lies correct subscribers could prove or suspect."""

    __slots__ = ("_bad_bodies", "_said", "dubious", "told")

    def __init__(self) -> None:
        #: Signed roots by (subscriber, segment), then by the broker that signed them.
        self._said: dict[tuple[NodeId, _Segment], dict[NodeId, list[bytes]]] = {}
        #: Number of wrong contents that each node sent.
        self._bad_bodies: dict[NodeId, int] = {}
        #: Brokers that told provable lies.
        self.told: dict[NodeId, None] = {}
        #: Nodes that sent wrong contents often enough to be suspected.
        self.dubious: dict[NodeId, None] = {}

    def on_send(self, facts: CellFacts, sender: NodeId, send: Send) -> None:
        """Take note of a statement or contents that a node sent."""
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
            return  # forged in another broker's name, which proves nothing
        segment = _Segment(statement.stream, statement.first, statement.count, statement.basis)
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
            f = max(manifest.f for manifest in facts.manifests_of(broker))
            contradicts_itself = any(root != roots[0] for root in roots)
            outvoted = (
                segment.basis is Basis.SETTLED
                and len(truths) > f
                and any(root != truths[0] for root in roots)
            )
            if contradicts_itself or outvoted:
                self.told[broker] = None

    def _on_bodies(
        self, facts: CellFacts, sender: NodeId, send: Send, message: Vote | Contents
    ) -> None:
        manifest = facts.manifest_of(sender)
        entry = manifest.channel(message.stream.channel)
        if entry is None:
            return
        values = [value_of_body(entry, manifest.hash, body) for body in send.bodies]
        if b"".join(values) == message.digests:
            return
        for reader in send.to:
            present = facts.reader(reader, message.stream.channel)
            # One that wants some rows takes no votes for whole publications.
            takes = present is not None and not (present.asked and isinstance(message, Vote))
            upto = present.upto(message.stream) if present is not None and takes else 0
            # A subscriber ignores contents of a stream until f+1 brokers have named the stream to
            # it: f liars could invent streams without end. It surely knows those it accepted from.
            if not upto:
                continue
            # It ignores contents beyond its vote window as well.
            window = entry.policy.limits.vote_window
            last = message.first + len(send.bodies) - 1
            if upto < message.first and last <= upto + window:
                count = self._bad_bodies[sender] = self._bad_bodies.get(sender, 0) + 1
                if count >= BAD_BODIES_DUE:
                    self.dubious[sender] = None
