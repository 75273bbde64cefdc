"""Evidence that a node holds, and how it reaches every broker.

Subscribers and brokers find evidence; only operators can act on it, and they look at brokers. So
every node hands its evidence to the brokers, and brokers pass it on to one another:

    node → every broker     Accusation(evidence)   when the node finds the evidence
    broker → other brokers  Accusation(evidence)   when the broker receives it, if it holds
    node → broker           Accusation(evidence)   whenever a link opens, so that none is lost

A broker believes nobody: evidence holds only if the broker's own manifest proves it (`Court`). It
thus never names a correct node, whoever sent it. A threshold is that of one epoch: an OUTVOTED
broker is convicted only by statements of the present one, since f may have been larger when they
were signed. Evidence that no longer holds after a change of epoch is not passed on any more; it was
reported when it was found.

A lying node can send nonsense, old evidence, and evidence against its friends:

- one piece of evidence is kept of each broker, and of MAX_ACCUSED_CLIENTS clients, each of at most
  MAX_EVIDENCE_BYTES; further ones against the same node are dropped before they are verified;
- a sender of MAX_REFUTED pieces that do not hold is not listened to until the next epoch.
"""

from __future__ import annotations

import msgspec

from quorumcast.cell.messages import Accusation
from quorumcast.core.ids import Millis, NodeId, holder
from quorumcast.core.machine import Accuse, Drop, DropReason, Effect, Receive, Send
from quorumcast.core.statements import (
    Evidence,
    EvidenceKind,
    SegmentStatement,
    parse_statement,
)
from quorumcast.manifest.view import View

MAX_ACCUSED_CLIENTS = 16
MAX_EVIDENCE_BYTES = 128 * 1024
MAX_REFUTED = 4


class Accusations:
    """The evidence that one node holds."""

    __slots__ = ("_held", "_refuted", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        #: By the accused identity; every piece holds by the present manifest.
        self._held: dict[NodeId, Evidence] = {}
        #: Pieces that did not hold, by the identity that sent them; at most MAX_REFUTED each.
        self._refuted: dict[NodeId, int] = {}

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"accused": len(self._held), "refuted": len(self._refuted)}

    def begin_epoch(self) -> None:
        """Keep what holds by the new manifest."""
        self._held = {node: held for node, held in self._held.items() if self._holds(held)}
        self._refuted.clear()

    def found(self, evidence: Evidence) -> list[Effect]:
        """Report evidence that this node has found, and hand it to the brokers."""
        if not self._has_room(evidence) or not self._holds(evidence):
            return [Accuse(evidence)]
        return self._keep(evidence, self._view.peers)

    def connected(self, peer: NodeId) -> list[Effect]:
        """Hand all evidence to a broker whose link opens."""
        if peer not in self._view.brokers:
            return []
        return [Send((peer,), Accusation(evidence)) for evidence in self._held.values()]

    def on_accusation(self, event: Receive, now: Millis) -> list[Effect]:
        """Verify what a peer sends, report it, and pass it on."""
        message, sender = event.message, event.sender
        if not isinstance(message, Accusation):
            return []
        evidence = msgspec.structs.replace(message.evidence, note=f"received from {sender}")
        if holder(evidence.accused) in self._held:
            return [Drop(DropReason.DUPLICATE, sender)]
        refuted = self._refuted.get(holder(sender), 0)
        if refuted >= MAX_REFUTED or not self._has_room(evidence):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        if not self._holds(evidence):
            self._refuted[holder(sender)] = refuted + 1
            return [Drop(DropReason.BAD_SIGNATURE, sender)]
        return self._keep(evidence, tuple(peer for peer in self._view.peers if peer != sender))

    def _keep(self, evidence: Evidence, to: tuple[NodeId, ...]) -> list[Effect]:
        self._held[holder(evidence.accused)] = evidence
        return [Accuse(evidence), Send(to, Accusation(evidence))]

    def _has_room(self, evidence: Evidence) -> bool:
        """Whether evidence is small enough, and the first against this node."""
        accused, brokers = holder(evidence.accused), self._view.brokers
        signed = (*evidence.against, *evidence.witnesses)
        size = sum(len(one.payload) + len(one.signature) for one in signed)
        if accused in self._held or size > MAX_EVIDENCE_BYTES or len(signed) > len(brokers) + 1:
            return False
        clients = sum(node not in brokers for node in self._held)
        return accused in brokers or clients < MAX_ACCUSED_CLIENTS

    def _holds(self, evidence: Evidence) -> bool:
        if evidence.kind is EvidenceKind.OUTVOTED:
            said = [parse_statement(signed.payload) for signed in evidence.against]
            epochs = {s.epoch for s in said if isinstance(s, SegmentStatement)}
            if epochs != {self._view.epoch}:
                return False
        return self._view.manifest.court().why_evidence_fails(evidence) is None
