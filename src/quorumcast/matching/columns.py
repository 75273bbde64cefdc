"""The columns of a channel: found by name, and read from a record batch as numpy arrays.

Arrays are made from Arrow's buffers: Arrow's own conversion imports pandas where it is installed,
and costs more than the comparison that follows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumcast.core.errors import UsageError, nearest, shortened
from quorumcast.matching.domain import STRINGS, Domain, ValueFamily, domain_of

#: Names that a sentence lists.
_LISTED = 20
_BINARY = pa.binary()

Bools = npt.NDArray[np.bool_]
#: The values of a column that has fixed-width numbers.
Numbers = npt.NDArray[np.generic]


class Columns:
    """The columns of one schema, by number."""

    __slots__ = ("_by_lower", "_by_name", "domains", "names", "schema", "types")

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.names: tuple[str, ...] = tuple(schema.names)
        self.types: tuple[pa.DataType, ...] = tuple(schema.types)
        self.domains: tuple[Domain, ...] = tuple(map(domain_of, self.types))
        self._by_name = {name: index for index, name in enumerate(self.names)}
        self._by_lower = {name.lower(): index for name, index in self._by_name.items()}

    def find(self, name: str, who: str, *, or_text: bool = False) -> int:
        """The number of a column; case counts where names differ by nothing else.

        With `or_text`, a text that lacks its quotes may stand there.
        """
        found = self._by_name.get(name)
        if found is None:
            found = self._by_lower.get(name.lower())
        if found is not None:
            return found
        if name.upper() == "NULL":
            raise UsageError(f"{who} compares with NULL: write IS NULL or IS NOT NULL")
        near = nearest(name, self.names)
        if near:
            meant = f"did you mean {near!r}?"
        else:
            more = ", …" if len(self.names) > _LISTED else ""
            listed = f"{', '.join(self.names[:_LISTED])}{more}"
            meant = f"there are {listed}"
        quotes = " (a text stands between single quotes)" if or_text else ""
        raise UsageError(
            f"{who} names the column {shortened(name)!r}, which is not there: {meant}{quotes}"
        )


class BatchView:
    """The columns of one record batch, each read at most once."""

    __slots__ = ("_batch", "_columns", "_numbers", "_present", "_raw", "rows")

    def __init__(self, columns: Columns, batch: pa.RecordBatch) -> None:
        self._columns = columns
        self._batch = batch
        self.rows: int = batch.num_rows
        self._numbers: dict[int, Numbers] = {}
        self._present: dict[int, Bools | None] = {}
        self._raw: dict[int, pa.Array] = {}

    def array(self, column: int) -> pa.Array:
        """A column as Arrow has it."""
        return self._batch.column(column)

    def raw(self, column: int) -> pa.Array:
        """A column as Arrow compares it: text as bytes, which sort alike and need not be text."""
        found = self._raw.get(column)
        if found is None:
            found = self.array(column)
            if self._columns.domains[column].family is ValueFamily.TEXT:
                found = found.view(_BINARY)
            self._raw[column] = found
        return found

    def numbers(self, column: int) -> Numbers:
        """The values of a column of fixed width, floats as 64 bits; arbitrary at nulls."""
        found = self._numbers.get(column)
        if found is None:
            domain = self._columns.domains[column]
            found = _numbers(self.array(column), domain)
            if domain.family is ValueFamily.FLOAT and found.dtype != np.float64:
                # Once for all tests. A publisher may have written a NaN of which numpy warns.
                with np.errstate(invalid="ignore"):
                    found = found.astype(np.float64)
            self._numbers[column] = found
        return found

    def present(self, column: int) -> Bools | None:
        """Which rows have a value, neither null nor NaN; None: all."""
        if column not in self._present:
            self._present[column] = self._find_present(column)
        return self._present[column]

    def _find_present(self, column: int) -> Bools | None:
        array = self.array(column)
        valid = _valid(array)
        if self._columns.domains[column].family is not ValueFamily.FLOAT:
            return valid
        numbers = self.numbers(column)
        same: Bools = numbers == numbers  # NaN alone differs from itself
        if valid is not None:
            same &= valid
        return None if same.all() else same


def bools(array: pa.BooleanArray) -> Bools:
    """The values of an Arrow array of truth values; False where it has nulls."""
    values = bits_of(array.buffers()[1], array.offset, len(array))
    valid = _valid(array)
    return values if valid is None else values & valid


def _valid(array: pa.Array) -> Bools | None:
    if not array.null_count:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:  # nulls without a bitmap: Arrow's type of nothing but nulls
        return bools(pc.is_valid(array))
    return bits_of(bitmap, array.offset, len(array))


def bits_of(buffer: pa.Buffer, offset: int, count: int) -> Bools:
    """So many bits of a buffer of Arrow, from an offset on."""
    if not count:
        return np.zeros(0, np.bool_)
    first, skipped = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8, (skipped + count + 7) // 8, first)
    unpacked = np.unpackbits(packed, count=skipped + count, bitorder="little")
    return unpacked[skipped:].view(np.bool_)


def _numbers(array: pa.Array, domain: Domain) -> Numbers:
    """The values as numbers: times as ticks, dates as days, truth values as 0 and 1."""
    if domain.family in (*STRINGS, ValueFamily.DECIMAL, ValueFamily.OTHER):
        raise TypeError(f"a column that is {domain.family.value} has no numbers of fixed width")
    data = array.buffers()[1]
    if domain.family is ValueFamily.TRUTH:
        return bits_of(data, array.offset, len(array)).view(np.uint8)
    kind = numpy_type(array.type)
    if not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)


def numpy_type(kind: pa.DataType) -> np.dtype[np.generic]:
    """How numpy reads the numbers of a type of fixed width."""
    if pa.types.is_floating(kind):
        return np.dtype(f"f{kind.bit_width // 8}")
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{sign}{kind.bit_width // 8}")
