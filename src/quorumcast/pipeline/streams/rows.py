"""Turns publications into rows for Spark: the channel's columns and the origin of each row.

    _channel        the channel
    _publisher      the publisher
    _number         the publication's number in the publisher's stream
    _position       its position in the channel's order
    _index          the row's place in its publication: (_channel, _position, _index) is unique
    _published_at   the time by the publisher's clock
    _votes          the number of brokers that voted for it
    _dissent        the brokers that voted for something else
    _receipt        signed proof for `quorumcast verify`, on the first row of each publication
    _raw            contents that do not fit the channel's schema, on a row of their own

The last two exist only on request. Record batches must match Spark's schema exactly, so types that
Spark lacks are widened. Several publications become one batch, because each batch has a fixed cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.matching.evaluate import Rows
from quorumcast.pipeline.streams.options import SourceOptions, Tamper
from quorumcast.pipeline.streams.predicate import Where

RECEIPT, RAW = "_receipt", "_raw"

#: What Spark calls the types of the manifest; unsigned integers become the next wider ones.
SPARK_TYPES: dict[str, spark.DataType] = {
    "bool": spark.BooleanType(),
    "int8": spark.ByteType(),
    "int16": spark.ShortType(),
    "int32": spark.IntegerType(),
    "int64": spark.LongType(),
    "uint8": spark.ShortType(),
    "uint16": spark.IntegerType(),
    "uint32": spark.LongType(),
    "uint64": spark.DecimalType(20, 0),
    "float32": spark.FloatType(),
    "float64": spark.DoubleType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date32": spark.DateType(),
    "timestamp[ms, UTC]": spark.TimestampType(),
    "timestamp[us, UTC]": spark.TimestampType(),
    "timestamp[us]": spark.TimestampNTZType(),
}

_ORIGIN = (
    ("_channel", spark.StringType()),
    ("_publisher", spark.StringType()),
    ("_number", spark.LongType()),
    ("_position", spark.LongType()),
    ("_index", spark.IntegerType()),
    ("_published_at", spark.TimestampType()),
    ("_votes", spark.IntegerType()),
    ("_dissent", spark.ArrayType(spark.StringType(), containsNull=False)),
)


def origin_names() -> list[str]:
    """Return the names of the columns of the origin."""
    return [name for name, _ in _ORIGIN]


def spark_schema(options: SourceOptions, entries: Sequence[ChannelEntry]) -> spark.StructType:
    """Return the schema of the rows; all channels have the same."""
    columns = entries[0].schema or (("payload", "binary"),)
    fields = [spark.StructField(name, SPARK_TYPES[kind]) for name, kind in columns]
    fields += [spark.StructField(name, kind) for name, kind in _ORIGIN]
    if options.receipts:
        fields.append(spark.StructField(RECEIPT, spark.BinaryType()))
    if options.tamper is Tamper.QUARANTINE:
        fields.append(spark.StructField(RAW, spark.BinaryType()))
    names = [field.name.lower() for field in fields]
    for field in fields:
        if names.count(field.name.lower()) > 1:
            raise UsageError(
                f"column {field.name!r} of channel {entries[0].name!r} is there twice for Spark, "
                "which does not tell capitals from small letters and adds columns of its own: "
                "rename it in the manifest"
            )
    schema = spark.StructType(fields)
    wanted_rows(options.where, arrow_of(schema))
    return schema


def arrow_of(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema of record batches for Spark."""
    return to_arrow_schema(schema, timezone="UTC")


def check_columns(
    channel: str, entry: ChannelEntry | None, options: SourceOptions, schema: pa.Schema
) -> pa.Schema:
    """Return the columns of a channel in this epoch; raise `UsageError` if they changed."""
    if entry is None:
        raise UsageError(
            f"channel {channel!r} is no longer in the manifest: start the query again without it"
        )
    if not arrow_of(spark_schema(options, [entry])).equals(schema):
        columns = ", ".join(f"{name}: {kind}" for name, kind in entry.schema) or "payload: binary"
        raise UsageError(
            f"channel {channel!r} has other columns than when the query began ({columns}): start "
            "the query again, which goes on where it stopped and reads the new ones"
        )
    return entry.arrow_schema()


class Origin(msgspec.Struct, frozen=True):
    """The origin of the rows of one publication."""

    publisher: NodeId
    number: int
    position: int
    published_us: int
    votes: int
    dissent: tuple[NodeId, ...]


class Publication(msgspec.Struct):
    """An accepted publication: its rows, or its contents if they do not fit the schema."""

    origin: Origin
    #: None if the contents do not fit the channel's schema.
    data: pa.RecordBatch | None
    raw: bytes = b""
    receipt: bytes | None = None
    #: The numbers of the rows in the publication; None if all are there.
    places: Rows | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return 1 if self.data is None else int(self.data.num_rows)


class Assembler:
    """Makes record batches for Spark of the publications of one channel."""

    def __init__(self, channel: str, columns: pa.Schema, schema: pa.Schema, where: str) -> None:
        self._channel = channel
        #: The schema of the channel, and that of Spark.
        self._columns = columns
        self._schema = schema
        self._wanted = wanted_rows(where, schema)

    def assemble(self, publications: Sequence[Publication]) -> pa.RecordBatch:
        """Return the selected rows of these publications, in order."""
        counts = np.fromiter((p.rows for p in publications), np.int64, len(publications))
        arrays = self._data(publications) + self._origins(publications, counts)
        names = self._schema.names[: len(arrays)]
        if RAW in self._schema.names:
            firsts = zip(np.cumsum(counts) - counts, publications, strict=True)
            raw = {int(row): p.raw for row, p in firsts if p.data is None}
            arrays.append(_sparse(raw, int(counts.sum())))
            names.append(RAW)
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        if self._wanted is not None:
            batch = self._wanted.passing(batch)
        if RECEIPT in self._schema.names:
            batch = batch.append_column(RECEIPT, _receipts(batch, publications))
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in self._schema.names], schema=self._schema
        )

    def _data(self, publications: Sequence[Publication]) -> list[pa.Array]:
        nulls = [pa.nulls(1, field.type) for field in self._columns]
        null_row = pa.RecordBatch.from_arrays(nulls, names=self._columns.names)
        batches = [null_row if p.data is None else p.data for p in publications]
        found: list[pa.Array] = []
        for index, field in enumerate(self._columns):
            chunks = [batch.column(index) for batch in batches]
            column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
            wanted = self._schema.field(index).type
            found.append(column if field.type == wanted else column.cast(wanted))
        return found

    def _origins(
        self,
        publications: Sequence[Publication],
        counts: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> list[pa.Array]:
        origins = [p.origin for p in publications]

        def spread(values: Sequence[int], kind: type) -> pa.Array:
            return pa.array(np.repeat(np.array(values, kind), counts))

        which = pa.array(np.repeat(np.arange(len(origins), dtype=np.int32), counts))
        publishers = [origin.publisher for origin in origins]
        dissents = [origin.dissent for origin in origins]
        names = self._schema.field("_dissent").type
        return [
            pa.repeat(self._channel, int(counts.sum())),
            _taken(publishers, pa.string(), which),
            spread([origin.number for origin in origins], np.int64),
            spread([origin.position for origin in origins], np.int64),
            pa.array(_places(publications, counts)),
            spread([origin.published_us for origin in origins], np.int64).view(
                pa.timestamp("us", "UTC")
            ),
            spread([origin.votes for origin in origins], np.int32),
            _taken(dissents, names, which),
        ]


def _places(
    publications: Sequence[Publication], counts: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the number of each row in its publication."""
    starts = np.cumsum(counts) - counts
    found = (np.arange(counts.sum()) - np.repeat(starts, counts)).astype(np.int32)
    for start, publication in zip(starts, publications, strict=True):
        if publication.places is not None:
            found[start : start + publication.rows] = publication.places
    return found


def _taken(values: Sequence[object], kind: pa.DataType, which: pa.Array) -> pa.Array:
    """Return the value of each row's publication; fast if all values are equal."""
    if all(value == values[0] for value in values):
        return pa.array([values[0]], kind).take(pa.repeat(0, len(which)))
    return pa.array(values, kind).take(which)


def _receipts(batch: pa.RecordBatch, publications: Sequence[Publication]) -> pa.Array:
    """Return the receipt of each publication in the first of its selected rows."""
    positions = batch.column("_position").to_numpy()
    firsts = np.flatnonzero(np.diff(positions, prepend=-1))
    found = {p.origin.position: p.receipt for p in publications}
    return _sparse({int(row): found[positions[row]] for row in firsts}, len(positions))


def wanted_rows(where: str, schema: pa.Schema) -> Where | None:
    """Return the filter of the option `where`; rows in quarantine always pass."""
    if not where:
        return None
    columns = pa.schema([field for field in schema if field.name != RECEIPT])
    return Where(where, columns, always=RAW if RAW in schema.names else None)


def _sparse(values: Mapping[int, bytes | None], total: int) -> pa.Array:
    """Return a column with these values in their rows, and nulls elsewhere."""
    rows: list[bytes | None] = [None] * total
    for row, value in values.items():
        rows[row] = value
    return pa.array(rows, pa.binary())
