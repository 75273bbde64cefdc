"""The suite `fit`: the measurements of a paper, repeated beside its figures.

Its brokers had a machine each and ours share this one, so ratios between rows say more than ratios
to the paper. Runs of different rows alternate, so that a busy minute does not affect one row alone;
the median of a row's runs counts.

*FIT-Broker* (§5.2) has events of 253 bytes and ten channels with two subscribers each. Its best
figure counts, for any number of publishers. It has five tests of four kinds of channels:

    normal           nothing goes wrong (§5.2.1)
    crash, recover   f brokers are killed in the middle and come back (§5.2.2)
    lying            one broker lies to everybody (§5.2.3); not for crash-only protection
    f = 2            more brokers (§5.2.4)
    batches          a hundred events in a publication (§5.2.5)
"""

from __future__ import annotations

from statistics import median

import msgspec

from quorumcast.bench.plan import (
    CRASH_RECOVER,
    BenchPlan,
    BenchReport,
    lie_of,
    median_latency,
    totals,
)
from quorumcast.bench.run import Progress, Run, run_bench
from quorumcast.core.quorum import minimum_brokers
from quorumcast.manifest.policy import Policy

FIT_SIZE = 253
FIT_CHANNELS = 10
FIT_SUBSCRIBERS = 2
FIT_BATCH = 100

#: FIT-Broker's quality of protection and of service, by our policy.
FIT_KINDS = {
    "direct-crash": "crash, unordered",
    "total-crash": "crash, ordered",
    "direct": "Byzantine, unordered",
    "total": "Byzantine, ordered",
}
NORMAL, CRASH, LYING, TWO, BATCHES = "normal", "crash, recover", "lying", "f = 2", "batches"
#: The best events per second in FIT-Broker's tables 5.3 to 5.7; only one has crash protection.
FIT_FIGURES = {
    (NORMAL, "direct-crash"): 12_269,
    (NORMAL, "total-crash"): 4_555,
    (NORMAL, "direct"): 10_362,
    (NORMAL, "total"): 4_201,
    (CRASH, "direct"): 10_416,
    (CRASH, "total"): 3_960,
    (LYING, "direct"): 10_218,
    (LYING, "total"): 4_032,
    (TWO, "direct"): 6_688,
    (TWO, "total"): 2_667,
    (BATCHES, "direct"): 641_436,
    (BATCHES, "total"): 292_397,
}


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One test of one kind of channel."""

    test: str
    kind: str
    policy: str
    durable: bool
    brokers: int
    f: int
    events_per_s: float
    latency_p50_ms: float | None
    #: FIT-Broker's figure, and ours as a multiple of it; None where it has none.
    fit_events_per_s: int | None
    ratio: float | None
    #: As a multiple of the normal test of the same kind in this suite.
    to_normal: float | None
    lost: int
    duplicated: int
    altered: int
    disordered: int
    sound: bool


def fit_plans(plan: BenchPlan) -> dict[tuple[str, str], BenchPlan]:
    """One plan for every test and every kind of channel that withstands its fault."""
    found: dict[tuple[str, str], BenchPlan] = {}
    for test in (NORMAL, CRASH, LYING, TWO, BATCHES):
        for policy in FIT_KINDS:
            f = 2 if test == TWO else 1
            fault = {CRASH: CRASH_RECOVER, LYING: lie_of(policy)}.get(test, "")
            if test == LYING and not fault:
                continue
            rules = Policy.named(policy)
            found[test, policy] = msgspec.structs.replace(
                plan,
                policy=policy,
                brokers=minimum_brokers(rules.protection, f, rules.broadcast),
                f=f,
                subscribers=FIT_SUBSCRIBERS,
                channels=FIT_CHANNELS,
                size=FIT_SIZE,
                batch=FIT_BATCH if test == BATCHES else 1,
                fault=fault,
                skip=False,
            )
    return found


def run_fit(
    plan: BenchPlan, runs: int, progress: Progress = lambda stage: None, run: Run = run_bench
) -> list[FitRow]:
    """Run every test so many times."""
    todo = fit_plans(plan)
    reports: dict[tuple[str, str], list[BenchReport]] = {key: [] for key in todo}
    for round_ in range(runs):
        for index, (key, single) in enumerate(todo.items(), 1):
            test, policy = key
            progress(f"{test}: {FIT_KINDS[policy]} ({index} of {len(todo)}, run {round_ + 1})")
            reports[key].append(run(single))
    normal = {
        policy: median(report.events_per_s for report in found)
        for (test, policy), found in reports.items()
        if test == NORMAL
    }
    return [
        _fit_row(*key, todo[key], found, normal.get(key[1], 0.0)) for key, found in reports.items()
    ]


def _fit_row(
    test: str, policy: str, plan: BenchPlan, reports: list[BenchReport], normal: float
) -> FitRow:
    rate = median(report.events_per_s for report in reports)
    figure = FIT_FIGURES.get((test, policy))
    return FitRow(
        test=test,
        kind=FIT_KINDS[policy],
        policy=policy,
        durable=plan.durable,
        brokers=plan.brokers,
        f=plan.tolerated(),
        events_per_s=round(rate, 1),
        latency_p50_ms=median_latency(reports),
        fit_events_per_s=figure,
        ratio=round(rate / figure, 2) if figure else None,
        to_normal=round(rate / normal, 2) if normal else None,
        **totals(reports, "lost", "duplicated", "altered", "disordered"),
        sound=all(report.sound(plan) for report in reports),
    )
