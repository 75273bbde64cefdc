"""The suite of FIT-Broker's tests: what is run, and what is said about it."""

from msgspec.structs import replace

from quorumcast.bench.papers import (
    BATCHES,
    CRASH,
    FIT_FIGURES,
    FIT_KINDS,
    LYING,
    NORMAL,
    TWO,
    fit_plans,
    run_fit,
)
from quorumcast.bench.plan import BenchPlan, BenchReport, LatencySample

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
