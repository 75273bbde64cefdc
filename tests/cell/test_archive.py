"""The archive: receipts out of equal statements, evidence out of contrary ones. n = 4, f = 1."""

from __future__ import annotations

import pytest
from tests.support.cells import (
    AB,
    B1,
    B2,
    B3,
    B4,
    BOB,
    STREAM,
    Cell,
    accused,
    bodies,
    digests,
    reasons,
    suspects,
)

from quorumcast.broadcast.acceptance import Acceptor, rule_for
from quorumcast.broadcast.application import Proven
from quorumcast.broadcast.messages import Contents
from quorumcast.cell.subscribing import archive as keeping
from quorumcast.cell.subscribing.archive import (
    AWAITED_TICKS,
    MAX_PENDING,
    RANGES,
    Archive,
    HeldForm,
)
from quorumcast.core.cuts import HEADER, MARK
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import DropReason, Effect
from quorumcast.core.quorum import Broadcast, Protection
from quorumcast.core.statements import Basis, Evidence, EvidenceKind

CELL = Cell(AB)
LIMITS = Limits(segment=4, kept_segments=2)
P = bodies(1, 8)


def archive(limits: Limits = LIMITS) -> Archive:
    return Archive(STREAM, CELL.view(BOB), limits)


def acceptor(upto: int = 8) -> Acceptor:
    """A subscriber's memory of P, delivered up to a number."""
    rule = rule_for(CELL.manifest.quorums, Protection.CRASH, Broadcast.DIRECT)
    made = Acceptor(STREAM, 1, rule, CELL.manifest.hash, Limits())
    made.vote(B1, 1, digests(*P[:upto]), P[:upto])
    made.deliver()
    return made


def file(
    at: Archive,
    broker: NodeId,
    first: int,
    *run: bytes,
    basis: Basis = Basis.SETTLED,
    signer: NodeId | None = None,
    stream: Stream = STREAM,
    cell: str = "demo",
    sender: NodeId | None = None,
) -> list[Effect]:
    statement, signed = CELL.segment(
        broker, first, *run, basis=basis, signer=signer, stream=stream, cell=cell
    )
    return at.file(sender or broker, statement, signed)


# ---------------------------------------------------------------- receipts


def test_archive_receipt_needs_f_plus_1_equal_statements() -> None:
    at = archive()
    assert at.want(2, P[1])
    file(at, B1, 1, *P[:4])
    assert at.prove(acceptor(), 2) == []
    file(at, B2, 1, *P[:4])
    (proven,) = at.prove(acceptor(), 2)
    assert isinstance(proven, Proven)
    assert CELL.court.why_receipt_fails(proven.receipt, 2) is None
    assert CELL.court.why_receipt_fails(proven.receipt, 3) is not None
    assert at.refresh() == []


def test_archive_receipt_that_does_not_come_is_given_up() -> None:
    """Its application has stopped waiting: brokers must not be asked for ever."""
    at = archive()
    assert at.want(2, P[1])
    assert [at.refresh() for _ in range(AWAITED_TICKS)] == [[2]] * AWAITED_TICKS
    assert at.refresh() == []
    assert at.sizes()["proof_bytes"] == 0


def test_archive_receipts_awaited_are_bounded_in_number_and_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeping, "MAX_PENDING", 3)
    monkeypatch.setattr(keeping, "MAX_PENDING_BYTES", 10)
    at = archive()
    assert [at.want(number, bytes(5)) for number in (1, 2, 3)] == [True, True, False]
    at = archive()
    assert [at.want(number, b"") for number in (1, 2, 3, 4, 3)] == [True, True, True, False, True]


def test_archive_receipt_of_a_partial_segment_is_enough_if_it_covers_the_number() -> None:
    at = archive()
    at.want(2, P[1])
    for broker in (B1, B2):
        file(at, broker, 1, P[0])
    assert at.prove(acceptor(), 2) == []
    for broker in (B1, B2):
        file(at, broker, 1, *P[:2])
    (proven,) = at.prove(acceptor(), 2)
    assert isinstance(proven, Proven)
    assert CELL.court.why_receipt_fails(proven.receipt, 2) is None


def test_archive_statements_on_other_contents_prove_nothing() -> None:
    at = archive()
    at.want(1, P[0])
    for broker in (B1, B2, B3):
        file(at, broker, 1, b"other", *P[1:4])
    assert at.prove(acceptor(), 2) == []


def test_archive_forged_statements_do_not_count_towards_a_receipt() -> None:
    at = archive()
    at.want(1, P[0])
    file(at, B1, 1, *P[:4])
    file(at, B2, 1, *P[:4], signer=B4)
    statement, signed = CELL.segment(B3, 1, *P[:4])
    at.file(B3, statement, type(signed)(B3, signed.payload, bytes(64)))
    assert at.prove(acceptor(), 2) == []


def test_archive_receipt_waits_until_the_whole_range_was_accepted() -> None:
    at = archive()
    at.want(2, P[1])
    for broker in (B1, B2):
        file(at, broker, 1, *P[:4])
    assert at.prove(acceptor(upto=3), 2) == []
    assert len(at.prove(acceptor(upto=4), 2)) == 1


def test_archive_receipt_for_contents_that_were_not_accepted_does_not_hold() -> None:
    """What the application claims to have received is proven or not by the digests."""
    at = archive()
    at.want(1, b"never published")
    for broker in (B1, B2):
        file(at, broker, 1, *P[:4])
    for effect in at.prove(acceptor(), 2):
        assert isinstance(effect, Proven)
        assert CELL.court.why_receipt_fails(effect.receipt, 2) is not None


# ---------------------------------------------------------------- evidence


def why(evidence: Evidence) -> str | None:
    return CELL.court.why_evidence_fails(evidence)


def test_archive_two_statements_of_one_broker_on_one_range_are_evidence() -> None:
    at = archive()
    file(at, B4, 1, *P[:4])
    (evidence,) = accused(file(at, B4, 1, b"lie", *P[1:4]))
    assert (evidence.kind, evidence.accused) == (EvidenceKind.CONFLICT, B4)
    assert why(evidence) is None


def test_archive_conflict_with_a_forged_statement_accuses_nobody() -> None:
    at = archive()
    file(at, B1, 1, *P[:4])
    statement, signed = CELL.segment(B1, 1, b"lie", *P[1:4], signer=B4)
    effects = at.file(B1, statement, type(signed)(B1, signed.payload, signed.signature))
    assert accused(effects) == []
    assert reasons(effects) == [DropReason.BAD_SIGNATURE]


def test_archive_statements_on_different_grounds_are_no_conflict() -> None:
    """What was forwarded may be corrected by what is settled; the court knows, so must we."""
    at = archive()
    file(at, B1, 1, b"told by a liar", *P[1:4], basis=Basis.FORWARDED)
    effects = file(at, B1, 1, *P[:4], basis=Basis.SETTLED)
    assert accused(effects) == []


def test_archive_f_others_are_not_enough_to_outvote() -> None:
    at = archive()
    file(at, B4, 1, b"lie", *P[1:4])
    assert file(at, B1, 1, *P[:4]) == []


def test_archive_f_plus_1_others_outvote_a_liar() -> None:
    at = archive()
    file(at, B4, 1, b"lie", *P[1:4])
    file(at, B1, 1, *P[:4])
    effects = file(at, B2, 1, *P[:4])
    (evidence,) = accused(effects)
    assert (evidence.kind, evidence.accused) == (EvidenceKind.OUTVOTED, B4)
    assert why(evidence) is None
    assert suspects(effects) == [B4]


def test_archive_liar_is_accused_once() -> None:
    at = archive()
    file(at, B4, 1, b"lie", *P[1:4])
    found = [e for b in (B1, B2, B3) for e in accused(file(at, b, 1, *P[:4]))]
    found += accused(file(at, B4, 1, b"another lie", *P[1:4]))
    assert len(found) == 1


def test_archive_forwarded_statements_may_differ_without_evidence() -> None:
    """Without history a lying publisher can tell correct brokers different things."""
    at = archive()
    file(at, B4, 1, b"lie", *P[1:4], basis=Basis.FORWARDED)
    effects = [e for b in (B1, B2, B3) for e in file(at, b, 1, *P[:4], basis=Basis.FORWARDED)]
    assert accused(effects) == []


def test_archive_forwarded_statement_against_settled_ones_is_only_suspected() -> None:
    at = archive()
    file(at, B4, 1, b"lie", *P[1:4], basis=Basis.FORWARDED)
    file(at, B1, 1, *P[:4])
    effects = file(at, B2, 1, *P[:4])
    assert accused(effects) == []
    assert suspects(effects) == [B4]


def test_archive_convicted_liar_costs_no_more_signatures(monkeypatch: pytest.MonkeyPatch) -> None:
    at = archive()
    for broker in (B1, B2, B3):
        file(at, broker, 1, *P[:4])
    assert accused(file(at, B4, 1, b"lie", *P[1:4]))
    monkeypatch.setattr(Archive, "_holds", lambda self, signed: pytest.fail("verified"))
    assert reasons(file(at, B4, 5, b"lie", *P[5:8])) == [DropReason.CONFLICT]
    assert [file(at, broker, 5, *P[4:8]) for broker in (B1, B2, B3)] == [[], [], []]


def test_archive_one_liar_cannot_get_a_correct_broker_accused() -> None:
    at = archive()
    effects = file(at, B1, 1, *P[:4])
    for signer in (B4, B2, B3):
        effects += file(at, signer, 1, b"lie", *P[1:4], signer=B4, sender=B4)
    effects += file(at, B4, 1, b"lie", *P[1:4])
    assert B1 not in [e.accused for e in accused(effects)]


def test_archive_statement_that_is_not_the_senders_is_dropped() -> None:
    for effects in (
        file(archive(), B1, 1, *P[:4], sender=B2),
        file(archive(), B1, 1, *P[:4], signer=B2),
        file(archive(), B1, 1, *P[:4], stream=STREAM.history),
        file(archive(), B1, 1, *P[:4], cell="another"),
        file(archive(), B1, 3, *P[:4]),
        file(archive(), B1, 1, *P[:5]),
    ):
        assert reasons(effects) == [DropReason.BAD_RUN]


# ------------------------------------------------------------------ limits


def test_archive_pending_receipts_are_bounded() -> None:
    at = archive()
    asked = [at.want(number, b"") for number in range(1, MAX_PENDING + 10)]
    assert asked.count(True) == MAX_PENDING
    assert at.sizes()["proofs"] == MAX_PENDING


def test_archive_results_that_a_broker_sends_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_PENDING_BYTES", 1000)
    at = archive()
    cut = MARK + bytes(HEADER.size)
    for number in (1, 2, 3):
        assert at.want(number, cut, HeldForm.WIDER_RESULT)
    longer = cut + bytes(500)
    for _ in range(2):
        at.complete(Contents(STREAM, 1, digests(longer) * 3), (longer,) * 3)
        assert len(cut) * 3 + 500 < at.sizes()["proof_bytes"] <= 1000


def test_archive_statements_are_bounded() -> None:
    at = archive()
    for number in range(1, 400, 4):
        for broker in (B1, B2, B3, B4):
            file(at, broker, number, b"x")
    assert at.sizes()["statements"] == LIMITS.kept_segments + RANGES


def test_archive_flood_of_one_broker_does_not_push_out_the_others_words() -> None:
    """A liar that signs for a hundred segments must not keep receipts from being made."""
    at = archive()
    at.want(2, P[1])
    file(at, B1, 1, *P[:4])
    for number in range(5, 400, 4):
        file(at, B4, number, b"x")
    file(at, B2, 1, *P[:4])
    assert len(at.prove(acceptor(), 2)) == 1
    assert at.sizes()["statements"] <= 4 * (LIMITS.kept_segments + RANGES)
