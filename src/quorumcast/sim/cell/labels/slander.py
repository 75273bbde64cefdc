"""False witnesses: logs that accuse correct nodes, and documents with forged signatures.

An audit must not name a correct node because of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    SegmentStatement,
    Signed,
    canonical,
)
from quorumcast.crypto.keyring import Keyring
from quorumcast.watch.observation import Kind, Observation
from quorumcast.watch.observer import Document

#: False accusations: kind of observation, reason, message.
ACCUSATIONS = (
    (Kind.SUSPECT, "dissent", "Vote"),
    (Kind.SUSPECT, "omits", "Matches"),
    (Kind.SUSPECT, "equivocation", "Vote"),
    (Kind.SUSPECT, "bad-body", "Contents"),
    (Kind.SUSPECT, "silent", "Vote"),
    (Kind.REFUSED, "wrong-sender", "Vote"),
    (Kind.REFUSED, "unexpected-message", "Ack"),
    (Kind.REFUSED, "bad-run", "Checkpoint"),
    (Kind.MISSING, "", "Vote"),
    (Kind.MISSING, "", "Matches"),
    (Kind.MISSING, "", "Ack"),
    (Kind.MISSING, "", "Accept"),
    (Kind.MISSING, "", "Offer"),
    (Kind.MISSING, "", "Propose"),
    (Kind.REFUSED, "out-of-turn", "Publish"),
    (Kind.BACKWARDS, "", "Vote"),
    (Kind.CONTRADICTS, "itself", "Ready"),
    (Kind.BOASTS, "unsent", "Ack"),
)
#: Count of each false observation.
FALSE_COUNT = 500


def slander(
    rng: random.Random, liar: NodeId, role: str, victims: Sequence[NodeId], until_ms: int
) -> list[Observation]:
    """A log that accuses each victim of every offence, for the whole run."""
    rows = []
    for victim in victims:
        for kind, reason, message in ACCUSATIONS:
            t_ms = rng.randrange(max(1, until_ms))
            rows.append(
                Observation(
                    t_ms=t_ms,
                    until_ms=until_ms,
                    observer=liar,
                    role=role,
                    kind=kind.value,
                    accused=victim,
                    reason=reason,
                    message=message,
                    channel="orders",
                    publisher="pub-1",
                    incarnation=1,
                    lane=0,
                    number=1,
                    count=FALSE_COUNT,
                )
            )
    return rows


def forgeries(keyring: Keyring, epoch: int, victims: Sequence[NodeId]) -> list[Document]:
    """Statements and evidence in the victims' names, signed with the liar's own key."""
    documents = []
    for victim in victims:
        signed = []
        for root in (b"\1" * 32, b"\2" * 32):
            statement = SegmentStatement(
                cell=keyring.instance,
                epoch=epoch,
                broker=victim,
                stream=Stream(Channel("orders"), NodeId("pub-1"), 1),
                first=1,
                count=1,
                root=root,
                basis=Basis.SETTLED,
            )
            own = keyring.identity.sign(canonical(statement))
            signed.append(Signed(victim, own.payload, own.signature))
        evidence = Evidence(
            kind=EvidenceKind.CONFLICT, accused=victim, against=tuple(signed), note="forged"
        )
        documents += [Document("statement", victim, msgspec.json.encode(one)) for one in signed]
        documents.append(Document("evidence", victim, msgspec.json.encode(evidence)))
    return documents
