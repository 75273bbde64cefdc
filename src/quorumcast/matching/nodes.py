"""The two trees of a predicate: what was written, and what it means on one schema.

`grammar.py` turns text into the written tree: operands, tests, and NOT, AND, OR around them. It
knows no schema. `binding.py` turns that into the tree of meaning: `AllOf` and `AnyOf` over tests
of one column (or of two). The second tree has no NOT. A test on an absent value (null or NaN) is
never true, and neither is its negation, so each negation is itself a test on a present value.

Values are plain numbers in both directions: text and bytes are `bytes` (text as UTF-8, which sorts
as its characters do), times are ticks of their column, dates are days, TRUE and FALSE are 1 and 0,
decimals are counted in units of their last digit. `domain.py` converts.
"""

from __future__ import annotations

import enum
from decimal import Decimal
from typing import TypeAlias

import msgspec

# ------------------------------------------------------------------- what was written


class Sort(enum.Enum):
    """The sort of a literal."""

    NUMBER = "a number"
    TEXT = "text"
    BYTES = "bytes"
    TRUTH = "TRUE or FALSE"
    DATE = "a date"
    #: Without and with a time zone.
    TIME = "a time without timezone"
    ZONED_TIME = "a time with a timezone"


class Literal(msgspec.Struct, frozen=True):
    """A value in the text: a decimal, text, bytes, or days or microseconds since 1970."""

    sort: Sort
    value: Decimal | str | bytes | int
    #: Whether a number was written with a point or an exponent.
    fractional: bool = False


class ColumnName(msgspec.Struct, frozen=True):
    """A column, as it was written."""

    name: str


Operand: TypeAlias = Literal | ColumnName


class Sign(enum.Enum):
    """A sign of comparison."""

    EQUAL = "="
    UNEQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="


#: The sign that is true exactly where this one is false.
OPPOSITE = {
    Sign.EQUAL: Sign.UNEQUAL,
    Sign.UNEQUAL: Sign.EQUAL,
    Sign.LESS: Sign.AT_LEAST,
    Sign.AT_LEAST: Sign.LESS,
    Sign.MORE: Sign.AT_MOST,
    Sign.AT_MOST: Sign.MORE,
}
#: The sign after both sides have changed places.
MIRRORED = {
    Sign.EQUAL: Sign.EQUAL,
    Sign.UNEQUAL: Sign.UNEQUAL,
    Sign.LESS: Sign.MORE,
    Sign.MORE: Sign.LESS,
    Sign.AT_MOST: Sign.AT_LEAST,
    Sign.AT_LEAST: Sign.AT_MOST,
}


class Truth(msgspec.Struct, frozen=True):
    """An operand that stands alone as a test: TRUE, FALSE, or a column of truth values."""

    operand: Operand


class Comparison(msgspec.Struct, frozen=True):
    """Two operands and a sign between them."""

    left: Operand
    sign: Sign
    right: Operand


class Like(msgspec.Struct, frozen=True):
    """An operand and a pattern with % and _."""

    operand: Operand
    pattern: str


class IsNull(msgspec.Struct, frozen=True):
    """Whether an operand is null or NaN."""

    operand: Operand


class Not(msgspec.Struct, frozen=True):
    """The negation of a test."""

    part: Written


class And(msgspec.Struct, frozen=True):
    """True where all parts are."""

    parts: tuple[Written, ...]


class Or(msgspec.Struct, frozen=True):
    """True where one of the parts is."""

    parts: tuple[Written, ...]


Written: TypeAlias = Truth | Comparison | Like | IsNull | Not | And | Or

# ------------------------------------------------------------------- what it means

Value: TypeAlias = int | float | bytes


class Presence(msgspec.Struct, frozen=True):
    """The value is there, or (`present=False`) it is null or NaN."""

    column: int
    present: bool


class Interval(msgspec.Struct, frozen=True):
    """low ≤ value ≤ high; for text and bytes low ≤ value < high. None: no bound on that side.

    A strict bound is written as the next value of the column's domain, so that every interval of
    integers, times and floats is closed, and every interval of bytes is half open.
    """

    column: int
    low: Value | None
    high: Value | None


class OneOf(msgspec.Struct, frozen=True):
    """The value is one of these, which are distinct and ascending."""

    column: int
    values: tuple[Value, ...]


class NoneOf(msgspec.Struct, frozen=True):
    """The value is there and none of these, which are distinct and ascending."""

    column: int
    values: tuple[Value, ...]


class Prefix(msgspec.Struct, frozen=True):
    """Text or bytes begin with this."""

    column: int
    prefix: bytes


class Pattern(msgspec.Struct, frozen=True):
    """Text or bytes have, or do not have, the form of a pattern with %, _ and \\."""

    column: int
    pattern: str
    negated: bool


class Compared(msgspec.Struct, frozen=True):
    """Two columns and a sign between them; both values are there."""

    left: int
    sign: Sign
    right: int


class AllOf(msgspec.Struct, frozen=True):
    """All parts are true; true if there are none."""

    parts: tuple[Meaning, ...]


class AnyOf(msgspec.Struct, frozen=True):
    """One of the parts is true; false if there are none."""

    parts: tuple[Meaning, ...]


#: A test of one column that an index can file.
Constraint: TypeAlias = Presence | Interval | OneOf | Prefix
Test: TypeAlias = Constraint | NoneOf | Pattern | Compared
Meaning: TypeAlias = Test | AllOf | AnyOf

TRUE = AllOf(())
FALSE = AnyOf(())


class Conjunction(msgspec.Struct, frozen=True):
    """True where all constraints are, and the residual, if there is one.

    At most one constraint per column, in the order of columns.
    """

    constraints: tuple[Constraint, ...]
    #: What no constraint expresses; evaluated plainly on rows that satisfy the constraints.
    residual: Meaning | None = None
