"""Verification of evidence and receipts, offline, by anybody who has a manifest.

The answer is None if the document is valid, and otherwise a sentence that says why not.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorumcast.core.cuts import is_result
from quorumcast.core.ids import DIGEST_SIZE, Digest, NodeId, holder
from quorumcast.core.quorum import Quorums
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    OfferStatement,
    Receipt,
    SegmentStatement,
    Signed,
    Statement,
    contradict,
    outvotes,
    parse_offer,
    parse_statement,
)
from quorumcast.crypto.digest import Hasher, root
from quorumcast.crypto.directory import PublicKeys
from quorumcast.crypto.identity import signature_holds


class Court:
    """Verifies evidence and receipts of one cell."""

    __slots__ = ("_brokers", "_cell", "_hash", "_keys", "_quorums")

    def __init__(
        self,
        cell: str,
        brokers: tuple[NodeId, ...],
        quorums: Quorums,
        keys: Mapping[NodeId, PublicKeys],
        hash_: Hasher,
    ) -> None:
        self._cell = cell
        self._brokers = brokers
        self._quorums = quorums
        self._keys = keys
        self._hash = hash_

    def why_evidence_fails(self, evidence: Evidence) -> str | None:
        """None if the evidence proves that the accused lied."""
        match evidence.kind:
            case EvidenceKind.CONFLICT:
                return self._why_no_conflict(evidence)
            case EvidenceKind.OUTVOTED:
                return self._why_not_outvoted(evidence)

    def still_binds(self, evidence: Evidence) -> bool:
        """Whether the accused is a member, with the key that signed what is held against it."""
        return all(
            signed.signer == evidence.accused and self._authentic(signed) is not None
            for signed in evidence.against
        )

    def why_receipt_fails(self, receipt: Receipt, votes: int) -> str | None:
        """None if `votes` brokers signed these contents at this number."""
        count = len(receipt.digests) // DIGEST_SIZE
        place = receipt.number - receipt.first
        if len(receipt.digests) % DIGEST_SIZE or not 0 <= place < count:
            return "the receipt's digests do not cover its number"
        claimed = receipt.digests[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE]
        value = Digest(claimed)
        if self._hash(receipt.contents) != value and not is_result(receipt.contents, value):
            return "the contents do not have the digest that was signed"
        signers = self.receipt_signers(receipt)
        if len(signers) < votes:
            return f"only {len(signers)} of the {votes} brokers needed signed for these contents"
        return None

    def receipt_signers(self, receipt: Receipt) -> list[NodeId]:
        """The brokers whose valid signatures on a receipt cover its contents."""
        count = len(receipt.digests) // DIGEST_SIZE
        expected = root(receipt.first, receipt.digests)
        #: By the id of the log: positions of two logs are two things.
        signers: dict[bytes, dict[NodeId, None]] = {}
        for signed in receipt.statements:
            statement = self._authentic(signed)
            if (
                isinstance(statement, SegmentStatement)
                and signed.signer in self._brokers
                and statement.broker == signed.signer
                and statement.stream == receipt.stream
                and (statement.first, statement.count) == (receipt.first, count)
                and statement.root == expected
            ):
                signers.setdefault(statement.log_id, {})[signed.signer] = None
        return max(map(list, signers.values()), key=len, default=[])

    def _authentic(self, signed: Signed) -> Statement | OfferStatement | None:
        """The statement, if the node named in it signed it in this cell."""
        keys = self._keys.get(holder(signed.signer))
        if keys is None or not signature_holds(signed, keys.verify_key):
            return None
        statement = parse_statement(signed.payload) or parse_offer(signed.payload)
        if statement is None or statement.cell != self._cell:
            return None
        author = (
            statement.broker
            if isinstance(statement, SegmentStatement)
            else statement.stream.publisher
        )
        return statement if author == signed.signer else None

    def _why_no_conflict(self, evidence: Evidence) -> str | None:
        if len(evidence.against) != 2:
            return "a conflict needs two statements"
        first, second = (self._authentic(signed) for signed in evidence.against)
        if first is None or second is None:
            return "a statement is not authentic"
        if {signed.signer for signed in evidence.against} != {evidence.accused}:
            return "the statements are not the accused's"
        if not contradict(first, second):
            return "the statements do not contradict each other"
        return None

    def _why_not_outvoted(self, evidence: Evidence) -> str | None:
        if len(evidence.against) != 1:
            return "an outvoted broker is shown by one statement"
        accused = self._authentic(evidence.against[0])
        if not isinstance(accused, SegmentStatement) or accused.broker != evidence.accused:
            return "the statement is not the accused's"
        if accused.basis is not Basis.SETTLED:
            return "brokers may differ on what is not settled"
        truth: dict[bytes, dict[NodeId, None]] = {}
        for signed in evidence.witnesses:
            witness = self._authentic(signed)
            if (
                isinstance(witness, SegmentStatement)
                and signed.signer in self._brokers
                and outvotes(witness, accused)
            ):
                truth.setdefault(witness.root, {})[signed.signer] = None
        if max(map(len, truth.values()), default=0) < self._quorums.one_correct:
            return f"fewer than {self._quorums.one_correct} brokers contradict the accused"
        return None
