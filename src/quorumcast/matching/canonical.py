"""Normal form of what a predicate means: merged, sorted, and written out as canonical text.

The functions that make nodes keep these invariants, so that a tree that was written out and parsed
again is the same tree:

- `AllOf` and `AnyOf` have two parts or more, none of their own kind, none twice, sorted by text;
  only a whole predicate is TRUE or FALSE;
- in an `AllOf` a column has one interval, set and prefix at most, and a set stands alone;
- in an `AnyOf` a column has one set at most;
- a bound that no value of the column exceeds is left out; an interval of one value is a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from quorumcast.matching.columns import Columns
from quorumcast.matching.domain import STRINGS, Bounds, Domain, ValueFamily
from quorumcast.matching.grammar import quoted_name, quoted_text
from quorumcast.matching.nodes import (
    FALSE,
    TRUE,
    AllOf,
    AnyOf,
    Compared,
    Constraint,
    Interval,
    Meaning,
    NoneOf,
    OneOf,
    Pattern,
    Prefix,
    Presence,
    Value,
)

#: Tests of one column that are merged where they stand beside one another.
Mergeable = Presence | Interval | OneOf | NoneOf | Prefix

# ------------------------------------------------------------------------ one test


def interval(column: int, bounds: Bounds | None, domain: Domain) -> Meaning:
    """The test that a value lies within bounds."""
    if bounds is None:
        return FALSE
    low, high = bounds
    if low is None and high is None:
        return Presence(column, True)
    if domain.family in STRINGS:
        return _interval_of_bytes(column, low, high)
    least, most = domain.least, domain.most
    low = least if low is None else max(low, least)
    high = most if high is None else min(high, most)
    if low > high:  # type: ignore[operator]
        return FALSE
    if low == high:
        return OneOf(column, (low,))
    low, high = (None if low == least else low), (None if high == most else high)
    unbounded = low is None and high is None
    return Presence(column, True) if unbounded else Interval(column, low, high)


def _interval_of_bytes(column: int, low: Value | None, high: Value | None) -> Meaning:
    if high is not None:
        least = low if isinstance(low, bytes) else b""
        if high <= least:  # type: ignore[operator]
            return FALSE
        if high == least + b"\0":
            return OneOf(column, (least,))
    return Interval(column, low or None, high)


def one_of(column: int, values: Iterable[Value], domain: Domain) -> Meaning:
    """The test that a value is one of these."""
    found = tuple(sorted(set(values)))
    if domain.family is ValueFamily.TRUTH and len(found) == 2:
        return Presence(column, True)
    return OneOf(column, found) if found else FALSE


def none_of(column: int, values: Iterable[Value], domain: Domain) -> Meaning:
    """The test that a value is there and none of these."""
    found = tuple(sorted(set(values)))
    if not found:
        return Presence(column, True)
    if domain.family is ValueFamily.TRUTH:
        return one_of(column, {0, 1} - set(found), domain)
    return NoneOf(column, found)


def admits(test: Mergeable, value: Value) -> bool:
    """Whether a test is true of a value that is there."""
    match test:
        case Presence(present=present):
            return present
        case Interval(low=low, high=high):
            if low is not None and value < low:  # type: ignore[operator]
                return False
            if high is None:
                return True
            within = value < high if isinstance(value, bytes) else value <= high  # type: ignore[operator]
            return bool(within)
        case OneOf(values=values):
            return value in values
        case NoneOf(values=values):
            return value not in values
        case Prefix(prefix=prefix):
            return isinstance(value, bytes) and value.startswith(prefix)
    assert_never(test)


def meet(first: Constraint, second: Constraint, domain: Domain) -> Constraint | None:
    """The constraint that both hold; None if no value satisfies both."""
    if isinstance(first, Presence) or isinstance(second, Presence):
        presence, other = (first, second) if isinstance(first, Presence) else (second, first)
        if isinstance(other, Presence):
            return other if other == presence else None
        return other if isinstance(presence, Presence) and presence.present else None
    if isinstance(first, OneOf) or isinstance(second, OneOf):
        known, other = (first, second) if isinstance(first, OneOf) else (second, first)
        values = known.values if isinstance(known, OneOf) else ()
        allowed = set(other.values) if isinstance(other, OneOf) else None
        left = [v for v in values if (v in allowed if allowed is not None else admits(other, v))]
        return _constraint(one_of(known.column, left, domain))
    if isinstance(first, Prefix) and isinstance(second, Prefix):
        longer, shorter = sorted((first, second), key=lambda one: len(one.prefix), reverse=True)
        return longer if longer.prefix.startswith(shorter.prefix) else None
    within, other = as_interval(first), as_interval(second)
    lows = [low for low in (within.low, other.low) if low is not None]
    highs = [high for high in (within.high, other.high) if high is not None]
    bounds = (max(lows) if lows else None, min(highs) if highs else None)
    return _constraint(interval(within.column, bounds, domain))


def as_interval(constraint: Interval | Prefix) -> Interval:
    """A prefix as the interval of the values that begin with it."""
    if isinstance(constraint, Interval):
        return constraint
    prefix = constraint.prefix
    kept = prefix.rstrip(b"\xff")
    after = kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    return Interval(constraint.column, prefix, after)


def _constraint(meaning: Meaning) -> Constraint | None:
    return meaning if isinstance(meaning, Presence | Interval | OneOf | Prefix) else None


# ------------------------------------------------------------------------ many tests


def all_of(parts: Iterable[Meaning], texts: CanonicalTexts) -> Meaning:
    """The test that all of these are true."""
    kept: list[Meaning] = []
    merged: dict[int, list[Mergeable]] = {}
    for part in _flattened(parts, AllOf):
        if isinstance(part, Mergeable):
            merged.setdefault(part.column, []).append(part)
        else:
            kept.append(part)
    for column, tests in merged.items():
        kept += _flattened(_merged(column, tests, texts.columns.domains[column]), AllOf)
    if FALSE in kept:
        return FALSE
    kept = _sorted(kept, texts)
    return kept[0] if len(kept) == 1 else AllOf(tuple(kept))


def any_of(parts: Iterable[Meaning], texts: CanonicalTexts) -> Meaning:
    """The test that one of these is true."""
    kept: list[Meaning] = []
    sets: dict[int, set[Value]] = {}
    for part in _flattened(parts, AnyOf):
        if isinstance(part, OneOf):
            sets.setdefault(part.column, set()).update(part.values)
        else:
            kept.append(part)
    domains = texts.columns.domains
    kept += [one_of(column, values, domains[column]) for column, values in sets.items()]
    if TRUE in kept:
        return TRUE
    kept = _sorted(kept, texts)
    return kept[0] if len(kept) == 1 else AnyOf(tuple(kept))


def _flattened(parts: Iterable[Meaning], kind: type[AllOf] | type[AnyOf]) -> list[Meaning]:
    """The parts, and instead of those of this kind their parts; they are flat themselves."""
    found: list[Meaning] = []
    for part in parts:
        if isinstance(part, kind):
            found += part.parts
        else:
            found.append(part)
    return found


def _sorted(parts: Iterable[Meaning], texts: CanonicalTexts) -> list[Meaning]:
    by_text = {texts.of(part): part for part in parts}
    return [by_text[text] for text in sorted(by_text)]


def _merged(column: int, tests: Sequence[Mergeable], domain: Domain) -> list[Meaning]:
    """Tests of one column that are true together where all of these are."""
    excluded = {value for test in tests if isinstance(test, NoneOf) for value in test.values}
    prefixes: list[Constraint] = [test for test in tests if isinstance(test, Prefix)]
    others: list[Constraint] = [test for test in tests if not isinstance(test, NoneOf | Prefix)]
    # Sets come last, so that no value is compared with more than one interval. Prefixes stay apart:
    # as an interval, a prefix may end inside a character, and has no text.
    others.sort(key=lambda test: isinstance(test, OneOf))
    kept: list[Constraint] = []
    for alike in (others, prefixes):
        for place, test in enumerate(alike):
            both = test if place == 0 else meet(kept.pop(), test, domain)
            if both is None:
                return [FALSE]
            kept.append(both)
    if kept and isinstance(kept[0], OneOf):
        left = set(kept[0].values) - excluded
        return [one_of(column, [v for v in left if all(admits(t, v) for t in kept)], domain)]
    if kept and isinstance(kept[0], Presence):
        presence = kept.pop(0)
        if presence == Presence(column, False):
            return [FALSE if kept or excluded else presence]
    excluded = {value for value in excluded if all(admits(test, value) for test in kept)}
    if excluded or not kept:
        return [*kept, none_of(column, excluded, domain)]
    return [*kept]


# ------------------------------------------------------------------------ text


class CanonicalTexts:
    """The canonical texts of the parts of one predicate in normal form.

    Every level of a tree is sorted by the texts of its parts, so each part is written once.
    """

    __slots__ = ("_known", "columns")

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        #: By identity: parts beside their texts, so that no identity passes to another one.
        self._known: dict[int, tuple[Meaning, str]] = {}

    def of(self, meaning: Meaning) -> str:
        """The canonical text of a tree."""
        known = self._known.get(id(meaning))
        if known is None:
            known = self._known[id(meaning)] = (meaning, self._written(meaning))
        return known[1]

    def _written(self, meaning: Meaning) -> str:
        columns = self.columns
        match meaning:
            case AllOf(parts=()):
                return "TRUE"
            case AnyOf(parts=()):
                return "FALSE"
            case AllOf(parts=parts):
                texts = [(isinstance(part, AnyOf), self.of(part)) for part in parts]
                return " AND ".join([f"({text})" if is_or else text for is_or, text in texts])
            case AnyOf(parts=parts):
                return " OR ".join(map(self.of, parts))
            case Compared(left=left, sign=sign, right=right):
                return f"{_name(left, columns)} {sign.value} {_name(right, columns)}"
            case Pattern(column=column, pattern=pattern, negated=negated):
                word = "NOT LIKE" if negated else "LIKE"
                return f"{_name(column, columns)} {word} {quoted_text(pattern)}"
            case _:
                name = _name(meaning.column, columns)
                return _written_test(meaning, name, columns.domains[meaning.column])


def _written_test(test: Mergeable, name: str, domain: Domain) -> str:
    match test:
        case Presence(present=present):
            return f"{name} IS NOT NULL" if present else f"{name} IS NULL"
        case Interval(low=low, high=high):
            texts = [domain.low_text(low)] if low is not None else []
            texts += [domain.high_text(high)] if high is not None else []
            return " AND ".join(f"{name} {text}" for text in texts)
        case OneOf(values=(value,)):
            return f"{name} = {domain.text(value)}"
        case NoneOf(values=(value,)):
            return f"{name} != {domain.text(value)}"
        case OneOf(values=values):
            return f"{name} IN ({', '.join(map(domain.text, values))})"
        case NoneOf(values=values):
            return f"{name} NOT IN ({', '.join(map(domain.text, values))})"
        case Prefix(prefix=prefix):
            return f"{name} LIKE {quoted_text(escaped(prefix.decode()) + '%')}"
    assert_never(test)


def _name(column: int, columns: Columns) -> str:
    return quoted_name(columns.names[column])


def escaped(text: str) -> str:
    """A pattern that stands for this text alone."""
    return "".join(f"\\{char}" if char in "%_\\" else char for char in text)


def operands_of(meaning: Meaning) -> int:
    """The columns and values in the canonical text."""
    match meaning:
        case AllOf(parts=parts) | AnyOf(parts=parts):
            return sum(map(operands_of, parts)) or 1
        case Interval(low=low, high=high):
            return 2 * ((low is not None) + (high is not None))
        case OneOf(values=values) | NoneOf(values=values):
            return 1 + len(values)
        case Compared():
            return 2
        case Presence() | Prefix() | Pattern():
            return 1
    assert_never(meaning)
