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
_Ends: TypeAlias = npt.NDArray[np.int32]
_Flags: TypeAlias = npt.NDArray[np.bool_]

_END = struct.Struct("<i")
_ALIGNED = 8
#: Bytes of a value, on average, up to which copying byte by byte is faster than value by value.
_SHORT = 32
#: Types by their number: asking Arrow for each column would cost as much as writing it.
_BOOL = pa.bool_().id
_TEXTS = frozenset((pa.string().id, pa.binary().id))
#: How the bits of a number are read, by type.
_NUMBERS = {
    kind.id: np.dtype(f"u{kind.bit_width // 8}")
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us")),
    )
}
_FLAT = _TEXTS | {_BOOL} | _NUMBERS.keys()


def has_normal_form(schema: pa.Schema) -> bool:
    """Whether all columns are flat and of a known layout, as those of channels are."""
    return all(kind.id in _FLAT for kind in schema.types)


def padded(part: bytes) -> bytes:
    """A part of the form, filled up with zeros."""
    rest = -len(part) % _ALIGNED
    return part + bytes(rest) if rest else part


def write_columns(batch: pa.RecordBatch, places: Places | None) -> tuple[bytes, list[bytes]]:
    """A byte per column that tells of nulls, and the parts; `places` picks rows, None all."""
    columns = [_Column(column, places) for column in batch.columns]
    while columns and columns[-1].all_null:
        columns.pop()
    nulls = bytes([column.valid is not None for column in columns])
    return nulls, [part for column in columns for part in column.parts()]


class _Column:
    """Some rows of a column."""

    __slots__ = ("_buffers", "_first", "_index", "_last", "_type", "all_null", "valid")

    def __init__(self, column: pa.Array, places: Places | None) -> None:
        self._type: int = column.type.id
        self._buffers = column.buffers()
        self._first: int = column.offset
        self._last = self._first + len(column)
        #: Where the rows are in the buffers; None: from first to last.
        self._index = places + self._first if places is not None and self._first else places
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
        valid = self.valid
        before = [] if valid is None else [_packed(valid)]
        if self._type in _TEXTS:
            return before + self._texts()
        if self._type == _BOOL:
            bits = self._bits(self._buffers[1])
            return [*before, _packed(bits if valid is None else bits & valid)]
        # A publisher's buffer may end inside a number behind the last one.
        numbers = np.frombuffer(self._buffers[1], _NUMBERS[self._type], self._last)
        numbers = numbers[self._first : self._last] if self._index is None else numbers[self._index]
        if valid is not None:
            numbers = np.where(valid, numbers, numbers.dtype.type(0))
        return [*before, numbers.tobytes()]

    def _texts(self) -> list[bytes]:
        """The ends of the values, and the values."""
        ends = np.frombuffer(self._buffers[1], np.int32, self._last + 1)
        if self._index is None:
            ends = ends[self._first : self._last + 1]
            first, last = ends[:-1], ends[1:]
        else:
            first, last = ends[self._index], ends[self._index + 1]
        if self.valid is not None:
            last = np.where(self.valid, last, first)
        written = np.zeros(len(first) + 1, np.uint32)
        np.cumsum(last - first, out=written[1:])
        size = int(written[-1])
        if not size:
            return [written.tobytes(), b""]
        text = self._buffers[2]
        if size == last[-1] - first[0]:  # rows ascend, so there are no gaps
            return [written.tobytes(), bytes(memoryview(text)[first[0] : last[-1]])]
        return [written.tobytes(), _gathered(text, first, last)]

    def _bits(self, buffer: pa.Buffer) -> _Flags:
        packed = np.frombuffer(buffer, np.uint8)
        if self._index is None:
            start = self._first >> 3
            bits = np.unpackbits(packed[start : (self._last + 7) >> 3], bitorder="little")
            bits = bits[self._first - 8 * start : self._last - 8 * start]
        else:
            bits = packed[self._index >> 3] >> (self._index & 7).astype(np.uint8) & 1
        flags: _Flags = bits.astype(np.bool_)
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
    if kind.id in _TEXTS:
        size = parts.last_end(count)
        buffers += [parts.buffer(_END.size * (count + 1)), parts.buffer(size)]
    else:
        buffers.append(parts.buffer((count * kind.bit_width + 7) // 8))
    return pa.Array.from_buffers(kind, count, buffers)


def _gathered(text: pa.Buffer, first: _Ends, last: _Ends) -> bytes:
    """The bytes between these ends, one after another."""
    lengths = last - first
    size = int(lengths.sum())
    if size <= _SHORT * len(lengths):
        # Consecutive numbers, moved to where each value begins.
        ends = np.cumsum(lengths, dtype=np.int64)
        places = np.arange(size) + np.repeat(first - (ends - lengths), lengths)
        few: bytes = np.frombuffer(text, np.uint8)[places].tobytes()
        return few
    view = memoryview(text)
    return b"".join(
        [view[start:end] for start, end in zip(first.tolist(), last.tolist(), strict=True)]
    )


def _packed(flags: _Flags) -> bytes:
    packed: bytes = np.packbits(flags, bitorder="little").tobytes()
    return packed
