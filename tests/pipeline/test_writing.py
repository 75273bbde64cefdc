"""Rows into publications: checked types, and the same cut however Spark divides the rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams import writing
from quorumcast.pipeline.streams.fitting import Fit, fit, rows_of_channel
from quorumcast.pipeline.streams.writing import Cut

COLUMNS = (
    ("n", "int32"),
    ("name", "string"),
    ("flag", "bool"),
    ("at", "timestamp[us, UTC]"),
    ("raw", "binary"),
    ("x", "float64"),
    ("day", "date32"),
)
SPARK = spark.StructType(
    [
        spark.StructField("n", spark.LongType()),
        spark.StructField("name", spark.StringType()),
        spark.StructField("flag", spark.BooleanType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("raw", spark.BinaryType()),
        spark.StructField("x", spark.FloatType()),
        spark.StructField("day", spark.DateType()),
    ]
)
ARROW = pa.schema(
    [
        ("n", pa.int64()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("x", pa.float32()),
        ("day", pa.date32()),
    ]
)


def channel(*columns: tuple[str, str]) -> ChannelEntry:
    return ChannelEntry(name=Channel("orders"), policy=Policy.named("total"), schema=columns)


FIT = fit(channel(*COLUMNS), SPARK)

rows = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.text(max_size=6),
        st.none() | st.booleans(),
        st.none() | st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)),
        st.none() | st.binary(max_size=5),
        st.none() | st.floats(width=32, allow_nan=False),
        st.none() | st.dates(date(1950, 1, 1), date(2100, 1, 1)),
    ),
    max_size=40,
)


def table(values: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*values, strict=True)) if values else [() for _ in ARROW]
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


@settings(max_examples=60, deadline=None)
@given(rows, st.lists(st.integers(0, 1000), max_size=5), st.integers(1, 17))
def test_rows_make_the_same_publications_however_they_are_divided(
    values: list[tuple[object, ...]], cuts: list[int], events: int
) -> None:
    whole = table(values)
    places = sorted({0, len(values), *(cut % (len(values) + 1) for cut in cuts)})
    pieces = [whole.slice(a, b - a) for a, b in pairwise(places)]
    cut = Cut(FIT, events)
    found = [batch.to_pylist() for batch, _ in cut.publications(pieces)]
    wanted = rows_of_channel(FIT, FIT.schema(), whole).to_pylist()
    assert found == [wanted[start : start + events] for start in range(0, len(wanted), events)]
    assert cut.rows == len(values)


def test_publications_that_are_too_large_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_BYTES", 2000)
    values = [(n, "x" * 100, True, None, b"", 0.0, None) for n in range(64)]
    found = [batch for batch, _ in Cut(FIT, 64).publications([table(values)])]
    assert [n for batch in found for n in batch.column(0).to_pylist()] == list(range(64))
    assert max(batch.num_rows for batch in found) == 8
    huge = [(1, "x" * 5000, True, None, b"", 0.0, None)]
    assert len(list(Cut(FIT, 64).publications([table(huge)]))) == 1


def test_time_of_a_publication_is_the_newest_of_its_rows() -> None:
    times = [datetime(2026, 1, day, tzinfo=UTC) for day in (3, 9, 4, 5)]
    values = [(1, "", True, at, b"", 0.0, None) for at in times]
    cut = Cut(FIT, 2, time_column=3)
    assert [at for _, at in cut.publications([table(values)])] == [times[1], times[3]]
    with pytest.raises(UsageError, match="column 'at' of 'publishedAt' is null"):
        list(cut.publications([table([(1, "", True, None, b"", 0.0, None)])]))


# --------------------------------------------------------------------------- types


def schema(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in columns.items()])


def test_fit_leaves_out_what_a_source_adds_unless_the_channel_has_it() -> None:
    given_ = schema(_position=spark.LongType(), n=spark.IntegerType(), _votes=spark.IntegerType())
    assert fit(channel(("n", "int32")), given_).places == (1,)
    assert fit(channel(("n", "int32"), ("_position", "int64")), given_).places == (1, 0)


def test_fit_of_a_channel_without_columns_takes_payloads() -> None:
    found = fit(channel(), schema(payload=spark.BinaryType()))
    assert found == Fit("orders", (), (0,))
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"a", None], pa.binary())})
    with pytest.raises(UsageError, match="column 'payload' is null in a row: channel 'orders'"):
        rows_of_channel(found, found.schema(), batch)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"m": spark.IntegerType()}, "column 'n' is missing: channel 'orders' has the columns n"),
        (
            {"n": spark.IntegerType(), "m": spark.IntegerType(), "k": spark.LongType()},
            "column 'm', 'k' is one too many: channel 'orders' has the columns n; drop",
        ),
        ({"n": spark.StringType()}, "column 'n' is string in the query and int32 in channel"),
        ({"n": spark.DoubleType()}, "column 'n' is double in the query and int32"),
        ({"n": spark.DecimalType(10, 2)}, r"column 'n' is decimal\(10,2\) in the query"),
        ({"n": spark.ArrayType(spark.LongType())}, "column 'n' is array<bigint>"),
    ],
)
def test_fit_names_what_does_not(columns: dict[str, spark.DataType], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        fit(channel(("n", "int32")), schema(**columns))


def test_value_that_the_channel_cannot_hold_is_named() -> None:
    found = fit(channel(("n", "uint8")), schema(n=spark.LongType()))
    batch = pa.RecordBatch.from_pydict({"n": pa.array([1, 300], pa.int64())})
    with pytest.raises(UsageError, match="column 'n' holds a value that uint8 in channel 'orders'"):
        rows_of_channel(found, found.schema(), batch)


def test_decimals_that_stand_for_unsigned_numbers_fit() -> None:
    found = fit(channel(("n", "uint64")), schema(n=spark.DecimalType(20, 0)))
    batch = pa.RecordBatch.from_pydict({"n": pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0))})
    assert rows_of_channel(found, found.schema(), batch).to_pylist() == [{"n": 2**64 - 1}]
