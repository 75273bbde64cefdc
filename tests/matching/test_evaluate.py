"""Evaluation of predicates: the rows that each kind of test selects."""

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

from quorumcast.matching.evaluate import evaluate
from quorumcast.matching.filter import make_filter
from quorumcast.matching.indexing.index import Index
from quorumcast.matching.predicate import parse_predicate

NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("ratio", pa.float64()),
        ("share", pa.float32()),
        ("ok", pa.bool_()),
        ("at", pa.timestamp("ms", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("big", pa.uint64()),
        ("odd name", pa.int64()),
    ]
)
T = datetime(2026, 11, 1, tzinfo=UTC)
ROWS = [
    {"id": 1, "name": "it's", "ratio": 0.5, "share": 0.1, "ok": True, "at": T, "big": 2**64 - 1},
    {"id": 2, "name": "ape", "ratio": -1.5, "ok": False, "day": date(2026, 11, 2), "odd name": 7},
    {"name": "apple", "ratio": NAN, "raw": b"\xff\0", "local": datetime(2026, 11, 2)},
    {"id": -3, "name": "", "ratio": -0.0, "share": 2.0, "raw": b"ape", "big": 3, "odd name": -3},
]
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("TRUE", [0, 1, 2, 3]),
        ("FALSE", []),
        ("id = 1", [0]),
        ("1 = ID", [0]),
        ("id <> 1", [1, 3]),
        ("not id = 1", [1, 3]),
        ("id > 1.5", [1]),
        ("id = 1.5 or id != 1.5", [0, 1, 3]),
        ("id < 1e30", [0, 1, 3]),
        ("id > 0e999 or id = -0e999", [0, 1]),
        ("id < 0e-999", [3]),
        ("id > 12345678901234567890", []),
        ("id >= 1 and ratio < 0", [1]),
        ("id = 1 or id is null", [0, 2]),
        ("id in (2, 3, -3, 9, 11)", [1, 3]),
        ("id not in (2, 3)", [0, 3]),
        ("id not in (2, 3, 4, 5, 6)", [0, 3]),
        ("id between -5 and 1", [0, 3]),
        ("not id between -5 and 1", [1]),
        ("name like 'ap%'", [1, 2]),
        ("name like 'ap_'", [1]),
        ("name not like '%p%'", [0, 3]),
        ("name like 'ape'", [1]),
        ("name = 'it''s' or name = ''", [0, 3]),
        ("name > 'ape'", [0, 2]),
        ("name <= 'ape'", [1, 3]),
        ("name in ('a', 'ape', '')", [1, 3]),
        ("name not in ('a', 'ape', '')", [0, 2]),
        ("ratio is null", [2]),
        ("ratio is not null and not ratio > 0", [1, 3]),
        ("ratio = 0", [3]),
        ("ratio < 0", [1]),
        ("share = 0.1", []),
        ("share > 0.1", [0, 3]),
        ("ok", [0]),
        ("not ok", [1]),
        ("ok < TRUE", [1]),
        ("at < TIMESTAMP '2026-11-01T00:00:00.0005Z'", [0]),
        ("at = TIMESTAMP '2026-11-01T00:00:00.0005Z'", []),
        ("at >= DATE '2026-11-01'", [0]),
        ("local > TIMESTAMP '2026-11-01T23:59:59.999999'", [2]),
        ("day = date '2026-11-02'", [1]),
        ("day < TIMESTAMP '2026-11-02T00:00:01'", [1]),
        ("raw = X'ff00'", [2]),
        ("raw = 'ape'", [3]),
        ("raw like '%p%'", [3]),
        ("big = 18446744073709551615", [0]),
        ("big < 18446744073709551615", [3]),
        ("big > -1", [0, 3]),
        ("id = `odd name`", [3]),
        ("big > id", [0, 3]),
        ("id < ratio", [3]),
        ("ratio < share", [3]),
        ("name = raw", []),
        ("local = day", []),
        ("(id = 1 or id = 2) and not (ok and name like 'i%')", [1]),
        ("1 < 2", [0, 1, 2, 3]),
        ("DATE '2026-11-02' <= TIMESTAMP '2026-11-01T23:00:00Z'", []),
    ],
)
def test_evaluate_finds_the_rows_for_which_the_test_is_true(text: str, rows: list[int]) -> None:
    predicate = parse_predicate(text, SCHEMA, "the predicate")
    assert evaluate(predicate, BATCH).tolist() == rows
    again = parse_predicate(predicate.text, SCHEMA, "the predicate")
    assert (again.text, again.id) == (predicate.text, predicate.id)
    assert evaluate(again, BATCH.slice(1)).tolist() == [row - 1 for row in rows if row]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("whole < real", [0]),
        ("whole = real", [1]),
        ("whole > real", [2]),
        ("real >= 9223372036854775807", [0]),
        ("real > 9007199254740991", [0, 1, 2]),
        ("real > 9007199254740993", [0]),
        ("real = 9007199254740993", []),
        ("whole >= 9007199254740993.0", [0, 2]),
        ("whole > 9007199254740992.5", [0, 2]),
    ],
)
def test_integers_and_floats_compare_exactly_beyond_what_floats_hold(
    text: str, rows: list[int]
) -> None:
    """2^63 - 1 becomes 2^63 as a float, and 2^53 + 1 becomes 2^53."""
    numbers = pa.record_batch(
        {
            "whole": pa.array([2**63 - 1, 2**53, 2**53 + 1], pa.int64()),
            "real": pa.array([2.0**63, 2.0**53, 2.0**53], pa.float64()),
        }
    )
    predicate = parse_predicate(text, numbers.schema, "the predicate")
    assert evaluate(predicate, numbers).tolist() == rows


@pytest.mark.parametrize("text", ["share > 3", "share IN (1, 2, 3, 4)", "share < wide"])
def test_signalling_nan_is_absent_and_no_warning(text: str) -> None:
    """A publisher writes any bits; numpy warns where it converts these."""
    schema = pa.schema([("share", pa.float32()), ("wide", pa.int64())])
    bits = pa.py_buffer(np.array([0x7F800001, 0x40000000], np.uint32).tobytes())
    share = pa.Array.from_buffers(pa.float32(), 2, [None, bits])
    batch = pa.RecordBatch.from_arrays([share, pa.array([1, 9])], schema=schema)
    predicate = parse_predicate(text, schema, "the predicate")
    assert evaluate(predicate, batch).tolist() == ([] if text == "share > 3" else [1])
    one = make_filter((text,), schema, "the predicate")
    assert [rows.tolist() for _, rows in Index([one]).match(batch).by_filter()] in ([], [[1]])
