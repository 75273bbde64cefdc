"""The disjunctive normal form of a predicate, bounded: what an index files, and covering compares.

`a AND (b OR c)` becomes `a AND b OR a AND c`. That multiplies, so an OR that would make more than
`MAX_CONJUNCTIONS` stays whole in the residual of each conjunction. Unequal values, patterns and
comparisons of two columns are residual as well.

A nest of ANDs and ORs multiplies at each level, and each level copies what the levels below made.
So steps are counted: what would take too many for the length of the predicate stays whole, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quorumcast.matching.canonical import meet, operands_of
from quorumcast.matching.columns import Columns
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
#: Steps of an expansion: those that every predicate may take, and more for each of its operands. A
#: step copies one operand into one conjunction.
_STEPS, _OPERAND_STEPS = 4096, 4


class _Draft(NamedTuple):
    """A conjunction in the making."""

    constraints: dict[int, Constraint]
    residual: tuple[Meaning, ...]


class _Expanded(NamedTuple):
    """The drafts of a part of a predicate, and the number of its operands."""

    drafts: Sequence[_Draft]
    size: int


def conjunctions_of(
    meaning: Meaning, columns: Columns, most: int = MAX_CONJUNCTIONS
) -> tuple[Conjunction, ...]:
    """Conjunctions of which one is true exactly where the predicate is.

    No AND of ORs becomes more than `most` of them.
    """
    found = []
    for constraints, residual in _Expansion(meaning, columns, most).of(meaning).drafts:
        left = AllOf(residual) if len(residual) > 1 else residual[0] if residual else None
        ordered = tuple(constraints[column] for column in sorted(constraints))
        found.append(Conjunction(ordered, left))
    return tuple(dict.fromkeys(found))


class _Expansion:
    """Multiplies one predicate out, as far as its steps go."""

    __slots__ = ("_columns", "_most", "_steps")

    def __init__(self, meaning: Meaning, columns: Columns, most: int) -> None:
        self._columns = columns
        self._most = most
        #: Steps that are left.
        self._steps = _STEPS + _OPERAND_STEPS * operands_of(meaning)

    def of(self, meaning: Meaning) -> _Expanded:
        """The drafts of which one is true exactly where this part is."""
        match meaning:
            case Presence() | Interval() | OneOf() | Prefix():
                return _Expanded([_Draft({meaning.column: meaning}, ())], operands_of(meaning))
            case AllOf(parts=parts):
                return self._product([(self.of(part), part) for part in parts])
            case AnyOf(parts=parts) if len(parts) <= MAX_CONJUNCTIONS:
                every = [self.of(part) for part in parts]
                drafts = [draft for expanded in every for draft in expanded.drafts]
                if len(drafts) > MAX_CONJUNCTIONS:
                    drafts = [_Draft({}, (meaning,))]
                return _Expanded(drafts, sum(expanded.size for expanded in every))
            case _:
                return _Expanded([_Draft({}, (meaning,))], operands_of(meaning))

    def _product(self, parts: Sequence[tuple[_Expanded, Meaning]]) -> _Expanded:
        size = sum(expanded.size for expanded, _ in parts)
        first = self._joined([one.drafts[0] for one, _ in parts if len(one.drafts) == 1])
        found = [] if first is None else [first]
        whole: list[Meaning] = []
        several = [(one.drafts, part) for one, part in parts if len(one.drafts) != 1]
        for drafts, part in sorted(several, key=lambda one: len(one[0])):
            count = len(found) * len(drafts)
            if count > self._most or count * size > self._steps:
                whole.append(part)
                continue
            self._steps -= count * size
            pairs = [self._joined((known, other)) for known in found for other in drafts]
            found = [pair for pair in pairs if pair is not None]
        return _Expanded([_Draft(one.constraints, (*one.residual, *whole)) for one in found], size)

    def _joined(self, drafts: Sequence[_Draft]) -> _Draft | None:
        """Several drafts as one; None if no row satisfies all of them."""
        constraints: dict[int, Constraint] = {}
        residual: list[Meaning] = []
        for draft in drafts:
            for column, constraint in draft.constraints.items():
                known = constraints.get(column)
                domain = self._columns.domains[column]
                both = constraint if known is None else meet(known, constraint, domain)
                if both is None:
                    return None
                constraints[column] = both
            residual += draft.residual
        return _Draft(constraints, tuple(residual))
