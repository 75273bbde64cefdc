"""Rows of a query as rows of a channel: checked on the driver by their types, cast on executors.

Columns go by their names. Those that a source adds (`_position`, …) are left out unless the channel
has them, so that what was read can be written as it is. A type is cast where every value of it can
be held, and integers also where a value might not fit: the task that finds one says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark

from quorumcast.core.errors import UsageError
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.schema import arrow_schema
from quorumcast.pipeline.streams.rows import RAW, RECEIPT, origin_names

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: Types of a channel that take a type of Spark.
_TAKERS: dict[type[spark.DataType], tuple[str, ...]] = {
    spark.BooleanType: ("bool",),
    spark.ByteType: (*_INTEGERS, "float32", "float64"),
    spark.ShortType: (*_INTEGERS, "float32", "float64"),
    spark.IntegerType: (*_INTEGERS, "float64"),
    spark.LongType: _INTEGERS,
    spark.FloatType: ("float32", "float64"),
    spark.DoubleType: ("float64",),
    spark.StringType: ("string",),
    spark.BinaryType: ("binary",),
    spark.DateType: ("date32",),
    spark.TimestampType: ("timestamp[us, UTC]", "timestamp[ms, UTC]"),
    spark.TimestampNTZType: ("timestamp[us]",),
}


class Fit(msgspec.Struct, frozen=True):
    """How rows of a query become rows of a channel; goes to the executors."""

    channel: str
    #: The columns of the channel as its manifest has them, and where the query has each.
    columns: tuple[tuple[str, str], ...]
    places: tuple[int, ...]

    def schema(self) -> pa.Schema:
        """The columns as record batches of the channel have them."""
        return arrow_schema(self.columns)


def fit(entry: ChannelEntry, schema: spark.StructType) -> Fit:
    """How the rows of a query fit a channel, or a sentence that names what does not."""
    columns = entry.schema or (("payload", "binary"),)
    wanted = dict(columns)
    given = {field.name: place for place, field in enumerate(schema.fields)}
    has = f"channel {str(entry.name)!r} has the columns {', '.join(wanted)}"
    missing = [name for name in wanted if name not in given]
    if missing:
        raise UsageError(f"column {_listed(missing)} is missing: {has}; select all of them")
    added = {*origin_names(), RECEIPT, RAW}
    extra = [name for name in given if name not in wanted and name not in added]
    if extra:
        raise UsageError(f"column {_listed(extra)} is one too many: {has}; drop the others")
    for name, kind in columns:
        found = schema.fields[given[name]].dataType
        if kind not in _takers(found):
            raise UsageError(
                f"column {name!r} is {found.simpleString()} in the query and {kind} in channel "
                f"{str(entry.name)!r}: cast it to a type that {kind} holds in full"
            )
    return Fit(str(entry.name), tuple(entry.schema), tuple(given[name] for name in wanted))


def _takers(found: spark.DataType) -> tuple[str, ...]:
    if isinstance(found, spark.DecimalType):
        return _INTEGERS if found.scale == 0 else ()
    for kind, takers in _TAKERS.items():
        if isinstance(found, kind):
            return takers
    return ()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def rows_of_channel(fit: Fit, schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a channel, as it has them."""
    arrays: list[pa.Array] = []
    for place, field in zip(fit.places, schema, strict=True):
        array = batch.column(place)
        try:
            arrays.append(array if array.type == field.type else array.cast(field.type))
        except pa.ArrowInvalid as error:
            raise UsageError(
                f"column {field.name!r} holds a value that {field.type} in channel {fit.channel!r} "
                f"cannot: {str(error).splitlines()[0]}"
            ) from None
        if array.null_count and not field.nullable:
            raise UsageError(
                f"column {field.name!r} is null in a row: channel {fit.channel!r} takes no nulls"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
