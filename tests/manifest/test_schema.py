"""Columns by name and type, as publications use them."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.publication import PAYLOAD, batch_of_rows, decode_batch, encode_batch
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.schema import ARROW_TYPES, arrow_schema

VALUES: dict[str, object] = {
    "bool": True,
    "int8": -(2**7),
    "int16": -(2**15),
    "int32": -(2**31),
    "int64": -(2**63),
    "uint8": 2**8 - 1,
    "uint16": 2**16 - 1,
    "uint32": 2**32 - 1,
    "uint64": 2**64 - 1,
    "float32": 0.5,
    "float64": 0.1,
    "string": "κόσμος",
    "binary": b"\xff",
    "date32": date(9999, 12, 31),
    "timestamp[ms, UTC]": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC),
    "timestamp[us, UTC]": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "timestamp[us]": datetime(1, 1, 1),
}


def test_values_of_this_module_cover_every_type() -> None:
    assert set(VALUES) == set(ARROW_TYPES)


@pytest.mark.parametrize("type_name", ARROW_TYPES)
def test_schema_of_each_type_carries_its_values(type_name: str) -> None:
    schema = arrow_schema([("column", type_name)])
    rows: list[dict[str, object]] = [{"column": VALUES[type_name]}, {"column": None}]
    batch = decode_batch(encode_batch(batch_of_rows(rows, schema)), schema)
    assert batch is not None
    assert batch.to_pylist() == rows


def test_schema_without_columns_is_opaque_payloads() -> None:
    assert ChannelEntry(Channel("c"), Policy.named("ab")).arrow_schema() is PAYLOAD


def test_schema_keeps_the_order_of_its_columns() -> None:
    entry = ChannelEntry(
        Channel("c"), Policy.named("ab"), schema=(("price", "float64"), ("company", "string"))
    )
    assert entry.arrow_schema().names == ["price", "company"]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([("a", "int63")], r"'a' has the unknown type 'int63'; choose one of bool, int8, .*date32"),
        ([("a", "int8"), ("b", "int8"), ("a", "bool")], "'a' is named twice; rename one of them"),
        ([("", "int8")], "a column has no name; give it one"),
    ],
)
def test_schema_of_nonsense_is_refused_with_a_way_out(
    columns: list[tuple[str, str]], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        arrow_schema(columns)
