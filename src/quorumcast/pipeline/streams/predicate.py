"""The option `where`: a filter in a subset of SQL, applied on the executors.

Spark does not push filters down to streaming sources in Python, so this option filters rows before
they are passed to the JVM.

    predicate   = term {OR term}
    term        = factor {AND factor}
    factor      = NOT factor | (predicate) | test
    test        = operand [= | != | <> | < | <= | > | >= operand]
                | operand [NOT] IN (literal, …) | operand [NOT] BETWEEN operand AND operand
                | operand [NOT] LIKE 'pattern' | operand IS [NOT] NULL
    operand     = column | `column` | literal
    literal     = 12 | -1.5e3 | 'text' | TRUE | FALSE | DATE '2026-11-01'
                | TIMESTAMP '2026-11-01T12:00:00Z'

A test on a null is neither true nor false, as in SQL; only rows with a true predicate pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from quorumcast.core.errors import UsageError

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | '(?P<text>(?:[^']|'')*)'
      | `(?P<quoted>[^`]+)`
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_COMPARE = {
    "=": pc.Expression.__eq__,
    "!=": pc.Expression.__ne__,
    "<>": pc.Expression.__ne__,
    "<": pc.Expression.__lt__,
    "<=": pc.Expression.__le__,
    ">": pc.Expression.__gt__,
    ">=": pc.Expression.__ge__,
}
_MAX_DEPTH = 64
#: Limit of columns and values. Arrow evaluates a predicate recursively, in quadratic time, and
#: overflows the stack if it is too long.
_MAX_OPERANDS = 2000
#: Digits of a number: at most, and at most for 64 bits.
_DIGITS, _PLAIN_DIGITS = 20, 18

Token = tuple[str, str]
#: An operand and its type.
Operand = tuple[pc.Expression, pa.DataType]
Comparison = Callable[[pc.Expression, pc.Expression], pc.Expression]


def parse(text: str, schema: pa.Schema) -> pc.Expression:
    """Parse a predicate into an Arrow expression; raise `UsageError` if it is invalid."""
    parser = _Parser(text, schema)
    found = parser.whole()
    try:
        # Arrow detects some type errors only when it evaluates a row.
        nothing = [pa.nulls(1, field.type) for field in schema]
        pa.RecordBatch.from_arrays(nothing, schema=schema).filter(found)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"option 'where' cannot be decided ({reason}): {text}") from None
    return found


def _compared(compare: Comparison, left: Operand, right: Operand) -> pc.Expression:
    """Compare two operands; an integer with a floating-point number as float64.

    Arrow's own cast would fail at the first value that float64 does not hold exactly.
    """
    kinds = (left[1], right[1])
    if any(map(pa.types.is_floating, kinds)) and any(map(pa.types.is_integer, kinds)):
        return compare(*(side.cast(pa.float64(), safe=False) for side, _ in (left, right)))
    return compare(left[0], right[0])


class _Parser:
    """Reads one predicate from left to right."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._text = text
        self._schema = schema
        # Arrow compares decimals, which represent uint64, only with decimals.
        self._decimal = any(pa.types.is_decimal(field.type) for field in schema)
        self._tokens = self._split()
        self._place = 0
        self._depth = 0
        self._operands = 0

    def _split(self) -> list[Token]:
        tokens: list[Token] = []
        place = 0
        while place < len(self._text.rstrip()):
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise self._wrong(f"{self._text[place:].strip()[:20]!r} is not understood")
            kind = str(match.lastgroup)
            tokens.append((kind, match[kind]))
            place = match.end()
        return tokens

    def _wrong(self, what: str) -> UsageError:
        return UsageError(f"option 'where' is not a predicate: {what} in {self._text!r}")

    # ------------------------------------------------------------------- tokens

    def _next(self) -> Token:
        if self._place == len(self._tokens):
            raise self._wrong("something is missing at the end")
        self._place += 1
        return self._tokens[self._place - 1]

    def _accept(self, *wanted: str) -> str:
        """Consume and return the next token if it is one of these words or signs."""
        if self._place < len(self._tokens):
            kind, value = self._tokens[self._place]
            if kind in ("word", "sign") and value.upper() in wanted:
                self._place += 1
                return value.upper()
        return ""

    def _expect(self, wanted: str) -> None:
        if not self._accept(wanted):
            at = self._tokens[self._place][1] if self._place < len(self._tokens) else "the end"
            raise self._wrong(f"{wanted!r} is missing before {at!r}")

    # ------------------------------------------------------------------ grammar

    def whole(self) -> pc.Expression:
        """Parse the whole text."""
        found = self._predicate()
        if self._place < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._place][1]!r} is one word too many")
        return found

    def _predicate(self) -> pc.Expression:
        found = self._term()
        while self._accept("OR"):
            found = found | self._term()
        return found

    def _term(self) -> pc.Expression:
        found = self._factor()
        while self._accept("AND"):
            found = found & self._factor()
        return found

    def _factor(self) -> pc.Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong("it is nested too deeply")
        try:
            if self._accept("NOT"):
                return ~self._factor()
            if self._accept("("):
                found = self._predicate()
                self._expect(")")
                return found
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> pc.Expression:
        left = self._operand()
        if sign := self._accept(*_COMPARE):
            return _compared(_COMPARE[sign], left, self._operand())
        if self._accept("IS"):
            absent = not self._accept("NOT")
            self._expect("NULL")
            return left[0].is_null() if absent else left[0].is_valid()
        refused = bool(self._accept("NOT"))
        found = self._membership(left)
        if found is None:
            if refused:
                raise self._wrong("'NOT' is followed by none of IN, BETWEEN and LIKE")
            return left[0]
        return ~found if refused else found

    def _membership(self, left: Operand) -> pc.Expression | None:
        if self._accept("IN"):
            self._expect("(")
            found = _compared(_COMPARE["="], left, self._operand())
            while self._accept(","):
                found = found | _compared(_COMPARE["="], left, self._operand())
            self._expect(")")
            return found
        if self._accept("BETWEEN"):
            low = _compared(_COMPARE[">="], left, self._operand())
            self._expect("AND")
            return low & _compared(_COMPARE["<="], left, self._operand())
        if self._accept("LIKE"):
            kind, pattern = self._next()
            if kind != "text":
                raise self._wrong("'LIKE' takes a pattern between quotes")
            return pc.match_like(left[0], pattern.replace("''", "'"))
        return None

    def _operand(self) -> Operand:
        kind, value = self._next()
        self._operands += 1
        if self._operands > _MAX_OPERANDS:
            raise UsageError(
                f"option 'where' names more than {_MAX_OPERANDS:,} columns and values: leave that "
                "to a join or a filter of the query"
            )
        word = value.upper()
        if kind == "number":
            return self._number(value)
        if kind == "text":
            return _literal(pa.scalar(value.replace("''", "'")))
        if kind == "word" and word in ("TRUE", "FALSE"):
            return _literal(pa.scalar(word == "TRUE"))
        after = self._tokens[self._place : self._place + 1]
        if kind == "word" and word in ("DATE", "TIMESTAMP") and after and after[0][0] == "text":
            return self._time(word, self._next()[1])
        if kind in ("word", "quoted"):
            return self._column(value)
        raise self._wrong(f"{value!r} stands where a column or a value should")

    def _number(self, text: str) -> Operand:
        if set(".eE") & set(text):
            return _literal(pa.scalar(float(text)))
        if len(text) > _DIGITS:
            raise self._wrong(f"{text[:_DIGITS]}… is too long a number")
        if self._decimal or len(text) > _PLAIN_DIGITS:
            return _literal(pa.scalar(Decimal(text), pa.decimal128(_DIGITS, 0)))
        return _literal(pa.scalar(int(text)))

    def _time(self, kind: str, text: str) -> Operand:
        try:
            if kind == "DATE":
                return _literal(pa.scalar(date.fromisoformat(text), pa.date32()))
            time = datetime.fromisoformat(text)
        except ValueError:
            raise self._wrong(f"{text!r} is no {kind.lower()}") from None
        zone = None if time.utcoffset() is None else "UTC"
        return _literal(pa.scalar(time, pa.timestamp("us", zone)))

    def _column(self, name: str) -> Operand:
        known = {field.name.lower(): field for field in self._schema}
        if field := known.get(name.lower()):
            return pc.field(field.name), field.type
        close = get_close_matches(name.lower(), known, 1)
        meant = (
            f"did you mean {known[close[0]].name!r}?" if close else f"there are {', '.join(known)}"
        )
        raise UsageError(f"option 'where' names the column {name!r}, which is not there: {meant}")


def _literal(value: pa.Scalar) -> Operand:
    return pc.scalar(value), value.type
