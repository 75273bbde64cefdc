"""Random draws that depend only on a seed, a purpose and a key, not on partitions or their order.

Spark partitions the same rows differently on another machine, where a sequential generator would
draw something else. Here each draw is a hash: in NumPy for generated workloads, in Spark's own
functions (`uniform_column`) for data sets. `weights` gives the popularity of ranks.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.lazy import sql

if TYPE_CHECKING:
    from pyspark.sql import Column

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

DISTRIBUTIONS = ("uniform", "zipf", "normal", "powerlaw")
#: Most nodes or topics to draw from: their weights are in memory.
MOST = 10_000_000

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Bits of a hash that become a number between 0 and 1.
_FRACTION = 53


def _mixed(words: Words) -> Words:
    """The final steps of SplitMix64: each input bit changes half of the output bits."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * _MIX_1
        words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


def purpose_key(seed: int, purpose: str) -> np.uint64:
    """Return the salt that separates the draws of one purpose from those of others."""
    start = np.array([seed & (2**64 - 1)], np.uint64)
    with np.errstate(over="ignore"):
        start = _mixed(start + _GOLDEN) + np.uint64(zlib.crc32(purpose.encode())) * _GOLDEN
    return np.uint64(_mixed(start)[0])


def hashes(seed: int, purpose: str, keys: npt.ArrayLike) -> Words:
    """Return a hash of each key."""
    with np.errstate(over="ignore"):
        return _mixed(np.asarray(keys).astype(np.uint64) * _GOLDEN + purpose_key(seed, purpose))


def uniform(seed: int, purpose: str, keys: npt.ArrayLike) -> Floats:
    """Return a number in [0, 1) for each key."""
    top = hashes(seed, purpose, keys) >> np.uint64(64 - _FRACTION)
    return top.astype(np.float64) / float(1 << _FRACTION)


def uniform_column(seed: int, purpose: str, *keys: Column) -> Column:
    """Return a column of numbers in [0, 1) that depend on the values of `keys`."""
    hashed = sql.xxhash64(sql.lit(seed), sql.lit(purpose), *keys)
    return sql.shiftrightunsigned(hashed, 64 - _FRACTION) / float(1 << _FRACTION)


def shuffled(seed: int, purpose: str, places: npt.ArrayLike, count: int) -> Ints:
    """Return where a permutation of 0 … count-1 moves each of these places.

    A Feistel network of four rounds permutes the next larger power of four; places that it moves
    beyond `count` are permuted again. So each place is computed without the others.
    """
    half = max(1, ((max(count - 1, 1)).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    now = np.asarray(places).astype(np.uint64)
    outside = np.ones(len(now), bool)
    while outside.any():
        left, right = now[outside] >> np.uint64(half), now[outside] & mask
        for turn in range(4):
            left, right = right, left ^ (hashes(seed, f"{purpose} {turn}", right) & mask)
        now[outside] = left << np.uint64(half) | right
        outside = now >= np.uint64(count)
    return now.astype(np.int64)


def weights(distribution: str, count: int, exponent: float = 0.0) -> Floats:
    """Return the popularity of the ranks 1 … count; the sum is 1.

    `zipf` is 1/rank^s, with s = 1 by default. `powerlaw` is the expected largest, second largest,
    … of `count` draws from a power law with density x^-a, with a = 2.2 by default. `normal` is a
    bell curve over the ranks, three deviations to either side. `uniform` is the same for all.
    """
    if count < 1:
        raise UsageError("nothing can be drawn from nothing; ask for 1 or more")
    if count > MOST:
        raise UsageError(f"{count:,} nodes or topics are too many to draw from; at most {MOST:,}")
    if not 0 <= exponent < np.inf:
        raise UsageError("an exponent is more than 0; leave it out for the usual one")
    ranks = np.arange(1, count + 1, dtype=np.float64)
    match distribution:
        case "uniform":
            found = np.ones(count)
        case "zipf":
            found = _powers(ranks, -(exponent or 1.0))
        case "normal":
            found = np.exp(-0.5 * ((ranks - (count + 1) / 2) / (max(count, 2) / 6)) ** 2)
        case "powerlaw":
            steepness = exponent or 2.2
            if steepness <= 1:
                raise UsageError("a power law needs an exponent above 1; the usual one is 2.2")
            found = _powers((ranks - 0.5) / count, -1 / (steepness - 1))
        case _:
            raise UsageError(
                f"there is no distribution {distribution!r}; choose one of "
                f"{', '.join(DISTRIBUTIONS)}"
            )
    return np.asarray(found / found.sum())


def _powers(bases: Floats, exponent: float) -> Floats:
    with np.errstate(over="ignore", under="ignore"):
        found = bases**exponent
    if not np.isfinite(found.sum()) or not found.min():
        raise UsageError("the exponent leaves all but a few without a share; choose the usual one")
    return found


def ranks_at(cumulative: Floats, draws: Floats) -> Ints:
    """Return the rank, from 0, of each draw between 0 and 1; `cumulative` are sums of weights."""
    found = np.searchsorted(cumulative, draws * cumulative[-1], side="right")
    ranks: Ints = np.minimum(found, len(cumulative) - 1).astype(np.int64)
    return ranks


def apportioned(shares: Floats, total: int, least: int = 0) -> Ints:
    """Divide `total` in the proportion of the shares; no part is below `least`.

    By largest remainders; if `least` gives too much to small parts, the largest parts are reduced.
    """
    if least * len(shares) > total:
        raise UsageError(f"{total} are too few for {least} each of {len(shares)}")
    exact = shares / shares.sum() * total
    counts: Ints = np.maximum(np.floor(exact), least).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    missing = total - int(counts.sum())
    if missing > 0:
        counts[order[:missing]] += 1
    while missing < 0:
        counts[np.argmax(counts)] -= 1
        missing += 1
    return counts


def inclusion(shares: Floats, mean: float) -> Floats:
    """Return probabilities in proportion to the shares, at most 1, whose sum is `mean`."""
    if not 0 < mean <= len(shares):
        raise UsageError(
            f"a node cannot subscribe to {mean:g} of {len(shares)} topics on average; choose "
            f"a number above 0 and up to {len(shares)}"
        )
    low, high = 0.0, float(len(shares) / shares.min())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(1, middle * shares).sum() < mean else (low, middle)
    return np.minimum(1.0, high * shares)
