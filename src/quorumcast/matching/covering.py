"""Whether one predicate covers another: each row of the second is a row of the first.

The answer True is certain; the answer False is not. Each conjunction of the second must lie within
one conjunction of the first, constraint by constraint, so `x < 1 OR x >= 1` does not cover `x < 5`.
A cell may carry on only rows that its parent has (`cell.filters`): after a wrong False the operator
has to write the predicate in another way, and after a wrong True its readers would lose rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.matching.canonical import admits, as_interval, meet
from quorumcast.matching.domain import Domain
from quorumcast.matching.nodes import (
    AllOf,
    Compared,
    Conjunction,
    Constraint,
    Meaning,
    NoneOf,
    Pattern,
    Prefix,
    Presence,
)
from quorumcast.matching.predicate import Predicate


def covers(wide: Predicate, narrow: Predicate) -> bool:
    """Whether each row that `narrow` selects is certainly one that `wide` selects."""
    if wide.columns.names != narrow.columns.names or wide.columns.types != narrow.columns.types:
        return False
    return wide.id == narrow.id or all(
        any(_within(inner, outer, wide.columns.domains) for outer in wide.conjunctions)
        for inner in narrow.conjunctions
    )


def _within(inner: Conjunction, outer: Conjunction, domains: Sequence[Domain]) -> bool:
    known = {constraint.column: constraint for constraint in inner.constraints}
    residual = _parts(inner.residual)
    for constraint in outer.constraints:
        found = known.get(constraint.column)
        if found is None:
            if not (isinstance(constraint, Presence) and constraint.present):
                return False
            if not any(constraint.column in _needed(part) for part in residual):
                return False
        elif not _inside(found, constraint, domains[constraint.column]):
            return False
    return all(part in residual or _excluded(part, known) for part in _parts(outer.residual))


def _parts(residual: Meaning | None) -> tuple[Meaning, ...]:
    if residual is None:
        return ()
    return residual.parts if isinstance(residual, AllOf) else (residual,)


def _needed(test: Meaning) -> tuple[int, ...]:
    """The columns that have a value where a residual test is true."""
    if isinstance(test, NoneOf | Pattern):
        return (test.column,)
    return (test.left, test.right) if isinstance(test, Compared) else ()


def _excluded(test: Meaning, known: dict[int, Constraint]) -> bool:
    """Whether the constraints make an inequality true."""
    if not isinstance(test, NoneOf) or test.column not in known:
        return False
    constraint = known[test.column]
    if isinstance(constraint, Presence):
        return False
    return not any(admits(constraint, value) for value in test.values)


def _inside(inner: Constraint, outer: Constraint, domain: Domain) -> bool:
    """Whether each value that the inner constraint admits is admitted by the outer one."""
    both = meet(inner, outer, domain)
    return both is not None and _without_prefix(both) == _without_prefix(inner)


def _without_prefix(constraint: Constraint) -> Constraint:
    return as_interval(constraint) if isinstance(constraint, Prefix) else constraint
