"""Histograms that can be added up, unlike percentiles, and percentiles from them.

A bucket contains the values with the same eleven highest bits, so that its middle differs from any
of its values by at most 1/2048 (0.05 %). Values below 2048 have a bucket each. A histogram of a
billion values has some thousand buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quorumcast.pipeline.lazy import sql

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Bits that the values of a bucket share, after the highest one.
BITS = 10
#: The largest relative error of a percentile.
ACCURACY = 2.0 ** -(BITS + 1)


def bucket(value: int) -> int:
    """Return the lowest value of a value's bucket; `bucket_of` does the same in Spark."""
    shift = _shift(value)
    return value >> shift << shift


def _shift(value: int) -> int:
    return max(value.bit_length() - 1 - BITS, 0)


def bucket_of(value: str) -> Column:
    """Return the buckets of a column of integers from 0 on."""
    shift = f"cast(greatest(floor(log2(greatest({value}, 1))) - {BITS}, 0) as int)"
    return sql.expr(f"shiftleft(shiftright({value}, {shift}), {shift})")


def middle(lowest: int) -> float:
    """Return the value that represents a bucket."""
    return lowest + ((1 << _shift(lowest)) - 1) / 2


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """Return the value that this share of all values does not exceed, approximately."""
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
