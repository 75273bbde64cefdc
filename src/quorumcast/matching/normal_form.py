"""Columns in the one form that depends on their values alone.

Arrow lays out equal values in many ways: what was sliced has an offset, null slots contain
anything, a bitmap may be there without nulls, bits may begin inside a byte. `NormalRows` writes
rows in one form, and `read_columns` makes a batch of it without copying. The form is described in
`matching.cut`.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.core.publication import null_column
from quorumcast.matching.columns import bits_of

#: A byte per column that tells of nulls, and the parts.
WrittenColumns: TypeAlias = tuple[bytes, list[bytes]]
_Ends: TypeAlias = npt.NDArray[np.int32]
_Flags: TypeAlias = npt.NDArray[np.bool_]

_END = struct.Struct("<i")
_ALIGNED = 8
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


def columns_used(batch: pa.RecordBatch) -> int:
    """How many columns there are up to the last one with a value, and at least one."""
    used = batch.num_columns
    while used > 1 and batch.column(used - 1).null_count == batch.num_rows:
        used -= 1
    return int(used)


def taken(batch: pa.RecordBatch, places: npt.NDArray[np.uint32]) -> pa.RecordBatch:
    """The rows at these places; `pa.array` would import pandas."""
    numbers = pa.Array.from_buffers(pa.uint32(), len(places), [None, pa.py_buffer(places)])
    return batch.take(numbers)


def padded(part: bytes) -> bytes:
    """A part of the form, filled up with zeros."""
    rest = -len(part) % _ALIGNED
    return part + bytes(rest) if rest else part


class NormalRows:
    """The rows of a batch, of which any that follow one another can be written."""

    __slots__ = ("_columns",)

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._columns = [_Column(column) for column in batch.columns]

    def written(self, start: int, stop: int) -> WrittenColumns:
        """These rows in the one form."""
        columns = list(self._columns)
        while columns and columns[-1].is_null(start, stop):
            columns.pop()
        nulls = bytes([column.valid(start, stop) is not None for column in columns])
        return nulls, [part for column in columns for part in column.parts(start, stop)]


class _Column:
    """One column of the rows."""

    __slots__ = ("_numbers", "_text", "_type", "_valid")

    def __init__(self, column: pa.Array) -> None:
        self._type: int = column.type.id
        buffers, first = column.buffers(), column.offset
        last = first + len(column)
        #: Which rows have a value; None if all have.
        self._valid = bits_of(buffers[0], first, len(column)) if column.null_count else None
        self._text: memoryview | None = None
        #: Values, or bits; or where the first text begins, and the ends of all.
        self._numbers: npt.NDArray[Any]
        if self._type in _TEXTS:
            self._numbers = np.frombuffer(buffers[1], np.int32, last + 1)[first:]
            self._text = memoryview(buffers[2] or b"")
            return
        if self._type == _BOOL:
            self._numbers = bits_of(buffers[1], first, len(column))
        else:
            # A publisher's buffer may end inside a number behind the last one.
            self._numbers = np.frombuffer(buffers[1], _NUMBERS[self._type], last)[first:]
        if self._valid is not None:
            zero = self._numbers.dtype.type(0)
            self._numbers = np.where(self._valid, self._numbers, zero)

    def valid(self, start: int, stop: int) -> _Flags | None:
        """Which of these rows have a value; None if all have."""
        if self._valid is None:
            return None
        valid = self._valid[start:stop]
        return None if valid.all() else valid

    def is_null(self, start: int, stop: int) -> bool:
        """Whether none of these rows has a value."""
        valid = self.valid(start, stop)
        return valid is not None and not valid.any()

    def parts(self, start: int, stop: int) -> list[bytes]:
        """The parts of the form for these rows."""
        valid = self.valid(start, stop)
        before = [] if valid is None else [_packed(valid)]
        if self._text is not None:
            return before + self._texts(self._text, self._numbers[start : stop + 1], valid)
        numbers = self._numbers[start:stop]
        return [*before, _packed(numbers) if self._type == _BOOL else numbers.tobytes()]

    @staticmethod
    def _texts(text: memoryview, ends: _Ends, valid: _Flags | None) -> list[bytes]:
        """The ends of the values, and the values."""
        first, last = ends[:-1], ends[1:]
        written = ends - ends[0]
        if valid is not None:
            np.cumsum(np.where(valid, last - first, 0), out=written[1:])
        if written[-1] == ends[-1] - ends[0]:
            return [written.tobytes(), bytes(text[ends[0] : ends[-1]])]
        # What is null has bytes all the same.
        values = [text[start:end] for start, end in zip(first[valid], last[valid], strict=True)]
        return [written.tobytes(), b"".join(values)]


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


def _packed(flags: _Flags) -> bytes:
    packed: bytes = np.packbits(flags, bitorder="little").tobytes()
    return packed
