"""The written tree to what it means on the columns of one schema.

Literals become values of the column that they are compared with (`domain.py`), and negations move
into the tests. Three-valued logic allows that: a test on an absent value is unknown, and so is its
negation; both let no row pass.
"""

from __future__ import annotations

from typing import NoReturn, assert_never

from quorumcast.core.errors import UsageError
from quorumcast.matching.canonical import (
    CanonicalTexts,
    all_of,
    any_of,
    escaped,
    interval,
    none_of,
    one_of,
)
from quorumcast.matching.columns import Columns
from quorumcast.matching.domain import MOMENTS, NUMBERS, STRINGS, ValueFamily
from quorumcast.matching.nodes import (
    FALSE,
    MIRRORED,
    OPPOSITE,
    TRUE,
    And,
    ColumnName,
    Compared,
    Comparison,
    IsNull,
    Like,
    Literal,
    Meaning,
    Not,
    Operand,
    Or,
    Pattern,
    Prefix,
    Presence,
    Sign,
    Sort,
    Truth,
    Value,
    Written,
)

_DAY_US = 86_400_000_000
#: What a column of a family can be compared with.
_ADVICE = dict.fromkeys(NUMBERS, "write a number, without quotes") | {
    ValueFamily.TRUTH: "write TRUE or FALSE",
    ValueFamily.TEXT: "put the text between single quotes",
    ValueFamily.BYTES: "write bytes such as X'00ff', or a text between single quotes",
    ValueFamily.DATE: "write DATE '2026-11-01', or a time",
    ValueFamily.TIME: "write TIMESTAMP '2026-11-01T12:00:00', or a date",
    ValueFamily.ZONED_TIME: "write TIMESTAMP '2026-11-01T12:00:00Z', or a date",
    ValueFamily.OTHER: "nothing does; only IS NULL works",
}


def bind(tree: Written, columns: Columns, who: str) -> Meaning:
    """The meaning of a predicate; raise `UsageError` if it does not fit the columns."""
    return _Binder(columns, who).bind(tree, False)


class _Binder:
    """Binds one predicate."""

    def __init__(self, columns: Columns, who: str) -> None:
        self._columns = columns
        self._texts = CanonicalTexts(columns)
        self._who = who

    def _refuse(self, reason: str) -> NoReturn:
        raise UsageError(f"{self._who} does not fit the columns: {reason}")

    def bind(self, tree: Written, negated: bool) -> Meaning:
        """The meaning of a part, or of its negation."""
        match tree:
            case Not(part=part):
                return self.bind(part, not negated)
            case And(parts=parts) | Or(parts=parts):
                bound = [self.bind(part, negated) for part in parts]
                combine = all_of if isinstance(tree, And) is not negated else any_of
                return combine(bound, self._texts)
            case Truth(operand=operand):
                return self._truth(operand, negated)
            case Comparison(left=left, sign=sign, right=right):
                return self._comparison(left, OPPOSITE[sign] if negated else sign, right)
            case Like(operand=operand, pattern=pattern):
                return self._like(operand, pattern, negated)
            case IsNull(operand=operand):
                if isinstance(operand, Literal):
                    return TRUE if negated else FALSE
                return Presence(self._find(operand), negated)
        assert_never(tree)

    def _find(self, operand: ColumnName, *, or_text: bool = False) -> int:
        return self._columns.find(operand.name, self._who, or_text=or_text)

    def _is(self, column: int) -> str:
        columns = self._columns
        return f"column {columns.names[column]!r} is {columns.domains[column].family.value}"

    # ------------------------------------------------------------------------ tests

    def _truth(self, operand: Operand, negated: bool) -> Meaning:
        if isinstance(operand, Literal):
            if operand.sort is not Sort.TRUTH:
                self._refuse(f"{operand.sort.value} stands alone: compare it with a column")
            return TRUE if bool(operand.value) is not negated else FALSE
        column = self._find(operand)
        domain = self._columns.domains[column]
        if domain.family is not ValueFamily.TRUTH:
            self._refuse(f"{self._is(column)} and stands alone: compare it with a value")
        return one_of(column, [int(not negated)], domain)

    def _comparison(self, left: Operand, sign: Sign, right: Operand) -> Meaning:
        if isinstance(left, Literal):
            if isinstance(right, Literal):
                return self._of_literals(left, sign, right)
            return self._with_literal(self._find(right), MIRRORED[sign], left)
        if isinstance(right, Literal):
            return self._with_literal(self._find(left), sign, right)
        first, second = self._find(left, or_text=True), self._find(right, or_text=True)
        return self._with_column(first, sign, second)

    def _with_literal(self, column: int, sign: Sign, literal: Literal) -> Meaning:
        domain = self._columns.domains[column]
        if not domain.compares_with(literal):
            self._refuse(
                f"{self._is(column)}, which does not compare with {literal.sort.value}: "
                f"{_ADVICE[domain.family]}"
            )
        if sign is not Sign.UNEQUAL:
            return interval(column, domain.bounds(sign, literal), domain)
        equal = domain.bounds(Sign.EQUAL, literal)
        value = None if equal is None else (b"" if equal[0] is None else equal[0])
        return none_of(column, [] if value is None else [value], domain)

    def _with_column(self, left: int, sign: Sign, right: int) -> Meaning:
        first, second = (self._columns.domains[side].family for side in (left, right))
        if first is ValueFamily.OTHER or not _comparable(first, second):
            self._refuse(f"{self._is(left)}, which does not compare with {self._is(right)}")
        if left == right:
            reflexive = sign in (Sign.EQUAL, Sign.AT_MOST, Sign.AT_LEAST)
            return Presence(left, True) if reflexive else FALSE
        if left > right:
            left, sign, right = right, MIRRORED[sign], left
        return Compared(left, sign, right)

    def _of_literals(self, left: Literal, sign: Sign, right: Literal) -> Meaning:
        groups = ({Sort.NUMBER}, {Sort.TEXT, Sort.BYTES}, {Sort.TRUTH}, {Sort.DATE, Sort.TIME})
        sorts = {left.sort, right.sort}
        if not any(sorts <= group for group in (*groups, {Sort.DATE, Sort.ZONED_TIME})):
            self._refuse(f"{left.sort.value} does not compare with {right.sort.value}")
        return TRUE if _holds(_comparable_value(left), sign, _comparable_value(right)) else FALSE

    def _like(self, operand: Operand, pattern: str, negated: bool) -> Meaning:
        if isinstance(operand, Literal):
            self._refuse("LIKE has a value on its left: write a column there")
        column = self._find(operand)
        domain = self._columns.domains[column]
        if domain.family not in STRINGS:
            self._refuse(f"{self._is(column)}, which does not compare with a pattern")
        plain, wild = _wildcards(pattern)
        if not wild:
            found = [plain.encode()]
            return (none_of if negated else one_of)(column, found, domain)
        if wild == "%" and not plain:
            return FALSE if negated else Presence(column, True)
        if wild == "%" and not negated:
            return Prefix(column, plain.encode())
        return Pattern(column, escaped(plain) + wild, negated)


def _comparable(first: ValueFamily, second: ValueFamily) -> bool:
    groups = (NUMBERS, STRINGS, MOMENTS)
    if {first, second} == {ValueFamily.TIME, ValueFamily.ZONED_TIME}:
        return False
    return first is second or any(first in group and second in group for group in groups)


def _comparable_value(literal: Literal) -> Value:
    value = literal.value
    if isinstance(value, str):
        return value.encode()
    if literal.sort is Sort.DATE:
        return int(value) * _DAY_US
    return value  # type: ignore[return-value]  # decimals are exact as they are


def _holds(left: Value, sign: Sign, right: Value) -> bool:
    if left == right:
        return sign in (Sign.EQUAL, Sign.AT_MOST, Sign.AT_LEAST)
    less = left < right  # type: ignore[operator]
    wanted = (Sign.LESS, Sign.AT_MOST) if less else (Sign.MORE, Sign.AT_LEAST)
    return sign in (*wanted, Sign.UNEQUAL)


def _wildcards(pattern: str) -> tuple[str, str]:
    """The plain text at the beginning, and the rest in one spelling."""
    plain: list[str] = []
    rest: list[str] = []
    plainly = False
    for char in pattern:
        if char == "\\" and not plainly:
            plainly = True
            continue
        wild = char in "%_" and not plainly
        plainly = False
        if wild and char == "%" and rest[-1:] == ["%"]:
            continue
        if not rest and not wild:
            plain.append(char)
        else:
            rest.append(char if wild else escaped(char))
    return "".join(plain), "".join(rest)
