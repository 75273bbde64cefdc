"""The suite `fit`: the five tests of FIT-Broker §5.2 for its four kinds of channels.

FIT-Broker had six servers; all our processes share this machine. As there, events have 253 bytes,
there are ten channels with two subscribers each, and publishers are not throttled. Beside each row
stands the best figure of its tables, for any number of publishers. Runs of different rows
alternate, and the median of a row's runs counts.

    normal           nothing goes wrong (§5.2.1)
    crash, recover   f brokers are killed in the middle and come back (§5.2.2)
    lying            one broker lies to everybody (§5.2.3); not for crash-only protection
    f = 2            more brokers (§5.2.4)
    batches          a hundred events in a publication (§5.2.5)
"""

from __future__ import annotations

from collections.abc import Callable
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
from quorumcast.bench.run import Progress, run_bench
from quorumcast.core.quorum import minimum_brokers
from quorumcast.manifest.policy import Policy

SIZE = 253
CHANNELS = 10
SUBSCRIBERS = 2
BATCH = 100

#: FIT-Broker's quality of protection and of service, by our policy.
KINDS = {
    "direct-crash": "crash, unordered",
    "total-crash": "crash, ordered",
    "direct": "Byzantine, unordered",
    "total": "Byzantine, ordered",
}
NORMAL, CRASH, LYING, TWO, BATCHES = "normal", "crash, recover", "lying", "f = 2", "batches"
#: The best events per second in its tables 5.3 to 5.7; crash protection is in one of them only.
FIGURES = {
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

Run = Callable[[BenchPlan], BenchReport]


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


def plans(plan: BenchPlan) -> dict[tuple[str, str], BenchPlan]:
    """One plan for every test and every kind of channel that withstands its fault."""
    found: dict[tuple[str, str], BenchPlan] = {}
    for test in (NORMAL, CRASH, LYING, TWO, BATCHES):
        for policy in KINDS:
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
                subscribers=SUBSCRIBERS,
                channels=CHANNELS,
                size=SIZE,
                batch=BATCH if test == BATCHES else 1,
                fault=fault,
                skip=False,
            )
    return found


def run_fit(
    plan: BenchPlan, runs: int, progress: Progress = lambda stage: None, run: Run = run_bench
) -> list[FitRow]:
    """Run every test so many times."""
    todo = plans(plan)
    reports: dict[tuple[str, str], list[BenchReport]] = {key: [] for key in todo}
    for round_ in range(runs):
        for index, (key, single) in enumerate(todo.items(), 1):
            test, policy = key
            progress(f"{test}: {KINDS[policy]} ({index} of {len(todo)}, run {round_ + 1})")
            reports[key].append(run(single))
    normal = {
        policy: median(report.events_per_s for report in found)
        for (test, policy), found in reports.items()
        if test == NORMAL
    }
    return [_row(*key, todo[key], found, normal.get(key[1], 0.0)) for key, found in reports.items()]


def _row(
    test: str, policy: str, plan: BenchPlan, reports: list[BenchReport], normal: float
) -> FitRow:
    rate = median(report.events_per_s for report in reports)
    figure = FIGURES.get((test, policy))
    return FitRow(
        test=test,
        kind=KINDS[policy],
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
