"""The suite `fit`: the measurements of a paper, repeated beside its figures.

Its brokers had a machine each and ours share this one, so ratios between rows say more than ratios
to the paper. Runs of different rows alternate, so that a busy minute does not affect one row alone;
the median of a row's runs counts.

*FIT-Broker* (§5.2) has events of 253 bytes and ten channels with two subscribers each. Ratios are
to its best figure, for any number of publishers. It has five tests of four kinds of channels:

    normal           nothing goes wrong (§5.2.1)
    crash, recover   f brokers are killed in the middle and come back (§5.2.2)
    lying            one broker lies to everybody (§5.2.3); not for crash-only protection
    f = 2            more brokers (§5.2.4)
    batches          a hundred events in a publication (§5.2.5)

The full suite is the document's: 1 to 10 publishers on each channel, subscribers that poll four
times a second, and a crash of the same brokers every minute. Our publishers and subscribers use all
channels, so 10 and 2 processes do what its 100 and 20 clients did.
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
#: Events per second in FIT-Broker's tables 5.3 to 5.7, for 1 to 10 publishers on each channel; only
#: one table has crash protection.
FIT_TABLES: dict[tuple[str, str], tuple[int, ...]] = {
    (NORMAL, "direct-crash"): (7194, 10582, 12269, 12121, 11834, 10989, 10256, 9950, 9523, 8695),
    (NORMAL, "total-crash"): (3081, 3114, 4357, 4424, 4535, 4555, 4439, 4415, 4364, 4185),
    (NORMAL, "direct"): (5797, 9803, 10362, 10101, 10052, 9523, 8298, 8403, 6622, 6116),
    (NORMAL, "total"): (4201, 3120, 2936, 2770, 2808, 2962, 3095, 3007, 2867, 2797),
    (CRASH, "direct"): (5934, 9174, 10101, 10309, 10416, 9852, 9174, 8928, 8264, 7751),
    (CRASH, "total"): (3960, 3472, 2994, 3257, 2923, 3110, 3255, 3338, 3676, 3387),
    (LYING, "direct"): (5996, 9442, 10218, 10173, 10025, 9467, 8679, 8502, 7104, 6763),
    (LYING, "total"): (4032, 3016, 2812, 3039, 2822, 3189, 2985, 2657, 2594, 2566),
    (TWO, "direct"): (4474, 6688, 6578, 5934, 5291, 4662, 4291, 4175, 3577, 2954),
    (TWO, "total"): (2525, 2547, 2577, 2604, 2612, 2624, 2667, 2645, 2636, 2603),
    (BATCHES, "direct"): (
        *(405_515, 608_272, 641_436, 636_537, 626_174),
        *(620_732, 618_046, 604_229, 603_864, 595_238),
    ),
    (BATCHES, "total"): (
        *(225_225, 267_379, 268_817, 271_739, 268_817),
        *(274_725, 276_243, 282_485, 292_397, 267_737),
    ),
}
#: The best of each.
FIT_FIGURES = {key: max(figures) for key, figures in FIT_TABLES.items()}
#: The full suite: publishers on each channel, seconds between polls and between crashes, and the
#: least seconds of a run with crashes.
FULL_PUBLISHERS = range(1, 11)
FULL_POLL_S = 0.25
FULL_CRASH_S = 60.0
FULL_CRASHING_S = 150.0


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One test of one kind of channel."""

    test: str
    kind: str
    policy: str
    durable: bool
    brokers: int
    f: int
    #: Publishers on each channel.
    publishers: int
    events_per_s: float
    latency_p50_ms: float | None
    #: FIT-Broker's figure for so many publishers, and its best; ours as a multiple of the best.
    #: None where it has none.
    fit_events_per_s: int | None
    fit_best: int | None
    ratio: float | None
    #: As a multiple of the normal test of the same kind and publishers in this suite.
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


def full_fit_plans(plan: BenchPlan) -> list[dict[tuple[str, str], BenchPlan]]:
    """The plans of the full suite, for each number of publishers."""
    sweep = []
    for publishers in FULL_PUBLISHERS:
        cast = msgspec.structs.replace(plan, publishers=publishers, poll_every=FULL_POLL_S)
        plans = fit_plans(cast)
        for key, single in plans.items():
            if single.fault == CRASH_RECOVER:
                seconds = max(plan.seconds, FULL_CRASHING_S)
                plans[key] = msgspec.structs.replace(
                    single, seconds=seconds, crash_every=FULL_CRASH_S
                )
        sweep.append(plans)
    return sweep


def run_fit(
    plan: BenchPlan,
    runs: int,
    progress: Progress = lambda stage: None,
    run: Run = run_bench,
    *,
    full: bool = False,
    keep: Callable[[list[FitRow]], None] = lambda rows: None,
) -> list[FitRow]:
    """Run every test so many times; `keep` gets all rows so far after each number of publishers."""
    rows: list[FitRow] = []
    for todo in full_fit_plans(plan) if full else [fit_plans(plan)]:
        rows += _run_fit(todo, runs, progress, run)
        keep(rows)
    return rows


def _run_fit(
    todo: dict[tuple[str, str], BenchPlan], runs: int, progress: Progress, run: Run
) -> list[FitRow]:
    reports: dict[tuple[str, str], list[BenchReport]] = {key: [] for key in todo}
    for round_ in range(runs):
        for index, (key, single) in enumerate(todo.items(), 1):
            test, policy = key
            progress(
                f"{test}: {FIT_KINDS[policy]} ({index} of {len(todo)}, run {round_ + 1}, "
                f"publishers: {single.publishers})"
            )
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
    best = FIT_FIGURES.get((test, policy))
    figures = FIT_TABLES.get((test, policy), ())
    same = figures[plan.publishers - 1 : plan.publishers]
    return FitRow(
        test=test,
        kind=FIT_KINDS[policy],
        policy=policy,
        durable=plan.durable,
        brokers=plan.brokers,
        f=plan.tolerated(),
        publishers=plan.publishers,
        events_per_s=round(rate, 1),
        latency_p50_ms=median_latency(reports),
        fit_events_per_s=same[0] if same else None,
        fit_best=best,
        ratio=round(rate / best, 2) if best else None,
        to_normal=round(rate / normal, 2) if normal else None,
        **totals(reports, "lost", "duplicated", "altered", "disordered"),
        sound=all(report.sound(plan) for report in reports),
    )
