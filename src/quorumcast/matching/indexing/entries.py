"""The conjunctions of many filters in arrays, in terms of ranks.

An *entry* is one conjunction of one filter. Its constraints are numbers of *terms*: equal
constraints of different entries are one term. A term is the ranks from `low` to `high` of a column;
a set with several values is a term with *members*, of which these are the first and the last.

Each entry has a *key*: the constraint that seems to select the fewest rows, for which it is filed
(`matching.indexing.index`). How many rows a constraint selects is guessed from the constants of all
predicates: values are expected where constants are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from quorumcast.matching.columns import BatchView, Columns
from quorumcast.matching.filter import Filter
from quorumcast.matching.indexing.ranks import Piece, RankArray, Ranks
from quorumcast.matching.indexing.segment import Ids
from quorumcast.matching.kernels import Mask, compiled
from quorumcast.matching.nodes import Conjunction, Constraint, Meaning

#: Values of a set under which an entry is filed one by one; a larger set has one range.
_MAX_MEMBERS = 64
_SHIFT = np.int64(32)

Pairs = tuple[Ids, Ids]


class RankTerm(msgspec.Struct, frozen=True):
    """A constraint of one or several entries."""

    number: int
    #: The row of the column in the table of ranks.
    column: int
    pieces: list[Piece]
    #: The guessed share of rows that satisfy it.
    share: float

    @property
    def is_filed_exactly(self) -> bool:
        """Whether an entry that is found under this key satisfies it."""
        return len(self.pieces) <= _MAX_MEMBERS

    @property
    def filed(self) -> list[Piece]:
        """The ranks under which an entry with this key is filed."""
        if self.is_filed_exactly:
            return self.pieces
        return [(self.pieces[0][0], self.pieces[-1][1])]


class Terms:
    """All terms, by number, and the ranks of the columns that they are about."""

    def __init__(self, columns: Columns, constraints: Sequence[Constraint]) -> None:
        used = sorted({constraint.column for constraint in constraints})
        by_column: dict[int, list[Constraint]] = {column: [] for column in used}
        for constraint in constraints:
            by_column[constraint.column].append(constraint)
        self._ranks = [Ranks(column, columns.domains[column], by_column[column]) for column in used]
        #: How many ranks each column has.
        self.counts = [ranks.count for ranks in self._ranks]
        place_of = {column: place for place, column in enumerate(used)}
        self._terms = [
            self._term(number, place_of[constraint.column], constraint)
            for number, constraint in enumerate(constraints)
        ]
        terms = self._terms
        self.column = np.array([term.column for term in terms], np.int32)
        self.low = np.array([term.pieces[0][0] for term in terms], np.int32)
        self.high = np.array([term.pieces[-1][1] for term in terms], np.int32)
        sets = [term for term in terms if len(term.pieces) > 1]
        #: Which terms have members; None if none has.
        self.has_members: npt.NDArray[np.bool_] | None = None
        if sets:
            self.has_members = np.zeros(len(terms), np.bool_)
            self.has_members[[term.number for term in sets]] = True
        #: RankTerm and rank of all members, sorted.
        members = [np.array(term.pieces, np.int64)[:, 0] + (term.number << 32) for term in sets]
        self.members = np.concatenate(members) if members else np.zeros(0, np.int64)

    def __getitem__(self, number: int) -> RankTerm:
        return self._terms[number]

    def __len__(self) -> int:
        return len(self._terms)

    def _term(self, number: int, place: int, constraint: Constraint) -> RankTerm:
        ranks = self._ranks[place]
        pieces = ranks.pieces(constraint)
        width = sum(high - low + 1 for low, high in pieces)
        return RankTerm(number, place, pieces, width / ranks.count)

    def ranks_of(self, view: BatchView) -> RankArray:
        """The ranks of all columns, a row of the table each."""
        table = np.empty((len(self._ranks), view.rows), np.int32)
        for place, ranks in enumerate(self._ranks):
            table[place] = ranks.of(view)
        return table

    def hold(self, terms: Ids, ranks: RankArray, rows: Ids) -> npt.NDArray[np.bool_]:
        """Whether each of these rows satisfies the term beside it."""
        found = ranks[self.column[terms], rows]
        holds: npt.NDArray[np.bool_] = (self.low[terms] <= found) & (found <= self.high[terms])
        if self.has_members is not None:
            sets = np.flatnonzero(holds & self.has_members[terms])
            if len(sets):
                wanted = (terms[sets].astype(np.int64) << _SHIFT) + found[sets]
                places = np.searchsorted(self.members, wanted)
                last = len(self.members) - 1
                holds[sets] = self.members[np.minimum(places, last)] == wanted
        return holds


class Entries:
    """All entries, by number; those of one filter have consecutive numbers."""

    def __init__(self, columns: Columns, filters: Sequence[Filter]) -> None:
        drafts = list(_drafts(filters))
        distinct: dict[Constraint, int] = {}
        for _, conjunction in drafts:
            for constraint in conjunction.constraints:
                distinct.setdefault(constraint, len(distinct))
        self.terms = Terms(columns, list(distinct))
        share = [self.terms[number].share for number in range(len(self.terms))]
        chosen = [
            sorted((distinct[one] for one in conjunction.constraints), key=share.__getitem__)
            for _, conjunction in drafts
        ]
        #: The key of each entry; None if it has no constraint.
        self.keys = [self.terms[terms[0]] if terms else None for terms in chosen]
        #: The filter of each entry.
        self.filters = np.array([number for number, _ in drafts], np.int32)
        #: The terms of each entry, one entry after another, the key first; and where they begin.
        self.term_numbers = np.array([one for terms in chosen for one in terms], np.int32)
        self.starts = np.zeros(len(drafts) + 1, np.int32)
        np.cumsum([len(terms) for terms in chosen], out=self.starts[1:])
        exact = [key is not None and key.is_filed_exactly for key in self.keys]
        #: Where the terms begin that being filed under the key does not imply.
        self._rest = self.starts[:-1] + np.array(exact, np.int32)
        self._add_residuals(columns, [conjunction.residual for _, conjunction in drafts])

    def _add_residuals(self, columns: Columns, residuals: Sequence[Meaning | None]) -> None:
        distinct = dict.fromkeys(residual for residual in residuals if residual is not None)
        number_of = {residual: number for number, residual in enumerate(distinct)}
        self._masks: list[Mask] = [compiled(residual, columns) for residual in distinct]
        #: The residual of each entry, -1 if it has none; None if no entry has one.
        self._residuals: Ids | None = None
        if distinct:
            numbers = [-1 if one is None else number_of[one] for one in residuals]
            self._residuals = np.array(numbers, np.int32)

    def __len__(self) -> int:
        return len(self.filters)

    def satisfied(self, entries: Ids, rows: Ids, ranks: RankArray, view: BatchView) -> Pairs:
        """The pairs of entry and row that match, of those that were found under the key."""
        nth = 0
        at = self._rest[entries]
        while len(entries):
            left = self.starts[entries + 1] - at > nth
            holds = ~left
            checked = np.flatnonzero(left)
            if not len(checked):
                break
            terms = self.term_numbers[at[checked] + nth]
            holds[checked] = self.terms.hold(terms, ranks, rows[checked])
            entries, rows, at = entries[holds], rows[holds], at[holds]
            nth += 1
        return self._with_residual(entries, rows, view)

    def _with_residual(self, entries: Ids, rows: Ids, view: BatchView) -> Pairs:
        if self._residuals is None:
            return entries, rows
        residuals = self._residuals[entries]
        kept = residuals < 0
        for number, mask in self.masks_of(entries, view):
            mine = np.flatnonzero(residuals == number)
            kept[mine] = mask[rows[mine]]
        return entries[kept], rows[kept]

    def masks_of(
        self, entries: Ids, view: BatchView
    ) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """The residuals of these entries, and the rows for which each is true."""
        if self._residuals is not None:
            for number in np.unique(self._residuals[entries]).tolist():
                if number >= 0:
                    yield number, self._masks[number](view)

    def having(self, entries: Ids, residual: int) -> Ids:
        """Which of these entries have a residual."""
        if self._residuals is None:
            return np.zeros(0, np.int32)
        return np.flatnonzero(self._residuals[entries] == residual).astype(np.int32)


def _drafts(filters: Sequence[Filter]) -> Iterator[tuple[int, Conjunction]]:
    for number, one in enumerate(filters):
        for conjunction in dict.fromkeys(
            conjunction for predicate in one.predicates for conjunction in predicate.conjunctions
        ):
            yield number, conjunction
