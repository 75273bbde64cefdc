"""The values of a column as small integers that keep their order.

An index compares the values of a column with the constants of thousands of predicates. The sorted
constants divide the values of the column into points (the constants themselves) and gaps between
them. Every interval, set and prefix of a predicate is a union of points and gaps, whatever the type
of the column, so that the index compares integers only:

    rank 0         absent: null or NaN
    rank 1         values below the first constant
    rank 2         the first constant
    rank 3         values between the first and the second constant
    …

The rank of a value is looked up in a table if the constants are integers close to each other, and
found by bisection otherwise. Text, bytes and decimals are looked up one by one in a dictionary.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.matching.canonical import as_interval
from quorumcast.matching.columns import BatchView, numpy_type
from quorumcast.matching.domain import Domain, ValueFamily
from quorumcast.matching.nodes import Constraint, Interval, OneOf, Prefix, Presence, Value

#: A rank per row, or per something else.
RankArray: TypeAlias = npt.NDArray[np.int32]
#: First and last rank of a part of a constraint.
Piece: TypeAlias = tuple[int, int]

ABSENT = 0
#: Integers between the first and the last constant for which there may be a table.
_MAX_TABLE = 1 << 16
#: Bytes of a decimal, and both ends of a text.
_DECIMAL = 16
_ENDS = struct.Struct("<ii")
#: How `struct` reads numbers: numpy's own characters mean other sizes there.
_CODES = {
    "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f4": "f", "f8": "d",
}  # fmt: skip


def constants_of(constraint: Constraint) -> Sequence[Value]:
    """The values that divide the column for a constraint."""
    match constraint:
        case Presence():
            return ()
        case OneOf(values=values):
            return values
        case Interval() | Prefix():
            within = as_interval(constraint)
            return [value for value in (within.low, within.high) if value is not None]
    assert_never(constraint)


class Ranks:
    """The ranks of one column."""

    __slots__ = (
        "_column", "_domain", "_ordered", "_places", "_points", "_read", "_search", "_size",
        "_table", "count",
    )  # fmt: skip

    def __init__(
        self, column: int, kind: pa.DataType, domain: Domain, constraints: Iterable[Constraint]
    ) -> None:
        self._column = column
        self._domain = domain
        constraints = list(constraints)
        values = {value for one in constraints for value in constants_of(one)}
        #: The constants, ascending.
        self._points: list[Any] = sorted(values)
        self._places = {value: place for place, value in enumerate(self._points)}
        #: Whether gaps matter; if not, any rank of a gap will do for a value that is no constant.
        self._ordered = any(isinstance(one, Interval | Prefix) for one in constraints)
        #: How many ranks there are.
        self.count = 2 * len(self._points) + 2
        self._search: Any = None
        self._table: RankArray | None = None
        if not domain.read_by_arrow:
            self._search = np.array(self._points, domain.number_type)
            self._table = _table_of(self._search)
        #: Reads a number of fixed width, of so many bytes; None for other values.
        self._read: Any = None
        self._size = 0
        if self._search is not None and domain.family is not ValueFamily.TRUTH:
            number = struct.Struct("<" + _CODES[numpy_type(kind).str[1:]])
            self._read, self._size = number.unpack_from, number.size

    # ------------------------------------------------------------------ constraints

    def pieces(self, constraint: Constraint) -> list[Piece]:
        """The ranks of the values that satisfy a constraint, ascending."""
        match constraint:
            case Presence(present=present):
                return [(ABSENT + 1, self.count - 1)] if present else [(ABSENT, ABSENT)]
            case OneOf(values=values):
                return [(rank, rank) for rank in map(self._rank_of_constant, values)]
            case Interval() | Prefix():
                within = as_interval(constraint)
                low = ABSENT + 1 if within.low is None else self._rank_of_constant(within.low)
                high = self.count - 1
                if within.high is not None:
                    open_end = isinstance(within.high, bytes)
                    high = self._rank_of_constant(within.high) - open_end
                return [(low, high)]
        assert_never(constraint)

    def _rank_of_constant(self, value: Value) -> int:
        return 2 * self._places[value] + 2

    # ------------------------------------------------------------------------- rows

    def of(self, view: BatchView) -> RankArray:
        """The rank of the value of each row."""
        if self._search is None:
            found = self._of_objects(view)
        elif not self._points:
            found = np.ones(view.rows, np.int32)
        elif self._table is not None:
            first, last = int(self._search[0]), int(self._search[-1])
            numbers = view.numbers(self._column).astype(np.int64)
            found = self._table[np.clip(numbers, first - 1, last + 1) - (first - 1)]
        else:
            found = self._bisected(view.numbers(self._column))
        present = view.present(self._column)
        return found if present is None else np.where(present, found, np.int32(ABSENT))

    def of_row(self, array: pa.Array) -> int:
        """The rank of a single value."""
        if array.null_count:
            return ABSENT
        value = self._value(array.buffers(), array.offset)
        place = self._places.get(value)
        if place is not None:
            return 2 * place + 2
        if value != value:
            return ABSENT
        return 2 * bisect_left(self._points, value) + 1

    def _value(self, buffers: list[Any], offset: int) -> Any:
        data = buffers[1]
        if self._read is not None:
            return self._read(data, offset * self._size)[0]
        if self._domain.family is ValueFamily.TRUTH:
            return data[offset >> 3] >> (offset & 7) & 1
        if self._domain.family is ValueFamily.DECIMAL:
            start = _DECIMAL * offset
            return int.from_bytes(bytes(data[start : start + _DECIMAL]), "little", signed=True)
        first, last = _ENDS.unpack_from(data, offset * 4)
        return bytes(buffers[2][first:last]) if last > first else b""

    def _bisected(self, numbers: Any) -> RankArray:
        numbers = numbers.astype(self._search.dtype)
        places = np.searchsorted(self._search, numbers)
        equal = self._search[np.minimum(places, len(self._search) - 1)] == numbers
        ranks: RankArray = (2 * places + 1 + equal).astype(np.int32)
        return ranks

    def _of_objects(self, view: BatchView) -> RankArray:
        values = self._objects(view)
        places, points = self._places, self._points
        found = map(places.get, values)
        if self._ordered:
            ranks = [
                2 * bisect_left(points, value) + 1 if place is None else 2 * place + 2
                for value, place in zip(values, found, strict=True)
            ]
        else:
            ranks = [1 if place is None else 2 * place + 2 for place in found]
        return np.array(ranks, np.int32)

    def _objects(self, view: BatchView) -> list[Any]:
        """The values as Python objects; anything where there is none."""
        array = view.array(self._column)
        count, offset = len(array), array.offset
        if not count:
            return []
        if self._domain.family is ValueFamily.DECIMAL:
            start = _DECIMAL * offset
            data = bytes(array.buffers()[1][start : start + _DECIMAL * count])
            steps = range(0, len(data), _DECIMAL)
            return [int.from_bytes(data[i : i + _DECIMAL], "little", signed=True) for i in steps]
        ends = np.frombuffer(array.buffers()[1], np.int32, count + 1, 4 * offset)
        first, last = int(ends[0]), int(ends[-1])
        text = array.buffers()[2]
        data = bytes(text[first:last]) if last > first else b""
        return [data[start:end] for start, end in pairwise((ends - first).tolist())]


def _table_of(points: npt.NDArray[Any]) -> RankArray | None:
    """The ranks of all integers from one below the first constant to one above the last."""
    if points.dtype != np.int64 or not len(points):
        return None
    first, last = int(points[0]), int(points[-1])
    if last - first >= max(_MAX_TABLE, 8 * len(points)) or first == -(2**63) or last == 2**63 - 1:
        return None
    steps = np.zeros(last - first + 3, np.int32)
    offsets = points - (first - 1)
    steps[0] = 1
    steps[offsets] += 1
    steps[offsets + 1] += 1
    table: RankArray = np.cumsum(steps, dtype=np.int32)
    return table
