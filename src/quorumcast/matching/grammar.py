"""Text to the written tree of a predicate: tokens, and a recursive parser.

    predicate   = term {OR term}
    term        = factor {AND factor}
    factor      = NOT factor | (predicate) | test
    test        = operand [= | != | <> | < | <= | > | >= operand]
                | operand [NOT] IN (operand, …) | operand [NOT] BETWEEN operand AND operand
                | operand [NOT] LIKE 'pattern' | operand IS [NOT] NULL
    operand     = column | `column` | literal
    literal     = 12 | -1.5e3 | 'text' | X'00ff' | TRUE | FALSE | DATE '2026-11-01'
                | TIMESTAMP '2026-11-01T12:00:00Z'

A predicate comes from a peer, so the length of the text, the number of operands and the depth are
bounded. Parsing takes time in proportion to the length. Every sentence of refusal begins with
`who`, which names the text for its author ("option 'where'", "the predicate").
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import NoReturn

from quorumcast.core.errors import UsageError, shortened
from quorumcast.core.limits import MAX_PREDICATE_TEXT
from quorumcast.matching.nodes import (
    And,
    ColumnName,
    Comparison,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    Or,
    Sign,
    Sort,
    Truth,
    Written,
)

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | '(?P<text>(?:[^']|'')*)'
      | `(?P<quoted>(?:[^`]|``)+)`
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
#: Words that a column must be quoted to be named like.
_RESERVED = frozenset(
    {"AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN"}
    | {"TRUE", "FALSE", "DATE", "TIMESTAMP", "X"}
)
_SIGNS = {sign.value: sign for sign in Sign} | {"<>": Sign.UNEQUAL}
MAX_DEPTH = 64
#: Columns and values of a predicate.
MAX_OPERANDS = 2000
#: Characters of a pattern: Arrow compiles it for every batch.
MAX_PATTERN = 1024
#: Wildcards _ behind a %: each may double the states of the matcher, which becomes a thousand times
#: slower when it has no room for them.
MAX_FLOATING = 8
#: Digits of an integer, characters of another number, and the largest exponent.
_DIGITS, _CHARACTERS, _EXPONENT = 20, 64, 999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)

#: What to write in place of something that begins with a character of no token.
_ADVICE = {
    "'": "close the quote, and write a quote within a text twice",
    "`": "close the backquote",
    '"': "put texts between single quotes, and unusual names of columns between backquotes",
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT",
    ";": "leave it out",
} | dict.fromkeys("+-*/%", "there is no arithmetic, only columns and values")

#: What to write in place of tests that other languages have.
_INSTEAD = {
    "ILIKE": "write LIKE, which tells large letters from small ones, once for each way to write it,"
    " as in name LIKE 'ab%' OR name LIKE 'AB%'",
} | dict.fromkeys(
    ("RLIKE", "REGEXP", "SIMILAR"),
    "write LIKE, in whose patterns % stands for any text and _ for one character",
)

Token = tuple[str, str]


def parse_text(text: str, who: str, max_bytes: int = MAX_PREDICATE_TEXT) -> Written:
    """Parse a predicate; raise `UsageError` if it is not one or exceeds a limit."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{who} has characters that are not Unicode: leave them out") from None
    if size > max_bytes:
        raise UsageError(
            f"{who} is longer than {max_bytes:,} bytes: ask for more rows, and filter "
            "them where they arrive"
        )
    return _Parser(text, who).whole()


def quoted_name(name: str) -> str:
    """A column's name as it stands in a predicate."""
    if _WORD.fullmatch(name) and name.upper() not in _RESERVED:
        return name
    return "`" + name.replace("`", "``") + "`"


def quoted_text(text: str) -> str:
    """Text as it stands in a predicate."""
    return "'" + text.replace("'", "''") + "'"


class _Parser:
    """Reads one predicate from left to right."""

    def __init__(self, text: str, who: str) -> None:
        self._text = text
        self._who = who
        self._tokens = self._split()
        self._place = 0
        self._depth = 0
        self._operands = 0

    def _split(self) -> list[Token]:
        tokens: list[Token] = []
        place, end = 0, len(self._text.rstrip())
        while place < end:
            match = _TOKEN.match(self._text, place)
            if match is None:
                rest = self._text[place:].strip()[:20]
                self._refuse(f"{rest!r} is not understood", _ADVICE.get(rest[:1], ""))
            kind = str(match.lastgroup)
            tokens.append((kind, match[kind]))
            place = match.end()
        return tokens

    def _refuse(self, what: str, advice: str = "") -> NoReturn:
        hint = f": {advice}" if advice else ""
        raise UsageError(f"{self._who} cannot be read: {what} in {shortened(self._text)!r}{hint}")

    # ------------------------------------------------------------------- tokens

    def _next(self) -> Token:
        if self._place == len(self._tokens):
            self._refuse("something is missing at the end")
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
            at = "at the end"
            if self._place < len(self._tokens):
                at = f"before {shortened(self._tokens[self._place][1])!r}"
            self._refuse(f"{wanted!r} is missing {at}")

    # ------------------------------------------------------------------ grammar

    def whole(self) -> Written:
        """Parse the whole text."""
        if not self._tokens:
            raise UsageError(f"{self._who} is empty: leave it out, or write TRUE for all rows")
        found = self._predicate()
        if self._place < len(self._tokens):
            word = self._tokens[self._place][1]
            advice = "there are no functions, only columns and values" if word == "(" else ""
            self._refuse(f"{shortened(word)!r} is one word too many", advice)
        return found

    def _predicate(self) -> Written:
        parts = [self._term()]
        while self._accept("OR"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _term(self) -> Written:
        parts = [self._factor()]
        while self._accept("AND"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _factor(self) -> Written:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH - 1} brackets or NOTs lie within one another")
        if self._accept("NOT"):
            found: Written = Not(self._factor())
        elif self._accept("("):
            found = self._predicate()
            self._expect(")")
        else:
            found = self._test()
        self._depth -= 1
        return found

    def _test(self) -> Written:
        left = self._operand()
        if sign := self._accept(*_SIGNS):
            return Comparison(left, _SIGNS[sign], self._operand())
        if self._accept("IS"):
            present = bool(self._accept("NOT"))
            self._expect("NULL")
            return Not(IsNull(left)) if present else IsNull(left)
        negated = bool(self._accept("NOT"))
        found = self._membership(left)
        if found is None:
            if negated:
                self._refuse("'NOT' is followed by none of IN, BETWEEN and LIKE")
            return Truth(left)
        return Not(found) if negated else found

    def _membership(self, left: Operand) -> Written | None:
        if self._accept("IN"):
            self._expect("(")
            parts = [Comparison(left, Sign.EQUAL, self._operand())]
            while self._accept(","):
                parts.append(Comparison(left, Sign.EQUAL, self._operand()))
            self._expect(")")
            return Or(tuple(parts))
        if self._accept("BETWEEN"):
            low = Comparison(left, Sign.AT_LEAST, self._operand())
            self._expect("AND")
            return And((low, Comparison(left, Sign.AT_MOST, self._operand())))
        if self._accept("LIKE"):
            kind, pattern = self._next()
            if kind != "text":
                self._refuse("'LIKE' takes a pattern between quotes")
            return Like(left, self._pattern(pattern.replace("''", "'")))
        if word := self._accept(*_INSTEAD):
            self._refuse(f"there is no {word.lower()!r}", _INSTEAD[word])
        return None

    def _pattern(self, pattern: str) -> str:
        if len(pattern) > MAX_PATTERN:
            self._refuse(f"a pattern has more than {MAX_PATTERN:,} characters")
        if re.sub(r"\\.", "", pattern, flags=re.DOTALL).partition("%")[2].count("_") > MAX_FLOATING:
            self._refuse(f"a pattern has more than {MAX_FLOATING} of '_' behind a '%'")
        backslashes = len(pattern) - len(pattern.rstrip("\\"))
        if backslashes % 2:
            self._refuse("a pattern ends with a backslash, which makes a character after it plain")
        return pattern

    def _operand(self) -> Operand:
        kind, value = self._next()
        self._operands += 1
        if self._operands > MAX_OPERANDS:
            raise UsageError(
                f"{self._who} names more than {MAX_OPERANDS:,} columns and values: ask for more "
                "rows, and join or filter them where they arrive"
            )
        word = value.upper()
        if kind == "number":
            return self._number(value)
        if kind == "text":
            return Literal(Sort.TEXT, value.replace("''", "'"))
        if kind == "word" and word in ("TRUE", "FALSE"):
            return Literal(Sort.TRUTH, int(word == "TRUE"))
        if kind == "word":
            after = [kind for kind, _ in self._tokens[self._place : self._place + 1]]
            if word in ("DATE", "TIMESTAMP", "X") and after == ["text"]:
                return self._quoted(word, self._next()[1])
            return ColumnName(value)
        if kind == "quoted":
            return ColumnName(value.replace("``", "`"))
        advice = "write one '='" if value == "=" else ""
        self._refuse(f"{value!r} stands where a column or a value should", advice)

    def _number(self, text: str) -> Literal:
        fractional = bool(set(".eE") & set(text))
        exponent = text.lower().partition("e")[2]
        if len(text) > (_CHARACTERS if fractional else _DIGITS) or (
            exponent and abs(int(exponent)) > _EXPONENT
        ):
            self._refuse(f"{text[:_DIGITS]}… is too long a number")
        return Literal(Sort.NUMBER, Decimal(text), fractional)

    def _quoted(self, kind: str, text: str) -> Literal:
        try:
            if kind == "X":
                return Literal(Sort.BYTES, bytes.fromhex(text))
            if kind == "DATE":
                return Literal(Sort.DATE, (date.fromisoformat(text) - _EPOCH_DAY).days)
            time = datetime.fromisoformat(text)
            zoned = time.utcoffset() is not None
            time = time.astimezone(UTC) if zoned else time.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            what = "row of bytes in hexadecimal" if kind == "X" else kind.lower()
            self._refuse(f"{shortened(text)!r} is no {what}")
        sort = Sort.ZONED_TIME if zoned else Sort.TIME
        return Literal(sort, (time - _EPOCH) // _MICROSECOND)
