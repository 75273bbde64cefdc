"""What each fault of the catalogue costs: the rate with it, as a share of the rate without.

A cell is to keep 80 % (`BUDGET`) of its rate while f brokers do anything that the catalogue knows.
What makes the shares comparable, and fair:

- *The same cast.* A line is compared with fault-free runs that have the same processes. Where the
  fault is a client's there is one more client, the guest of `bench.plan`, and in the runs that it
  is compared with the guest is there as well, and honest. Only what correct publishers sent to
  correct subscribers is counted: a liar's loss is its own. A publisher that is held up for its lies
  leaves more of the machine to the others than an honest one, and their share is then above one.
- *The same minute.* Fault-free runs and runs with a fault alternate; a run is compared with the
  median of the fault-free ones right before and after it. Of several rounds the median counts.
- *The worst place.* The lying broker is the one that sends contents to the first subscriber.
- *Processor time as well.* On a machine that others use the rate is noisy; the time that all
  processes together spend on an event is less so. It tells what a fault costs where processors are
  what is short, as on one machine for everything, and nothing of what is spent waiting.

`drop` and `alter` are there twice: as the fault of a broker alone, and with publishers that skip
another broker besides (Freeman §7.3.4), where votes are too few and all arrives by history. The
budget speaks of brokers; the second form is more than that, and is shown for what it costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median

import msgspec

from quorumcast.bench.plan import CRASHES, WITH_SKIPPING, BenchPlan, BenchReport
from quorumcast.bench.run import Progress, run_bench
from quorumcast.core.errors import UsageError
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role

#: The share of the fault-free rate that is to be left.
BUDGET = 0.8

Run = Callable[[BenchPlan], BenchReport]


class FaultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One fault; medians of its runs, sums of what went wrong in them."""

    fault: str
    #: Who commits it.
    role: str
    events_per_s: float
    #: The rate without it, in the runs next to these.
    fault_free_per_s: float
    share: float | None
    #: Processor time per event, to that of the fault-free runs.
    cpu_ratio: float | None
    by_history: int
    lost: int
    duplicated: int
    altered: int
    disordered: int
    #: Whether what the policy promises in spite of the fault was kept.
    sound: bool
    suspicions: dict[str, dict[str, int]]
    evidence: int


class Trial(msgspec.Struct, frozen=True):
    """A run with a fault and its neighbours without."""

    report: BenchReport
    before: BenchReport
    after: BenchReport

    def fault_free(self) -> float:
        """The rate that this run is compared with."""
        return median((self.before.events_per_s, self.after.events_per_s))

    def share(self) -> float | None:
        """Of the fault-free rate."""
        fault_free = self.fault_free()
        return self.report.events_per_s / fault_free if fault_free else None

    def cpu_ratio(self) -> float | None:
        """To the fault-free processor time."""
        own, before, after = (
            report.cpu_us_per_event for report in (self.report, self.before, self.after)
        )
        return own / median((before, after)) if own and before and after else None


def plans(plan: BenchPlan) -> dict[str, BenchPlan]:
    """One plan for every fault that the policy withstands, by the name of its line."""
    if plan.fault:
        chosen = [plan.fault]
    else:
        chosen = [entry.name for entry in CATALOGUE.values() if plan.policy in entry.valid_under]
        chosen[:0] = CRASHES
    found: dict[str, BenchPlan] = {}
    for fault in chosen:
        alone = msgspec.structs.replace(plan, fault=fault, skip=False)
        if alone.promises_delivery():
            found[fault] = alone
        both = msgspec.structs.replace(plan, fault=fault, skip=True)
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
    """Every fault, so many times, each between two runs without."""
    todo = plans(plan)
    trials: dict[str, list[Trial]] = {name: [] for name in todo}
    for round_ in range(runs):
        where = f"round {round_ + 1} of {runs}"
        for cast in _casts(todo):
            progress(f"{where}: fault-free")
            before = run(_fault_free(todo[cast[0]]))
            for name in cast:
                progress(f"{where}: {name}, {list(todo).index(name) + 1} of {len(todo)}")
                report = run(todo[name])
                progress(f"{where}: fault-free after {name}")
                after = run(_fault_free(todo[name]))
                trial = Trial(report, before, after)
                trials[name].append(trial)
                if (share := trial.share()) is not None:
                    progress(f"{where}: {name}: {share:.0%} of the fault-free rate")
                before = after
    return [_line(name, todo[name], found) for name, found in trials.items()]


def _casts(todo: dict[str, BenchPlan]) -> Iterator[list[str]]:
    """The lines by who takes part, since these share their fault-free runs."""
    for role in dict.fromkeys(plan.guest_role for plan in todo.values()):
        yield [name for name, plan in todo.items() if plan.guest_role == role]


def _fault_free(plan: BenchPlan) -> BenchPlan:
    return msgspec.structs.replace(plan, fault="", guest=plan.guest_role)


def _line(name: str, plan: BenchPlan, trials: list[Trial]) -> FaultRow:
    reports = [trial.report for trial in trials]
    suspicions: dict[str, Counter[str]] = {}
    for report in reports:
        for suspect, reasons in report.suspicions.items():
            suspicions.setdefault(suspect, Counter()).update(reasons)
    return FaultRow(
        fault=name,
        role=plan.guest_role or Role.BROKER.value,
        events_per_s=round(median(report.events_per_s for report in reports), 1),
        fault_free_per_s=round(median(trial.fault_free() for trial in trials), 1),
        share=_middle([trial.share() for trial in trials]),
        cpu_ratio=_middle([trial.cpu_ratio() for trial in trials]),
        by_history=sum(report.by_history for report in reports),
        lost=sum(report.lost for report in reports),
        duplicated=sum(report.duplicated for report in reports),
        altered=sum(report.altered for report in reports),
        disordered=sum(report.disordered for report in reports),
        sound=all(report.sound(plan) for report in reports),
        suspicions={suspect: dict(reasons) for suspect, reasons in suspicions.items()},
        evidence=sum(report.evidence for report in reports),
    )


def _middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None
