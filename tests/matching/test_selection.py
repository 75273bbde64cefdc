"""Runs are opened once; votes are nothing, whole, or the digest of a cut."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.core.cuts import looks_cut
from quorumcast.core.envelope import write_envelope
from quorumcast.core.errors import InvariantError
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, Channel, NodeId, Stream, split_digests
from quorumcast.core.labels import label
from quorumcast.core.limits import MAX_MATCHED_ROWS
from quorumcast.core.publication import encode_batch
from quorumcast.crypto.digest import hasher
from quorumcast.matching import selection
from quorumcast.matching.cut import decode_cut
from quorumcast.matching.evaluate import Rows
from quorumcast.matching.selection import OpenedRun, Selected

ENVELOPE = write_envelope(1_700_000_000_000_000)
SCHEMA = pa.schema(
    [pa.field("n", pa.int64()), pa.field("text", pa.string()), pa.field("late", pa.int64())]
)
digest_of = hasher("sha256")


class Those:
    """A filter that selects rows by the number in their first column."""

    def __init__(self, wanted: Callable[[int], bool]) -> None:
        self._wanted = wanted
        self.batches: list[int] = []

    def rows(self, batch: pa.RecordBatch) -> Rows:
        self.batches.append(batch.num_rows)
        numbers = batch.column(0).to_pylist()
        return np.array([i for i, n in enumerate(numbers) if self._wanted(n)], np.uint32)


def body(numbers: list[int], *, late: bool = False, head: bytes = ENVELOPE) -> bytes:
    rows = [{"n": n, "text": "x" * 20, "late": n if late else None} for n in numbers]
    return encode_batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), head)


def run_of(bodies: list[bytes], *, labelled: bool = False) -> OpenedRun:
    return OpenedRun(SCHEMA, b"".join(map(digest_of, bodies)), bodies, labelled=labelled)


def found_in(selected: Selected, bodies: list[bytes]) -> list[list[int] | None]:
    """The numbers that were selected of each body; None if it went whole."""
    found: list[list[int] | None] = []
    votes = split_digests(selected.votes)
    assert len(votes) == len(bodies)
    for place, (vote, whole) in enumerate(zip(votes, bodies, strict=True)):
        assert (vote != NOTHING) == (place in selected.places)
        if vote == NOTHING:
            found.append([])
        elif vote == digest_of(whole):
            assert selected.body(place) == whole
            assert selected.rows(place) is None
            found.append(None)
        else:
            cut = decode_cut(selected.body(place), SCHEMA)
            assert cut is not None
            assert cut.digest == vote
            rows = selected.rows(place)
            assert rows is not None
            assert rows.tolist() == cut.rows.tolist()
            assert cut.total == selected.total(place)
            found.append(cut.batch.column(0).to_pylist())
    return found


def test_votes_are_nothing_whole_or_a_cut() -> None:
    bodies = [body([1] * 9), body([*range(100)]), body([3] * 9), b"nonsense", body([]), body([3])]
    wanted = Those(lambda n: n % 50 == 3)
    selected = run_of(bodies).select(wanted)
    assert found_in(selected, bodies) == [[], [3, 53], None, None, [], None]
    assert selected.places == [1, 2, 3, 5]
    assert selected.rows_looked_at == 119
    assert [selected.total(place) for place in range(6)] == [9, 100, 9, None, 0, 1]
    assert looks_cut(selected.body(1))


def test_short_batches_are_evaluated_at_once() -> None:
    bodies = [body([n]) for n in range(50)]
    wanted = Those(lambda n: n in (7, 30))
    assert run_of(bodies).select(wanted).places == [7, 30]
    assert wanted.batches == [50]


def test_joined_rows_are_bounded() -> None:
    bodies = [body([5] * 4000)] * 20
    wanted = Those(lambda n: False)
    assert run_of(bodies).select(wanted).places == []
    assert sum(wanted.batches) == 80_000
    assert max(wanted.batches) <= MAX_MATCHED_ROWS


def test_older_publications_take_no_memory_for_columns_that_they_lack() -> None:
    older = pa.schema([SCHEMA.field(0)])
    many = pa.schema([SCHEMA.field(0), *(pa.field(f"x{n}", pa.int64()) for n in range(300))])
    short = pa.RecordBatch.from_pylist([{"n": n} for n in range(4000)], schema=older)
    bodies = [encode_batch(short, ENVELOPE)] * 16
    before = pa.total_allocated_bytes()
    run = OpenedRun(many, b"".join(map(digest_of, bodies)), bodies)
    assert run.select(Those(lambda n: False)).rows_looked_at == 64_000
    assert pa.total_allocated_bytes() - before < 4 * sum(map(len, bodies))


def test_labelled_publications_are_selected() -> None:
    head = label(Stream(Channel("orders"), NodeId("alice"), 8), 5) + ENVELOPE
    bodies = [body([*range(30)], head=head), body([1], head=head)]
    selected = run_of(bodies, labelled=True).select(Those(lambda n: n == 4))
    assert found_in(selected, bodies) == [[4], []]
    assert run_of(bodies).select(Those(lambda n: n == 4)).places == [0, 1], "whole: no envelope"


def test_run_with_too_few_digests_is_refused() -> None:
    with pytest.raises(InvariantError):
        OpenedRun(SCHEMA, bytes(DIGEST_SIZE), [b"", b""])


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_selection_of_a_selection_is_the_selection(seed: int, count: int, factor: int) -> None:
    """A narrower filter selects the same of cuts as of publications, in runs of both."""
    draw = random.Random(seed)
    bodies = [
        body(
            [draw.randrange(30) for _ in range(draw.choice([0, 1, 12, 40]))],
            late=draw.random() < 0.5,
        )
        for _ in range(count)
    ]
    bodies.append(b"nonsense")
    wide, narrow = Those(lambda n: n % factor == 0), Those(lambda n: n % (2 * factor) == 0)
    first = run_of(bodies).select(wide)
    direct = run_of(bodies).select(narrow)
    kept = first.places
    digests = split_digests(first.votes)
    publications = [digest_of(whole) for whole in bodies]
    for known in (digests, publications):
        run = OpenedRun(SCHEMA, b"".join(known[p] for p in kept), [first.body(p) for p in kept])
        again = run.select(narrow)
        assert split_digests(again.votes) == [split_digests(direct.votes)[p] for p in kept]
        assert [kept[place] for place in again.places] == direct.places
        for place in again.places:
            assert again.body(place) == direct.body(kept[place])
            assert again.total(place) == direct.total(kept[place])


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_votes_do_not_depend_on_how_publications_are_joined(seed: int) -> None:
    draw = random.Random(seed)
    bodies = [body([draw.randrange(9) for _ in range(draw.randrange(60))]) for _ in range(6)]
    wanted = Those(lambda n: n == 4)
    together = run_of(bodies).select(wanted)
    alone = b"".join(run_of([one]).select(wanted).votes for one in bodies)
    assert together.votes == alone


def test_long_batches_are_evaluated_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_LONG", 10)
    bodies = [body([1, 2]), body([*range(20)]), body([2])]
    wanted = Those(lambda n: n == 2)
    selected = run_of(bodies).select(wanted)
    assert found_in(selected, bodies) == [[2], [2], None]
    assert sorted(wanted.batches) == [3, 20]


def test_long_texts_count_as_many_rows() -> None:
    """A pattern reads every byte: a text of a megabyte takes as long as 16,000 short ones."""
    short, batch = (
        body([1, 2]),
        pa.RecordBatch.from_pylist([{"n": 1, "text": "x" * 2**20, "late": None}], schema=SCHEMA),
    )
    assert run_of([short]).effort == 2
    assert run_of([short, encode_batch(batch, ENVELOPE)]).effort >= 2 + 2**14
