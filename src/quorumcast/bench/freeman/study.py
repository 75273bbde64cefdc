"""Where the optimum of α lies, and why: the question that Freeman left open (§8.1).

A history costs brokers one instance of Bracha's broadcast, however many publications it names.
Per publication a channel therefore costs

    cost(α) = own + history / α

in processor time of brokers, which is fitted to what was measured. The rate rises with α until
history / α is small beside the rest, and a larger α gains nothing. It costs latency instead: what
the fast path did not deliver waits for the next history, α publications later at most. For the rate
the optimum is the smallest α within 5 % of the best. For repairs it is the α with the lowest
latency at a given rate: below it a cell cannot carry so many histories, above it they are rare.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from quorumcast.bench.freeman.points import ALPHA
from quorumcast.bench.freeman.sweep import FreemanRow

#: The share of the best rate that the optimum has.
NEAR = 0.95


class Optimum(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of a policy say of its α."""

    policy: str
    #: The smallest α near the best rate, and its rate.
    alpha: int
    rate: float
    #: The α with the best rate, and that rate.
    best_alpha: int
    best_rate: float
    #: The largest α that was measured, and its rate.
    most_alpha: int
    most_rate: float
    #: Processor time of brokers in microseconds: of a publication without and of one history. None
    #: if there are too few rows to fit them.
    own_us: float | None
    history_us: float | None
    #: The α with the lowest mean latency while histories repair, in milliseconds; the latencies at
    #: it and at the largest α.
    repair_alpha: int | None
    repair_ms: float | None
    most_repair_ms: float | None


def honest(rows: Iterable[FreemanRow], policy: str) -> list[FreemanRow]:
    """The rows of a policy over a fixed α, without faults, sorted by α."""
    found = [r for r in rows if (r.part, r.policy, r.fault, r.alpha_max) == (ALPHA, policy, "", 0)]
    return sorted(found, key=lambda row: row.alpha)


def repairing(rows: Iterable[FreemanRow], policy: str) -> list[FreemanRow]:
    """The rows of a policy over α in which histories repair, sorted by α."""
    found = [r for r in rows if (r.part, r.policy, r.fault) == (ALPHA, policy, "drop")]
    return sorted(found, key=lambda row: row.alpha)


def fit(rows: Iterable[FreemanRow]) -> tuple[float, float] | None:
    """`own` and `history` of the cost, fitted with equal weight to relative errors."""
    points = [(r.alpha, r.broker_us_per_event) for r in rows if r.broker_us_per_event]
    if len(points) < 2:
        return None
    alphas, costs = (np.array(values, float) for values in zip(*points, strict=True))
    terms = np.stack([1 / costs, 1 / (alphas * costs)], axis=1)
    own, history = np.linalg.lstsq(terms, np.ones(len(points)), rcond=None)[0]
    return float(own), float(history)


def optimum(rows: Iterable[FreemanRow], policy: str) -> Optimum | None:
    """The optimum of a policy; None if nothing was measured."""
    known = list(rows)
    found = [row for row in honest(known, policy) if row.publications_per_s]
    if not found:
        return None
    best = max(found, key=lambda row: row.publications_per_s)
    near = next(r for r in found if r.publications_per_s >= NEAR * best.publications_per_s)
    repairs = {r.alpha: r.mean_ms for r in repairing(known, policy) if r.mean_ms is not None}
    quickest = min(repairs, key=lambda alpha: repairs[alpha], default=None)
    own, history = fit(found) or (None, None)
    return Optimum(
        policy=policy,
        alpha=near.alpha,
        rate=near.publications_per_s,
        best_alpha=best.alpha,
        best_rate=best.publications_per_s,
        most_alpha=found[-1].alpha,
        most_rate=found[-1].publications_per_s,
        own_us=own,
        history_us=history,
        repair_alpha=quickest,
        repair_ms=None if quickest is None else repairs[quickest],
        most_repair_ms=repairs.get(found[-1].alpha),
    )
