"""The suite of FIT-Broker's tests: what is run, and what is said about it."""

from msgspec.structs import replace

from quorumcast.bench.papers import (
    BATCHES,
    CRASH,
    FIT_FIGURES,
    FIT_KINDS,
    FIT_TABLES,
    LYING,
    NORMAL,
    TWO,
    FitRow,
    fit_plans,
    full_fit_plans,
    run_fit,
)
from quorumcast.bench.plan import CRASH_RECOVER, BenchPlan, BenchReport, LatencySample

PLAN = BenchPlan(seconds=1.0)


def report(plan: BenchPlan, rate: float, lost: int = 0) -> BenchReport:
    return BenchReport(
        policy=plan.policy,
        alpha=plan.channel_policy().alpha,
        alpha_max=0,
        brokers=plan.brokers,
        f=plan.tolerated(),
        publishers=plan.publishers,
        subscribers=plan.subscribers,
        channels=plan.channels,
        size=plan.size,
        batch=plan.batch,
        fault=plan.fault,
        percent=plan.percent,
        seconds=1.0,
        publications_per_s=rate,
        events_per_s=rate,
        latency_ms=LatencySample(p50=2.0, p99=3.0, mean=2.0),
        cpu_us_per_event=1.0,
        cpu_us_per_event_by_role={},
        published=100,
        delivered=100 - lost,
        lost=lost,
        duplicated=0,
        altered=0,
        disordered=0,
        by_history=0,
        suspicions={},
        evidence=0,
        trace="",
    )


def test_every_test_of_every_kind_that_claims_to_withstand_it() -> None:
    todo = fit_plans(PLAN)
    assert {key for key in todo if key[0] != LYING} == {
        (test, policy) for test in (NORMAL, CRASH, TWO, BATCHES) for policy in FIT_KINDS
    }
    assert {policy for test, policy in todo if test == LYING} == {"direct", "total"}
    assert set(FIT_FIGURES) <= set(todo)


def test_cells_are_as_large_as_the_document_says() -> None:
    todo = fit_plans(PLAN)
    assert [todo[NORMAL, policy].brokers for policy in ("total", "direct", "total-crash")] == [
        4,
        3,
        3,
    ]
    assert todo[NORMAL, "direct-crash"].brokers == 2
    assert (todo[TWO, "total"].brokers, todo[TWO, "direct"].brokers) == (7, 5)
    assert todo[BATCHES, "total"].batch == 100
    for plan in todo.values():
        plan.check()


def test_lines_compare_with_the_document_and_with_the_normal_test() -> None:
    rates = {NORMAL: 8_402.0, CRASH: 4_201.0}

    def run(plan: BenchPlan) -> BenchReport:
        return report(plan, rates[CRASH] if plan.fault else rates[NORMAL])

    lines = {(line.test, line.policy): line for line in run_fit(PLAN, 1, run=run)}
    normal, crash = lines[NORMAL, "total"], lines[CRASH, "total"]
    assert (normal.ratio, normal.to_normal) == (2.0, 1.0)
    assert (crash.fit_events_per_s, crash.to_normal) == (3_960, 0.5)
    assert lines[CRASH, "total-crash"].ratio is None
    assert all(line.sound for line in lines.values())


def test_a_loss_is_not_sound() -> None:
    lines = run_fit(PLAN, 1, run=lambda plan: replace(report(plan, 1.0), lost=1, delivered=99))
    assert not any(line.sound for line in lines if line.test == NORMAL)


def test_full_suite_is_the_document_s_sweep() -> None:
    sweep = full_fit_plans(PLAN)
    assert [plans[NORMAL, "total"].publishers for plans in sweep] == [*range(1, 11)]
    for plans in sweep:
        for plan in plans.values():
            plan.check()
            assert plan.poll_every == 0.25
            assert (plan.crash_every, plan.seconds) == (
                (60.0, 150.0) if plan.fault == CRASH_RECOVER else (0.0, 1.0)
            )
    assert {len(figures) for figures in FIT_TABLES.values()} == {len(sweep)}


def test_full_suite_compares_with_the_same_number_of_publishers_and_keeps_what_it_has() -> None:
    kept: list[int] = []

    def keep(rows: list[FitRow]) -> None:
        kept.append(len(rows))

    lines = run_fit(PLAN, 1, run=lambda plan: report(plan, 6_000.0), full=True, keep=keep)
    assert kept == [18 * count for count in range(1, 11)]
    normal = [line for line in lines if (line.test, line.policy) == (NORMAL, "direct")]
    assert [line.fit_events_per_s for line in normal[:3]] == [5_797, 9_803, 10_362]
    assert {line.fit_best for line in normal} == {10_362}
    assert {line.to_normal for line in lines} == {1.0}


def test_windows_of_all_publishers_fit_into_memory_that_caches_hold() -> None:
    batches = fit_plans(PLAN)[BATCHES, "total"]
    lanes = batches.publishers * batches.channels
    assert batches.events_under_way() * lanes * batches.size <= 16 * 1024 * 1024
    assert replace(batches, publishers=1000).events_under_way() == 4 * batches.batch
    assert replace(batches, window=7).events_under_way() == 7
    assert PLAN.events_under_way() == 512
    assert replace(PLAN, batch=0).events_under_way() == 16_384
    assert replace(PLAN, poll_every=0.25).events_under_way() == 2048
