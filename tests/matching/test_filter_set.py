"""Filters that come and go match as each of them would alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.core.envelope import write_envelope
from quorumcast.core.publication import encode_batch
from quorumcast.crypto.digest import hasher
from quorumcast.matching.filter import Filter, make_filter
from quorumcast.matching.indexing.filter_set import FilterSet
from quorumcast.matching.selection import OpenedRun

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
digest_of = hasher("sha256")


def filter_of(number: int) -> Filter:
    texts = [
        f"key = {number % 7}",
        f"key > {number % 5} AND key < {number % 5 + 3}",
        f"text LIKE 't{number % 3}%'",
        f"key != {number}",
    ]
    return make_filter(
        [f"({texts[number % 4]}) AND key != {100 + number}"], SCHEMA, "the predicate"
    )


#: Different texts may mean the same.
FILTERS = list({one.id: one for one in map(filter_of, range(100))}.values())[:60]


def batch_of(draw: random.Random, rows: int) -> pa.RecordBatch:
    found = [{"key": draw.randrange(9), "text": f"t{draw.randrange(4)}"} for _ in range(rows)]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


def matches(filters: FilterSet, batch: pa.RecordBatch) -> dict[bytes, list[int]]:
    found = [(one.id, rows.tolist()) for one, rows in filters.match(batch)]
    assert len(dict(found)) == len(found), "each filter is named once"
    return dict(found)


@given(st.integers(0, 2**32), st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_filters_that_come_and_go_match_as_alone(seed: int, changes: int) -> None:
    draw = random.Random(seed)
    filters = FilterSet()
    there: dict[bytes, Filter] = {}
    leaving = draw.random()
    for _ in range(changes):
        one = draw.choice(FILTERS)
        if draw.random() < leaving:
            filters.discard(one.id)
            there.pop(one.id, None)
        else:
            filters.add(one)
            there[one.id] = one
        assert set(filters) == set(there)
        assert len(filters) == len(there)
    batch = batch_of(draw, 12)
    alone = {name: one.rows(batch).tolist() for name, one in there.items()}
    assert matches(filters, batch) == {name: rows for name, rows in alone.items() if rows}


def test_indexes_stay_few() -> None:
    filters = FilterSet()
    for one in FILTERS:
        filters.add(one)
        filters.add(one)
        sizes = [part.size for part in filters._parts]
        assert all(2 * after < before for before, after in pairwise(sizes))
    assert len(filters) == 60
    for one in FILTERS:
        assert one.id in filters
        filters.discard(one.id)
        filters.discard(one.id)
        assert sum(part.size for part in filters._parts) <= 2 * len(filters)
    assert matches(filters, batch_of(random.Random(1), 5)) == {}


def test_filter_that_comes_back_matches_again() -> None:
    filters = FilterSet()
    for one in FILTERS:
        filters.add(one)
    batch = batch_of(random.Random(1), 20)
    before = matches(filters, batch)
    name = next(iter(before))
    filters.discard(name)
    assert matches(filters, batch) == {key: rows for key, rows in before.items() if key != name}
    filters.add(next(one for one in FILTERS if one.id == name))
    assert matches(filters, batch) == before


@given(st.integers(0, 2**32))
@settings(max_examples=8, deadline=None)
def test_all_filters_select_what_each_selects_alone(seed: int) -> None:
    draw = random.Random(seed)
    bodies = [
        encode_batch(batch_of(draw, draw.choice([0, 1, 5, 50])), write_envelope(1))
        for _ in range(draw.randrange(6))
    ]
    bodies.insert(draw.randint(0, len(bodies)), b"nonsense")
    run = OpenedRun(SCHEMA, b"".join(map(digest_of, bodies)), bodies)
    filters = FilterSet()
    for one in FILTERS[:30]:
        filters.add(one)
    chosen = run.select_all(filters)
    assert len(chosen) == 30
    for one in FILTERS[:30]:
        alone, together = run.select(one), chosen[one.id]
        assert (alone.votes, alone.places) == (together.votes, together.places)
        assert [alone.body(p) for p in alone.places] == [together.body(p) for p in alone.places]
        assert alone.rows_looked_at == together.rows_looked_at


def test_filters_that_are_added_together_are_indexed_once() -> None:
    many = FilterSet()
    many.add(*FILTERS, *FILTERS[:3])
    assert len(many) == len(FILTERS)
    assert [part.size for part in many._parts] == [len(FILTERS)]
    batch = batch_of(random.Random(1), 200)
    found = {one.id: rows.tolist() for one, rows in many.match(batch)}
    assert found == {one.id: rows for one in FILTERS if (rows := one.rows(batch).tolist())}
    many.discard(FILTERS[0].id)
    many.add(*FILTERS[:2])
    assert [part.size for part in many._parts] == [len(FILTERS)]
    assert FILTERS[0].id in many
