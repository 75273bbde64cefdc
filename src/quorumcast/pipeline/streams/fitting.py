"""Maps the columns of a query to those of a channel: checked on the driver, cast on executors.

Columns are matched by name. Columns that a source adds (`_position`, …) are left out unless the
channel has them, so that rows can be copied from channel to channel. A type is cast if the target
holds all its values. Integers are also cast to narrower types; a value that does not fit fails the
task.
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
#: The types of a channel to which each Spark type can be cast.
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
    """The mapping from columns of a query to columns of a channel; sent to the executors."""

    channel: str
    #: The columns of the channel by the manifest, and the index of each in the query.
    columns: tuple[tuple[str, str], ...]
    places: tuple[int, ...]

    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the channel."""
        return arrow_schema(self.columns)


def fit(entry: ChannelEntry, schema: spark.StructType) -> Fit:
    """Return the mapping of a query to a channel; raise `UsageError` if a column does not fit."""
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
    """Return the rows of a query as rows of the channel."""
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
