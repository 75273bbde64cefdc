"""The values of a column and how literals compare with them, exactly.

A domain turns a comparison with a literal into an interval of its own values. For a literal between
two values (2.5 for an integer, a microsecond for a column of milliseconds) the bound is the nearest
value on the side that the sign asks for; a literal beyond all values is never equal, and all values
are on one side of it.

A floating-point column compares with an integer literal exactly; of a literal with a point or an
exponent it takes the nearest 64-bit number, as every language does with that literal. float32
values widen without loss.
"""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Context, Decimal

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.matching.grammar import quoted_text
from quorumcast.matching.nodes import Literal, Sign, Sort, Value


class ValueFamily(enum.Enum):
    """A family of column types whose values compare with one another."""

    INTEGER = "an integer"
    DECIMAL = "a decimal"
    FLOAT = "a number"
    TRUTH = "TRUE or FALSE"
    TEXT = "text"
    BYTES = "bytes"
    DATE = "a date"
    TIME = "a time without timezone"
    ZONED_TIME = "a time with a timezone"
    OTHER = "of a type without an order"


NUMBERS = (ValueFamily.INTEGER, ValueFamily.DECIMAL, ValueFamily.FLOAT)
STRINGS = (ValueFamily.TEXT, ValueFamily.BYTES)
MOMENTS = (ValueFamily.DATE, ValueFamily.TIME, ValueFamily.ZONED_TIME)
#: Literals that a column of a family compares with.
_SORTS = {
    **dict.fromkeys(NUMBERS, (Sort.NUMBER,)),
    ValueFamily.TEXT: (Sort.TEXT,),
    ValueFamily.BYTES: (Sort.TEXT, Sort.BYTES),
    ValueFamily.TRUTH: (Sort.TRUTH,),
    ValueFamily.DATE: (Sort.DATE, Sort.TIME, Sort.ZONED_TIME),
    ValueFamily.TIME: (Sort.DATE, Sort.TIME),
    ValueFamily.ZONED_TIME: (Sort.DATE, Sort.ZONED_TIME),
    ValueFamily.OTHER: (),
}
_DAY_US = 86_400_000_000
_TICKS_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": _DAY_US}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
#: Enough digits for every decimal and every literal.
_CONTEXT = Context(prec=200, rounding=ROUND_FLOOR)

#: What is beyond both infinities: nothing. Found by identity.
_NEVER = math.nan

#: Both ends of an interval; None: no bound.
Bounds = tuple[Value | None, Value | None]


class Domain(msgspec.Struct, frozen=True):
    """The values of one column."""

    family: ValueFamily
    #: The least and the largest value; text and bytes have none.
    least: int | float = 0
    most: int | float = 0
    #: Times: ticks a day. Decimals: units of 1.
    scale: int = 1

    @property
    def read_by_arrow(self) -> bool:
        """Whether only Arrow compares the values: text, bytes and decimals."""
        return self.family in (*STRINGS, ValueFamily.DECIMAL)

    @property
    def number_type(self) -> type[np.generic]:
        """The type of numpy that holds all values of fixed width."""
        if self.family is ValueFamily.FLOAT:
            return np.float64
        return np.uint64 if self.most >= 2**63 else np.int64

    def compares_with(self, literal: Literal) -> bool:
        """Whether a literal has an order with the values."""
        return literal.sort in _SORTS[self.family]

    # ------------------------------------------------------------------- from text

    def bounds(self, sign: Sign, literal: Literal) -> Bounds | None:
        """The interval of values for which the comparison is true; None if there is none.

        `Sign.UNEQUAL` is no interval.
        """
        if self.family in STRINGS:
            return _bounds_of_bytes(sign, _encoded(literal))
        floor, exact = self._floor(literal)
        below = self._before(floor) if exact else floor
        match sign:
            case Sign.LESS:
                bounds: tuple[int | float | None, int | float | None] = (None, below)
            case Sign.AT_MOST:
                bounds = (None, floor)
            case Sign.MORE:
                bounds = (self._after(floor), None)
            case Sign.AT_LEAST:
                bounds = (floor if exact else self._after(floor), None)
            case _:
                return (floor, floor) if exact and self.least <= floor <= self.most else None
        return None if _NEVER in bounds else bounds

    def _floor(self, literal: Literal) -> tuple[int | float, bool]:
        """The largest value up to a literal, and whether it is equal."""
        value = literal.value
        if self.family is ValueFamily.FLOAT:
            return _float_floor(literal)
        if isinstance(value, Decimal):
            scaled = _CONTEXT.multiply(value, self.scale)
            # Beyond every domain, and long to write out; a zero may have any exponent.
            if scaled and scaled.adjusted() > 60:
                return (self.most + 1 if scaled > 0 else self.least - 2), False
            floor = int(scaled.to_integral_value(ROUND_FLOOR))
            return floor, floor == scaled
        ticks = int(value)
        if self.family in MOMENTS:
            a_day = 1 if literal.sort is Sort.DATE else _DAY_US
            ticks, rest = divmod(ticks * self.scale, a_day)
            return ticks, not rest
        return ticks, True

    def _before(self, value: int | float) -> int | float:
        if isinstance(value, float):
            return _NEVER if value == -math.inf else math.nextafter(value, -math.inf)
        return value - 1

    def _after(self, value: int | float) -> int | float:
        if isinstance(value, float):
            return _NEVER if value == math.inf else math.nextafter(value, math.inf) + 0.0
        return value + 1

    # --------------------------------------------------------------------- to text

    def low_text(self, low: Value) -> str:
        """The test `>= low`, in its shortest form."""
        if isinstance(low, bytes):
            return f"> {self.text(low[:-1])}" if low[-1:] == b"\0" else f">= {self.text(low)}"
        if isinstance(low, float):
            return _shorter(f">= {self.text(low)}", f"> {self.text(self._before(low))}")
        return f">= {self.text(low)}" if self._writable(low) else f"> {self.text(low - 1)}"

    def high_text(self, high: Value) -> str:
        """The test `<= high`, or `< high` for text and bytes, in its shortest form."""
        if isinstance(high, bytes):
            return f"<= {self.text(high[:-1])}" if high[-1:] == b"\0" else f"< {self.text(high)}"
        if isinstance(high, float):
            return _shorter(f"<= {self.text(high)}", f"< {self.text(self._after(high))}")
        return f"<= {self.text(high)}" if self._writable(high) else f"< {self.text(high + 1)}"

    def text(self, value: Value) -> str:
        """A value as a literal."""
        if isinstance(value, bytes):
            if self.family is ValueFamily.TEXT:
                return quoted_text(value.decode())
            return f"X'{value.hex()}'"
        if isinstance(value, float):
            return repr(value).replace("inf", "1e999")
        match self.family:
            case ValueFamily.TRUTH:
                return "TRUE" if value else "FALSE"
            case ValueFamily.DECIMAL:
                return f"{_CONTEXT.divide(Decimal(value), self.scale):f}"
            case ValueFamily.DATE | ValueFamily.TIME | ValueFamily.ZONED_TIME:
                return self._moment(value)
            case _:
                return str(value)

    def _moment(self, ticks: int) -> str:
        time = _EPOCH + timedelta(microseconds=ticks * _DAY_US // self.scale)
        if self.family is ValueFamily.DATE:
            return f"DATE '{time.date().isoformat()}'"
        zone = "Z" if self.family is ValueFamily.ZONED_TIME else ""
        return f"TIMESTAMP '{time.replace(tzinfo=None).isoformat()}{zone}'"

    def _writable(self, value: int) -> bool:
        """Whether there is a literal for a value; times have one for the years 1 to 9999."""
        if self.family not in MOMENTS:
            return True
        return _FIRST_US <= value * _DAY_US // self.scale <= _LAST_US


def domain_of(kind: pa.DataType) -> Domain:
    """The domain of an Arrow type."""
    types = pa.types
    if types.is_integer(kind):
        bits = kind.bit_width
        if types.is_unsigned_integer(kind):
            return Domain(ValueFamily.INTEGER, 0, 2**bits - 1)
        return Domain(ValueFamily.INTEGER, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if types.is_float32(kind) or types.is_float64(kind):
        return Domain(ValueFamily.FLOAT, -math.inf, math.inf)
    if types.is_boolean(kind):
        return Domain(ValueFamily.TRUTH, 0, 1)
    if types.is_string(kind):
        return Domain(ValueFamily.TEXT)
    if types.is_binary(kind):
        return Domain(ValueFamily.BYTES)
    if types.is_date32(kind):
        return Domain(ValueFamily.DATE, -(2**31), 2**31 - 1)
    if types.is_timestamp(kind) and kind.unit in _TICKS_A_DAY:
        family = ValueFamily.TIME if kind.tz is None else ValueFamily.ZONED_TIME
        return Domain(family, -(2**63), 2**63 - 1, _TICKS_A_DAY[kind.unit])
    if types.is_decimal128(kind) and kind.scale >= 0:
        most = 10**kind.precision - 1
        return Domain(ValueFamily.DECIMAL, -most, most, 10**kind.scale)
    return Domain(ValueFamily.OTHER)


def _encoded(literal: Literal) -> bytes:
    value = literal.value
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[arg-type]


def _bounds_of_bytes(sign: Sign, value: bytes) -> Bounds | None:
    """The half-open interval; the next value after a row of bytes has a zero behind it."""
    after = value + b"\0"
    match sign:
        case Sign.LESS:
            return (None, value) if value else None
        case Sign.AT_MOST:
            return None, after
        case Sign.MORE:
            return after, None
        case Sign.AT_LEAST:
            return value or None, None
        case _:
            return value or None, after


def _float_floor(literal: Literal) -> tuple[float, bool]:
    """The largest 64-bit number up to a literal, and whether it is equal; -0.0 is 0.0."""
    value = literal.value
    near = float(value) + 0.0
    if literal.fractional:
        return near, True
    whole = int(value)
    if int(near) > whole:
        return math.nextafter(near, -math.inf) + 0.0, False
    return near, int(near) == whole


def _shorter(first: str, second: str) -> str:
    return second if len(second) < len(first) else first
