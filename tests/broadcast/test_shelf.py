"""The shelf against a plain twin: a dictionary by number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cells import digest

from quorumcast.broadcast import shelf
from quorumcast.broadcast.shelf import Shelf

STEPS = st.lists(
    st.tuples(st.sampled_from(["extend", "prepend", "drop", "cut", "correct"]), st.integers(0, 9)),
    max_size=40,
)


@given(start=st.integers(50, 60), steps=STEPS)
def test_shelf_holds_what_a_dictionary_would(start: int, steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "SLACK", 4)
        held, twin, stop = Shelf(start), dict[int, bytes](), start
        for step, (action, count) in enumerate(steps):
            match action:
                case "extend":
                    run = [b"%d+%d" % (step, n) for n in range(count)]
                    held.extend([digest(body) for body in run], run)
                    twin.update(enumerate(run, stop))
                    stop += count
                case "prepend":
                    run = [b"%d-%d" % (step, n) for n in range(min(count, start))]
                    held.prepend([digest(body) for body in run], run)
                    start -= len(run)
                    twin = dict(enumerate(run, start)) | twin
                case "drop":
                    count = min(count, stop - start)
                    held.drop(count)
                    for number in range(start, start + count):
                        del twin[number]
                    start += count
                case "cut":
                    count = min(count, stop - start)
                    held.cut(count)
                    for number in range(stop - count, stop):
                        del twin[number]
                    stop -= count
                case "correct" if start + count < stop:
                    twin[start + count] = b"%d" % step
                    held.correct(start + count, digest(b"%d" % step), b"%d" % step)
            assert (held.start, len(held)) == (start, len(twin))
            assert held.bodies(start, stop) == [twin[n] for n in range(start, stop)]
            digests = [digest(twin[n]) for n in range(start, stop)]
            assert held.digests(start, stop) == b"".join(digests)
            assert held.size(start, stop) == sum(map(len, twin.values()))
            for number in (start - 1, start, stop - 1, stop):
                assert held.digest(number) == (digest(twin[number]) if number in twin else None)


def test_shelf_keeps_no_contents_that_were_dropped() -> None:
    held, large = Shelf(1), bytes(1_000_000)
    held.extend([digest(large)] * 10, [large] * 10)
    held.drop(9)
    assert sum(map(len, held._bodies)) == len(large)


def test_shelf_keeps_few_empty_places() -> None:
    held = Shelf(1)
    for _ in range(100):
        held.extend([digest(b"p")] * 100, [b"p"] * 100)
        if len(held) > 1000:
            held.drop(100)
    assert len(held._bodies) <= 1000 + shelf.SLACK + 100
