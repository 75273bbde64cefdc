"""Dissents: who signed something else of a publisher's stream than f+1 other brokers did.

One of those f+1 is correct, and was told what it signed; so the one who signed otherwise lies, or
the publisher tells brokers different things. No observer is to be believed for that: whoever shows
the statements could not have made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from quorumcast.manifest.manifest import Manifest
from quorumcast.pipeline.audit.charges import Case, Charge
from quorumcast.pipeline.audit.proofs import genuine

WHY = "signed something else than f+1 others"


class Dissent(msgspec.Struct, frozen=True):
    """One who signed otherwise than these, of whose publications, and how often."""

    signer: str
    publisher: str
    witnesses: tuple[str, ...]
    count: int


def find_dissents(
    manifests: Sequence[Manifest], statements: Iterable[tuple[str, bytes]]
) -> list[Dissent]:
    """Statements on which correct brokers may differ, but only because of a publisher."""
    statements = list(statements)
    found: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    for manifest in manifests:
        needed = manifest.quorums.one_correct
        #: What was signed of each segment, and by whom.
        segments: dict[tuple[str, str], dict[bytes, dict[str, None]]] = {}
        for _, _, place in genuine(manifest, statements):
            if place.publisher and place.signer in manifest.broker_ids:
                sayings = segments.setdefault((place.publisher, place.segment), {})
                sayings.setdefault(place.said, {})[place.signer] = None
        for (publisher, _), sayings in segments.items():
            for said, signers in sayings.items():
                for other, witnesses in sayings.items():
                    agreeing = sorted(witnesses)[:needed]
                    if other != said and len(agreeing) == needed:
                        found.update((s, publisher, tuple(agreeing)) for s in signers)
    return [Dissent(*key, count) for key, count in found.items()]


def dissent_charges(case: Case, dissents: Iterable[Dissent]) -> list[Charge]:
    """What dissents amount to; each of those who signed the same accuses."""
    spans = {
        publisher: [f for f in case.features if f.publisher == publisher]
        for publisher in {dissent.publisher for dissent in dissents}
    }
    return [
        Charge(
            accused=dissent.signer,
            observer=witness,
            deed="altered",
            why=WHY,
            clause=frozenset((dissent.signer, dissent.publisher)),
            count=dissent.count,
            t_ms=min((f.t_ms for f in spans[dissent.publisher]), default=0),
            until_ms=max((f.until_ms for f in spans[dissent.publisher]), default=0),
            publishers=frozenset((dissent.publisher,)),
            firm=True,
        )
        for dissent in dissents
        for witness in dissent.witnesses
        if witness != dissent.signer
    ]
