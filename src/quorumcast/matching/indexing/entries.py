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
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from quorumcast.matching.columns import BatchView, Columns
from quorumcast.matching.filter import Filter
from quorumcast.matching.indexing.ranks import Piece, RankArray, Ranks
from quorumcast.matching.indexing.segment import Ids, group_starts
from quorumcast.matching.kernels import Mask, compiled
from quorumcast.matching.nodes import Conjunction, Constraint, Meaning

#: Values of a set under which an entry is filed one by one; a larger set has one range.
_MAX_MEMBERS = 64
_SHIFT = np.int64(32)

Flags = npt.NDArray[np.bool_]
Pairs = tuple[Ids, Ids]
_HIGHEST = np.iinfo(np.int32).max


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
        #: The columns that any term is about, and their ranks.
        self.columns = used
        self.ranks = [
            Ranks(column, columns.types[column], columns.domains[column], by_column[column])
            for column in used
        ]
        #: How many ranks each column has.
        self.counts = [ranks.count for ranks in self.ranks]
        place_of = {column: place for place, column in enumerate(used)}
        self._terms = [
            self._term(number, place_of[constraint.column], constraint)
            for number, constraint in enumerate(constraints)
        ]
        terms = self._terms
        self.column = np.array([term.column for term in terms], np.int32)
        self.low = np.array([term.pieces[0][0] for term in terms], np.int32)
        self.high = np.array([term.pieces[-1][1] for term in terms], np.int32)
        numbers = np.arange(len(terms), dtype=np.int32)
        #: All of that side by side, so that a test is read from memory at once.
        self.table = np.stack([self.column, self.low, self.high, numbers], axis=1)
        sets = [term for term in terms if len(term.pieces) > 1]
        #: Which terms have members, and that no term beyond them has; None if none has.
        self.has_members: Flags | None = None
        if sets:
            self.has_members = np.zeros(len(terms) + 1, np.bool_)
            self.has_members[[term.number for term in sets]] = True
        #: The ranks of their members, by term.
        self.sets = {term.number: frozenset(low for low, _ in term.pieces) for term in sets}
        #: Term and rank of all members, sorted.
        members = [np.array(term.pieces, np.int64)[:, 0] + (term.number << 32) for term in sets]
        self.members = np.concatenate(members) if members else np.zeros(0, np.int64)

    def __getitem__(self, number: int) -> RankTerm:
        return self._terms[number]

    def __len__(self) -> int:
        return len(self._terms)

    def members_of(self, term: int) -> npt.NDArray[np.int64]:
        """The ranks of the members of a term that is a set, ascending."""
        first = np.int64(term) << _SHIFT
        start, end = np.searchsorted(self.members, (first, first + (1 << 32)))
        return self.members[start:end] - first

    def _term(self, number: int, place: int, constraint: Constraint) -> RankTerm:
        ranks = self.ranks[place]
        pieces = ranks.pieces(constraint)
        width = sum(high - low + 1 for low, high in pieces)
        return RankTerm(number, place, pieces, width / ranks.count)

    def ranks_of(self, view: BatchView) -> RankArray:
        """The ranks of all columns, a row of the table each."""
        table = np.empty((len(self.ranks), view.rows), np.int32)
        for place, ranks in enumerate(self.ranks):
            table[place] = ranks.of(view)
        return table

    def hold(self, tests: npt.NDArray[np.int32], ranks: RankArray, rows: Ids) -> Flags:
        """Whether each of these rows satisfies the term beside it, a row of `table`."""
        column, low, high, terms = tests.T
        found = ranks.ravel().take(column * ranks.shape[1] + rows)
        holds: Flags = (low <= found) & (found <= high)
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
        chosen = [
            [distinct.setdefault(one, len(distinct)) for one in conjunction.constraints]
            for _, conjunction in drafts
        ]
        self.terms = Terms(columns, list(distinct))
        share = [self.terms[number].share for number in range(len(self.terms))]
        for terms in chosen:
            terms.sort(key=share.__getitem__)
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
        self.rest = self.starts[:-1] + np.array(exact, np.int32)
        counts = self.starts[1:] - self.rest
        #: How many terms are left, at most; and the first one that is, of each entry.
        self._most_left = int(counts.max(initial=0))
        always = np.array([0, 0, _HIGHEST, len(self.terms)], np.int32)
        self._next = np.tile(always, (len(drafts), 1))
        more = np.flatnonzero(counts)
        self._next[more] = self.terms.table[self.term_numbers[self.rest[more]]]
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

    @property
    def has_residuals(self) -> bool:
        """Whether any entry has a residual."""
        return self._residuals is not None

    def satisfied(self, entries: Ids, rows: Ids, ranks: RankArray, view: BatchView) -> Pairs:
        """The pairs of entry and row that match, of those that were found under the key."""
        if self._most_left and len(entries):
            holds = self.terms.hold(self._next[entries], ranks, rows)
            entries, rows = entries[holds], rows[holds]
        for nth in range(1, self._most_left):
            at = self.rest[entries] + nth
            checked = np.flatnonzero(at < self.starts[entries + 1])
            if not len(checked):
                break
            tests = self.terms.table[self.term_numbers[at[checked]]]
            holds = np.ones(len(entries), np.bool_)
            holds[checked] = self.terms.hold(tests, ranks, rows[checked])
            entries, rows = entries[holds], rows[holds]
        return self.with_residual(entries, rows, view)

    def with_residual(self, entries: Ids, rows: Ids, view: BatchView) -> Pairs:
        """The pairs for which the rest of the predicate is true as well."""
        if self._residuals is None:
            return entries, rows
        kept = self._residuals[entries] < 0
        for mask, places in self.residuals_of(entries, view):
            kept[places] = mask[rows[places]]
        return entries[kept], rows[kept]

    def residuals_of(
        self, entries: Ids, view: BatchView
    ) -> Iterator[tuple[Flags, npt.NDArray[np.intp]]]:
        """The rows for which a residual is true, and the places of the entries that have it."""
        if self._residuals is None:
            return
        numbers = self._residuals[entries]
        having = np.flatnonzero(numbers >= 0)
        having = having[np.argsort(numbers[having], kind="stable")]
        starts = group_starts(numbers[having]).tolist()
        for start, end in pairwise([*starts, len(having)]):
            yield self._masks[int(numbers[having[start]])](view), having[start:end]


def _drafts(filters: Sequence[Filter]) -> Iterator[tuple[int, Conjunction]]:
    for number, one in enumerate(filters):
        for conjunction in dict.fromkeys(
            conjunction for predicate in one.predicates for conjunction in predicate.conjunctions
        ):
            yield number, conjunction
