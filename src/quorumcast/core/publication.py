"""Publications are Arrow record batches: events are rows, contents are one IPC message.

What comes before the message (`core.envelope`) is the caller's; here it is only kept in mind that
the two are made into one piece with one copy. Events without a schema also have a way without Arrow
(`core.payloads`).

Both sides know the channel's schema, so only the batch travels. Brokers of a topic channel never
look inside. What a subscriber reads was written by a publisher that may be malicious, so a batch
is validated in full before any value of it is touched. Compressed batches are refused: a few
kilobytes could unfold into gigabytes before anything of them can be validated. So are nulls in
columns that have none and times outside Python's calendar, which Arrow's validation lets pass and
which would fail only later, in the hands of the application.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_MATCHED_ROWS, MAX_ROWS
from quorumcast.core.payloads import check_size

#: The schema of a channel that names none: opaque bytes.
_BINARY = pa.binary()
PAYLOAD = pa.schema([pa.field("payload", _BINARY, nullable=False)])

#: The first and the last second of Python's calendar, counted from 1970.
_CALENDAR = (-62_135_596_800, 253_402_300_799)
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400

#: How every message of the Arrow IPC format starts since 2019.
_CONTINUATION = b"\xff\xff\xff\xff"
#: An Arrow message, alone or as the part of contents behind the envelope.
Message: TypeAlias = bytes | memoryview
#: Where the payload of a column of one begins and ends.
_ENDS = struct.Struct("<ii").pack
_U16, _U32, _I32 = (struct.Struct(code).unpack_from for code in ("<H", "<I", "<i"))


def encode_batch(batch: pa.RecordBatch, before: bytes = b"") -> bytes:
    """The contents of a publication: what comes before the message, and the message."""
    check_size(batch.num_rows, 0)
    # Joining is the copy that is needed anyway, from Arrow's memory to ours.
    body = b"".join((before, batch.serialize()))
    check_size(batch.num_rows, len(body))
    return body


def decode_batch(body: Message, schema: pa.Schema) -> pa.RecordBatch | None:
    """The batch in a message, or None if a faulty publisher wrote nonsense."""
    try:
        if body[:4] != _CONTINUATION or _compressed(body):
            return None
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        if batch.num_rows > MAX_ROWS:
            return None
        return batch if is_sound(batch, schema) else None
    except (pa.ArrowException, struct.error, ValueError, OSError, EOFError, MemoryError):
        return None


def is_sound(batch: pa.RecordBatch, schema: pa.Schema) -> bool:
    """Whether all values of a batch that a peer wrote can be read."""
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        return False
    return _unfit(batch, schema) is None


def decode_older(body: Message, schema: pa.Schema) -> pa.RecordBatch | None:
    """A batch of a time when the schema had fewer columns; those that it lacks are null.

    Columns are only ever added behind those there are, and may be null.
    """
    try:
        columns = _columns(body)
    except struct.error:
        return None
    if not 0 < columns < len(schema):
        return None
    later = [schema.field(index) for index in range(columns, len(schema))]
    batch = decode_batch(body, _first_columns(schema, columns))
    if batch is None or not all(field.nullable for field in later):
        return None
    return widened(batch, schema)


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the first columns of a schema with the others, which are null."""
    later = list(schema)[batch.num_columns :]
    missing = [null_column(batch.num_rows, field.type) for field in later]
    return pa.RecordBatch.from_arrays([*batch.columns, *missing], schema=schema)


def null_column(rows: int, kind: pa.DataType) -> pa.Array:
    """So many nulls; all columns share the memory of one, unless they are long."""
    return _nulls(kind)[:rows] if rows <= MAX_MATCHED_ROWS else pa.nulls(rows, kind)


@lru_cache(maxsize=64)
def _nulls(kind: pa.DataType) -> pa.Array:
    return pa.nulls(MAX_MATCHED_ROWS, kind)


def batch_of_payloads(payloads: Sequence[bytes]) -> pa.RecordBatch:
    """Opaque events as a batch of the default schema."""
    try:
        column = _column(payloads[0]) if len(payloads) == 1 else pa.array(payloads, _BINARY)
    except (pa.ArrowException, TypeError, OverflowError, struct.error) as error:
        raise UsageError(f"events of this channel are bytes: {error}") from None
    if column.null_count:
        raise UsageError("column 'payload' must have a value in every event")
    return pa.RecordBatch.from_arrays([column], schema=PAYLOAD)


def _column(payload: bytes) -> pa.Array:
    """A column of one payload; `pa.array` imports pandas, where it is installed, when first used.

    A program that publishes one event would spend most of its time on that.
    """
    ends = pa.py_buffer(_ENDS(0, len(payload)))
    return pa.Array.from_buffers(_BINARY, 1, [None, ends, pa.py_buffer(payload)])


def batch_of_rows(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.RecordBatch:
    """Mappings as a batch of the channel's schema; unknown columns and wrong types are refused."""
    known = set(schema.names)
    for row in rows:
        unknown = [name for name in row if name not in known]
        if unknown:
            raise UsageError(
                f"column {unknown[0]!r} is not in the channel's schema ({', '.join(schema.names)})"
            )
    try:
        return _complete(pa.RecordBatch.from_pylist(list(rows), schema=schema), schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"an event does not fit the channel's schema: {_misfit(rows, schema) or error}"
        ) from None


def _misfit(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> str | None:
    """The first value that its column does not take."""
    for field in schema:
        for row in rows:
            value = row.get(field.name)
            try:
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                return f"column {field.name!r} takes {field.type}, not {value!r:.60}"
    return None


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A caller's batch, if it has the channel's schema; columns at its end may have come later."""
    known = _first_columns(schema, len(batch.schema)) if len(batch.schema) else schema
    if not batch.schema.equals(known):
        raise UsageError(
            f"the batch has the schema ({_describe(batch.schema)}), "
            f"the channel expects ({_describe(schema)})"
        )
    return _complete(batch, known)


@lru_cache(maxsize=256)
def _first_columns(schema: pa.Schema, count: int) -> pa.Schema:
    if count >= len(schema):
        return schema
    return pa.schema([schema.field(index) for index in range(count)])


def _complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    unfit = _unfit(batch, schema)
    if unfit is not None:
        raise UsageError(unfit)
    return batch


def _unfit(batch: pa.RecordBatch, schema: pa.Schema) -> str | None:
    """What a reader of this batch would stumble over, though Arrow finds it valid."""
    for index, name, problem, fits in _demands(schema):
        if not fits(batch.column(index)):
            return f"column {name!r} {problem}"
    return None


#: What to look at in a column: index, name, the problem, and whether the column is free of it.
Demand = tuple[int, str, str, Callable[[pa.Array], bool]]

# By identity, because hashing a schema costs more than reading a small batch of it; the schema is
# kept beside its demands, so its identity cannot pass to another one.
_known_demands: dict[int, tuple[pa.Schema, list[Demand]]] = {}


def _demands(schema: pa.Schema) -> list[Demand]:
    known = _known_demands.get(id(schema))
    if known is None:
        if len(_known_demands) >= 256:
            _known_demands.clear()
        known = _known_demands[id(schema)] = (schema, _find_demands(schema))
    return known[1]


def _find_demands(schema: pa.Schema) -> list[Demand]:
    """The columns of a schema that need a look, and what to look for; most need none."""
    demands: list[Demand] = []
    for index, field in enumerate(schema):
        if not field.nullable:
            demands.append((index, field.name, "must have a value in every event", _no_nulls))
        if pa.types.is_timestamp(field.type) or pa.types.is_date32(field.type):
            problem = "has a time outside the years 1 to 9999"
            demands.append((index, field.name, problem, _on_calendar))
    return demands


def _no_nulls(column: pa.Array) -> bool:
    return not column.null_count


def _on_calendar(column: pa.Array) -> bool:
    import pyarrow.compute as pc  # slow to load, and only tables with times need it

    if pa.types.is_date32(column.type):
        numbers, ticks, seconds = column.view(pa.int32()), 1, _DAY
    else:
        numbers, ticks, seconds = column.view(pa.int64()), _TICKS[column.type.unit], 1
    found = pc.min_max(numbers).as_py()
    if found["min"] is None:
        return True
    first, last = (found[end] * seconds // ticks for end in ("min", "max"))
    return bool(_CALENDAR[0] <= first and last <= _CALENDAR[1])


def _compressed(body: Message) -> bool:
    """Whether a message says that its buffers are compressed: `Message.header.compression`.

    pyarrow does not tell, and unfolds the buffers before it can be asked, so this follows the
    flatbuffer after the 8-byte prefix: a table starts with the distance back to its vtable, and the
    vtable has its own size (2 bytes), the table's (2), and one offset (2) per field, 0 if absent.
    Where the flatbuffer is unsound the answer means nothing, but then Arrow refuses it as well.
    """
    return _field(body, _header(body), 3) != 0


def _columns(body: Message) -> int:
    """How many columns a message says that it has: the length of `Message.header.nodes`.

    All of our types are flat, so that each column has one node. What it says is believed no further
    than Arrow finds it to be true.
    """
    header = _header(body)
    nodes = header + _field(body, header, 1)
    return int(_U32(body, nodes + _U32(body, nodes)[0])[0])


def _header(body: Message) -> int:
    """Where the table of the record batch is."""
    message = 8 + _U32(body, 8)[0]
    header: int = message + _field(body, message, 2)
    return int(header + _U32(body, header)[0])


def _field(body: Message, table: int, index: int) -> int:
    vtable = table - _I32(body, table)[0]
    slot = 4 + 2 * index
    return int(_U16(body, vtable + slot)[0]) if slot < _U16(body, vtable)[0] else 0


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
