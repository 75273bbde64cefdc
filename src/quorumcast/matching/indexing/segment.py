"""A segment tree: which of many intervals of ranks contain a rank.

The leaves are the ranks. Each interval is kept at the largest nodes that it covers, which are at
most two on each level, so the intervals that contain a rank are those on the way from its leaf to
the root. An interval of one rank, as of an equality, is kept at a leaf. Levels at which nothing is
kept are not looked at: with equalities alone there is one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from quorumcast.matching.indexing.ranks import RankArray

Ids = npt.NDArray[np.int32]


def group_starts(ascending: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where each value begins in numbers that ascend."""
    begins = np.ones(len(ascending), np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
    return np.flatnonzero(begins)


class Stabbed(NamedTuple):
    """Where the intervals that contain some ranks are kept, per level and rank."""

    starts: Ids
    counts: Ids
    #: How many there are in all.
    total: int


class SegmentTree:
    """Intervals of ranks, each with the id of its owner."""

    __slots__ = ("_ids", "_levels", "_size", "_starts")

    def __init__(self, count: int, low: RankArray, high: RankArray, ids: Ids) -> None:
        height = max(1, (count - 1).bit_length())
        self._size = 1 << height
        nodes, owners = _decomposed(low + self._size, high + self._size + 1, ids)
        order = np.argsort(nodes, kind="stable")
        #: Owners by node, and where those of each node begin.
        self._ids = owners[order]
        self._starts = np.zeros(2 * self._size + 1, np.int32)
        np.cumsum(np.bincount(nodes, minlength=2 * self._size), out=self._starts[1:])
        bits = np.unique(np.frexp(nodes.astype(np.float64))[1])
        #: The levels at which anything is kept, as distances from the leaves.
        self._levels = (height + 1 - bits).astype(np.int32)[:, None]

    def stab(self, ranks: RankArray) -> Stabbed:
        """Find the intervals that contain each rank."""
        nodes = (ranks + np.int32(self._size)) >> self._levels
        starts = self._starts[nodes]
        counts = self._starts[nodes + 1] - starts
        return Stabbed(starts.ravel(), counts.ravel(), int(counts.sum()))

    def owners(self, stabbed: Stabbed, rows: int) -> tuple[Ids, Ids]:
        """The owner and the row of each interval that was found."""
        full = np.flatnonzero(stabbed.counts)
        counts = stabbed.counts[full]
        ends = np.cumsum(counts)
        # Consecutive numbers, moved to where each list begins.
        moved = np.repeat(stabbed.starts[full] - (ends - counts), counts)
        places = np.arange(stabbed.total) + moved
        owner_rows = np.repeat((full % rows).astype(np.int32), counts)
        return self._ids[places], owner_rows


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
    if not nodes:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    return np.concatenate(nodes), np.concatenate(owners)
