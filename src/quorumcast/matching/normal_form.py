"""Columns in the one form that depends on their values alone.

Arrow lays out equal values in many ways: what was sliced has an offset, null slots contain
anything, a bitmap may be there without nulls, bits may begin inside a byte. `write_columns` picks
rows and writes them in one form, and `read_columns` makes a batch of it without copying. The form
is described in `matching.cut`.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.core.publication import null_column

#: Places of rows in a batch.
Places: TypeAlias = npt.NDArray[np.intp]
_Flags: TypeAlias = npt.NDArray[np.bool_]

_END = struct.Struct("<i")
_ALIGNED = 8
#: How values of a fixed number of bytes are read, and those of one bit or of any length.
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_BITS = 1
_FLAT = (
    pa.types.is_integer, pa.types.is_floating, pa.types.is_date, pa.types.is_timestamp
)  # fmt: skip


def has_normal_form(schema: pa.Schema) -> bool:
    """Whether all columns are flat and of a known layout, as those of channels are."""
    return all(
        pa.types.is_boolean(field.type)
        or _is_text(field.type)
        or any(is_a(field.type) for is_a in _FLAT)
        for field in schema
    )


def padded(part: bytes) -> bytes:
    """A part of the form, filled up with zeros."""
    return part + bytes(-len(part) % _ALIGNED)


def write_columns(batch: pa.RecordBatch, places: Places | None) -> tuple[bytes, list[bytes]]:
    """A byte per column that tells of nulls, and the parts; `places` picks rows, None all."""
    count = batch.num_rows if places is None else len(places)
    if places is None:
        places = np.arange(count)
    columns = [_Column(column, places) for column in batch.columns]
    while columns and columns[-1].all_null:
        columns.pop()
    nulls = bytes([column.valid is not None for column in columns])
    return nulls, [part for column in columns for part in column.parts()]


class _Column:
    """Some rows of a column."""

    __slots__ = ("_buffers", "_index", "_type", "all_null", "valid")

    def __init__(self, column: pa.Array, places: Places) -> None:
        self._type = column.type
        self._buffers = column.buffers()
        self._index = places + column.offset if column.offset else places
        #: Which rows have a value; None if all have.
        self.valid: _Flags | None = None
        self.all_null = False
        if column.null_count:
            valid = self._bits(self._buffers[0])
            if not valid.all():
                self.valid = valid
                self.all_null = not valid.any()

    def parts(self) -> list[bytes]:
        """The parts of the form."""
        before = [] if self.valid is None else [_packed(self.valid)]
        if _is_text(self._type):
            return before + self._texts()
        if pa.types.is_boolean(self._type):
            bits = self._bits(self._buffers[1])
            return [*before, _packed(bits if self.valid is None else bits & self.valid)]
        numbers = np.frombuffer(self._buffers[1], _UNSIGNED[self._type.bit_width])[self._index]
        if self.valid is not None:
            numbers[~self.valid] = 0
        return [*before, numbers.tobytes()]

    def _texts(self) -> list[bytes]:
        """The ends of the values, and the values."""
        ends = np.frombuffer(self._buffers[1], np.int32)
        first, last = ends[self._index], ends[self._index + 1]
        if self.valid is not None:
            last = np.where(self.valid, last, first)
        count = len(first)
        written = np.zeros(count + 1, np.uint32)
        np.cumsum(last - first, out=written[1:])
        if not written[count]:
            return [written.tobytes(), b""]
        text = memoryview(self._buffers[2])
        if written[count] == last[-1] - first[0] and np.array_equal(first[1:], last[:-1]):
            return [written.tobytes(), bytes(text[first[0] : last[-1]])]
        pairs = zip(first.tolist(), last.tolist(), strict=True)
        return [written.tobytes(), b"".join([text[start:end] for start, end in pairs])]

    def _bits(self, buffer: pa.Buffer) -> _Flags:
        index = self._index
        found = np.frombuffer(buffer, np.uint8)[index >> 3] >> (index & 7).astype(np.uint8)
        flags: _Flags = (found & 1).astype(np.bool_)
        return flags


class Parts:
    """Reads the parts of a form one after another; raises `ValueError` if one is too short."""

    __slots__ = ("_body", "_buffer", "_place")

    def __init__(self, body: bytes, start: int) -> None:
        self._body = body
        self._buffer = pa.py_buffer(body)
        self._place = start

    def buffer(self, size: int) -> pa.Buffer:
        """The next part, which has so many bytes."""
        start, end = self._place, self._place + size
        if size < 0 or end > len(self._body):
            raise ValueError("a part is too short")
        self._place = end + -size % _ALIGNED
        return self._buffer.slice(start, size)

    def bytes(self, size: int) -> bytes:
        """The next part as bytes."""
        return bytes(self.buffer(size))

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self._place == len(self._body)

    def last_end(self, count: int) -> int:
        """The last of the next ends."""
        return int(_END.unpack_from(self._body, self._place + _END.size * count)[0])


def read_columns(schema: pa.Schema, nulls: bytes, parts: Parts, count: int) -> pa.RecordBatch:
    """The batch of so many rows; what is wrong raises, or fails when the batch is validated."""
    if len(nulls) > len(schema):
        raise ValueError("there are more columns than the channel has")
    columns = [
        _read_column(field.type, has_nulls, parts, count)
        for field, has_nulls in zip(schema, nulls, strict=False)
    ]
    columns += [null_column(count, field.type) for field in list(schema)[len(nulls) :]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read_column(kind: pa.DataType, has_nulls: int, parts: Parts, count: int) -> pa.Array:
    buffers = [parts.buffer((count + 7) // 8) if has_nulls else None]
    if _is_text(kind):
        size = parts.last_end(count)
        buffers += [parts.buffer(_END.size * (count + 1)), parts.buffer(size)]
    else:
        buffers.append(parts.buffer((count * kind.bit_width + 7) // 8))
    return pa.Array.from_buffers(kind, count, buffers)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _packed(flags: _Flags) -> bytes:
    packed: bytes = np.packbits(flags, bitorder="little").tobytes()
    return packed
