"""The suite `tree`: cells one below another, as shares of the root alone.

The root has 3f+1 brokers, every other cell 2f+1; the publisher is a client of the root, and the
subscriber of the last cell. Each line is three runs: as fast as everything arrives, the same while
f brokers of each cell lie, and 100 publications per second for the latency. Runs of all depths
alternate, and every event must arrive, once and unaltered.

All processes share one machine: the share of a deeper tree says what its cells cost altogether, and
not what a tree on several machines loses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from statistics import median

import msgspec

from quorumcast.bench.plan import (
    BenchPlan,
    BenchReport,
    Suspicions,
    WorkerResult,
    lie_of,
    median_latency,
    merge_suspicions,
    totals,
)
from quorumcast.bench.run import Bench, Progress, Run, run_bench
from quorumcast.core.errors import UsageError
from quorumcast.manifest.trees import brokers_needed, full_tree
from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.tree import LocalTree

POLICIES = ("ab+history", "total")
#: The deepest tree.
LEVELS = 3
#: Publications per second of runs for the latency.
CALM_RATE = 100.0


class TreeBench(Bench):
    """One run with a tree of cells; names of nodes are told apart as CELL/NAME."""

    def _make_cluster(self) -> LocalCluster:
        plan, policy = self.plan, self.plan.channel_policy()
        cells = plan.cells()
        self._tree = LocalTree(
            shape=full_tree(plan.levels, 1),
            channels={plan.channel_name(i): policy for i in range(plan.channels)},
            f=plan.tolerated(),
            clients=[plan.name_of(role, index) for role, index in plan.workers()],
            directory=self._directory,
            fields=plan.algorithms(),
            log_level="warning",
        )
        return self._tree[cells[0]]

    def _running(self) -> AbstractContextManager[object]:
        return self._tree

    def _brokers_by_cell(self) -> Iterator[tuple[str, LocalCluster, str]]:
        for name, cell in self._tree.cells.items():
            for broker in cell.brokers:
                yield name, cell, broker

    def _watch_brokers(self) -> None:
        for name, cell, broker in self._brokers_by_cell():
            self._processes.watch("broker", f"{name}/{broker}", cell.pid(broker))

    def _wait_linked(self) -> None:
        for cell in self._tree.cells.values():
            cell.wait_for_links()

        def joined() -> bool:
            pages = (cell.status(broker) for _, cell, broker in self._brokers_by_cell())
            return all(all(one["joined"].values()) for page in pages for one in page["uplinks"])

        self._cluster.wait_until(joined, "the cells did not find their parents")

    def _liars(self, cell: LocalCluster) -> list[str]:
        return self.plan.faulty_brokers(list(map(str, cell.brokers)))

    def _inject_fault(self) -> None:
        """In every cell f brokers commit the fault."""
        for cell in self._tree.cells.values():
            for liar in self._liars(cell):
                cell.make_lie(liar, self.plan.fault)

    def _suspicions(self, results: list[WorkerResult]) -> Suspicions:
        """What correct clients and brokers suspect others of, also in a parent cell."""
        found: list[Suspicions] = [
            _in_cell(self.plan.cell_of(result.role), result.suspicions) for result in results
        ]
        for name, cell, broker in self._brokers_by_cell():
            if broker not in self._liars(cell):
                status = cell.status(broker)
                found.append(_in_cell(name, status["suspicions"]))
                found += [_in_cell(one["parent"], one["suspicions"]) for one in status["uplinks"]]
        return merge_suspicions(found)

    def _faulty(self) -> list[str]:
        return [
            f"{name}/{broker}"
            for name, cell, broker in self._brokers_by_cell()
            if broker in self._liars(cell)
        ]


def _in_cell(cell: str, suspicions: Suspicions) -> Suspicions:
    return {f"{cell}/{suspect}": reasons for suspect, reasons in suspicions.items()}


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One depth under one policy: medians of its runs."""

    policy: str
    levels: int
    #: Brokers of each cell.
    cells: tuple[int, ...]
    publications_per_s: float
    #: The rate as a share of the root alone.
    share: float | None
    #: The rate while f brokers of each cell lie, and its share of the rate without them.
    lying_per_s: float
    lying_share: float | None
    fault: str
    #: From `post` to acceptance at CALM_RATE, in milliseconds.
    latency_p50: float | None
    latency_p99: float | None
    #: What the last level adds to the median.
    added_p50: float | None
    cpu_us_per_event: float | None
    delivered: int
    lost: int
    duplicated: int
    altered: int
    disordered: int
    sound: bool


class _Runs(msgspec.Struct):
    """The runs of one depth."""

    fast: list[BenchReport] = []
    lying: list[BenchReport] = []
    calm: list[BenchReport] = []
    #: Whether all promises were kept.
    sound: bool = True


def run_tree(
    plan: BenchPlan,
    runs: int,
    progress: Progress = lambda stage: None,
    run: Run | None = None,
) -> list[TreeRow]:
    """The rows of all depths under each policy."""
    if plan.tls or plan.trace:
        raise UsageError("the suite 'tree' has no --tls and no --trace; leave them out")
    f = 1 if plan.f is None else plan.f
    rows: list[TreeRow] = []
    for policy in POLICIES:
        alike = msgspec.structs.replace(plan, policy=policy, fault="", f=f)
        brokers = brokers_needed([alike.channel_policy()], f)
        alike = msgspec.structs.replace(alike, brokers=brokers)
        measured = [_Runs() for _ in range(LEVELS)]
        for _ in range(runs):
            for depth, found in enumerate(measured, 1):
                _measure(alike, depth, found, progress, run or measure)
        shallower: list[TreeRow] = []
        for found in measured:
            shallower.append(_row(alike, found, shallower))
        rows += shallower
    return rows


def measure(plan: BenchPlan) -> BenchReport:
    """One run, with as many cells as the plan says."""
    return run_bench(plan, kind=TreeBench if plan.levels > 1 else Bench)


def _measure(plan: BenchPlan, depth: int, found: _Runs, progress: Progress, run: Run) -> None:
    """Three runs."""
    replace = msgspec.structs.replace
    fast = replace(plan, levels=depth)
    lying = replace(fast, fault=lie_of(plan.policy), skip=False)
    calm = replace(fast, rate=CALM_RATE, batch=1)
    for one, reports in ((fast, found.fast), (lying, found.lying), (calm, found.calm)):
        what = "with liars" if one.fault else f"{one.rate:g}/s" if one.rate else "at full speed"
        progress(f"{plan.policy}, {depth} of {LEVELS} levels, {what}")
        report = run(one)
        reports.append(report)
        found.sound = found.sound and report.sound(one)


def _rate(reports: list[BenchReport]) -> float:
    return median(report.publications_per_s for report in reports)


def _row(plan: BenchPlan, found: _Runs, shallower: list[TreeRow]) -> TreeRow:
    """The row of a tree that is one level deeper than the last of these."""
    rate, lying = _rate(found.fast), _rate(found.lying)
    alone = shallower[0].publications_per_s if shallower else rate
    p50 = median_latency(found.calm)
    p99 = [r.latency_ms.p99 for r in found.calm if r.latency_ms.p99 is not None]
    before = shallower[-1].latency_p50 if shallower else None
    added = None if p50 is None or before is None else round(p50 - before, 3)
    used = [r.cpu_us_per_event for r in found.fast if r.cpu_us_per_event is not None]
    f = plan.tolerated()
    return TreeRow(
        policy=plan.policy,
        levels=1 + len(shallower),
        cells=(plan.brokers, *[2 * f + 1] * len(shallower)),
        publications_per_s=round(rate, 1),
        share=round(rate / alone, 3) if alone else None,
        lying_per_s=round(lying, 1),
        lying_share=round(lying / rate, 3) if rate else None,
        fault=lie_of(plan.policy),
        latency_p50=p50,
        latency_p99=median(p99) if p99 else None,
        added_p50=added,
        cpu_us_per_event=round(median(used), 2) if used else None,
        **totals(
            [*found.fast, *found.lying, *found.calm],
            *("delivered", "lost", "duplicated", "altered", "disordered"),
        ),
        sound=found.sound,
    )
