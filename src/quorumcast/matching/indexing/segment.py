"""Segment trees: which of many intervals of ranks contain the ranks of a row.

The leaves of a tree are the ranks of one column. Each interval is kept at the largest nodes that it
covers, which are at most two on each level, so the intervals that contain a rank are those on the
way from its leaf to the root. An interval of one rank, as of an equality, is kept at a leaf. Levels
at which nothing is kept are not looked at: with equalities alone there is one.

A `Forest` has trees of several columns in the same arrays, so that all are looked at at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quorumcast.matching.indexing.ranks import RankArray

Ids = npt.NDArray[np.int32]


class Tree(NamedTuple):
    """Intervals of ranks of one column, each with the id of its owner."""

    column: int
    #: How many ranks there are.
    ranks: int
    low: RankArray
    high: RankArray
    ids: Ids


class Level(NamedTuple):
    """A level of a tree: rank r has the node `(r + size >> shift) + first`."""

    tree: int
    column: int
    size: int
    shift: int
    first: int


class Stabbed(NamedTuple):
    """Where the intervals are kept that contain the ranks of each row, per level."""

    starts: Ids
    counts: Ids


class Forest:
    """Segment trees that are looked at together."""

    __slots__ = ("_columns", "_firsts", "_shifts", "_sizes", "_trees", "ids", "levels", "starts")

    def __init__(self, trees: Sequence[Tree]) -> None:
        #: The levels at which anything is kept, tree by tree.
        self.levels: list[Level] = []
        found: list[Ids] = [np.zeros(0, np.int32)]
        owners: list[Ids] = [np.zeros(0, np.int32)]
        first = 0
        for number, tree in enumerate(trees):
            height = max(1, (tree.ranks - 1).bit_length())
            size = 1 << height
            nodes, ids = _decomposed(tree.low + size, tree.high + size + 1, tree.ids)
            found.append(nodes + np.int32(first))
            owners.append(ids)
            depths = np.unique(np.frexp(nodes.astype(np.float64))[1]).tolist()
            for depth in depths:
                self.levels.append(Level(number, tree.column, size, height + 1 - depth, first))
            first += 2 * size
        nodes = np.concatenate(found)
        #: Owners by node, and where those of each node begin.
        self.ids = np.concatenate(owners)[np.argsort(nodes, kind="stable")]
        self.starts = np.zeros(first + 1, np.int32)
        np.cumsum(np.bincount(nodes, minlength=first), out=self.starts[1:])
        table = np.array(self.levels, np.int32).reshape(-1, len(Level._fields)).T[:, :, None]
        tree_numbers, columns, self._sizes, self._shifts, self._firsts = table
        self._trees = tree_numbers[:, 0]
        self._columns = columns[:, 0]

    def stab(self, ranks: RankArray) -> Stabbed:
        """Find the intervals that contain the ranks of each row."""
        nodes = ((ranks[self._columns] + self._sizes) >> self._shifts) + self._firsts
        starts = self.starts[nodes]
        return Stabbed(starts, self.starts[nodes + 1] - starts)

    def totals(self, stabbed: Stabbed) -> list[int]:
        """How many intervals were found, by tree."""
        by_level = stabbed.counts.sum(axis=1)
        totals: list[int] = np.bincount(self._trees, by_level).astype(np.int64).tolist()
        return totals

    def without(self, stabbed: Stabbed, tree: int) -> None:
        """Drop what was found in a tree."""
        stabbed.counts[self._trees == tree] = 0

    def owners(self, stabbed: Stabbed) -> tuple[Ids, Ids]:
        """The owner and the row of each interval that was found."""
        rows = stabbed.counts.shape[1]
        full = np.flatnonzero(stabbed.counts)
        counts = stabbed.counts.ravel()[full]
        ends = np.cumsum(counts)
        # Consecutive numbers, moved to where each list begins.
        moved = np.repeat(stabbed.starts.ravel()[full] - (ends - counts), counts)
        places = np.arange(len(moved)) + moved
        return self.ids[places], np.repeat((full % rows).astype(np.int32), counts)


def group_starts(ascending: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where each value begins in numbers that ascend."""
    begins = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def _decomposed(left: RankArray, right: RankArray, ids: Ids) -> tuple[Ids, Ids]:
    """The nodes that cover each half-open interval of leaves, and its owner beside each node."""
    nodes: list[Ids] = []
    owners: list[Ids] = []
    while len(ids):
        from_left, from_right = (left & 1).astype(np.bool_), (right & 1).astype(np.bool_)
        nodes += [left[from_left], right[from_right] - 1]
        owners += [ids[from_left], ids[from_right]]
        left, right = (left + 1) >> 1, right >> 1
        open_ = left < right
        left, right, ids = left[open_], right[open_], ids[open_]
    return np.concatenate(nodes), np.concatenate(owners)
