"""The disjunctive normal form of a predicate, bounded: what an index files, and covering compares.

`a AND (b OR c)` becomes `a AND b OR a AND c`. That multiplies, so an OR that would make more than
`MAX_CONJUNCTIONS` stays whole in the residual of each conjunction. Unequal values, patterns and
comparisons of two columns are residual as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.matching.canonical import admits, one_of, overlap
from quorumcast.matching.columns import Columns
from quorumcast.matching.domain import Domain
from quorumcast.matching.nodes import (
    AllOf,
    AnyOf,
    Conjunction,
    Constraint,
    Interval,
    Meaning,
    OneOf,
    Prefix,
    Presence,
)

MAX_CONJUNCTIONS = 64

#: A conjunction in the making: constraints by column, and residual tests.
_Draft = tuple[dict[int, Constraint], tuple[Meaning, ...]]


def conjunctions_of(
    meaning: Meaning, columns: Columns, most: int = MAX_CONJUNCTIONS
) -> tuple[Conjunction, ...]:
    """Conjunctions of which one is true exactly where the predicate is.

    No AND of ORs becomes more than `most` of them.
    """
    found = []
    for constraints, residual in _drafts(meaning, columns, most):
        left = AllOf(residual) if len(residual) > 1 else residual[0] if residual else None
        ordered = tuple(constraints[column] for column in sorted(constraints))
        found.append(Conjunction(ordered, left))
    return tuple(dict.fromkeys(found))


def _drafts(meaning: Meaning, columns: Columns, most: int) -> Sequence[_Draft]:
    match meaning:
        case Presence() | Interval() | OneOf() | Prefix():
            return [({meaning.column: meaning}, ())]
        case AllOf(parts=parts):
            return _product(parts, columns, most)
        case AnyOf(parts=parts):
            drafts: list[_Draft] = []
            for part in parts:
                drafts += _drafts(part, columns, most)
                if len(drafts) > MAX_CONJUNCTIONS:
                    return [({}, (meaning,))]
            return drafts
        case _:
            return [({}, (meaning,))]


def _product(parts: Sequence[Meaning], columns: Columns, most: int) -> list[_Draft]:
    found: list[_Draft] = [({}, ())]
    every = ((_drafts(part, columns, most), part) for part in parts)
    for drafts, part in sorted(every, key=lambda one: len(one[0])):
        if len(found) * len(drafts) > most:
            found = [(constraints, (*residual, part)) for constraints, residual in found]
            continue
        pairs = (_joined(first, second, columns) for first in found for second in drafts)
        found = [pair for pair in pairs if pair is not None]
    return found


def _joined(first: _Draft, second: _Draft, columns: Columns) -> _Draft | None:
    """Both drafts as one; None if no row satisfies both."""
    constraints = dict(first[0])
    for column, constraint in second[0].items():
        known = constraints.get(column)
        both = constraint if known is None else meet(known, constraint, columns.domains[column])
        if both is None:
            return None
        constraints[column] = both
    return constraints, (*first[1], *second[1])


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
    return _constraint(overlap(as_interval(first), as_interval(second), domain))


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
