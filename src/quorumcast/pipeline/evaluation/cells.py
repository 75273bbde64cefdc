"""What is specific to cells in an evaluation: names of scenarios, hops, and figures of papers.

Hops are successive messages from publisher to subscriber. On a chain they are the highest place of
a traced broker plus one; elsewhere they are the steps of the protocol. Publications that came by
history took the steps of Bracha's broadcast.

A scenario of a paper equals ours if policy, α, brokers, f, size, batches and faults are equal. The
number of publishers is not compared: the papers chose the best one. Their machines differed too.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quorumcast.bench import papers
from quorumcast.bench.freeman.points import FIGURES, LINES
from quorumcast.bench.plan import BenchPlan
from quorumcast.cell import CELL_SYSTEM
from quorumcast.cell.tracing import CellParameters
from quorumcast.pipeline.evaluation.model import Beside, ScenarioResult
from quorumcast.traces.form import BENCH, Parameter

#: Steps of each protocol, except chains.
STEPS = {
    "direct": 2,
    "direct-crash": 2,
    "ab": 2,
    "ab+history": 2,
    "brb": 3,
    "total": 5,
    "total-crash": 4,
}
#: Steps of a history: published, echoed, voted for.
HISTORY_STEPS = 3
#: Bytes of an event in Freeman's measurements.
FREEMAN_SIZE = 56


def cell_of(parameters: Mapping[str, Parameter]) -> CellParameters:
    """Convert parameters of a header; raise `ValidationError` if they are not those of a cell."""
    return msgspec.convert(parameters, CellParameters)


def words(cell: CellParameters) -> list[str]:
    """Return the parts of a scenario's name."""
    found = [cell.policy]
    if cell.alpha:
        found.append(f"α={cell.alpha}" + (f"…{cell.alpha_max}" if cell.alpha_max else ""))
    if cell.brokers is not None:
        found.append(f"n={cell.brokers}")
    counts = {name: getattr(cell, name) for name in ("publishers", "subscribers", "channels")}
    found += [f"{count} {name}" for name, count in counts.items() if count not in (None, 1)]
    if cell.batch not in (None, 1):
        found.append(f"batches of {cell.batch}" if cell.batch else "natural batches")
    if cell.rate:
        found.append(f"{cell.rate:g}/s")
    found += [word for word in (cell.weather, cell.workload) if word]
    return found + ["durable"] * cell.durable + ["tls"] * cell.tls


def hops(cell: CellParameters, delivered: int, by_history: int, chain: int) -> dict[int, int]:
    """Return deliveries by hops; `chain` is the length of the longest chain of the run."""
    # A subscriber of a chain needs the vote of the last broker.
    steps = STEPS.get(cell.policy, chain + 1 if chain else 0)  # 0: unknown, of another package
    found = {steps: delivered - by_history}
    found[HISTORY_STEPS] = found.get(HISTORY_STEPS, 0) + by_history
    return found


def beside(line: ScenarioResult) -> list[Beside]:
    """Return what the papers measured in this scenario."""
    if (line.scenario.system, line.scenario.source) != (CELL_SYSTEM, BENCH):
        return []
    cell = cell_of(line.scenario.parameters)
    # No paper measured over slow links.
    return [] if cell.weather else [*_freeman(line, cell), *_fit(line, cell)]


def _freeman(line: ScenarioResult, cell: CellParameters) -> list[Beside]:
    """Freeman §7.3.1, §7.3.2: 56 bytes per publication, no faults, one topic, an α that stays."""
    latency = line.latency
    if (
        (cell.size, cell.batch, cell.channels) != (FREEMAN_SIZE, 1, 1)
        or cell.rate
        or line.scenario.fault
        or cell.durable
        or cell.alpha_max
    ):
        return []
    found = []
    for (policy, alpha, brokers), his in FIGURES.items():
        if (policy, alpha, brokers) != (cell.policy, cell.alpha, cell.brokers):
            continue
        name = next(known.name for known in LINES if (known.policy, known.alpha) == (policy, alpha))
        compared = (
            ("throughput", "publications/s", his.publications_per_s, line.publications_per_s),
            ("latency, mean", "ms", his.mean_ms, latency.mean),
            ("latency, deviation", "ms", his.deviation_ms, latency.deviation),
            ("latency, 99 %", "ms", his.p99_ms, latency.p99),
        )
        document = f"Freeman, {name}, {brokers} brokers"
        found += [
            _beside(document, figure, unit, theirs, ours)
            for figure, unit, theirs, ours in compared
            if theirs is not None
        ]
    return found


def _fit(line: ScenarioResult, cell: CellParameters) -> list[Beside]:
    """FIT-Broker §5.2: events of 253 bytes, ten channels, two subscribers."""
    for (test, policy), plan in papers.fit_plans(BenchPlan()).items():
        same = (
            policy == cell.policy
            and (plan.brokers, plan.tolerated()) == (cell.brokers, cell.f)
            and (plan.subscribers, plan.channels) == (cell.subscribers, cell.channels)
            and (plan.size, plan.batch) == (cell.size, cell.batch)
            and plan.fault_label == line.scenario.fault
            and not cell.rate
        )
        figure = papers.FIT_FIGURES.get((test, policy))
        if same and figure is not None:
            document = f"FIT-Broker, {test}: {papers.FIT_KINDS[policy]}"
            return [_beside(document, "throughput", "events/s", figure, line.events_per_s)]
    return []


def _beside(document: str, figure: str, unit: str, theirs: float, ours: float | None) -> Beside:
    ratio = ours / theirs if ours is not None else None
    return Beside(document, figure, unit, theirs, ours, ratio)
