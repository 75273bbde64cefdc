"""Events of the benchmark: made and checked in blocks, and every kind of damage is noticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.bench.events import (
    HEAD,
    LANE_SHIFT,
    LaneCheck,
    as_batch,
    check_size,
    checksum,
    filler,
    make_block,
    sent_times,
    split,
)
from quorumcast.core.errors import UsageError

SIZES = st.sampled_from([24, 32, 56, 57, 100, 256])


def plainly(lane: int, first: int, count: int, size: int, sent_ns: int) -> bytes:
    places = [lane << LANE_SHIFT | number for number in range(first, first + count)]
    return b"".join(
        HEAD.pack(place, checksum(place, sent_ns), sent_ns) + filler(size) for place in places
    )


@given(
    lane=st.integers(0, 1000),
    first=st.integers(1, 2**39),
    count=st.integers(1, 70),
    size=SIZES,
    sent=st.integers(0, 2**62),
)
def test_block_equals_its_plain_twin(
    lane: int, first: int, count: int, size: int, sent: int
) -> None:
    assert make_block(lane, first, count, size, sent) == plainly(lane, first, count, size, sent)


@given(count=st.integers(1, 40), size=SIZES)
def test_block_as_batch_has_the_same_payloads(count: int, size: int) -> None:
    block = make_block(3, 1, count, size, 99)
    assert as_batch(block, size).column(0).to_pylist() == split(block, size)
    assert sent_times(block, size, 1) == [99] * count
    later = make_block(3, count + 1, 1, size, 100)
    assert sent_times(block + later, size, count) == [99, 100]


@pytest.mark.parametrize("size", [56, 57])
def test_check_blocks_in_order_accepts_all(size: int) -> None:
    check = LaneCheck(7, size)
    for first, count in ((1, 10), (11, 1), (12, 200)):
        check.check(make_block(7, first, count, size, first))
    assert check.counts.accepted == 211
    assert not check.counts.duplicated + check.counts.altered + check.counts.disordered


@given(byte=st.integers(0, 56 * 20 - 1), flip=st.integers(1, 255))
def test_check_one_flipped_byte_is_altered(byte: int, flip: int) -> None:
    block = bytearray(make_block(7, 1, 20, 56, 5))
    block[byte] ^= flip
    check = LaneCheck(7, 56)
    check.check(bytes(block))
    assert (check.counts.accepted, check.counts.altered) == (19, 1)


@given(order=st.permutations(range(1, 9)), repeated=st.lists(st.integers(1, 8), max_size=5))
def test_check_any_order_counts_every_event_once(order: list[int], repeated: list[int]) -> None:
    check = LaneCheck(0, 56)
    for number in [*order, *repeated]:
        check.check(make_block(0, number, 1, 56, 1))
    assert check.counts.accepted == 8
    assert check.counts.duplicated == len(repeated)
    assert bool(check.counts.disordered) == (order != sorted(order))


def test_check_a_gap_and_another_lane_are_noticed() -> None:
    check = LaneCheck(1, 56)
    check.check(make_block(1, 1, 5, 56, 1) + make_block(1, 7, 5, 56, 1))
    check.check(make_block(2, 6, 1, 56, 1))
    assert (check.counts.accepted, check.counts.altered) == (10, 1)


def test_size_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="choose a size of 24"):
        check_size(23)
