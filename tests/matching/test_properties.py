"""Properties of predicates on random schemas and rows, against a naive twin in plain Python."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.matching.naive import Choices, Drawn, predicate, table

from quorumcast.matching.columns import BatchView
from quorumcast.matching.covering import covers
from quorumcast.matching.evaluate import evaluate
from quorumcast.matching.filter import make_filter
from quorumcast.matching.indexing.index import Index
from quorumcast.matching.kernels import compiled
from quorumcast.matching.nodes import AllOf, Conjunction
from quorumcast.matching.predicate import Predicate, parse_predicate

WHO = "the predicate"


def questions(count: int) -> st.SearchStrategy[tuple[pa.RecordBatch, list[Drawn]]]:
    """A batch, and predicates on its columns."""

    def drawn(source: bytes) -> tuple[pa.RecordBatch, list[Drawn]]:
        choices = Choices(source)
        columns, batch = table(choices)
        return batch, [predicate(choices, columns) for _ in range(count)]

    return st.binary(min_size=200, max_size=200).map(drawn)


def naive(drawn: Drawn, batch: pa.RecordBatch) -> list[int]:
    return [index for index, row in enumerate(batch.to_pylist()) if drawn[1](row) is True]


def true_of(conjunction: Conjunction, parsed: Predicate, batch: pa.RecordBatch) -> list[bool]:
    residual = () if conjunction.residual is None else (conjunction.residual,)
    meaning = AllOf((*conjunction.constraints, *residual))
    mask = compiled(meaning, parsed.columns)
    return [bool(one) for one in mask(BatchView(parsed.columns, batch))]


@given(questions(1))
@settings(max_examples=300)
def test_evaluate_finds_the_rows_of_the_naive_twin(
    question: tuple[pa.RecordBatch, list[Drawn]],
) -> None:
    batch, [drawn] = question
    found = evaluate(parse_predicate(drawn[0], batch.schema, WHO), batch)
    assert found.dtype == np.uint32
    assert found.tolist() == naive(drawn, batch)


@given(questions(1))
@settings(max_examples=150)
def test_canonical_text_parses_back_and_conjunctions_are_the_predicate(
    question: tuple[pa.RecordBatch, list[Drawn]],
) -> None:
    batch, [drawn] = question
    parsed = parse_predicate(drawn[0], batch.schema, WHO)
    again = parse_predicate(parsed.text, batch.schema, WHO)
    assert (again.text, again.id, again.meaning) == (
        parsed.text,
        parsed.id,
        parsed.meaning,
    )
    masks = [true_of(one, parsed, batch) for one in parsed.conjunctions]
    rows = [row for row in range(batch.num_rows) if any(mask[row] for mask in masks)]
    assert rows == naive(drawn, batch)
    for conjunction in parsed.conjunctions:
        columns = [constraint.column for constraint in conjunction.constraints]
        assert columns == sorted(set(columns))


@given(questions(2), st.booleans())
@settings(max_examples=200)
def test_covering_is_sound(question: tuple[pa.RecordBatch, list[Drawn]], narrower: bool) -> None:
    batch, drawn = question
    first, second = (text for text, _ in drawn)
    wide = parse_predicate(first, batch.schema, WHO)
    narrow = parse_predicate(f"({first}) AND ({second})" if narrower else second, batch.schema, WHO)
    assert covers(wide, wide)
    for one, other in ((wide, narrow), (narrow, wide)):
        if covers(one, other):
            assert set(evaluate(other, batch)) <= set(evaluate(one, batch))


@given(st.binary(min_size=80, max_size=80))
@settings(max_examples=100)
def test_covering_is_sound_among_tests_of_one_column(source: bytes) -> None:
    """Tests of different columns seldom cover one another, those of one column often do."""
    choices = Choices(source)
    columns, batch = table(choices, most_columns=1, most_rows=30)
    tests = [parse_predicate(predicate(choices, columns, 0)[0], batch.schema, WHO) for _ in "12345"]
    rows = [set(evaluate(test, batch).tolist()) for test in tests]
    for wide, within in zip(tests, rows, strict=True):
        for narrow, found in zip(tests, rows, strict=True):
            assert found <= within or not covers(wide, narrow)


@given(questions(6), st.integers(1, 6))
@settings(max_examples=200)
def test_index_finds_the_rows_of_the_naive_twin(
    question: tuple[pa.RecordBatch, list[Drawn]], count: int
) -> None:
    """A row alone takes another way than many rows, unless a predicate has no constraint to file.

    Of many predicates one has none nearly always, so each is matched alone as well.
    """
    batch, drawn = question
    single = [batch.slice(row, 1) for row in range(min(3, batch.num_rows))]
    for several in (drawn[:count], *([one] for one in drawn[:count])):
        index = Index([make_filter([text], batch.schema, WHO) for text, _ in several])
        for part in (batch, *single):
            filters, rows = index.match(part).pairs()
            wanted = [(n, row) for n, one in enumerate(several) for row in naive(one, part)]
            assert [*zip(filters.tolist(), rows.tolist(), strict=True)] == wanted


@given(questions(3))
@settings(max_examples=50)
def test_filter_is_the_or_of_its_predicates(
    question: tuple[pa.RecordBatch, list[Drawn]],
) -> None:
    batch, drawn = question
    found = make_filter([text for text, _ in drawn], batch.schema, WHO).rows(batch)
    assert found.tolist() == sorted({row for one in drawn for row in naive(one, batch)})
