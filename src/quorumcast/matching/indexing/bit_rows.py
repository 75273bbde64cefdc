"""Entries that match many rows, evaluated with a bit per row.

The rows of a block are sorted by the ranks of a column. Row n of a table has the bits of the n rows
with the lowest ranks, so the rows within any interval of ranks are the difference of two rows of
that table: a term costs two lookups and one operation on some words, whatever its interval. An
entry is the AND of its terms, and a filter the OR of its entries.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from quorumcast.matching.columns import BatchView
from quorumcast.matching.indexing.entries import Entries, Terms
from quorumcast.matching.indexing.ranks import RankArray
from quorumcast.matching.indexing.segment import Ids, group_starts

#: A bit per row of a block, in words; in Arrow's order of bits.
Bits: TypeAlias = npt.NDArray[np.uint64]
_WORD = 64


def bits_of_filters(
    entries: Entries, numbers: Ids, ranks: RankArray, view: BatchView
) -> tuple[Ids, Bits]:
    """The filters of these entries, ascending, and the rows that match each; numbers ascend."""
    bits = _bits_of_entries(entries, numbers, ranks, view.rows)
    for mask, places in entries.residuals_of(numbers, view):
        bits[places] &= packed(mask)
    filters = entries.filters[numbers]
    first = group_starts(filters)
    return filters[first], np.bitwise_or.reduceat(bits, first, axis=0)


def packed(flags: npt.NDArray[np.bool_]) -> Bits:
    """Flags as bits; the last axis becomes words."""
    words = -(-flags.shape[-1] // _WORD)
    found = np.zeros((*flags.shape[:-1], words * _WORD // 8), np.uint8)
    few = np.packbits(flags, axis=-1, bitorder="little")
    found[..., : few.shape[-1]] = few
    return found.view(np.uint64)


def unpacked(bits: Bits, rows: int) -> npt.NDArray[np.bool_]:
    """Bits as flags."""
    flags = np.unpackbits(bits.view(np.uint8), axis=-1, count=rows, bitorder="little")
    return flags.view(np.bool_)


def _bits_of_entries(entries: Entries, numbers: Ids, ranks: RankArray, rows: int) -> Bits:
    starts = entries.starts[numbers]
    counts = entries.starts[numbers + 1] - starts
    used = np.zeros(len(entries.terms), np.bool_)
    for nth in range(int(counts.max(initial=0))):
        used[entries.term_numbers[starts[counts > nth] + nth]] = True
    terms = np.flatnonzero(used)
    place_of = np.zeros(len(entries.terms), np.int32)
    place_of[terms] = np.arange(len(terms))
    of_terms = _bits_of_terms(entries.terms, terms, ranks, rows)
    found = np.tile(packed(np.ones(rows, np.bool_)), (len(numbers), 1))
    for nth in range(int(counts.max(initial=0))):
        more = np.flatnonzero(counts > nth)
        found[more] &= of_terms[place_of[entries.term_numbers[starts[more] + nth]]]
    return found


def _bits_of_terms(
    terms: Terms, numbers: npt.NDArray[np.intp], ranks: RankArray, rows: int
) -> Bits:
    found = np.zeros((len(numbers), -(-rows // _WORD)), np.uint64)
    columns = terms.column[numbers]
    for column in np.unique(columns).tolist():
        mine = np.flatnonzero(columns == column)
        order = np.argsort(ranks[column], kind="stable")
        lowest = _bits_of_lowest(order)
        ascending = ranks[column][order]
        low, high = terms.low[numbers[mine]], terms.high[numbers[mine]]
        below = lowest[np.searchsorted(ascending, low)]
        found[mine] = below ^ lowest[np.searchsorted(ascending, high, side="right")]
        if terms.has_members is None:
            continue
        for place in mine[terms.has_members[numbers[mine]]].tolist():
            members = terms.members_of(int(numbers[place]))
            nearest = np.minimum(np.searchsorted(members, ranks[column]), len(members) - 1)
            found[place] = packed(members[nearest] == ranks[column])
    return found


def _bits_of_lowest(order: npt.NDArray[np.intp]) -> Bits:
    """Row n has the bits of the first n rows in this order."""
    rows = len(order)
    found = np.zeros((rows + 1, -(-rows // _WORD) * _WORD // 8), np.uint8)
    found[np.arange(1, rows + 1), order >> 3] = np.left_shift(1, order & 7).astype(np.uint8)
    words = found.view(np.uint64)
    np.bitwise_or.accumulate(words, axis=0, out=words)
    return words
