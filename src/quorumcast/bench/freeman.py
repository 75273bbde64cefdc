"""The suite `freeman`: the policies that Freeman measured (§7.3.1, §7.3.2), beside his figures.

His brokers had a machine each and ours share this one, so ratios between policies say more than
ratios to his figures. Runs of different rows alternate, so that a busy minute does not affect one
row alone; the median of a row's runs counts.
"""

from __future__ import annotations

from statistics import median

import msgspec

from quorumcast.bench.plan import BenchPlan, BenchReport, median_latency, totals
from quorumcast.bench.run import Progress, run_bench

#: (name, policy, α, brokers, Freeman's publications per second if he gives a figure).
LINES: tuple[tuple[str, str, int, int, int], ...] = (
    ("AB", "ab", 0, 4, 11_000),
    ("AB α=10", "ab+history", 10, 4, 0),
    ("AB α=100", "ab+history", 100, 4, 0),
    ("BRB", "brb", 0, 4, 850),
    ("Chain", "chain", 0, 4, 1_750),
    ("Chain α=10", "chain+history", 10, 4, 0),
    ("Chain α=100", "chain+history", 100, 4, 0),
    ("AB", "ab", 0, 7, 7_400),
    ("AB α=100", "ab+history", 100, 7, 0),
)

#: His latencies at the highest throughput in milliseconds (figures 7.3 to 7.7; see FIGURES), by
#: policy, α and brokers.
LATENCIES_MS: dict[tuple[str, int, int], tuple[float, float, float]] = {
    ("ab", 0, 4): (0.7, 1.0, 2.4),
    ("ab+history", 10, 4): (2.3, 6.0, 33.9),
    ("brb", 0, 4): (29.5, 14.7, 64.1),
    ("chain", 0, 4): (1.7, 0.4, 3.4),
    ("chain+history", 10, 4): (2.4, 0.9, 5.8),
}
FIGURES = ("mean", "deviation", "99 %")


class FreemanRow(msgspec.Struct, frozen=True):
    """One policy."""

    name: str
    policy: str
    alpha: int
    brokers: int
    publications_per_s: float
    latency_p50_ms: float | None
    freeman_pps: int
    #: As a multiple of Freeman's figure.
    ratio: float | None
    #: As a multiple of plain AB with four brokers in the same suite.
    to_ab: float | None
    lost: int
    duplicated: int
    altered: int


def run_freeman(
    plan: BenchPlan, runs: int, progress: Progress = lambda stage: None
) -> list[FreemanRow]:
    """Run every row of LINES so many times."""
    reports: dict[int, list[BenchReport]] = {index: [] for index in range(len(LINES))}
    for round_ in range(runs):
        for index, (name, policy, alpha, brokers, _) in enumerate(LINES):
            progress(f"{name}, {brokers} brokers, run {round_ + 1} of {runs}")
            single = msgspec.structs.replace(
                plan, policy=policy, alpha=alpha or plan.alpha, brokers=brokers, f=None
            )
            reports[index].append(run_bench(single))
    base = median(report.publications_per_s for report in reports[0])
    return [_row(index, found, base) for index, found in reports.items()]


def _row(index: int, reports: list[BenchReport], base: float) -> FreemanRow:
    name, policy, alpha, brokers, freeman = LINES[index]
    rate = median(report.publications_per_s for report in reports)
    return FreemanRow(
        name=name,
        policy=policy,
        alpha=alpha,
        brokers=brokers,
        publications_per_s=round(rate, 1),
        latency_p50_ms=median_latency(reports),
        freeman_pps=freeman,
        ratio=round(rate / freeman, 2) if freeman else None,
        to_ab=round(rate / base, 2) if base else None,
        **totals(reports, "lost", "duplicated", "altered"),
    )
