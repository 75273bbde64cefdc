"""An index finds what plain evaluation finds, for any filters and rows."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.matching.filter import Filter, make_filter
from quorumcast.matching.indexing import index as index_module
from quorumcast.matching.indexing.filter_set import IndexedFilter
from quorumcast.matching.indexing.index import BLOCK, Index

NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("big", pa.uint64()),
        ("ratio", pa.float64()),
        ("share", pa.float32()),
        ("ok", pa.bool_()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("ms", "UTC")),
        ("price", pa.decimal128(20, 2)),
        ("other", pa.int32()),
    ]
)
NUMBERS = [-(2**63), -1000, -3, 0, 1, 2, 3, 7, 100_000, 2**63 - 1]
TEXTS = ["", "a", "ab", "abc", "b", "ba", "Å", "zz"]
NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)


def random_row(draw: random.Random) -> dict[str, object]:
    row = {
        "n": draw.choice(NUMBERS),
        "small": draw.randint(-5, 5),
        "big": draw.choice([0, 1, 5, 2**63, 2**64 - 1]),
        "ratio": draw.choice([NAN, -0.0, 0.0, 0.5, 1.5, -7.25, float("inf"), float("-inf"), 0.1]),
        "share": draw.choice([NAN, 0.0, 0.5, 0.1, 3.0]),
        "ok": draw.random() < 0.5,
        "name": draw.choice(TEXTS),
        "raw": draw.choice(TEXTS).encode() + draw.choice([b"", b"\xff", b"\0"]),
        "day": date(2026, 11, draw.randint(17, 22)),
        "at": NOON + timedelta(milliseconds=draw.randint(-3, 3)),
        "price": draw.randint(-3, 3),
        "other": draw.randint(-3, 3),
    }
    return {key: None if draw.random() < 0.1 else value for key, value in row.items()}


def random_test(draw: random.Random) -> str:
    kind, values = draw.choice(
        [
            ("n", [str(n) for n in NUMBERS] + ["2.5", "1e30"]),
            ("small", ["-3", "0", "2", "4", "1.5", "200"]),
            ("big", ["0", "5", "9223372036854775808", "18446744073709551615"]),
            ("ratio", ["0", "0.5", "-7.25", "0.1", "1", "1e400"]),
            ("share", ["0.5", "0.1", "3"]),
            ("name", [f"'{text}'" for text in TEXTS]),
            ("raw", ["'a'", "'ab'", "'b'", "X'61ff'"]),
            ("day", ["DATE '2026-11-19'", "DATE '2026-11-20'"]),
            ("at", ["TIMESTAMP '2026-11-19T12:00:00.001Z'", "DATE '2026-11-19'"]),
            ("price", ["0", "1.00", "-2", "0.005"]),
            ("other", ["-1", "0", "1"]),
        ]
    )
    value = draw.choice(values)
    form = draw.randrange(12)
    if form < 5:
        return f"{kind} {draw.choice(['=', '=', '<', '<=', '>', '>=', '!='])} {value}"
    if form == 5:
        return f"{kind} BETWEEN {value} AND {draw.choice(values)}"
    if form == 6:
        return f"{kind} IS {draw.choice(['', 'NOT '])}NULL"
    if form == 7:
        return f"{kind} {draw.choice(['', 'NOT '])}IN ({', '.join(draw.choices(values, k=3))})"
    if form == 8:
        return draw.choice(["ok", "NOT ok", "TRUE", "FALSE"])
    if form == 9:
        return draw.choice(["small < other", "small = other", "name != name", "n > ratio"])
    if form == 10:
        return f"name {draw.choice(['', 'NOT '])}LIKE '{draw.choice(['a%', '%b', 'a_', '%'])}'"
    return f"{kind} = {value}"


def random_predicate(draw: random.Random, depth: int = 3) -> str:
    if depth == 0 or draw.random() < 0.3:
        return random_test(draw)
    parts = [random_predicate(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    text = f"({draw.choice([' AND ', ' AND ', ' OR ']).join(parts)})"
    return f"NOT {text}" if draw.random() < 0.1 else text


def random_filter(draw: random.Random) -> Filter:
    texts = [random_predicate(draw) for _ in range(draw.choice([1, 1, 1, 2, 5]))]
    return make_filter(texts, SCHEMA, "the predicate")


def rows_of(draw: random.Random, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([random_row(draw) for _ in range(count)], schema=SCHEMA)


def expected(filters: list[Filter], batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """What plain evaluation finds."""
    return [(n, row) for n, one in enumerate(filters) for row in one.rows(batch).tolist()]


def found_by(index: Index, batch: pa.RecordBatch) -> list[tuple[int, int]]:
    matched = index.match(batch)
    pairs = [*zip(*(side.tolist() for side in matched.pairs()), strict=True)]
    assert pairs == [(n, row) for n, rows in matched.by_filter() for row in rows.tolist()]
    return pairs


@given(st.integers(0, 2**32), st.integers(1, 25), st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_index_finds_what_evaluation_finds(seed: int, count: int, rows: int) -> None:
    draw = random.Random(seed)
    filters = [random_filter(draw) for _ in range(count)]
    batch = rows_of(draw, rows)
    index = Index(filters)
    assert found_by(index, batch) == expected(filters, batch)
    for row in range(min(rows, 3)):
        alone = batch.slice(row, 1)
        assert found_by(index, alone) == expected(filters, alone)


def test_index_of_one_filter_finds_what_evaluation_finds() -> None:
    draw = random.Random(7)
    batch = rows_of(draw, 300)
    for count in (1, 5, 60):
        one = make_filter([random_predicate(draw) for _ in range(count)], SCHEMA, "it")
        assert IndexedFilter(one).rows(batch).tolist() == one.rows(batch).tolist()
    assert IndexedFilter(make_filter(("FALSE",), SCHEMA, "it")).rows(batch).tolist() == []


@pytest.mark.parametrize("bits", [True, False], ids=["bits", "pairs"])
def test_bits_and_pairs_find_the_same(bits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either way of evaluation, wherever it is chosen, and across blocks of rows."""
    monkeypatch.setattr(index_module, "_ROWS_A_CANDIDATE", 10**9 if bits else 1e-9)
    monkeypatch.setattr(index_module, "_LISTED", 0)
    monkeypatch.setattr(index_module, "_MOST_PAIRS", 3000)
    draw = random.Random(5)
    filters = [random_filter(draw) for _ in range(60)]
    few = rows_of(draw, 300)
    batch = pa.concat_batches([few] * 5)
    assert batch.num_rows > BLOCK
    for sliced in (batch, batch.slice(7, 1100), batch.slice(3, 0)):
        assert found_by(Index(filters), sliced) == expected(filters, sliced)


INTS = pa.schema([("key", pa.int64()), ("low", pa.int64()), ("text", pa.string())])


def of_ints(*texts: str) -> list[Filter]:
    return [make_filter([text], INTS, "the predicate") for text in texts]


def ints(*rows: tuple[int | None, int, str]) -> pa.RecordBatch:
    named = [dict(zip(INTS.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=INTS)


def test_filters_without_conjunctions_or_constraints() -> None:
    filters = of_ints("FALSE", "TRUE", "key != 3", "FALSE")
    batch = ints((3, 0, ""), (4, 0, ""), (None, 0, ""))
    assert found_by(Index(filters), batch) == [(1, 0), (1, 1), (1, 2), (2, 1)]
    assert found_by(Index(of_ints("FALSE")), batch) == []


def test_sets_of_many_values_are_filed_under_their_range() -> None:
    values = ", ".join(str(3 * n) for n in range(300))
    texts = ", ".join(f"'x{n}'" for n in range(300))
    filters = of_ints(f"key IN ({values})", f"key IN ({values}) AND text IN ({texts})", "key = 5")
    batch = ints(*[(n, 0, f"x{n % 400}") for n in range(1000)])
    index = Index(filters)
    assert found_by(index, batch) == expected(filters, batch)
    for row in (0, 1, 5, 898, 900):
        assert found_by(index, batch.slice(row, 1)) == expected(filters, batch.slice(row, 1))


def test_one_row_of_a_filter_with_several_predicates_is_found_once() -> None:
    one = make_filter(["key = 1", "low = 2", "key > 0"], INTS, "the predicate")
    assert found_by(Index([one]), ints((1, 2, ""))) == [(0, 0)]


def test_many_candidates_take_bounded_memory() -> None:
    """Where every row satisfies every key, pairs are not listed."""
    filters = of_ints(*(f"key IN (1, {n + 2}) AND low != {n}" for n in range(300)))
    batch = ints(*[(1, n, "") for n in range(BLOCK)])
    index = Index(filters)
    (block,) = index.match(batch)._blocks
    assert len(block.filters) == 300
    assert found_by(index, batch.slice(0, 5)) == expected(filters, batch.slice(0, 5))


def test_few_candidates_are_listed() -> None:
    filters = of_ints(*(f"key = {n} AND low > 5" for n in range(1500)))
    batch = ints(*[(n, n % 10, "") for n in range(BLOCK)])
    (block,) = Index(filters).match(batch)._blocks
    assert not len(block.filters)
    assert found_by(Index(filters), batch) == [(n, n) for n in range(BLOCK) if n % 10 > 5]


def test_rows_at_the_ends_of_all_intervals() -> None:
    bounds = np.arange(-50, 50, 7).tolist()
    texts = [f"key BETWEEN {low} AND {high}" for low in bounds for high in bounds if low < high]
    filters = of_ints(*texts)
    batch = ints(*[(n, 0, "") for n in range(-60, 60)])
    assert found_by(Index(filters), batch) == expected(filters, batch)
