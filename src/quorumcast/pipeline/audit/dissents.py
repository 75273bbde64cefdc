"""Dissents: who signed something else of a publisher's stream than f+1 other brokers did.

One of those f+1 is correct, and was told what it signed; so the one who signed otherwise lies, or
the publisher tells brokers different things. No observer is to be believed for that: whoever shows
the statements could not have made them.
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


def find_dissents(manifest: Manifest, statements: Iterable[tuple[str, bytes]]) -> list[Charge]:
    """Charges where correct brokers can differ only because of a publisher."""
    needed = manifest.quorums.one_correct
    #: What was signed of each segment, and by whom.
    segments: dict[tuple[Stream, int, int], dict[bytes, set[str]]] = {}
    for one in _unsettled(manifest, statements):
        sayings = segments.setdefault((one.stream, one.first, one.count), {})
        sayings.setdefault(one.root, set()).add(one.broker)
    found: Counter[tuple[str, str, str]] = Counter()
    for (stream, _, _), sayings in segments.items():
        # However much a liar signs, these are few: each has a correct signer of its own.
        agreed = {said: signers for said, signers in sayings.items() if len(signers) >= needed}
        for said, signers in sayings.items():
            for other, witnesses in agreed.items():
                for signer in signers - witnesses if other != said else ():
                    for witness in sorted(witnesses)[:needed]:
                        found[signer, holder(stream.publisher), witness] += 1
    return [
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
    ]


def _unsettled(
    manifest: Manifest, statements: Iterable[tuple[str, bytes]]
) -> Iterator[SegmentStatement]:
    """What brokers of this cell and epoch really signed of streams that a publisher can split."""
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
