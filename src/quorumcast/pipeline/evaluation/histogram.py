"""Percentiles that can be added up: a histogram whose buckets are narrow in proportion.

A bucket holds the values that agree in their highest eleven bits, so it is at most 1/1024 of its
values wide, and its middle at most 1/2048 (0.05 %) off any of them. Values below 2048 have a bucket
each. Counts of two histograms add up to that of both, which percentiles do not; and a histogram of
a billion values has some thousand buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Bits of a value that its bucket keeps, beside the highest one.
BITS = 10
#: How far a percentile may be off, in proportion.
ACCURACY = 2.0 ** -(BITS + 1)


def bucket(value: int) -> int:
    """The lowest value of the bucket that a value falls into; the plain twin of `bucket_of`."""
    shift = _shift(value)
    return value >> shift << shift


def _shift(value: int) -> int:
    return max(value.bit_length() - 1 - BITS, 0)


def bucket_of(value: str) -> Column:
    """The bucket of a column of integers from 0 on."""
    from pyspark.sql import functions as sf

    shift = f"cast(greatest(floor(log2(greatest({value}, 1))) - {BITS}, 0) as int)"
    return sf.expr(f"shiftleft(shiftright({value}, {shift}), {shift})")


def middle(lowest: int) -> float:
    """What stands for all values of a bucket."""
    return lowest + ((1 << _shift(lowest)) - 1) / 2


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The value that this share of all values does not exceed, as near as buckets tell."""
    total = sum(counts.values())
    if not total:
        return None
    # The smallest rank that covers the share; -1e-9 for shares that are no binary fractions.
    rank = max(1, -int(-(share * total - 1e-9) // 1))
    seen = 0
    for lowest in sorted(counts):
        seen += counts[lowest]
        if seen >= rank:
            return middle(lowest)
    raise AssertionError("unreachable")
