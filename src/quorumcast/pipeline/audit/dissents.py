"""Dissents: signed segment statements that differ from those of f+1 other brokers.

One of the f+1 brokers is correct and signed what the publisher sent it. So the broker with another
statement lies, or the publisher equivocates. The clause contains no observer, because an observer
cannot forge the statements.

If more than f brokers signed something else than f+1 others about one publisher, one of them is
correct as well. Then the charge is against the publisher alone: no lie of f brokers explains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from quorumcast.core.ids import Stream, holder
from quorumcast.core.statements import Basis, SegmentStatement, parse_statement
from quorumcast.crypto.identity import signature_holds
from quorumcast.manifest.manifest import Manifest
from quorumcast.pipeline.audit.charges import Charge
from quorumcast.pipeline.audit.proofs import read_signed

WHY = "signed something else than f+1 others"
WHY_SPLIT = "sent brokers different contents: more than f signed something else than f+1 others"


def find_dissents(manifest: Manifest, statements: Iterable[tuple[str, bytes]]) -> list[Charge]:
    """Return charges on channels where a publisher can make correct brokers differ."""
    needed = manifest.quorums.one_correct
    #: The signers of each root of each segment.
    segments: dict[tuple[Stream, int, int], dict[bytes, set[str]]] = {}
    for statement in _unsettled(manifest, statements):
        segment = (statement.stream, statement.first, statement.count)
        roots = segments.setdefault(segment, {})
        roots.setdefault(statement.root, set()).add(statement.broker)
    found: Counter[tuple[str, str, str]] = Counter()
    for (stream, _, _), roots in segments.items():
        # These are few, however much a liar signs: each has a correct signer of its own.
        agreed = {root: signers for root, signers in roots.items() if len(signers) >= needed}
        for root, signers in roots.items():
            for other, witnesses in agreed.items():
                for signer in signers - witnesses if other != root else ():
                    for witness in sorted(witnesses)[:needed]:
                        found[signer, holder(stream.publisher), witness] += 1
    signers_about: dict[str, dict[str, None]] = {}
    for signer, publisher, _ in found:
        signers_about.setdefault(publisher, {})[signer] = None
    split = {p for p, signers in signers_about.items() if len(signers) > manifest.f}
    charges = [
        Charge(
            accused=publisher,
            observer=signer,
            deed="equivocated",
            why=WHY_SPLIT,
            clause=frozenset((publisher,)),
            count=sum(n for (s, p, _), n in found.items() if (s, p) == (signer, publisher)),
            publishers=frozenset((publisher,)),
            firm=True,
        )
        for publisher in sorted(split)
        for signer in signers_about[publisher]
    ]
    return charges + [
        Charge(
            accused=signer,
            observer=witness,
            deed="altered",
            why=WHY,
            clause=frozenset((signer, publisher)),
            count=count,
            publishers=frozenset((publisher,)),
            firm=True,
        )
        for (signer, publisher, witness), count in found.items()
        if publisher not in split
    ]


def _unsettled(
    manifest: Manifest, statements: Iterable[tuple[str, bytes]]
) -> Iterator[SegmentStatement]:
    """Yield the genuine statements of this cell and epoch on channels that can split."""
    keys = manifest.keys
    for _, data in statements:
        signed = read_signed(data)
        statement = None if signed is None else parse_statement(signed.payload)
        if signed is None or not isinstance(statement, SegmentStatement):
            continue
        entry = manifest.channel(statement.stream.channel)
        if (
            statement.basis is Basis.FORWARDED
            and (statement.cell, statement.epoch) == (manifest.cell, manifest.epoch)
            and entry is not None
            and entry.policy.may_split
            and statement.broker == signed.signer
            and statement.broker in manifest.broker_ids
            and signature_holds(signed, keys[statement.broker].verify_key)
        ):
            yield statement
