"""Evidence that a node holds, and how it reaches every broker.

Subscribers and brokers find evidence; only operators can act on it, and they look at brokers. So
every node hands its evidence to the brokers, and brokers pass it on to one another:

    node → every broker     Accusation(evidence)   when the node finds the evidence
    broker → other brokers  Accusation(evidence)   when the broker receives it, if it holds
    node → broker           Accusation(evidence)   whenever a link opens
    node → every broker     Accusation(evidence)   again after 1 s, 2 s, 4 s, … and every 64 s

A link may lose messages without breaking (a full outbox). Nobody acknowledges an accusation, so a
node repeats what it holds ever more rarely, without end. A broker that knows it drops it unread.

A broker believes nobody: evidence holds only if the broker's own manifest proves it (`Court`). It
thus never names a correct node, whoever sent it.

OUTVOTED evidence rests on f+1 witnesses, and f changes between epochs. If f was larger when the
statements were signed, as many witnesses as today's f+1 may all have lied. If f was smaller,
today's liars may be more than it allowed, and they can date statements back. In a later epoch such
evidence therefore holds only if two manifests prove it: the present one, and that of the
statements, which a broker adds to the evidence when it verifies it (`Evidence.manifest`).

A broker holds verified evidence for as long as the accused is a member with the same key. If a
witness leaves the cell, the other brokers cannot verify the evidence any more, and the broker no
longer passes it on. After a restart it verifies its own file (`SavedEvidence`) by the manifest of
the epoch of the statements alone.

A lying node can send nonsense, old evidence, and evidence against its friends:

- one piece of evidence is kept of each broker, and of MAX_ACCUSED_CLIENTS clients, each of at most
  MAX_EVIDENCE_BYTES; further ones against the same node are dropped before they are verified;
- a sender of MAX_REFUTED pieces that do not hold is not listened to until the next epoch.
"""

from __future__ import annotations

import msgspec

from quorumcast.cell.messages import Accusation
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId, holder
from quorumcast.core.limits import MAX_MANIFEST_BYTES
from quorumcast.core.machine import (
    Accuse,
    Drop,
    DropReason,
    Effect,
    Event,
    Receive,
    Send,
    SetTimer,
    Timer,
)
from quorumcast.core.statements import (
    Evidence,
    EvidenceKind,
    SegmentStatement,
    parse_statement,
)
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.view import View

MAX_ACCUSED_CLIENTS = 16
MAX_EVIDENCE_BYTES = 128 * 1024
MAX_REFUTED = 4
#: Time until evidence is repeated; it doubles with every repetition, up to the longest.
REPEAT_MS, LONGEST_REPEAT_MS = 1_000, 64_000


class RepeatAccusations(Timer, frozen=True, tag=True):
    """Hand the evidence that this node holds to the brokers once more."""


class SavedEvidence(Event, frozen=True):
    """Evidence from a file of this node, which anybody may have altered since it was saved."""

    evidence: Evidence


class Accusations:
    """The evidence that one node holds."""

    __slots__ = ("_held", "_own", "_refuted", "_repeat_ms", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        #: By the accused identity, which has the key that signed the statements.
        self._held: dict[NodeId, Evidence] = {}
        #: Accused nodes whose evidence the other brokers cannot verify in this epoch.
        self._own: set[NodeId] = set()
        #: Pieces that did not hold, by the identity that sent them; at most MAX_REFUTED each.
        self._refuted: dict[NodeId, int] = {}
        #: The time for which RepeatAccusations was last set.
        self._repeat_ms = REPEAT_MS

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"accused": len(self._held), "refuted": len(self._refuted)}

    def begin_epoch(self) -> None:
        """Keep evidence against members that still have the key that signed the statements."""
        court = self._view.manifest.court()
        self._held = {node: held for node, held in self._held.items() if court.still_binds(held)}
        self._own = {node for node, held in self._held.items() if not self._holds(held)}
        self._refuted.clear()

    def on_saved(self, evidence: Evidence) -> list[Effect]:
        """Verify what this node saved in an earlier life, and report it again."""
        court = self._view.manifest.court()
        if not self._has_room(evidence) or not court.still_binds(evidence):
            return []
        if self._holds(evidence):
            return self._keep(evidence, ())
        then = self._manifest_of(evidence)
        if then is None or then.court().why_evidence_fails(evidence) is not None:
            return []
        effects = self._keep(evidence, ())
        self._own.add(holder(evidence.accused))
        return effects

    def found(self, evidence: Evidence) -> list[Effect]:
        """Report evidence that this node has found, and hand it to the brokers."""
        if not self._has_room(evidence) or not self._holds(evidence):
            return [Accuse(evidence)]
        return self._keep(evidence, self._view.peers)

    def connected(self, peer: NodeId) -> list[Effect]:
        """Hand all evidence to a broker whose link opens."""
        if peer not in self._view.brokers:
            return []
        return self._show((peer,))

    def repeat(self) -> list[Effect]:
        """Hand all evidence to every broker again, and wait twice as long as before."""
        if not self._held:
            return []
        self._repeat_ms = min(2 * self._repeat_ms, LONGEST_REPEAT_MS)
        return [*self._show(self._view.peers), SetTimer(RepeatAccusations(), self._repeat_ms)]

    def on_accusation(self, event: Receive, now: Millis) -> list[Effect]:
        """Verify what a peer sends, report it, and pass it on."""
        message, sender = event.message, event.sender
        if not isinstance(message, Accusation):
            return []
        evidence = msgspec.structs.replace(message.evidence, note=f"received from {sender}")
        if self._knows(holder(evidence.accused)):
            return [Drop(DropReason.DUPLICATE, sender)]
        refuted = self._refuted.get(holder(sender), 0)
        if refuted >= MAX_REFUTED or not self._has_room(evidence):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        if not self._holds(evidence):
            self._refuted[holder(sender)] = refuted + 1
            return [Drop(DropReason.BAD_SIGNATURE, sender)]
        return self._keep(evidence, tuple(peer for peer in self._view.peers if peer != sender))

    def _keep(self, evidence: Evidence, to: tuple[NodeId, ...]) -> list[Effect]:
        then, signed = self._manifest_of(evidence), self._view.signed
        if then is None or len(signed) > MAX_MANIFEST_BYTES:
            signed = b""
        if then is None or then is self._view.manifest:
            evidence = msgspec.structs.replace(evidence, manifest=signed)
        evidence = self._without_surplus(evidence)
        self._held[holder(evidence.accused)] = evidence
        self._own.discard(holder(evidence.accused))
        self._repeat_ms = REPEAT_MS
        told: list[Effect] = [Send(to, Accusation(evidence))] if to else []
        return [Accuse(evidence), *told, SetTimer(RepeatAccusations(), REPEAT_MS)]

    def _show(self, to: tuple[NodeId, ...]) -> list[Effect]:
        shown = (held for node, held in self._held.items() if node not in self._own)
        return [Send(to, Accusation(evidence)) for evidence in shown]

    def _knows(self, accused: NodeId) -> bool:
        """Whether it has evidence that it can show to others: only this is not replaced."""
        return accused in self._held and accused not in self._own

    def _without_surplus(self, evidence: Evidence) -> Evidence:
        """Evidence without the witnesses that it does not need.

        What a liar adds would be too large for a later epoch with fewer brokers (`_has_room`).
        """
        for surplus in evidence.witnesses:
            left = tuple(signed for signed in evidence.witnesses if signed is not surplus)
            less = msgspec.structs.replace(evidence, witnesses=left)
            evidence = less if self._holds(less) else evidence
        return evidence

    def _has_room(self, evidence: Evidence) -> bool:
        """Whether evidence is small enough, and the first against this node."""
        accused, brokers = holder(evidence.accused), self._view.brokers
        signed = (*evidence.against, *evidence.witnesses)
        size = sum(len(one.payload) + len(one.signature) for one in signed)
        if self._knows(accused) or size > MAX_EVIDENCE_BYTES or len(signed) > len(brokers) + 1:
            return False
        clients = sum(node not in brokers for node in self._held)
        return accused in brokers or clients < MAX_ACCUSED_CLIENTS

    def _holds(self, evidence: Evidence) -> bool:
        """Whether every node in the present epoch can verify evidence."""
        if self._view.manifest.court().why_evidence_fails(evidence) is not None:
            return False
        if evidence.kind is EvidenceKind.CONFLICT:
            return True
        then = self._manifest_of(evidence)
        return then is not None and (
            then is self._view.manifest or then.court().why_evidence_fails(evidence) is None
        )

    def _manifest_of(self, evidence: Evidence) -> Manifest | None:
        """The manifest by which f+1 outvote the accused; None if unknown, or for a CONFLICT."""
        if evidence.kind is not EvidenceKind.OUTVOTED:
            return None
        present = self._view.manifest
        said = [parse_statement(signed.payload) for signed in evidence.against]
        epochs = {s.epoch for s in said if isinstance(s, SegmentStatement)}
        if epochs == {present.epoch}:
            return present
        try:
            found = parse_manifest(evidence.manifest, operator=present.operator)
        except UsageError:
            return None
        return found if found.cell == present.cell and epochs == {found.epoch} else None
