"""Proofs: evidence that anybody can verify, verified again, and evidence that nobody held alone.

An audit believes no document because of who shows it. Evidence is judged by the cell's keys as
`quorumcast verify` judges it. Statements of all observers are put together: two that one node
signed and that contradict each other may have been sent to different nodes, so that only the audit
sees both.
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
    """Evidence that holds, and who showed it."""

    accused: str
    deed: str
    evidence: Evidence
    shown_by: tuple[str, ...]
    about: str


class Place(msgspec.Struct, frozen=True):
    """What a statement is about: statements on one place by one node must be equal."""

    signer: str
    about: str
    #: The same for all who speak of this segment; empty where only the signer can.
    segment: str
    #: What is said.
    said: bytes
    #: Whether correct nodes cannot differ on it.
    settled: bool = True


def court_of(manifest: Manifest) -> Court:
    """Who judges by this manifest."""
    return Court(manifest.cell, manifest.broker_ids, manifest.quorums, manifest.keys, manifest.hash)


def read_signed(data: bytes) -> Signed | None:
    """A signed statement in a document, if it is one."""
    try:
        return _signed.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def place_of(signed: Signed) -> Place | None:
    """What a statement is about; nothing is verified yet."""
    statement = parse_statement(signed.payload) or parse_offer(signed.payload)
    if isinstance(statement, OfferStatement):
        about = f"{statement.cell} {statement.stream} offer {statement.first}"
        return Place(signed.signer, about, "", statement.digests)
    if isinstance(statement, SegmentStatement):
        span = f"{statement.stream} {statement.first}+{statement.count} {statement.epoch}"
        segment = f"{statement.cell} {span} {statement.basis.value} {statement.birth.hex()[:16]}"
        about = f"{segment} {statement.life.hex()[:16]}"
        settled = statement.basis is Basis.SETTLED
        return Place(signed.signer, about, segment, statement.root, settled)
    if isinstance(statement, HistoryStatement):
        about = f"{statement.cell} {statement.stream} history {statement.index}"
        said = statement.first.to_bytes(8, "big") + statement.digests
        return Place(signed.signer, about, "", said)
    return None


def verified_evidence(data: bytes, court: Court) -> Evidence | None:
    """The evidence in a document, if it is some and holds."""
    try:
        document = _documents.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not isinstance(document, Evidence) or court.why_evidence_fails(document) is not None:
        return None
    return document


def about_evidence(evidence: Evidence) -> str:
    """Which stream and numbers evidence is about, for people."""
    payload = evidence.against[0].payload if evidence.against else b""
    statement = parse_statement(payload) or parse_offer(payload)
    if isinstance(statement, OfferStatement):
        return f"{statement.stream}, offer {statement.first}"
    if isinstance(statement, SegmentStatement):
        return f"{statement.stream} {statement.first}–{statement.first + statement.count - 1}"
    if isinstance(statement, HistoryStatement):
        return f"{statement.stream}, history {statement.index}"
    return ""


def deed_of(evidence: Evidence) -> str:
    """What a proof shows that its accused did."""
    return "equivocated" if evidence.kind is EvidenceKind.CONFLICT else "altered"


def find_proofs(
    manifests: Sequence[Manifest],
    evidence: Iterable[tuple[str, bytes]],
    statements: Iterable[tuple[str, bytes]],
) -> list[Proof]:
    """Everything that holds by the manifest of one epoch as a whole.

    One proof per accused and deed; pairs are (observer, document).
    """
    evidence, statements = list(evidence), list(statements)
    found: dict[tuple[str, str], tuple[Evidence, dict[str, None]]] = {}

    def keep(document: Evidence, observers: Iterable[str]) -> None:
        key = (document.accused, deed_of(document))
        _, shown_by = found.setdefault(key, (document, {}))
        shown_by.update(dict.fromkeys(observers))

    for manifest in manifests:
        court = court_of(manifest)
        for observer, data in evidence:
            document = verified_evidence(data, court)
            if document is not None:
                keep(document, (observer,))
        for document, observers in combined(manifest, statements):
            if court.why_evidence_fails(document) is None:
                keep(document, observers)
    return [
        Proof(accused, deed, document, tuple(sorted(shown_by)), about_evidence(document))
        for (accused, deed), (document, shown_by) in sorted(found.items())
    ]


_Filed = dict[bytes, tuple[Signed, dict[str, None]]]


def combined(
    manifest: Manifest, statements: Iterable[tuple[str, bytes]]
) -> list[tuple[Evidence, tuple[str, ...]]]:
    """Evidence made of statements that different observers hold; the whole is not judged yet."""
    keys = manifest.keys
    own: dict[tuple[str, str], _Filed] = {}
    segments: dict[str, dict[tuple[str, str], _Filed]] = {}
    for observer, data in statements:
        signed = read_signed(data)
        place = None if signed is None else place_of(signed)
        if signed is None or place is None:
            continue
        key = keys.get(holder(place.signer))
        if key is None or not signature_holds(signed, key.verify_key):
            continue  # or a forgery could take the place of what was really signed
        filed = own.setdefault((place.signer, place.about), {})
        filed.setdefault(place.said, (signed, {}))[1][observer] = None
        if place.segment and place.settled:
            by_signer = segments.setdefault(place.segment, {})
            by_signer[place.signer, place.about] = filed
    return [*_conflicts(own), *_outvoted(segments, manifest.quorums.one_correct)]


def _conflicts(
    own: Mapping[tuple[str, str], _Filed],
) -> Iterable[tuple[Evidence, tuple[str, ...]]]:
    for (signer, about), filed in own.items():
        if len(filed) < 2:
            continue
        (first, seen), (second, also_seen) = list(filed.values())[:2]
        document = Evidence(
            kind=EvidenceKind.CONFLICT,
            accused=NodeId(signer),
            against=(first, second),
            note=f"put together by an audit: {about}",
        )
        yield document, tuple(sorted({*seen, *also_seen}))


def _outvoted(
    segments: Mapping[str, Mapping[tuple[str, str], _Filed]], needed: int
) -> Iterable[tuple[Evidence, tuple[str, ...]]]:
    for segment, by_signer in segments.items():
        sayings: dict[bytes, list[tuple[str, Signed, dict[str, None]]]] = {}
        for (signer, _), filed in by_signer.items():
            for said, (signed, seen) in filed.items():
                sayings.setdefault(said, []).append((signer, signed, seen))
        for truth, witnesses in sayings.items():
            if len(witnesses) < needed:
                continue
            for said, liars in sayings.items():
                for signer, signed, seen in liars if said != truth else ():
                    counted = {w[0]: w for w in witnesses if _outvotes(w[1], signed)}
                    others = list(counted.values())[:needed]
                    document = Evidence(
                        kind=EvidenceKind.OUTVOTED,
                        accused=NodeId(signer),
                        against=(signed,),
                        witnesses=tuple(witness for _, witness, _ in others),
                        note=f"put together by an audit: {segment}",
                    )
                    holders = {*seen, *(name for _, _, held in others for name in held)}
                    yield document, tuple(sorted(holders))


def _outvotes(witness: Signed, accused: Signed) -> bool:
    one, other = parse_statement(witness.payload), parse_statement(accused.payload)
    return (
        isinstance(one, SegmentStatement)
        and isinstance(other, SegmentStatement)
        and outvotes(one, other)
    )
