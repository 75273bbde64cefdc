"""The column types of a channel: their names in a manifest, and their Arrow types.

The names come from an explicit table, so that no version of Arrow changes the meaning of a
manifest. All types are flat and of known layout, so that a batch of a malicious publisher can be
validated in full. Each has a Python type that holds all its values, so there is no timestamp[ns].
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD

ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "timestamp[ms, UTC]": pa.timestamp("ms", tz="UTC"),
    "timestamp[us, UTC]": pa.timestamp("us", tz="UTC"),
    "timestamp[us]": pa.timestamp("us"),
}


def arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """The schema of these (column, type) pairs; of opaque payloads if there are none."""
    if not columns:
        return PAYLOAD
    names = [name for name, _ in columns]
    for name, type_name in columns:
        if not name:
            raise UsageError("a column has no name; give it one")
        if names.count(name) > 1:
            raise UsageError(f"column {name!r} is named twice; rename one of them")
        if type_name not in ARROW_TYPES:
            raise UsageError(
                f"column {name!r} has the unknown type {type_name!r}; choose one of "
                f"{', '.join(ARROW_TYPES)}"
            )
    return pa.schema([pa.field(name, ARROW_TYPES[type_name]) for name, type_name in columns])
