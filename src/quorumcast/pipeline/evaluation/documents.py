"""Figures of the documents for scenarios that we have as well.

A scenario is the same if policy, α, brokers, f, size, batches and faults are; the number of
publishers was theirs to choose, for the best figure, and is not compared. Their machines were
others, and more.
"""

from __future__ import annotations

from quorumcast.bench import fit, freeman
from quorumcast.bench.plan import BenchPlan
from quorumcast.pipeline.evaluation.model import Beside, Line
from quorumcast.traces.form import BENCH

#: Bytes of Freeman's contents.
FREEMAN_SIZE = 56


def beside(line: Line) -> list[Beside]:
    """What the documents measured in this scenario."""
    if line.scenario.source != BENCH:
        return []
    return [*_freeman(line), *_fit(line)]


def _freeman(line: Line) -> list[Beside]:
    """Freeman §7.3.1 and §7.3.2: one event of 56 bytes per publication, no faults, one topic."""
    scenario, latency = line.scenario, line.latency
    if (
        (scenario.size, scenario.batch, scenario.channels) != (FREEMAN_SIZE, 1, 1)
        or scenario.rate
        or scenario.fault
        or scenario.durable
    ):
        return []
    found = []
    for name, policy, alpha, brokers, rate in freeman.LINES:
        if (policy, alpha, brokers) != (scenario.policy, scenario.alpha, scenario.brokers):
            continue
        document = f"Freeman, {name}, {brokers} brokers"
        if rate:
            ours = line.publications_per_s
            found.append(_beside(document, "throughput", "publications/s", rate, ours))
        if theirs := freeman.LATENCIES_MS.get((policy, alpha, brokers)):
            mine = (latency.mean, latency.deviation, latency.p99)
            for figure, their, our in zip(freeman.FIGURES, theirs, mine, strict=True):
                found.append(_beside(document, f"latency, {figure}", "ms", their, our))
    return found


def _fit(line: Line) -> list[Beside]:
    """FIT-Broker §5.2: events of 253 bytes, ten channels, two subscribers."""
    scenario = line.scenario
    for (test, policy), plan in fit.plans(BenchPlan()).items():
        same = (
            policy == scenario.policy
            and (plan.brokers, plan.tolerated()) == (scenario.brokers, scenario.f)
            and (plan.subscribers, plan.channels) == (scenario.subscribers, scenario.channels)
            and (plan.size, plan.batch) == (scenario.size, scenario.batch)
            and (plan.fault, plan.skips) == (scenario.fault, scenario.skipping)
            and not scenario.rate
        )
        figure = fit.FIGURES.get((test, policy))
        if same and figure is not None:
            document = f"FIT-Broker, {test}: {fit.KINDS[policy]}"
            return [_beside(document, "throughput", "events/s", figure, line.events_per_s)]
    return []


def _beside(document: str, figure: str, unit: str, theirs: float, ours: float | None) -> Beside:
    ratio = ours / theirs if ours is not None else None
    return Beside(document, figure, unit, theirs, ours, ratio)
