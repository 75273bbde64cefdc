"""Ledgers with holes, and the carrier of a relayed stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cells import ALICE, B1, ORDERS, digest, digests
from tests.support.tree_network import CellPlan, identity_in, manifest_of

from quorumcast.broadcast.contract import CarrierContext, Vouch
from quorumcast.broadcast.relayed import (
    MAX_HOLE,
    MAX_HOLES,
    RelayCarrier,
    Relayed,
    RelayLedger,
)
from quorumcast.core.ids import Digest, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Drop, DropReason
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View

STREAM = Stream(ORDERS, ALICE, 2)
LIMITS = Limits(retained_publications=20, window=8, segment=8)


def body(number: int) -> bytes:
    return f"p{number}".encode()


def run(first: int, stop: int) -> tuple[list[Digest], list[bytes]]:
    contents = [body(number) for number in range(first, stop)]
    return [digest(each) for each in contents], contents


def ledger(*parts: tuple[int, int], limits: Limits = LIMITS) -> RelayLedger:
    """A ledger that holds these ranges, each from a number to before another."""
    made = RelayLedger(limits)
    for first, stop in parts:
        made.leave_out(first - 1)
        made.extend(*run(first, stop))
    return made


def carrier(limits: Limits = LIMITS) -> RelayCarrier:
    plans = (
        CellPlan("top", Policy.named("ab"), n=4),
        CellPlan("leaf", Policy.named("relay", limits=limits), parent="top"),
    )
    manifest = manifest_of(plans[1], plans)
    view = View(manifest, manifest.keyring(identity_in("leaf", B1)))
    return RelayCarrier(STREAM, CarrierContext(view, plans[1].policy, lambda _: ()))


def relayed(first: int, *contents: bytes) -> Relayed:
    return Relayed(STREAM, first, digests(*contents), contents)


def numbers(held: RelayLedger) -> list[int]:
    """What a reader that replays everything gets."""
    found: list[int] = []
    while (part := held.read(found[-1] + 1 if found else 1, 1024, 2**30)) is not None:
        assert split_digests(part.digests) == [digest(each) for each in part.bodies]
        found += range(part.first, part.first + len(part.bodies))
        assert list(part.bodies) == [body(n) for n in range(part.first, found[-1] + 1)]
    return found


def test_what_lies_before_and_behind_a_hole_is_read() -> None:
    held = ledger((1, 4), (6, 8))
    assert (held.base, held.next, held.holes, held.whole_from) == (1, 8, (range(4, 6),), 6)
    assert numbers(held) == [1, 2, 3, 6, 7]
    assert [held.behind_hole(number) for number in range(3, 7)] == [0, 6, 6, 0]
    assert [held.digest(number) is None for number in range(3, 7)] == [False, True, True, False]
    assert held.digests(2, 3) is None
    assert held.digests(1, 3) == digests(b"p1", b"p2", b"p3")
    assert held.digests(6, 2) == digests(b"p6", b"p7")


def test_hole_counts_for_retention_and_goes_as_a_whole() -> None:
    held = ledger((1, 4), (10, 21))
    assert (held.base, held.quota.publications, held.quota.written) == (1, 20, 14)
    held.extend(*run(21, 25))
    assert (held.base, held.next, held.holes) == (10, 25, ())
    assert (held.floor, held.quota.publications) == (10, 15)


def test_two_gaps_in_a_row_are_one_hole() -> None:
    held = ledger((1, 4))
    held.leave_out(5)
    held.leave_out(8)
    assert (held.holes, held.behind_hole(4), numbers(held)) == ((range(4, 9),), 9, [1, 2, 3])


def test_hole_at_the_end_is_no_beginning() -> None:
    held = ledger((1, 4))
    held.leave_out(6)
    assert (held.next, held.whole_from, numbers(held)) == (7, 7, [1, 2, 3])
    held.leave_out(3)
    assert held.next == 7


@pytest.mark.parametrize("upto", [3 + 21, 10**12])
def test_ledger_begins_anew_behind_a_hole_larger_than_what_is_retained(upto: int) -> None:
    held = ledger((1, 4))
    held.leave_out(upto)
    assert (held.base, held.next, held.holes, len(held)) == (upto + 1, upto + 1, (), 0)


def test_hole_takes_a_bounded_amount_of_memory() -> None:
    held = ledger((1, 4), limits=Limits(retained_publications=10**9))
    held.leave_out(3 + MAX_HOLE)
    assert len(held) == 3 + MAX_HOLE
    held.extend(*run(held.next, held.next + 1))
    held.leave_out(held.next + MAX_HOLE)
    assert (len(held), held.holes) == (0, ())


def test_holes_are_bounded_and_the_oldest_goes_first() -> None:
    parts = [(first, first + 1) for first in range(1, 2 * MAX_HOLES + 10, 2)]
    held = ledger(*parts, limits=Limits())
    assert len(held.holes) == MAX_HOLES
    assert held.base == held.holes[0].start - 1


def test_hole_that_becomes_two_drives_out_the_oldest() -> None:
    parts = [(first, first + 1) for first in range(1, 4 * MAX_HOLES + 2, 4)]
    held = ledger(*parts, limits=Limits())
    assert len(held.holes) == MAX_HOLES
    middle = held.holes[-1].start + 1
    held.fill(middle, *run(middle, middle + 1))
    assert (len(held.holes), held.base) == (MAX_HOLES, 5)
    assert numbers(held) == [*range(5, middle, 4), middle, held.next - 1]


def test_hole_is_filled_in_parts() -> None:
    held = ledger((1, 3), (9, 10))
    held.fill(7, *run(7, 9))
    assert (held.holes, numbers(held)) == ((range(3, 7),), [1, 2, 7, 8, 9])
    held.fill(4, *run(4, 6))
    assert (held.holes, numbers(held)) == ((range(3, 4), range(6, 7)), [1, 2, 4, 5, 7, 8, 9])
    held.fill(1, *run(1, 10))
    assert (held.holes, numbers(held)) == ((), [*range(1, 10)])
    assert held.quota.held_bytes == sum(len(body(number)) for number in range(1, 10))


def test_others_bring_what_lies_in_the_last_hole_and_before_the_ledger() -> None:
    made = carrier()
    for first in (5, 9):
        made.take(relayed(first, body(first), body(first + 1)))
    assert (made.final_from, made.ledger.room) == (9, 20 - 6 + 4)
    assert made.recover(3, *run_of_bodies(3, 9))
    assert (made.final_from, made.ledger.base, numbers(made.ledger)) == (3, 3, [*range(3, 11)])
    assert not made.recover(1, *run_of_bodies(1, 2))
    assert made.recover(11, *run_of_bodies(11, 12))
    assert made.ledger.next == 12
    assert not made.recover(14, *run_of_bodies(14, 15))  # not next: 12 would get its contents
    assert made.ledger.next == 12


def run_of_bodies(first: int, stop: int) -> tuple[list[Digest], tuple[bytes, ...]]:
    made, contents = run(first, stop)
    return made, tuple(contents)


def test_carrier_vouches_once_for_what_is_new() -> None:
    made = carrier()
    assert made.take(relayed(1, b"p1", b"p2")) == [Vouch(STREAM, 1, digests(b"p1", b"p2"))]
    assert made.take(relayed(1, b"p1", b"p2")) == []
    assert made.take(relayed(2, b"p2", b"p3")) == [Vouch(STREAM, 3, digests(b"p3"))]
    assert made.take(relayed(6, b"p6")) == [Vouch(STREAM, 6, digests(b"p6"))]
    assert made.sizes() == {"ledger": 6, "holes": 1}
    assert (made.credit, made.settled, made.final) == (0, 0, 6)


def test_carrier_does_not_vouch_for_two_contents() -> None:
    made = carrier()
    made.take(relayed(1, b"p1"))
    assert made.take(relayed(1, b"other")) == [Drop(DropReason.CONFLICT, ALICE)]
    assert numbers(made.ledger) == [1]


def test_empty_carrier_begins_where_the_parent_still_does() -> None:
    made = carrier()
    made.resume(50)  # others are there, and brought nothing
    made.take(relayed(40, *map(body, range(40, 52))))
    assert numbers(made.ledger) == [*range(40, 52)]


def test_carrier_never_begins_before_what_it_released() -> None:
    made = carrier()
    made.begin_at(50)
    made.take(relayed(40, *map(body, range(40, 52))))
    assert numbers(made.ledger) == [50, 51]


def test_ledger_that_begins_anew_holds_nothing_and_keeps_its_floor() -> None:
    held = ledger((1, 4), (6, 30))
    floor = held.floor
    held.begin_anew()
    assert (len(held), held.base, held.next, held.holes) == (0, floor, floor, ())
    assert (held.quota.publications, held.quota.held_bytes) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("elffr"), st.integers(1, 12)), max_size=25))
def test_ledger_reads_as_a_plain_dictionary(steps: list[tuple[str, int]]) -> None:
    held = RelayLedger(Limits(retained_publications=30, window=8, segment=8))
    plain: dict[int, bytes] = {}
    for kind, count in steps:
        if kind == "e":
            plain |= {number: body(number) for number in range(held.next, held.next + count)}
            held.extend(*run(held.next, held.next + count))
        elif kind == "l":
            held.leave_out(held.next + count - 1)
        elif kind == "f" and held.holes:
            hole = held.holes[count % len(held.holes)]
            first = max(hole.start, hole.stop - count)
            held.fill(first, *run(first, hole.stop))
            plain |= {number: body(number) for number in range(first, hole.stop)}
        elif kind == "r" and len(held):
            held.let_go(min(count, len(held)))
        plain = {number: each for number, each in plain.items() if number >= held.base}
        assert numbers(held) == sorted(plain)
        assert held.quota.publications == len(held) == held.next - held.base
        assert held.quota.held_bytes == sum(map(len, plain.values()))
        assert all(held.base < hole.start < hole.stop <= held.next for hole in held.holes)
        assert all(hole.stop < later.start for hole, later in pairwise(held.holes))
