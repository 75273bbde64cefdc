"""Proofs: verified evidence, and evidence that only the audit can assemble.

The audit trusts no observer for a document. It verifies evidence with the keys of the cell, as
`quorumcast verify` does. It also combines the statements of all observers: a node may have sent two
contradicting statements to different nodes, so that no single node holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quorumcast.core.ids import NodeId, holder
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    HistoryStatement,
    OfferStatement,
    Receipt,
    SegmentStatement,
    Signed,
    outvotes,
    parse_offer,
    parse_statement,
)
from quorumcast.crypto.evidence import Court
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.manifest import Manifest

_signed = msgspec.json.Decoder(Signed)
_documents = msgspec.json.Decoder(Evidence | Receipt)


class Proof(msgspec.Struct, frozen=True):
    """Verified evidence, and the observers that hold it."""

    accused: str
    deed: str
    evidence: Evidence
    shown_by: tuple[str, ...]
    about: str


class StatementContent(msgspec.Struct, frozen=True):
    """The subject and the value of a signed statement.

    All statements of one signer about one subject must have the same value.
    """

    signer: str
    about: str
    #: The part of the subject that different signers share; empty if only this signer can sign it.
    segment: str
    value: bytes
    #: Whether correct signers cannot differ.
    settled: bool = True


def read_signed(data: bytes) -> Signed | None:
    """Return the signed statement in a document, or None."""
    try:
        return _signed.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def content_of(signed: Signed) -> StatementContent | None:
    """Return the content of a statement, without verifying its signature."""
    statement = parse_statement(signed.payload) or parse_offer(signed.payload)
    if isinstance(statement, OfferStatement):
        about = f"{statement.cell} {statement.stream} offer {statement.first}"
        return StatementContent(signed.signer, about, "", statement.digests)
    if isinstance(statement, SegmentStatement):
        span = f"{statement.stream} {statement.first}+{statement.count} {statement.epoch}"
        segment = f"{statement.cell} {span} {statement.basis.value} {statement.log_id.hex()[:16]}"
        about = f"{segment} {statement.life.hex()[:16]}"
        settled = statement.basis is Basis.SETTLED
        return StatementContent(signed.signer, about, segment, statement.root, settled)
    if isinstance(statement, HistoryStatement):
        about = f"{statement.cell} {statement.stream} history {statement.index}"
        value = statement.first.to_bytes(8, "big") + statement.digests
        return StatementContent(signed.signer, about, "", value)
    return None


def verified_evidence(data: bytes, court: Court) -> Evidence | None:
    """Return the evidence in a document if it is valid, else None."""
    try:
        document = _documents.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(document, Evidence) or court.why_evidence_fails(document) is not None:
        return None
    return document


def about_evidence(evidence: Evidence) -> str:
    """Return the stream and numbers of evidence, for people."""
    payload = evidence.against[0].payload if evidence.against else b""
    statement = parse_statement(payload) or parse_offer(payload)
    if isinstance(statement, OfferStatement):
        return f"{statement.stream}, offer {statement.first}"
    if isinstance(statement, SegmentStatement):
        return f"{statement.stream} {statement.first}–{statement.first + statement.count - 1}"
    if isinstance(statement, HistoryStatement):
        return f"{statement.stream}, history {statement.index}"
    return ""


def find_proofs(
    manifests: Sequence[Manifest],
    evidence: Iterable[tuple[str, bytes]],
    statements: Iterable[tuple[str, bytes]],
) -> list[Proof]:
    """Return one proof per accused and deed, valid by the manifest of one epoch.

    `evidence` and `statements` are pairs of observer and document.
    """
    evidence, statements = list(evidence), list(statements)
    found: dict[tuple[str, str], tuple[Evidence, dict[str, None]]] = {}

    def keep(document: Evidence, observers: Iterable[str]) -> None:
        deed = "equivocated" if document.kind is EvidenceKind.CONFLICT else "altered"
        key = (document.accused, deed)
        _, shown_by = found.setdefault(key, (document, {}))
        shown_by.update(dict.fromkeys(observers))

    for manifest in manifests:
        court = manifest.court()
        for observer, data in evidence:
            document = verified_evidence(data, court)
            if document is not None:
                keep(document, (observer,))
        for document, observers in combine(manifest, statements):
            if court.why_evidence_fails(document) is None:
                keep(document, observers)
    return [
        Proof(accused, deed, document, tuple(sorted(shown_by)), about_evidence(document))
        for (accused, deed), (document, shown_by) in sorted(found.items())
    ]


class _Version(msgspec.Struct):
    """One version of a statement, and the observers that hold it."""

    signed: Signed
    observers: dict[str, None]


#: Versions of the statements of one signer on one subject, by value.
_Versions = dict[bytes, _Version]


def combine(
    manifest: Manifest, statements: Iterable[tuple[str, bytes]]
) -> list[tuple[Evidence, tuple[str, ...]]]:
    """Return evidence made of the statements of different observers, not yet verified as such."""
    keys = manifest.keys
    own: dict[tuple[str, str], _Versions] = {}
    segments: dict[str, dict[tuple[str, str], _Versions]] = {}
    for observer, data in statements:
        signed = read_signed(data)
        content = None if signed is None else content_of(signed)
        if signed is None or content is None:
            continue
        key = keys.get(holder(content.signer))
        if key is None or not signature_holds(signed, key.verify_key):
            continue  # a forgery must not displace a genuine statement
        versions = own.setdefault((content.signer, content.about), {})
        versions.setdefault(content.value, _Version(signed, {})).observers[observer] = None
        if content.segment and content.settled:
            by_signer = segments.setdefault(content.segment, {})
            by_signer[content.signer, content.about] = versions
    return [*_conflicts(own), *_outvoted(segments, manifest.quorums.one_correct)]


def _conflicts(
    own: Mapping[tuple[str, str], _Versions],
) -> Iterable[tuple[Evidence, tuple[str, ...]]]:
    """Yield evidence against signers of two versions of one statement."""
    for (signer, about), versions in own.items():
        if len(versions) < 2:
            continue
        first, second = list(versions.values())[:2]
        document = Evidence(
            kind=EvidenceKind.CONFLICT,
            accused=NodeId(signer),
            against=(first.signed, second.signed),
            note=f"put together by an audit: {about}",
        )
        yield document, tuple(sorted({*first.observers, *second.observers}))


def _outvoted(
    segments: Mapping[str, Mapping[tuple[str, str], _Versions]], needed: int
) -> Iterable[tuple[Evidence, tuple[str, ...]]]:
    """Yield evidence against signers whose value differs from that of enough other signers."""
    for segment, by_signer in segments.items():
        by_value: dict[bytes, list[tuple[str, _Version]]] = {}
        for (signer, _), versions in by_signer.items():
            for value, version in versions.items():
                by_value.setdefault(value, []).append((signer, version))
        for agreed, witnesses in by_value.items():
            if len(witnesses) < needed:
                continue
            for value, outvoted in by_value.items():
                for signer, version in outvoted if value != agreed else ():
                    signed = version.signed
                    counted = {name: w for name, w in witnesses if _outvotes(w.signed, signed)}
                    others = list(counted.values())[:needed]
                    document = Evidence(
                        kind=EvidenceKind.OUTVOTED,
                        accused=NodeId(signer),
                        against=(signed,),
                        witnesses=tuple(other.signed for other in others),
                        note=f"put together by an audit: {segment}",
                    )
                    observers = {*version.observers}.union(*(o.observers for o in others))
                    yield document, tuple(sorted(observers))


def _outvotes(witness: Signed, accused: Signed) -> bool:
    one, other = parse_statement(witness.payload), parse_statement(accused.payload)
    return (
        isinstance(one, SegmentStatement)
        and isinstance(other, SegmentStatement)
        and outvotes(one, other)
    )
