"""Filters: what one node asks of one channel."""

import numpy as np
import pyarrow as pa
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_FILTER_TEXT, MAX_PREDICATES
from quorumcast.matching.filter import make_filter
from quorumcast.matching.indexing.filter_set import IndexedFilter
from quorumcast.matching.predicate import parse_predicate

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])
BATCH = pa.RecordBatch.from_pylist(
    [{"id": row, "name": f"n{row}"} for row in range(10)], schema=SCHEMA
)
WHO = "the predicate"


def test_filter_passes_rows_that_one_of_its_predicates_selects() -> None:
    found = make_filter(("id < 3", "name = 'n7'", "id = 1 and name = 'x'"), SCHEMA, WHO)
    assert found.rows(BATCH).tolist() == [0, 1, 2, 7]
    assert found.rows(BATCH.slice(0, 0)).tolist() == []


def test_filter_id_depends_on_predicates_and_columns_alone() -> None:
    ids = [make_filter(texts, SCHEMA, WHO).id for texts in (("id < 3", "id = 7"), ("id = 7",))]
    again = make_filter(("id = 7", "ID <= 2", "not id != 7"), SCHEMA, WHO)
    assert again.id == ids[0] != ids[1]
    assert len(again.predicates) == 2
    for kind in (("name", pa.binary()), ("title", pa.string())):
        wider = pa.schema([("id", pa.int32()), kind])
        assert make_filter(("id < 3", "id = 7"), wider, WHO).id != again.id


def test_filter_has_a_bounded_number_of_predicates() -> None:
    texts = tuple(f"id = {number}" for number in range(MAX_PREDICATES))
    assert len(make_filter(texts, SCHEMA, WHO).predicates) == MAX_PREDICATES
    with pytest.raises(UsageError, match="at most 1,024 on a channel: join some"):
        make_filter((*texts, "TRUE"), SCHEMA, WHO)
    with pytest.raises(UsageError, match="name at least one"):
        make_filter((), SCHEMA, WHO)


def test_filter_says_of_a_single_long_predicate_how_long_one_may_be() -> None:
    with pytest.raises(UsageError, match=r"^the predicate is longer than 32,768 bytes"):
        make_filter(("id = 7".ljust(MAX_FILTER_TEXT + 1),), SCHEMA, WHO)


def test_filter_has_a_bounded_text() -> None:
    text = "name in (" + ", ".join(["'x'"] * 1500) + ")"
    texts = (text + " " * (MAX_FILTER_TEXT // 4 - len(text)),) * 4
    assert make_filter(texts, SCHEMA, WHO).predicates
    with pytest.raises(UsageError, match="at most 65,536 on a channel: ask for more rows"):
        make_filter((*texts, "TRUE"), SCHEMA, WHO)


def test_filter_of_many_indexable_predicates_is_not_costly() -> None:
    many = make_filter([f"name = 'n{number}'" for number in range(500)], SCHEMA, WHO)
    assert many.plain.rows_us > many.indexed.rows_us
    assert not many.is_costly


def test_filter_that_takes_long_says_so() -> None:
    patterns = tuple(f"name like '%{number}_%'" for number in range(20))
    assert make_filter(patterns, SCHEMA, WHO).is_costly
    assert not make_filter(("id = 1", "name = 'n1'"), SCHEMA, WHO).is_costly


def test_filter_of_many_predicates_has_few_conjunctions_that_find_the_same_rows() -> None:
    """An AND of ORs multiplies: 600 of them, in 64 KiB, made 38,528 conjunctions."""
    schema = pa.schema([(name, pa.int64()) for name in "abcdefghijkl"])
    texts = [
        " AND ".join(f"({x} = {n} OR {y} = {n})" for x, y in zip("acegik", "bdfhjl", strict=True))
        for n in range(300)
    ]
    many = make_filter(texts, schema, "the predicate")
    assert sum(len(one.conjunctions) for one in many.predicates) <= 4096
    assert len(parse_predicate(texts[0], schema, "the predicate").conjunctions) == 64
    rows = np.random.default_rng(1).integers(0, 3, (12, 50))
    batch = pa.record_batch([pa.array(row) for row in rows], schema=schema)
    assert IndexedFilter(many).rows(batch).tolist() == many.rows(batch).tolist()
    assert 0 < len(many.rows(batch)) < 50
