"""The suite of faults: which lines it has, what each is compared with, and what it adds up."""

import pytest
from msgspec.structs import replace

from quorumcast.bench.faults import FaultRow, plans, run_faults
from quorumcast.bench.plan import (
    CRASHES,
    BenchPlan,
    BenchReport,
    LatencySample,
    Suspicions,
    suspicions_of_correct,
)
from quorumcast.core.errors import UsageError
from quorumcast.faults.cell.catalogue import CATALOGUE

SKIPPING = ", a broker skipped"


def report(plan: BenchPlan, rate: float, **figures: object) -> BenchReport:
    empty = BenchReport(
        policy=plan.policy, alpha=plan.channel_policy().alpha, alpha_max=0,
        brokers=plan.brokers, f=1, publishers=1,
        subscribers=1, channels=1, size=56, batch=1, fault=plan.fault, percent=plan.percent,
        seconds=1.0,        publications_per_s=rate, events_per_s=rate, latency_ms=LatencySample(),
        cpu_us_per_event=100.0, cpu_us_per_event_by_role={},
        published=10, delivered=10, lost=0, duplicated=0, altered=0,
        disordered=0, by_history=0, suspicions={}, evidence=0,
    )  # fmt: skip
    return replace(empty, **figures)


class Machine:
    """Instead of processes: answers with a rate per run, and notes what was asked of it."""

    def __init__(self, *rates: float, **figures: object) -> None:
        self.asked: list[BenchPlan] = []
        self._rates = list(rates)
        self._figures = figures

    def run(self, plan: BenchPlan) -> BenchReport:
        self.asked.append(plan)
        rate = self._rates.pop(0) if self._rates else 1000.0
        return report(plan, rate, **(self._figures if plan.fault else {}))


def lines(machine: Machine, plan: BenchPlan, runs: int = 1) -> dict[str, FaultRow]:
    return {line.fault: line for line in run_faults(plan, runs, run=machine.run)}


def test_faults_suite_with_a_percentage_makes_plans_that_can_be_run() -> None:
    machine = Machine()
    run_faults(BenchPlan(percent=40, seconds=1.0), 1, run=machine.run)
    for plan in machine.asked:
        plan.check()
    assert {plan.percent for plan in machine.asked if plan.fault not in ("", *CRASHES)} == {40}


def test_faults_suite_has_every_fault_that_the_policy_withstands_and_crashes() -> None:
    machine = Machine()
    found = lines(machine, BenchPlan(policy="ab+history"))
    # Lies about rows need a channel with columns and subscribers with predicates.
    about_rows = {e.name for e in CATALOGUE.values() if e.of_rows}
    withstood = {e.name for e in CATALOGUE.values() if "ab+history" in e.valid_under} - about_rows
    assert set(found) == {*CRASHES, *withstood, f"drop{SKIPPING}", f"alter{SKIPPING}"}
    assert {line.share for line in found.values()} == {1.0}


def test_faults_suite_leaves_out_what_the_policy_does_not_promise() -> None:
    assert not {*CRASHES} & {*plans(BenchPlan(policy="chain"))}
    assert f"drop{SKIPPING}" not in plans(BenchPlan(policy="ab"))
    assert "drop" in plans(BenchPlan(policy="ab"))
    assert "alter" not in plans(BenchPlan(policy="direct-crash"))


def test_report_of_an_honest_run_in_which_a_node_was_suspected_is_not_sound() -> None:
    told: Suspicions = {"broker-1": {"silent": 2}, "broker-2": {"silent": 1, "dissent": 4}}
    wrong = suspicions_of_correct(told, ["broker-2"])
    assert wrong == {"silent": 2}
    honest, faulty = BenchPlan(policy="ab"), BenchPlan(policy="ab", fault="alter")
    assert report(honest, 1.0).sound(honest)
    assert not report(honest, 1.0, correct_suspected=wrong).sound(honest)
    assert report(faulty, 1.0, correct_suspected=wrong).sound(faulty)


def test_faults_suite_with_a_fault_measures_it_alone() -> None:
    assert list(plans(BenchPlan(fault="slow"))) == ["slow"]
    with pytest.raises(UsageError, match="'chain' does not withstand 'silent'"):
        plans(BenchPlan(policy="chain", fault="silent"))


def test_faults_suite_fault_is_compared_with_its_neighbours() -> None:
    machine = Machine(900.0, 800.0, 1100.0)
    line = lines(machine, BenchPlan(fault="slow"))["slow"]
    assert [plan.fault for plan in machine.asked] == ["", "slow", ""]
    assert (line.events_per_s, line.fault_free_per_s, line.share) == (800.0, 1000.0, 0.8)


def test_faults_suite_neighbouring_faults_share_the_run_between_them() -> None:
    machine = Machine(1000.0, 500.0, 2000.0, 3000.0, 4000.0)
    found = lines(machine, BenchPlan(fault="drop"))
    assert [(plan.fault, plan.skips) for plan in machine.asked] == [
        ("", False), ("drop", False), ("", False), ("drop", True), ("", False),
    ]  # fmt: skip
    assert found["drop"].fault_free_per_s == 1500.0
    assert found[f"drop{SKIPPING}"].share == 1.0


def test_faults_suite_of_several_rounds_the_median_share_counts() -> None:
    machine = Machine(1000.0, 900.0, 1000.0, 10.0, 5.0, 10.0, 1000.0, 100.0, 1000.0)
    line = lines(machine, BenchPlan(fault="slow"), runs=3)["slow"]
    assert line.share == 0.5


@pytest.mark.parametrize(
    ("fault", "role"), [("skip-history", "publisher"), ("pull-flood", "subscriber")]
)
def test_faults_suite_client_fault_has_an_honest_extra_client_beside_it(
    fault: str, role: str
) -> None:
    machine = Machine()
    line = lines(machine, BenchPlan(fault=fault))[fault]
    assert line.role == role
    assert [(plan.fault, plan.extra_client_role) for plan in machine.asked] == [
        ("", role), (fault, role), ("", role),
    ]  # fmt: skip
    assert len({tuple(plan.workers()) for plan in machine.asked}) == 1


def test_faults_suite_nothing_accepted_has_no_share() -> None:
    line = lines(Machine(0.0, 0.0, 0.0, cpu_us_per_event=None), BenchPlan(fault="slow"))["slow"]
    assert (line.share, line.cpu_ratio) == (None, None)


def test_faults_suite_what_went_wrong_is_added_up() -> None:
    machine = Machine(lost=2, evidence=1, suspicions={"broker-3": {"dissent": 4}})
    line = lines(machine, BenchPlan(fault="alter", policy="brb"), runs=2)["alter"]
    assert (line.lost, line.duplicated, line.altered, line.evidence) == (4, 0, 0, 2)
    assert line.suspicions == {"broker-3": {"dissent": 8}}
    assert not line.sound


def test_faults_suite_progress_names_every_run() -> None:
    said: list[str] = []
    run_faults(BenchPlan(fault="slow"), 2, said.append, Machine().run)
    assert said[:4] == [
        "round 1 of 2: fault-free",
        "round 1 of 2: slow, 1 of 1",
        "round 1 of 2: fault-free after slow",
        "round 1 of 2: slow: 100% of the fault-free rate",
    ]
    assert len(said) == 8


def test_plan_liar_is_where_the_first_subscriber_gets_its_contents() -> None:
    brokers = ["broker-1", "broker-2", "broker-3", "broker-4"]
    plan = BenchPlan(fault="alter")
    assert plan.faulty_brokers(brokers) == ["broker-3"]
    assert plan.skipped_brokers(brokers) == ["broker-4"]
    assert plan.fault_targets(brokers) == ["broker-4", "contents"]
    assert BenchPlan(fault="alter", skip=False).fault_targets(brokers) == []
    assert BenchPlan(fault="skip-history").faulty_brokers(brokers) == []


def test_plan_extra_client_comes_last_and_is_not_counted() -> None:
    plan = BenchPlan(publishers=2, channels=3, fault="skip-history")
    assert plan.workers() == [
        ("publisher", 0), ("publisher", 1), ("subscriber", 0), ("publisher", 2),
    ]  # fmt: skip
    assert [plan.is_extra(*worker) for worker in plan.workers()] == [False, False, False, True]
    assert (plan.lanes, plan.counted_lanes) == (9, 6)
    listener = BenchPlan(extra_client="subscriber")
    assert listener.workers()[-1] == ("subscriber", 1)
    assert listener.lanes == listener.counted_lanes == 1
