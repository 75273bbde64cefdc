"""The suite `faults`: the rate with each fault of the catalogue, as a share of the fault-free rate.

A cell is to keep 80 % (`BUDGET`) of its rate while f brokers commit any fault. Shares are fair:

- Fault-free runs have the same processes: an honest extra client of `bench.plan` if the fault is a
  client's. Only what correct clients exchange is counted. A paused faulty publisher leaves more of
  the machine to the others, so that a share may exceed one.
- Fault-free and faulty runs alternate; a run is compared with the two next to it.
- The processor time per event is compared as well, because rates on a shared machine are noisy.

`drop` and `alter` have a second row with publishers that skip another broker besides (Freeman
§7.3.4): votes are then too few and everything arrives by history. The budget does not cover that.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from quorumcast.bench.plan import (
    CRASHES,
    WITH_SKIPPING,
    BenchPlan,
    BenchReport,
    Suspicions,
    merge_suspicions,
    totals,
)
from quorumcast.bench.run import Progress, Run, run_bench
from quorumcast.core.errors import UsageError
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import like_of

#: The least share of the fault-free rate.
BUDGET = 0.8


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: medians of its runs' rates, sums of their counters."""

    fault: str
    #: The role of the node that commits it.
    role: str
    events_per_s: float
    #: The rate of the fault-free runs before and after.
    fault_free_per_s: float
    share: float | None
    #: Processor time per event, to that of the fault-free runs.
    cpu_ratio: float | None
    by_history: int
    lost: int
    duplicated: int
    altered: int
    disordered: int
    #: Whether the cell kept what the policy promises in spite of the fault.
    sound: bool
    suspicions: Suspicions
    evidence: int


class Trial(msgspec.Struct, frozen=True):
    """A run with a fault, and the fault-free runs before and after it."""

    report: BenchReport
    before: BenchReport
    after: BenchReport

    def fault_free(self) -> float:
        """The fault-free rate that this run is compared with."""
        return median((self.before.events_per_s, self.after.events_per_s))

    def share(self) -> float | None:
        """The rate as a share of the fault-free rate."""
        fault_free = self.fault_free()
        return self.report.events_per_s / fault_free if fault_free else None

    def cpu_ratio(self) -> float | None:
        """Processor time per event, relative to the fault-free runs."""
        own, before, after = (
            report.cpu_us_per_event for report in (self.report, self.before, self.after)
        )
        return own / median((before, after)) if own and before and after else None


def plans(plan: BenchPlan) -> dict[str, BenchPlan]:
    """One plan for every fault that the policy withstands, by the name of its row."""
    if plan.fault:
        chosen = [plan.fault]
    else:
        chosen = [
            entry.name
            for entry in CATALOGUE.values()
            if like_of(plan.policy) in entry.valid_under and not entry.of_rows
        ]
        chosen[:0] = CRASHES
    found: dict[str, BenchPlan] = {}
    for fault in chosen:
        percent = 100 if fault in CRASHES else plan.percent
        alone = msgspec.structs.replace(plan, fault=fault, percent=percent, skip=False)
        if alone.promises_delivery():
            found[fault] = alone
        both = msgspec.structs.replace(alone, skip=True)
        if fault in WITH_SKIPPING and both.promises_delivery():
            found[f"{fault}, a broker skipped"] = both
    if not found:
        raise UsageError(
            f"{plan.policy!r} does not withstand {plan.fault!r}: there is no rate to compare"
        )
    return found


def run_faults(
    plan: BenchPlan, runs: int, progress: Progress = lambda stage: None, run: Run = run_bench
) -> list[FaultRow]:
    """Measure every fault in each of so many rounds, between two fault-free runs."""
    todo = plans(plan)
    trials: dict[str, list[Trial]] = {name: [] for name in todo}
    for round_ in range(runs):
        where = f"round {round_ + 1} of {runs}"
        for group in _groups(todo):
            progress(f"{where}: fault-free")
            before = run(_fault_free(todo[group[0]]))
            for name in group:
                progress(f"{where}: {name}, {list(todo).index(name) + 1} of {len(todo)}")
                report = run(todo[name])
                progress(f"{where}: fault-free after {name}")
                after = run(_fault_free(todo[name]))
                trial = Trial(report, before, after)
                trials[name].append(trial)
                if (share := trial.share()) is not None:
                    progress(f"{where}: {name}: {share:.0%} of the fault-free rate")
                before = after
    return [_row(name, todo[name], found) for name, found in trials.items()]


def _groups(todo: dict[str, BenchPlan]) -> Iterator[list[str]]:
    """Rows with the same processes: neighbours in a group share the fault-free run between them."""
    for role in dict.fromkeys(plan.extra_client_role for plan in todo.values()):
        yield [name for name, plan in todo.items() if plan.extra_client_role == role]


def _fault_free(plan: BenchPlan) -> BenchPlan:
    return msgspec.structs.replace(plan, fault="", percent=100, extra_client=plan.extra_client_role)


def _row(name: str, plan: BenchPlan, trials: list[Trial]) -> FaultRow:
    reports = [trial.report for trial in trials]
    return FaultRow(
        fault=name,
        role=plan.extra_client_role or Role.BROKER.value,
        events_per_s=round(median(report.events_per_s for report in reports), 1),
        fault_free_per_s=round(median(trial.fault_free() for trial in trials), 1),
        share=_median([trial.share() for trial in trials]),
        cpu_ratio=_median([trial.cpu_ratio() for trial in trials]),
        **totals(reports, "by_history", "lost", "duplicated", "altered", "disordered", "evidence"),
        sound=all(report.sound(plan) for report in reports),
        suspicions=merge_suspicions(report.suspicions for report in reports),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None
