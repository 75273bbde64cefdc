"""Dissents: what brokers signed of streams whose publisher may have told them different things."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, CAROL, ORDERS, STREAM, Cell

from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.statements import Basis
from quorumcast.faults.diagnosis import Model
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.audit.charges import Case, Feature
from quorumcast.pipeline.audit.dissents import WHY_SPLIT, find_dissents
from quorumcast.pipeline.audit.verdicts import RunJudgement, judge, verdicts

CELL = Cell(Policy.named("ab"))
OF_CAROL = Stream(ORDERS, CAROL, 1)


def shown(
    broker: NodeId, body: bytes, first: int = 1, stream: Stream = STREAM, **more: Any
) -> tuple[str, bytes]:
    """A statement of a broker, in the hands of Bob."""
    options = {"basis": Basis.FORWARDED, **more}
    return BOB, msgspec.json.encode(CELL.segment(broker, first, body, stream=stream, **options)[1])


def split(stream: Stream = STREAM, **more: Any) -> list[tuple[str, bytes]]:
    """What two brokers signed, and what two others did."""
    sides = [(B1, b"one"), (B2, b"one"), (B3, b"other"), (B4, b"other")]
    return [shown(broker, body, stream=stream, **more) for broker, body in sides]


def judged(statements: list[tuple[str, bytes]], manifest: Manifest = CELL.manifest) -> RunJudgement:
    noted = Feature(observer=BOB, role="subscriber", accused=B1, kind="heard", publisher=ALICE,
                    t_ms=70, until_ms=90)  # fmt: skip
    model = Model(manifest.broker_ids, manifest.f)
    return judge(Case(manifest, [noted]), model, [], find_dissents(manifest, statements))


def test_signer_against_f_plus_one_others_is_charged_with_a_count() -> None:
    statements = [shown(b, b"truth", n) for b in (B2, B3) for n in (1, 2, 3)]
    lies = [shown(B1, b"lie", n) for n in (1, 2)]
    found = find_dissents(CELL.manifest, [*statements, *lies])
    assert [(c.accused, c.observer, c.count) for c in found] == [(B1, B2, 2), (B1, B3, 2)]
    assert {c.clause for c in found} == {frozenset((B1, ALICE))}


def test_publisher_whose_stream_splits_the_signers_in_half_is_suspected() -> None:
    """One subscriber shows it, which is not believed: it could not have signed for brokers."""
    (verdict,) = verdicts(judged(split()))
    assert (verdict.node, verdict.standing, verdict.deed) == (ALICE, "suspected", "equivocated")
    assert verdict.reasons == (WHY_SPLIT,)


def test_publisher_of_whom_ever_other_brokers_dissent_is_charged_and_they_are_not() -> None:
    """Each time one broker alone was told something else; all together they are more than f."""
    statements = [
        shown(broker, b"other" if broker == misled else b"one", first)
        for first, misled in ((1, B1), (2, B2))
        for broker in (B1, B2, B3, B4)
    ]
    found = find_dissents(CELL.manifest, statements)
    assert {(c.accused, c.clause) for c in found} == {(ALICE, frozenset((ALICE,)))}
    assert {c.observer for c in found} == {B1, B2}


def test_seats_of_a_publisher_are_charged_as_one_client() -> None:
    assert judged(split(Stream(ORDERS, NodeId("alice#3"), 1))).named == (ALICE,)


def test_dissent_on_one_publisher_is_disputed_and_on_two_suspected() -> None:
    of_one = [shown(B1, b"lie"), *(shown(b, b"truth") for b in (B2, B3, B4))]
    found = judged(of_one)
    assert found.named == ()
    assert {verdict.node for verdict in verdicts(found)} == {ALICE, B1}
    of_another = [shown(B1, b"lie", stream=OF_CAROL)]
    of_another += [shown(b, b"truth", stream=OF_CAROL) for b in (B2, B3, B4)]
    assert judged([*of_one, *of_another]).named == (B1,)


def test_dissent_needs_enough_genuine_signers() -> None:
    assert judged([shown(B1, b"lie"), shown(B2, b"truth")]).charges == ()
    real = [CELL.segment(b, 1, b"truth", basis=Basis.FORWARDED)[1] for b in (B2, B3)]
    forged = [msgspec.structs.replace(one, signature=b"x" * 64) for one in real]
    for others, dissents in ((real, 2), (forged, 0)):
        documents = [(BOB, msgspec.json.encode(one)) for one in others]
        assert len(find_dissents(CELL.manifest, [shown(B1, b"lie"), *documents])) == dissents
    in_their_names = [shown(broker, b"truth", signer=B4) for broker in (B2, B3)]
    assert judged([shown(B1, b"lie"), *in_their_names]).charges == ()


def test_signer_of_many_versions_counts_once() -> None:
    lies = [shown(B1, b"lie %d" % number) for number in range(9)]
    found = find_dissents(CELL.manifest, [*lies, shown(B2, b"truth"), shown(B3, b"truth")])
    assert [(c.accused, c.observer, c.count) for c in found] == [(B1, B2, 9), (B1, B3, 9)]


@pytest.mark.parametrize(
    ("more", "manifest"),
    [
        ({"basis": Basis.SETTLED}, CELL.manifest),
        ({"cell": "another"}, CELL.manifest),
        ({}, msgspec.structs.replace(CELL.manifest, epoch=2)),
        # There a broker that was away takes the word of one other, which may lie.
        ({}, Cell(Policy.named("direct-crash")).manifest),
    ],
)
def test_settled_or_foreign_statements_are_no_dissent(
    more: dict[str, Any], manifest: Manifest
) -> None:
    assert judged(split()).charges
    assert judged(split(**more), manifest).charges == ()
