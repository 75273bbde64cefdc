"""The option `where`: what it lets pass, and what is said of one that means nothing."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.streams.predicate import parse

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("odd name", pa.int64()),
    ]
)
ROWS = [
    {"id": 1, "name": "it's", "ratio": 0.5, "ok": True, "at": datetime(2026, 11, 1, tzinfo=UTC)},
    {"id": 2, "name": "ape", "ratio": -1.5, "ok": False, "day": date(2026, 11, 2), "odd name": 7},
    {"id": None, "name": "apple", "ratio": None, "ok": None},
]
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("id = 1", ["it's"]),
        ("ID <> 1", ["ape"]),
        ("not id = 1", ["ape"]),
        ("id >= 1 and ratio < 0", ["ape"]),
        ("id = 1 or id is null", ["it's", "apple"]),
        ("id is not null", ["it's", "ape"]),
        ("id = 1 or id = 2 and ok", ["it's"]),
        ("(id = 1 or id = 2) and not ok", ["ape"]),
        ("id in (2, 3)", ["ape"]),
        ("id not in (2, 3)", ["it's"]),
        ("ratio between -2 and 0", ["ape"]),
        ("name like 'ap%'", ["ape", "apple"]),
        ("name not like 'ap_'", ["it's", "apple"]),
        ("name = 'it''s'", ["it's"]),
        ("ratio = -1.5e0", ["ape"]),
        ("ok = FALSE", ["ape"]),
        ("at < TIMESTAMP '2026-11-01T01:00:00Z'", ["it's"]),
        ("day = date '2026-11-02'", ["ape"]),
        ("`odd name` > 6", ["ape"]),
    ],
)
def test_predicate_lets_pass_what_is_true_and_nothing_else(where: str, names: list[str]) -> None:
    assert BATCH.filter(parse(where, SCHEMA)).column("name").to_pylist() == names


def test_predicate_compares_the_largest_unsigned_numbers() -> None:
    schema = pa.schema([("big", pa.decimal128(20, 0)), ("id", pa.int32())])
    rows = [{"big": Decimal(2**64 - 1), "id": 1}, {"big": Decimal(3), "id": 2}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    for where in ("big = 18446744073709551615", "big > 3", "id < 2"):
        assert batch.filter(parse(where, schema)).column("id").to_pylist() == [1]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("nam = 'x'", "did you mean 'name'?"),
        ("id =", "missing at the end"),
        ("id ~ 1", "'~ 1' is not understood"),
        ("(id = 1", "'\\)' is missing before 'the end'"),
        ("id = 1 ok", "'ok' is one word too many"),
        ("id not 1", "followed by none of IN, BETWEEN and LIKE"),
        ("name like 3", "a pattern between quotes"),
        ("at > timestamp 'noon'", "'noon' is no timestamp"),
        ("name > 3", "cannot be decided"),
        ("id", "cannot be decided"),
        ("= 3", "stands where a column"),
        ("(" * 100 + "ok", "nested too deeply"),
        ("id = 123456789012345678901234567890", "too long a number"),
    ],
)
def test_predicate_that_means_nothing_is_refused_with_the_reason(where: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse(where, SCHEMA)
