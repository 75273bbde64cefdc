"""Dissents: what brokers signed of streams whose publisher may have told them different things."""

from __future__ import annotations

import msgspec
from tests.support.cells import ALICE, B1, B2, B3, B4, BOB, CAROL, ORDERS, STREAM, Cell

from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.statements import Basis
from quorumcast.faults.diagnosis import Model
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.audit.charges import Case
from quorumcast.pipeline.audit.dissents import Dissent, find_dissents
from quorumcast.pipeline.audit.verdicts import Conclusion, conclude, verdicts

CELL = Cell(Policy.named("ab"))
OF_CAROL = Stream(ORDERS, CAROL, 1)


def shown(
    broker: NodeId,
    body: bytes,
    first: int = 1,
    *,
    stream: Stream = STREAM,
    basis: Basis = Basis.FORWARDED,
    signer: NodeId | None = None,
) -> tuple[str, bytes]:
    """A statement of a broker, in the hands of Bob."""
    signed = CELL.segment(broker, first, body, basis=basis, signer=signer, stream=stream)[1]
    return BOB, msgspec.json.encode(signed)


def judged(statements: list[tuple[str, bytes]]) -> Conclusion:
    dissents = find_dissents([CELL.manifest], statements)
    return conclude(
        Case(CELL.manifest, []), Model(CELL.manifest.broker_ids, CELL.manifest.f), [], dissents
    )


def test_who_signs_otherwise_than_f_plus_one_is_found_with_them_and_how_often() -> None:
    statements = [shown(b, b"truth", n) for b in (B2, B3) for n in (1, 2, 3)]
    lies = [shown(B1, b"lie", n) for n in (1, 2)]
    found = find_dissents([CELL.manifest], [*statements, *lies])
    assert found == [Dissent(B1, ALICE, (B2, B3), 2)]


def test_publisher_whose_stream_half_of_the_brokers_signed_otherwise_is_suspected() -> None:
    """One subscriber shows it, which is not believed: it could not have signed for brokers."""
    sides = [(B1, b"one"), (B2, b"one"), (B3, b"other"), (B4, b"other")]
    found = judged([shown(broker, body) for broker, body in sides])
    assert found.named == (ALICE,)
    assert {verdict.standing for verdict in verdicts(found)} == {"suspected"}


def test_broker_that_signs_otherwise_of_one_publisher_is_disputed_and_of_two_suspected() -> None:
    of_one = [shown(B1, b"lie"), *(shown(b, b"truth") for b in (B2, B3, B4))]
    found = judged(of_one)
    assert found.named == ()
    assert {verdict.node for verdict in verdicts(found)} == {ALICE, B1}
    of_another = [shown(B1, b"lie", stream=OF_CAROL)]
    of_another += [shown(b, b"truth", stream=OF_CAROL) for b in (B2, B3, B4)]
    assert judged([*of_one, *of_another]).named == (B1,)


def test_what_too_few_signed_or_somebody_else_did_is_no_dissent() -> None:
    assert judged([shown(B1, b"lie"), shown(B2, b"truth")]).charges == ()
    forged = [shown(broker, b"truth", signer=B4) for broker in (B2, B3)]
    assert judged([shown(B1, b"lie"), *forged]).charges == ()


def test_what_is_settled_is_left_to_proofs() -> None:
    statements = [shown(b, b"truth", basis=Basis.SETTLED) for b in (B2, B3)]
    assert judged([*statements, shown(B1, b"lie", basis=Basis.SETTLED)]).charges == ()
