"""What a third party takes for proof, and what it does not."""

import msgspec
import pytest
from tests.support.cells import B1, B2, B3, B4, STREAM, Cell, digests

from quorumcast.core.ids import NodeId
from quorumcast.core.statements import Basis, Evidence, EvidenceKind, Receipt, Signed
from quorumcast.crypto.evidence import Court
from quorumcast.manifest.policy import Policy

TRUTH, LIE = (b"one", b"two"), (b"one", b"other")


@pytest.fixture
def cell() -> Cell:
    return Cell(Policy.named("brb"))


@pytest.fixture
def court(cell: Cell) -> Court:
    return cell.court


def word(
    cell: Cell,
    broker: NodeId,
    bodies: tuple[bytes, ...] = TRUTH,
    basis: Basis = Basis.SETTLED,
) -> Signed:
    return cell.segment(broker, 1, *bodies, basis=basis)[1]


def conflict(accused: NodeId, *against: Signed) -> Evidence:
    return Evidence(kind=EvidenceKind.CONFLICT, accused=accused, against=against)


def outvoted(accused: NodeId, against: Signed, *witnesses: Signed) -> Evidence:
    return Evidence(
        kind=EvidenceKind.OUTVOTED, accused=accused, against=(against,), witnesses=witnesses
    )


def receipt(*statements: Signed, number: int = 2, contents: bytes = b"two") -> Receipt:
    return Receipt(
        stream=STREAM,
        number=number,
        contents=contents,
        first=1,
        digests=digests(*TRUTH),
        statements=statements,
    )


# ------------------------------------------------------------------------ conflicts


def test_conflict_two_statements_of_the_accused_that_contradict_prove_a_lie(
    cell: Cell, court: Court
) -> None:
    found = conflict(B1, word(cell, B1), word(cell, B1, LIE))
    assert court.why_evidence_fails(found) is None


def test_conflict_statements_of_somebody_else_prove_nothing(cell: Cell, court: Court) -> None:
    found = conflict(B2, word(cell, B1), word(cell, B1, LIE))
    assert court.why_evidence_fails(found) == "the statements are not the accused's"
    mixed = conflict(B1, word(cell, B1), word(cell, B2, LIE))
    assert court.why_evidence_fails(mixed) == "the statements are not the accused's"


def test_conflict_statement_that_the_accused_did_not_sign_proves_nothing(
    cell: Cell, court: Court
) -> None:
    _, forged = cell.segment(B1, 1, *LIE, signer=B2)
    as_accused = msgspec.structs.replace(forged, signer=B1)
    for second in (forged, as_accused):
        found = conflict(B1, word(cell, B1), second)
        assert court.why_evidence_fails(found) == "a statement is not authentic"


def test_conflict_statements_that_agree_or_rest_on_another_basis_prove_nothing(
    cell: Cell, court: Court
) -> None:
    forwarded = word(cell, B1, LIE, basis=Basis.FORWARDED)
    for second in (word(cell, B1), forwarded):
        found = conflict(B1, word(cell, B1), second)
        assert court.why_evidence_fails(found) == "the statements do not contradict each other"


def test_conflict_of_another_cell_or_with_one_statement_proves_nothing(
    cell: Cell, court: Court
) -> None:
    _, elsewhere = cell.segment(B1, 1, *LIE, cell="elsewhere")
    found = conflict(B1, word(cell, B1), elsewhere)
    assert court.why_evidence_fails(found) == "a statement is not authentic"
    assert court.why_evidence_fails(conflict(B1, word(cell, B1))) is not None


# ------------------------------------------------------------------------ outvoted


def test_outvoted_by_f_plus_1_others_proves_a_lie(cell: Cell, court: Court) -> None:
    found = outvoted(B1, word(cell, B1, LIE), word(cell, B2), word(cell, B3))
    assert court.why_evidence_fails(found) is None


def test_outvoted_by_f_others_or_by_one_twice_proves_nothing(cell: Cell, court: Court) -> None:
    one = outvoted(B1, word(cell, B1, LIE), word(cell, B2))
    twice = outvoted(B1, word(cell, B1, LIE), word(cell, B2), word(cell, B2))
    itself = outvoted(B1, word(cell, B1, LIE), word(cell, B2), word(cell, B1))
    for found in (one, twice, itself):
        assert court.why_evidence_fails(found) == "fewer than 2 brokers contradict the accused"


def test_outvoted_where_brokers_may_differ_proves_nothing(cell: Cell, court: Court) -> None:
    lone = word(cell, B1, LIE, basis=Basis.FORWARDED)
    others = [word(cell, b, basis=Basis.FORWARDED) for b in (B2, B3)]
    certain = [word(cell, b) for b in (B2, B3)]
    for against in (others, certain):
        failed = court.why_evidence_fails(outvoted(B1, lone, *against))
        assert failed == "brokers may differ on what is not settled"
    settled = word(cell, B1, LIE)
    assert court.why_evidence_fails(outvoted(B1, settled, *others)) is not None


def test_outvoted_by_others_who_differ_among_themselves_proves_nothing(
    cell: Cell, court: Court
) -> None:
    other = word(cell, B3, (b"one", b"third"))
    found = outvoted(B1, word(cell, B1, LIE), word(cell, B2), other)
    assert court.why_evidence_fails(found) is not None


# ------------------------------------------------------------------------ receipts


def test_receipt_with_enough_signers_holds(cell: Cell, court: Court) -> None:
    assert court.why_receipt_fails(receipt(word(cell, B1), word(cell, B2)), 2) is None


def test_receipt_of_other_contents_fails(cell: Cell, court: Court) -> None:
    found = receipt(word(cell, B1), word(cell, B2), contents=b"else")
    assert court.why_receipt_fails(found, 2) is not None


def test_receipt_of_a_number_outside_its_segment_fails(cell: Cell, court: Court) -> None:
    found = receipt(word(cell, B1), word(cell, B2), number=3)
    assert court.why_receipt_fails(found, 2) is not None


def test_receipt_signers_count_once_and_only_for_these_contents(cell: Cell, court: Court) -> None:
    found = receipt(word(cell, B1), word(cell, B1), word(cell, B4, LIE))
    assert court.receipt_signers(found) == [B1]
    assert court.why_receipt_fails(found, 2) is not None
