"""What decided batches make of positions: exactly once, alike everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import ALICE, ORDERS, STREAM
from tests.support.ordering import BOBS, begun, item

from quorumcast.core.ids import Channel, Stream
from quorumcast.ordering.messages import Batch
from quorumcast.ordering.state import (
    CHUNK_BYTES,
    STREAMS_KEPT,
    Head,
    State,
    chained,
    cut,
    digest_of,
    extent_root,
    root_of,
)

TRADES = Stream(Channel("trades"), ALICE, 1)


def state() -> State:
    return begun()


def places(state: State, *batch: object) -> list[tuple[Stream, int, int]]:
    """Stream, first and position of everything that a batch placed."""
    return [
        (e.stream, e.first, e.position)
        for e in state.apply(batch)  # type: ignore[arg-type]
    ]


def test_apply_gives_positions_in_the_order_of_the_batch() -> None:
    made = state()
    assert places(made, item(1, b"a", b"b"), item(1, b"x", stream=BOBS)) == [
        (STREAM, 1, 1),
        (BOBS, 1, 3),
    ]
    assert (made.head(ORDERS).next, made.served) == (4, {STREAM: 2, BOBS: 1})


def test_apply_channels_have_positions_of_their_own() -> None:
    made = state()
    made.apply((item(1, b"a"), item(1, b"t", stream=TRADES)))
    assert (made.head(ORDERS).next, made.head(TRADES.channel).next) == (2, 2)
    assert made.head(Channel("nowhere")) == Head()


def test_apply_of_what_was_ordered_before_does_nothing() -> None:
    made = state()
    batch: Batch = (item(1, b"a"), item(1, b"x", stream=BOBS))
    made.apply(batch)
    before = made.image()
    assert places(made, *batch, *batch) == []
    assert made.image() == before


def test_apply_of_a_run_that_was_cut_anew_places_nothing() -> None:
    """Only a lying publisher cuts anew; two offers of one number would fight for one place."""
    made = state()
    made.apply((item(1, b"a", b"b"),))
    assert places(made, item(2, b"b", b"c", b"d"), item(1, b"a", b"b", b"c")) == []
    assert made.served == {STREAM: 2}
    assert made.takes((item(2, b"b", b"c"), item(3, b"c"))) == [item(3, b"c")]


def test_apply_of_a_run_with_a_gap_before_it_waits() -> None:
    made = state()
    assert places(made, item(2, b"b")) == []
    assert places(made, item(1, b"a"), item(2, b"b")) == [
        (STREAM, 1, 1),
        (STREAM, 2, 2),
    ]


def test_apply_twice_in_one_batch_counts_once() -> None:
    assert len(places(state(), item(1, b"a"), item(1, b"a"), item(1, b"other"))) == 1


def incarnation(number: int) -> Stream:
    return msgspec.structs.replace(STREAM, incarnation=number)


def test_incarnations_beyond_the_newest_few_are_over() -> None:
    made = state()
    for number in range(1, STREAMS_KEPT + 3):
        made.apply((item(1, b"a", stream=incarnation(number)),))
    assert [s.incarnation for s in made.served] == list(range(3, STREAMS_KEPT + 3))
    assert [made.over(incarnation(n)) for n in (1, 2, 3)] == [True, True, False]
    assert places(made, item(2, b"b", stream=incarnation(2))) == []
    assert places(made, item(2, b"b", stream=incarnation(3))) != []


def test_incarnation_that_is_over_cannot_be_ordered_again_from_the_start() -> None:
    """Its numbers are forgotten: without `over` everything in it would be ordered twice."""
    made = state()
    for number in range(1, STREAMS_KEPT + 2):
        made.apply((item(1, b"a", stream=incarnation(number)),))
    assert places(made, item(1, b"a", stream=incarnation(1))) == []


def test_incarnations_of_others_are_not_touched() -> None:
    made = state()
    made.apply((item(1, b"x", stream=BOBS), item(1, b"t", stream=TRADES)))
    for number in range(1, 3 * STREAMS_KEPT):
        made.apply((item(1, b"a", stream=incarnation(number)),))
    assert {BOBS, TRADES} <= made.served.keys()


class Unwalked(dict[Stream, int]):
    """What may be asked for one stream, and not be searched."""

    def __iter__(self) -> Iterator[Stream]:
        raise AssertionError("the cost of a new stream must not grow with those of others")


def test_new_stream_is_begun_without_a_search_through_those_of_others() -> None:
    """Nobody is charged for what is executed: a liar with many streams would slow all brokers."""
    made = state()
    made.served = Unwalked()
    for number in range(1, STREAMS_KEPT + 3):
        made.apply((item(1, b"a", stream=incarnation(number)),))
    assert len(made.served) == STREAMS_KEPT
    assert made.newest(incarnation(1)) == STREAMS_KEPT + 2


def test_state_that_was_taken_over_retires_the_same_incarnations() -> None:
    made, taken = state(), state()
    for number in range(1, STREAMS_KEPT + 1):
        made.apply((item(1, b"a", stream=incarnation(number)),))
    assert taken.load(made.image())
    for either in (made, taken):
        either.apply((item(1, b"a", stream=incarnation(STREAMS_KEPT + 1)),))
    assert taken.image() == made.image()
    assert taken.newest(STREAM) == STREAMS_KEPT + 1


def test_extents_name_the_chain_of_everything_before_them() -> None:
    made, chain = state(), b""
    for number in range(1, 4):
        run = item(number, b"%d" % number)
        (extent,) = made.apply((run,))
        assert (extent.position, extent.chain) == (number, chain)
        chain = chained(chain, extent_root(run.digests))
    assert made.head(ORDERS) == Head(4, chain)


def test_image_does_not_grow_with_what_was_ordered() -> None:
    made = state()
    made.apply((item(1, b"1"),))
    size = len(made.image())
    for number in range(2, 100):
        made.apply((item(number, b"%d" % number),))
    assert len(made.image()) == size


# ------------------------------------------------------------------- images


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    streams = [incarnation(n) for n in range(7)] + [BOBS, TRADES]
    runs = st.builds(
        lambda stream, first, length: item(first, *[b"c"] * length, stream=stream),
        st.sampled_from(streams),
        st.integers(1, 4),
        st.integers(1, 3),
    )
    return draw(st.lists(st.lists(runs, max_size=4).map(tuple), max_size=12))


@given(batches())
def test_image_adopted_is_the_same_state_and_goes_on_alike(found: list[Batch]) -> None:
    one, other = state(), state()
    for batch in found[:6]:
        one.apply(batch)
    assert other.load(one.image())
    assert other.image() == one.image()
    for batch in found[6:]:
        assert one.apply(batch) == other.apply(batch)
    assert other.image() == one.image()


@given(batches())
def test_positions_have_no_gap_and_no_publication_twice(found: list[Batch]) -> None:
    made = state()
    seen: set[tuple[Stream, int]] = set()
    for batch in found:
        before = dict(made.heads)
        placed = made.apply(batch)
        for channel in (ORDERS, TRADES.channel):
            mine = [extent for extent in placed if extent.stream.channel == channel]
            bounds = [extent.position for extent in mine] + [made.head(channel).next]
            assert bounds[0] == before.get(channel, Head()).next
            for extent, stop in zip(mine, bounds[1:], strict=True):
                numbers = range(extent.first, extent.first + stop - extent.position)
                fresh = {(extent.stream, number) for number in numbers}
                assert fresh
                assert not fresh & seen
                seen |= fresh


def test_image_depends_on_contents_and_not_on_the_way_there() -> None:
    one, other, third = state(), state(), state()
    one.apply((item(1, b"a"), item(2, b"b")))
    other.apply((item(1, b"a"),))
    other.apply((item(2, b"b"),))
    third.apply((item(1, b"a"), item(2, b"x")))
    assert one.image() == other.image()
    assert one.head(ORDERS).chain != third.head(ORDERS).chain


def test_image_does_not_depend_on_the_order_of_dictionaries() -> None:
    one, other = state(), state()
    one.apply((item(1, b"t", stream=TRADES), item(1, b"a")))
    other.apply((item(1, b"a"), item(1, b"t", stream=TRADES)))
    assert one.image() == other.image()


@pytest.mark.parametrize("image", [b"", b"nonsense", b"\xc0"])
def test_adopt_of_what_is_no_image_changes_nothing(image: bytes) -> None:
    made = state()
    made.apply((item(1, b"a"),))
    before = made.image()
    assert not made.load(image)
    assert made.image() == before


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_cut_image_joins_again(size: int) -> None:
    image = bytes(size)
    chunks = cut(image)
    assert b"".join(chunks) == image
    assert len(chunks) == max(1, -(-size // CHUNK_BYTES))


def test_root_stands_for_every_chunk() -> None:
    digests = tuple(map(digest_of, (b"a", b"b")))
    assert root_of(digests) != root_of(digests[::-1])
    assert root_of(digests) != root_of(digests[:1])
