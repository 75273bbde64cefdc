"""The notary: one signature per whole segment, and on request up to any number that is final."""

from __future__ import annotations

import msgspec
from tests.support.cells import (
    AB,
    ALICE,
    B1,
    STREAM,
    T0,
    Cell,
    bodies,
    digests,
    life_of,
    publish,
)

from quorumcast.broadcast.authenticated import Relay
from quorumcast.broadcast.messages import Open
from quorumcast.cell.serving.notary import Notary, segment_start
from quorumcast.core.machine import Receive
from quorumcast.core.statements import Basis, SegmentStatement, Signed, parse_statement
from quorumcast.crypto.digest import root

CELL = Cell(AB)
LIFE = life_of(B1)


def make(upto: int = 0) -> tuple[Notary, Relay]:
    carrier = Relay(STREAM, CELL.around())
    if upto:
        carrier.handle(publish(1, *bodies(1, upto)), T0)
    return Notary(STREAM, CELL.keyring(B1), Basis.FORWARDED, 4, LIFE, {}), carrier


def ranges(signed: list[Signed]) -> list[tuple[int, int]]:
    found = [parse_statement(s.payload) for s in signed]
    return [(s.first, s.count) for s in found if isinstance(s, SegmentStatement)]


def test_notary_segment_starts_are_alike_everywhere() -> None:
    assert [segment_start(n, 4) for n in (1, 4, 5, 8, 9)] == [1, 1, 5, 5, 9]


def test_notary_signs_a_statement_again_in_the_next_epoch() -> None:
    keys = CELL.manifest.keyring(CELL.keyring(B1).identity)
    _, carrier = make(3)
    notary = Notary(STREAM, keys, Basis.FORWARDED, 4, LIFE, {})
    before = notary.attest(carrier, 2)
    assert notary.attest(carrier, 2) is before
    keys.adopt(msgspec.structs.replace(CELL.manifest, epoch=2).keyring(keys.identity))
    after = notary.attest(carrier, 2)
    assert after is not None
    statement = parse_statement(after.payload)
    assert isinstance(statement, SegmentStatement)
    assert (statement.epoch, statement.count) == (2, 2)


def test_notary_segment_one_short_is_not_signed_and_whole_it_is() -> None:
    notary, carrier = make(3)
    assert notary.newly_whole(carrier) == []
    carrier.handle(publish(4, b"p4"), T0)
    (signed,) = notary.newly_whole(carrier)
    assert CELL.keyring(ALICE).signature_holds(signed)
    assert parse_statement(signed.payload) == SegmentStatement(
        cell="demo",
        epoch=1,
        broker=B1,
        stream=STREAM,
        first=1,
        count=4,
        root=root(1, digests(*bodies(1, 4))),
        basis=Basis.FORWARDED,
        life=LIFE,
    )


def test_notary_segment_is_signed_once() -> None:
    notary, carrier = make(9)
    assert ranges(notary.newly_whole(carrier)) == [(1, 4), (5, 4)]
    assert notary.newly_whole(carrier) == []


def test_notary_segment_whose_start_is_not_held_is_passed_over() -> None:
    notary, carrier = make()
    carrier.handle(Receive(ALICE, Open(STREAM, 3, 1)), T0)
    carrier.handle(publish(3, *bodies(3, 6)), T0)
    assert ranges(notary.newly_whole(carrier)) == [(5, 4)]


def test_notary_stream_that_starts_very_far_up_costs_nothing() -> None:
    """One Open of a lying publisher must not keep a broker busy for ever."""
    notary, carrier = make()
    carrier.handle(Receive(ALICE, Open(STREAM, 2**61, 1)), T0)
    assert notary.newly_whole(carrier) == []
    carrier.handle(publish(2**61, *bodies(1, 8)), T0)
    assert len(notary.newly_whole(carrier)) == 1


def test_notary_attests_from_the_segments_start_up_to_the_number() -> None:
    notary, carrier = make(7)
    signed = notary.attest(carrier, 6)
    assert signed is not None
    assert ranges([signed]) == [(5, 2)]


def test_notary_attests_nothing_beyond_what_is_final_or_before_what_is_held() -> None:
    notary, carrier = make(2)
    assert notary.attest(carrier, 3) is None
    late, skipped = make()
    skipped.handle(Receive(ALICE, Open(STREAM, 3, 1)), T0)
    skipped.handle(publish(3, b"p3"), T0)
    assert late.attest(skipped, 3) is None


def test_notary_repeated_request_gets_the_same_signature() -> None:
    notary, carrier = make(3)
    assert notary.attest(carrier, 2) is notary.attest(carrier, 2)
    assert notary.attest(carrier, 3) != notary.attest(carrier, 2)
