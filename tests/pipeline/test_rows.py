"""From publications to the record batches that Spark takes as they are."""

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.schema import ARROW_TYPES
from quorumcast.pipeline.streams.options import Access, Offsets, SourceOptions, Tamper
from quorumcast.pipeline.streams.rows import (
    SPARK_TYPES,
    Assembler,
    Origin,
    Publication,
    arrow_of,
    check_columns,
    spark_schema,
)

ACCESS = Access(manifest="", identity="", seats=(1, 2), timeout_s=1)
LIAR = NodeId("broker-2")


def entry(*columns: tuple[str, str]) -> ChannelEntry:
    return ChannelEntry(Channel("orders"), Policy.named("total"), schema=columns)


def options(tamper: Tamper = Tamper.WARN, receipts: bool = False, where: str = "") -> SourceOptions:
    return SourceOptions(
        access=ACCESS,
        channels=("orders",),
        starting=Offsets("earliest"),
        ending=Offsets("latest"),
        tamper=tamper,
        receipts=receipts,
        where=where,
    )


def assembler(of: ChannelEntry, said: SourceOptions) -> Assembler:
    schema = arrow_of(spark_schema(said, [of]))
    return Assembler("orders", of.arrow_schema(), schema, said.where)


def origin(position: int, dissent: tuple[NodeId, ...] = (), publisher: str = "alice") -> Origin:
    return Origin(NodeId(publisher), position * 10, position, position * 1000, 3, dissent)


def numbers(of: ChannelEntry, *values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": value} for value in values], of.arrow_schema())


def test_rows_say_where_they_are_from() -> None:
    orders = entry(("n", "int64"))
    batch = assembler(orders, options()).assemble(
        [
            Publication(origin(1), numbers(orders, 7, 8)),
            Publication(origin(2), numbers(orders)),
            Publication(origin(3, (LIAR,), "bob"), numbers(orders, 9)),
            Publication(origin(4), numbers(orders, 5, 6), places=np.array([2, 9], np.uint32)),
        ]
    )
    assert batch.to_pylist()[1:] == [
        {
            "n": n,
            "_channel": "orders",
            "_publisher": publisher,
            "_number": position * 10,
            "_position": position,
            "_index": index,
            "_published_at": datetime.fromtimestamp(position / 1000, UTC),
            "_votes": 3,
            "_dissent": dissent,
        }
        for n, publisher, position, index, dissent in (
            (8, "alice", 1, 1, []),
            (9, "bob", 3, 0, ["broker-2"]),
            (5, "alice", 4, 2, []),
            (6, "alice", 4, 9, []),
        )
    ]


def test_rows_of_every_type_of_the_manifest_reach_spark_unchanged() -> None:
    assert SPARK_TYPES.keys() == ARROW_TYPES.keys()
    every = entry(*((f"c{i}", kind) for i, kind in enumerate(SPARK_TYPES)))
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    largest = {"uint8": 255, "uint16": 65535, "uint32": 2**32 - 1, "uint64": 2**64 - 1}
    values: dict[str, object] = {
        **dict.fromkeys(("int8", "int16", "int32", "int64", "float32", "float64"), -3),
        **largest,
        "bool": True,
        "string": "ä",
        "binary": b"\0",
        "date32": date(2026, 11, 1),
        "timestamp[ms, UTC]": noon,
        "timestamp[us, UTC]": noon,
        "timestamp[us]": noon.replace(tzinfo=None),
    }
    row = {f"c{i}": values[kind] for i, kind in enumerate(SPARK_TYPES)}
    data = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], every.arrow_schema())
    batch = assembler(every, options()).assemble([Publication(origin(1), data)])
    expected = {**row, f"c{list(SPARK_TYPES).index('uint64')}": Decimal(2**64 - 1)}
    found = [{name: row[name] for name in expected} for row in batch.to_pylist()]
    assert found == [expected, dict.fromkeys(expected)]


def test_rows_keep_nonsense_in_quarantine_whatever_is_wanted_of_the_rest() -> None:
    orders = entry(("n", "int64"))
    said = options(Tamper.QUARANTINE, where="n > 7")
    batch = assembler(orders, said).assemble(
        [
            Publication(origin(1), numbers(orders, 7, 8)),
            Publication(origin(2), None, b"nonsense"),
        ]
    )
    found = [(row["n"], row["_position"], row["_raw"]) for row in batch.to_pylist()]
    assert found == [(8, 1, None), (None, 2, b"nonsense")]


def test_rows_bring_a_receipt_on_the_first_one_that_is_wanted() -> None:
    orders = entry(("n", "int64"))
    batch = assembler(orders, options(receipts=True, where="n <> 7")).assemble(
        [
            Publication(origin(1), numbers(orders, 7, 8, 9), receipt=b"first"),
            Publication(origin(2), numbers(orders, 7), receipt=b"unwanted"),
            Publication(origin(3), numbers(orders, 5), receipt=b"third"),
        ]
    )
    assert [(row["n"], row["_receipt"]) for row in batch.to_pylist()] == [
        (8, b"first"),
        (9, None),
        (5, b"third"),
    ]


def test_rows_of_opaque_payloads_are_bytes() -> None:
    schema = spark_schema(options(), [entry()])
    assert schema["payload"].dataType == spark.BinaryType()


@pytest.mark.parametrize("name", ["_position", "N"])
def test_rows_with_a_column_twice_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="there twice for Spark"):
        spark_schema(options(), [entry(("n", "int64"), (name, "int64"))])


def test_columns_that_have_changed_end_the_query_with_a_sentence() -> None:
    schema = arrow_of(spark_schema(options(), [entry(("n", "int64"))]))
    assert check_columns("orders", entry(("n", "int64")), options(), schema).names == ["n"]
    later = entry(("n", "int64"), ("more", "string"))
    with pytest.raises(UsageError, match=r"other columns .*more: string\): start the query again"):
        check_columns("orders", later, options(), schema)
    with pytest.raises(UsageError, match="'orders' is no longer in the manifest"):
        check_columns("orders", None, options(), schema)
