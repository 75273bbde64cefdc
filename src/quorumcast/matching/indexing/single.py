"""A single row and many filters.

For one row numpy's fixed cost per call is most of the time, so this follows the same arrays in
plain Python. It leaves rows with many candidates to the general way.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from quorumcast.matching.columns import BatchView
from quorumcast.matching.indexing.entries import Entries
from quorumcast.matching.indexing.segment import Forest

#: Candidates from which on the general way is faster.
_MANY = 200


class RowMatcher:
    """Matches one row at a time."""

    __slots__ = (
        "_columns", "_entries", "_filters", "_high", "_ids", "_levels", "_low", "_ranks", "_rest",
        "_sets", "_starts", "_term_columns", "_term_numbers", "_terms_end",
    )  # fmt: skip

    def __init__(self, entries: Entries, forest: Forest) -> None:
        terms = entries.terms
        self._entries = entries
        self._columns = terms.columns
        self._ranks = terms.ranks
        self._levels = [level[1:] for level in forest.levels]
        # Views share the memory of the arrays, and give Python's own numbers.
        self._ids, self._starts = forest.ids.data, forest.starts.data
        self._filters = entries.filters.data
        self._rest, self._terms_end = entries.rest.data, entries.starts[1:].data
        self._term_numbers = entries.term_numbers.data
        self._term_columns = terms.column.data
        self._low, self._high = terms.low.data, terms.high.data
        #: The ranks of the members of terms that are sets.
        self._sets = terms.sets

    def match(self, batch: pa.RecordBatch, view: BatchView) -> list[int] | None:
        """The filters that the row matches, ascending; None if there are many candidates."""
        ranks = [
            rank.of_row(batch.column(column))
            for column, rank in zip(self._columns, self._ranks, strict=True)
        ]
        starts = self._starts
        candidates: list[int] = []
        for column, size, shift, first in self._levels:
            node = ((ranks[column] + size) >> shift) + first
            start, end = starts[node], starts[node + 1]
            if start < end:
                if len(candidates) + end - start > _MANY:
                    return None
                candidates += self._ids[start:end].tolist()
        found = [one for one in candidates if self._holds(one, ranks)]
        if self._entries.has_residuals:
            rows = np.zeros(len(found), np.int32)
            kept, _ = self._entries.with_residual(np.array(found, np.int32), rows, view)
            found = kept.tolist()
        return sorted({self._filters[one] for one in found})

    def _holds(self, entry: int, ranks: list[int]) -> bool:
        """Whether the terms hold that being found does not imply."""
        for place in range(self._rest[entry], self._terms_end[entry]):
            term = self._term_numbers[place]
            rank = ranks[self._term_columns[term]]
            if not self._low[term] <= rank <= self._high[term]:
                return False
            members = self._sets.get(term)
            if members is not None and rank not in members:
                return False
        return True
