"""Random predicates, each with a naive twin: a function of one row, in plain Python.

The twin knows three values (True, False, None for unknown), negates last and compares exactly with
Python's own numbers: nothing of it is shared with `matching/`. What is drawn depends on a row of
bytes, which Hypothesis draws and shrinks at once: strategies inside strategies take ten times as
long.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from quorumcast.manifest.schema import ARROW_TYPES

Row = Mapping[str, Any]
Verdict = bool | None
Twin = Callable[[Row], Verdict]
#: The text of a predicate, and what it means.
Drawn = tuple[str, Twin]

TYPES = {**ARROW_TYPES, "decimal": pa.decimal128(20, 2)}
NUMBERS = ("bool", "string", "binary", "date32", "timestamp")
SIGNS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXTS = ["", "a", "ab", "a\0", "abc", "b", "it's", "é", "êx", "a%b", "a_b", "\U0010ffff", "a\\b"]
FLOATS = [0.0, -0.0, 0.5, -1.5, 2.0, 0.1, 2.0**53, 2.0**63, -(2.0**63), 2.0**64, 1e30]
REALS = [*FLOATS, 5e-324, -5e-324, 1.7976931348623157e308, float("inf"), -float("inf")]
LITERALS = [
    *(
        "0",
        "-0",
        "1",
        "2",
        "-3",
        "0.5",
        "-0.0",
        "-1.5",
        "2.0",
        "1e0",
        "0.1",
        ".25",
        "1e30",
        "1e999",
    ),
    *("-1e999", "127", "128", "-129", "255", "256", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "-9223372036854775809", "2.5e-3", "5e-324"),
    *("18446744073709551615", "18446744073709551616", "99999999999999999999", "1e-999", "3.4e38"),
]
MOMENTS = [
    datetime(2026, 11, 1), datetime(2026, 11, 1, 0, 0, 0, 500), datetime(1, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(9999, 12, 31, 23, 59, 59, 999_999),
    datetime(2026, 11, 1, 0, 0, 0, 1000), datetime(2026, 11, 2),
]  # fmt: skip
PATTERNS = [
    *("%", "a%", "%b", "%b%", "a_b", "_", "a\\%b", "a\\_%", "abc", "", "%%", "_%", "a%%_b", "é%"),
    *("\\é_", "\U0010ffff%", "a\\\\%", "it's%"),
]


def is_number(kind: str) -> bool:
    return not kind.startswith(NUMBERS)


class Choices:
    """Choices that follow from a row of bytes; the first option once that has ended."""

    def __init__(self, source: bytes) -> None:
        self._source = iter(source)

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        return next(self._source, 0) % count

    def of(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self.below(len(options))]


def values_of(kind: str) -> list[Any]:
    """Values of a column, with nulls."""
    if kind == "bool":
        found: list[Any] = [False, True]
    elif kind == "decimal":
        found = [Decimal(text) for text in ("0", "1.50", "-3", "0.10", "2", "99")]
    elif kind == "float64":
        found = [*REALS, float("nan")]
    elif kind == "float32":
        found = [*FLOATS, float("nan"), float("inf"), 3.0]
    elif kind == "string":
        found = TEXTS
    elif kind == "binary":
        found = [*(text.encode() for text in TEXTS), b"\xff", b"\xc3", b"a\xff"]
    elif kind == "date32":
        found = [moment.date() for moment in MOMENTS]
    elif kind.startswith("timestamp"):
        found = [_rounded(kind, moment) for moment in MOMENTS]
    else:
        info = TYPES[kind]
        signed = pa.types.is_signed_integer(info)
        least = -(2 ** (info.bit_width - 1)) if signed else 0
        most = 2 ** (info.bit_width - signed) - 1
        edges = [value for value in (-3, 0, 1, 2, 2**53 + 1) if least <= value <= most]
        found = [*edges, least, most]
    return [*found, *[None] * (1 + len(found) // 4)]


def _rounded(kind: str, moment: datetime) -> datetime:
    if "ms" in kind:
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    return moment.replace(tzinfo=UTC) if "UTC" in kind else moment


def table(
    choices: Choices, most_columns: int = 5, most_rows: int = 13
) -> tuple[dict[str, str], pa.RecordBatch]:
    """The types of some columns, and a batch of them, which may be empty or a slice."""
    kinds = [choices.of(sorted(TYPES)) for _ in range(1 + choices.below(most_columns))]
    columns = {f"c{index}": kind for index, kind in enumerate(kinds)}
    values = {name: values_of(kind) for name, kind in columns.items()}
    count = choices.below(most_rows + 1)
    arrays = {
        name: pa.array([choices.of(values[name]) for _ in range(count)], TYPES[kind])
        for name, kind in columns.items()
    }
    return columns, pa.record_batch(arrays).slice(choices.below(min(4, count + 1)))


def predicate(choices: Choices, columns: Mapping[str, str], depth: int = 3) -> Drawn:
    """A predicate on these columns."""
    form = choices.of(["test", "test", "not", "and", "or"]) if depth else "test"
    if form == "test":
        return _test(choices, choices.of(sorted(columns)), columns)
    if form == "not":
        text, twin = predicate(choices, columns, depth - 1)
        return f"NOT ({text})", lambda row: _negated(twin(row))
    parts = [predicate(choices, columns, depth - 1) for _ in range(2 + choices.below(2))]
    return _all(parts) if form == "and" else _any(parts)


def _negated(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict


def _all(parts: Sequence[Drawn]) -> Drawn:
    def twin(row: Row) -> Verdict:
        verdicts = [part(row) for _, part in parts]
        return False if False in verdicts else None if None in verdicts else True

    return " AND ".join(f"({text})" for text, _ in parts), twin


def _any(parts: Sequence[Drawn]) -> Drawn:
    def twin(row: Row) -> Verdict:
        verdicts = [part(row) for _, part in parts]
        return True if True in verdicts else None if None in verdicts else False

    return " OR ".join(f"({text})" for text, _ in parts), twin


def comparable(value: Any) -> Any:
    """A value of a row as Python compares it exactly; None if it is absent."""
    if value is None or value != value:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days * 86_400_000_000
    return value


def _literal(choices: Choices, kind: str) -> tuple[str, Any]:
    """A literal that compares with a column, and its value."""
    if kind == "bool":
        value = bool(choices.below(2))
        return str(value), value
    if kind in ("string", "binary"):
        text = choices.of(TEXTS)
        if kind == "binary" and bool(choices.below(2)):
            raw = text.encode() + choices.of([b"", b"\xff"])
            return f"x'{raw.hex()}'", raw
        return "'" + text.replace("'", "''") + "'", text.encode()
    if kind == "date32" or kind.startswith("timestamp"):
        moment = choices.of(MOMENTS)
        if bool(choices.below(2)):
            return f"DATE '{moment.date()}'", comparable(moment.date())
        zone = "Z" if "UTC" in kind else ""
        return f"TIMESTAMP '{moment.isoformat()}{zone}'", comparable(moment)
    text = choices.of(LITERALS)
    if kind.startswith("float") and set(".e") & set(text):
        return text, float(text)
    return text, Decimal(text)


def _test(choices: Choices, name: str, columns: Mapping[str, str]) -> Drawn:
    kind = columns[name]
    forms = ["sign", "sign", "mirrored", "in", "between", "null", "columns"]
    forms += ["like"] * 2 if kind in ("string", "binary") else ["truth"] if kind == "bool" else []
    form = choices.of(forms)
    no = choices.of(["", "NOT "])
    if form == "null":
        return f"{name} IS {no}NULL", lambda row: (comparable(row[name]) is None) != bool(no)
    if form == "truth":
        return name, lambda row: row[name]
    if form == "like":
        return _like(name, choices.of(PATTERNS), no)
    sign = choices.of(sorted(SIGNS))
    if form == "columns":
        return _two_columns(name, sign, choices.of(sorted(columns)), columns)
    if form == "in":
        options = [_literal(choices, kind) for _ in range(1 + choices.below(6))]
        text = f"{name} {no}IN ({', '.join(text for text, _ in options)})"
        return text, _on(name, lambda value: any(value == one for _, one in options) != bool(no))
    low, lowest = _literal(choices, kind)
    if form == "between":
        high, highest = _literal(choices, kind)
        text = f"{name} {no}BETWEEN {low} AND {high}"
        return text, _on(name, lambda value: (lowest <= value <= highest) != bool(no))
    if form == "mirrored":
        return f"{low} {sign} {name}", _on(name, lambda value: SIGNS[sign](lowest, value))
    return f"{name}{sign}{low}", _on(name, lambda value: SIGNS[sign](value, lowest))


def _on(name: str, test: Callable[[Any], Any]) -> Twin:
    def twin(row: Row) -> Verdict:
        value = comparable(row[name])
        return None if value is None else bool(test(value))

    return twin


def _two_columns(left: str, sign: str, right: str, columns: Mapping[str, str]) -> Drawn:
    kinds = {columns[left], columns[right]}
    rough = "decimal" in kinds and any(kind.startswith("float") for kind in kinds)
    alike = all(map(is_number, kinds)) or kinds <= {"string", "binary"} or kinds <= {"bool"}
    times = all(kind.startswith(("date", "timestamp")) for kind in kinds)
    zones = {"UTC" in kind for kind in kinds if kind.startswith("timestamp")}
    if rough or not (alike or (times and len(zones) < 2)):
        right = left

    def twin(row: Row) -> Verdict:
        first, second = comparable(row[left]), comparable(row[right])
        return None if first is None or second is None else bool(SIGNS[sign](first, second))

    return f"{left} {sign} {right}", twin


def _like(name: str, pattern: str, no: str) -> Drawn:
    regex, plainly = "", False
    for char in pattern:
        if char == "\\" and not plainly:
            plainly = True
            continue
        wild = not plainly and char in "%_"
        regex += (".*" if char == "%" else ".") if wild else re.escape(char)
        plainly = False
    text = re.compile(regex, re.DOTALL)
    raw = re.compile(regex.encode(), re.DOTALL)

    def twin(row: Row) -> Verdict:
        value = row[name]
        if value is None:
            return None
        found = text.fullmatch(value) if isinstance(value, str) else raw.fullmatch(value)
        return bool(found) != bool(no)

    quoted = pattern.replace("'", "''")
    return f"{name} {no}LIKE '{quoted}'", twin
