"""Many filters in one pass over a batch.

Every conjunction of every filter is filed under its key, which is its most selective constraint, in
a segment tree of the key's column. The rank of a row's value leads to the conjunctions whose key it
satisfies: *candidates*, with the row a pair each. All pairs are tested at once for the constraints
that remain, and the rest of a predicate, of which no constraint can be made, is evaluated plainly,
once per block of rows.

Listing pairs does not pay for conjunctions that match many rows. The number of candidates is known
before they are listed; where it is large, the conjunctions of that tree are evaluated with a bit
per row instead (`matching.indexing.bit_rows`). This also bounds the memory that pairs take.

The result is always that of plain evaluation (`matching.evaluate`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.core.errors import ensure
from quorumcast.matching.columns import BatchView
from quorumcast.matching.evaluate import Rows
from quorumcast.matching.filter import Filter
from quorumcast.matching.indexing.bit_rows import Bits, bits_of_filters, unpacked
from quorumcast.matching.indexing.entries import Entries, RankTerm
from quorumcast.matching.indexing.segment import Forest, Ids, Tree, group_starts
from quorumcast.matching.indexing.single import RowMatcher

#: Rows that are matched at once, as a power of two.
_ROW_BITS = 10
BLOCK = 1 << _ROW_BITS
#: Keys that seem to select a larger share of rows are filed apart.
_WIDE = 1 / 64
#: Candidates per conjunction up to which listing them costs less than bits: one, and one more for
#: so many rows.
_ROWS_A_CANDIDATE = 32
#: Candidates of one tree that are listed at most, and so many as are listed in any case: bits take
#: that long even for one conjunction.
_MOST_LISTED, _LISTED = 1 << 20, 1 << 12
#: Pairs that are listed at once where there are bits.
_MOST_PAIRS = 1 << 22

_Numbers = npt.NDArray[np.int64]
#: Filters and rows beside each other.
_Pairs = tuple[Ids, Rows]

_NO_FILTERS = np.zeros(0, np.int32)
_NO_PAIRS = np.zeros(0, np.int64)
_NO_BITS = np.zeros((0, 0), np.uint64)


class _Block(NamedTuple):
    """The matches in one block of rows. A filter has pairs or bits."""

    first: int
    rows: int
    #: Filter and row in one number, ascending, each once.
    pairs: _Numbers
    #: Filters with a bit per row, ascending.
    filters: Ids
    bits: Bits

    def part(self, low: int, high: int) -> Iterator[_Pairs]:
        """The pairs of the filters from `low` to before `high`; in each answer filters ascend."""
        start, end = np.searchsorted(self.pairs, (low << _ROW_BITS, high << _ROW_BITS))
        if end > start:
            yield self._split(self.pairs[start:end])
        start, end = np.searchsorted(self.filters, (low, high))
        if end > start:
            places, rows = np.nonzero(unpacked(self.bits[start:end], self.rows))
            if len(places):
                yield self.filters[start:end][places], (rows + self.first).astype(np.uint32)

    def all_pairs(self) -> _Pairs:
        """The pairs of filters that have no bits."""
        return self._split(self.pairs)

    def _split(self, pairs: _Numbers) -> _Pairs:
        rows = (pairs & (BLOCK - 1)) + self.first
        return (pairs >> _ROW_BITS).astype(np.int32), rows.astype(np.uint32)


class Matched:
    """Which rows of a batch match which filters."""

    __slots__ = ("_blocks", "_filters")

    def __init__(self, filters: int, blocks: list[_Block]) -> None:
        self._filters = filters
        self._blocks = blocks

    def pairs(self) -> tuple[Ids, Rows]:
        """Filters and rows beside each other: filters ascend, and the rows of each."""
        return _joined(list(self._parts()))

    def by_filter(self) -> Iterator[tuple[int, Rows]]:
        """Each filter that any row matches, with its rows; filters ascend."""
        for filters, rows in self._parts():
            starts = group_starts(filters)
            numbers = filters[starts].tolist()
            ends = [*starts[1:].tolist(), len(filters)]
            for number, start, end in zip(numbers, starts.tolist(), ends, strict=True):
                yield number, rows[start:end]

    def _parts(self) -> Iterator[_Pairs]:
        """The pairs in parts of bounded size."""
        step = self._filters
        if any(len(block.filters) for block in self._blocks):
            step = max(1, _MOST_PAIRS // sum(block.rows for block in self._blocks))
        elif len(self._blocks) == 1 and len(self._blocks[0].pairs):
            yield self._blocks[0].all_pairs()
            return
        for low in range(0, self._filters, step):
            found = [part for block in self._blocks for part in block.part(low, low + step)]
            if len(found) > 1:
                filters, rows = _joined(found)
                order = np.argsort(filters, kind="stable")
                yield filters[order], rows[order]
            elif found:
                yield found[0]


class Index:
    """Filters of one channel, in an order that gives each its number."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        ensure(len(filters) > 0, "an index has filters")
        self.filters = tuple(filters)
        self._columns = filters[0].columns
        self._entries = Entries(self._columns, filters)
        groups = _grouped(self._entries)
        #: The conjunctions in each tree.
        self._members = [np.array([n for n, _ in group], np.int32) for _, group in groups]
        self._forest = Forest([_tree(self._entries, column, group) for column, group in groups])
        #: Conjunctions without a constraint: every row is a candidate.
        self._unfiled = np.array(
            [number for number, key in enumerate(self._entries.keys) if key is None], np.int32
        )
        self._single = RowMatcher(self._entries, self._forest)

    def match(self, batch: pa.RecordBatch) -> Matched:
        """Which rows match which filters."""
        starts = range(0, batch.num_rows, BLOCK)
        blocks = [self._match(batch.slice(start, BLOCK), start) for start in starts]
        return Matched(len(self.filters), blocks)

    def _match(self, block: pa.RecordBatch, first: int) -> _Block:
        view = BatchView(self._columns, block)
        if view.rows == 1 and not len(self._unfiled):
            found = self._single.match(block, view)
            if found is not None:
                pairs = np.array(found, np.int64) << _ROW_BITS
                return _Block(first, 1, pairs, _NO_FILTERS, _NO_BITS)
        ranks = self._entries.terms.ranks_of(view)
        many = [self._unfiled] if len(self._unfiled) else []
        pairs = _NO_PAIRS
        if self._members:
            stabbed = self._forest.stab(ranks)
            for tree, total in enumerate(self._forest.totals(stabbed)):
                members = self._members[tree]
                few = len(members) * (1 + view.rows // _ROWS_A_CANDIDATE)
                if total > min(_MOST_LISTED, max(_LISTED, few)):
                    self._forest.without(stabbed, tree)
                    many.append(members)
            entries, rows = self._forest.owners(stabbed)
            entries, rows = self._entries.satisfied(entries, rows, ranks, view)
            pairs = _as_pairs(self._entries.filters[entries], rows)
        if not many:
            return _Block(first, view.rows, pairs, _NO_FILTERS, _NO_BITS)
        numbers = np.sort(np.concatenate(many))
        filters, bits = bits_of_filters(self._entries, numbers, ranks, view)
        return _Block(first, view.rows, _moved(pairs, filters, bits), filters, bits)


#: The number of a conjunction, and its key.
_Filed = tuple[int, RankTerm]


def _grouped(entries: Entries) -> list[tuple[int, list[_Filed]]]:
    """Conjunctions by the columns of their keys; keys that seem to select many rows are apart."""
    groups: dict[tuple[int, bool], list[_Filed]] = {}
    for number, key in enumerate(entries.keys):
        if key is not None:
            groups.setdefault((key.column, key.share > _WIDE), []).append((number, key))
    return [(column, group) for (column, _), group in groups.items()]


def _tree(entries: Entries, column: int, group: list[_Filed]) -> Tree:
    filed = [(low, high, number) for number, key in group for low, high in key.filed]
    low, high, numbers = np.array(filed, np.int32).T
    return Tree(column, entries.terms.counts[column], low, high, numbers)


def _as_pairs(filters: Ids, rows: Ids) -> _Numbers:
    """Filters and rows as numbers, ascending, each once."""
    pairs = (filters.astype(np.int64) << _ROW_BITS) + rows
    pairs.sort()
    return pairs[group_starts(pairs)]


def _moved(pairs: _Numbers, filters: Ids, bits: Bits) -> _Numbers:
    """Set the bits of the pairs whose filters have bits; return the other pairs."""
    wanted = pairs >> _ROW_BITS
    places = np.minimum(np.searchsorted(filters, wanted), len(filters) - 1)
    same = filters[places] == wanted
    rows = pairs[same] & (BLOCK - 1)
    flags = np.left_shift(1, rows & 7).astype(np.uint8)
    np.bitwise_or.at(bits.view(np.uint8), (places[same], rows >> 3), flags)
    kept: _Numbers = pairs[~same]
    return kept


def _joined(parts: Sequence[_Pairs]) -> _Pairs:
    if not parts:
        return _NO_FILTERS, np.zeros(0, np.uint32)
    if len(parts) == 1:
        return parts[0]
    filters, rows = zip(*parts, strict=True)
    return np.concatenate(filters), np.concatenate(rows)
