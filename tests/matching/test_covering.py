"""Covering: what is recognised; that it never says too much is a property in test_properties."""

import pyarrow as pa
import pytest

from quorumcast.matching.covering import covers
from quorumcast.matching.predicate import parse_predicate

SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string()), ("ratio", pa.float64())])


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("TRUE", "name = 'x'"),
        ("id = 1", "FALSE"),
        ("id < 5", "id < 3"),
        ("id < 5 or name = 'x'", "id in (1, 2) or name = 'x' and id = 9"),
        ("id between 1 and 9", "id > 1 and id < 9 and ratio > 0"),
        ("id in (1, 2, 3)", "id in (1, 3)"),
        ("id is not null", "id != 3"),
        ("id is not null", "id < 5"),
        ("id != 3", "id > 3"),
        ("id != 3 and ratio < 1", "ratio = 0.5 and id in (1, 2)"),
        ("name like 'a%'", "name like 'ab%'"),
        ("name like 'a%'", "name >= 'aa' and name < 'ac'"),
        ("name > 'a'", "name like 'ab%'"),
        ("name like '%x'", "name like '%x' and id = 3"),
    ],
)
def test_covers_what_lies_within_and_not_the_other_way(wide: str, narrow: str) -> None:
    first, second = (parse_predicate(text, SCHEMA, "the predicate") for text in (wide, narrow))
    assert covers(first, second)
    assert not covers(second, first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("id < 5", "id > 3"),
        ("id < 5", "name = 'x'"),
        ("id is null", "id = 3"),
        ("name like 'a%'", "name like 'b%'"),
        ("name like '%x'", "name like '%y'"),
    ],
)
def test_covers_nothing_of_what_is_elsewhere(one: str, other: str) -> None:
    first, second = (parse_predicate(text, SCHEMA, "the predicate") for text in (one, other))
    assert not covers(first, second)
    assert not covers(second, first)


def test_covers_nothing_on_another_schema() -> None:
    other = pa.schema([("name", pa.string()), ("id", pa.int32())])
    first = parse_predicate("id = 1", SCHEMA, "the predicate")
    second = parse_predicate("id = 1", other, "the predicate")
    assert first.id == second.id
    assert not covers(first, second)
