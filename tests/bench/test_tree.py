"""The suite of trees: what it asks for, what it computes, and one run with real processes."""

import pytest
from tests.bench.test_faults import Machine

from quorumcast.bench.plan import BenchPlan, BenchReport, LatencySample
from quorumcast.bench.tree import TreeRow, measure, run_tree
from quorumcast.core.errors import UsageError


class Answers(Machine):
    """Answers every run with the rate and the latency of its depth."""

    def run(self, plan: BenchPlan) -> BenchReport:
        found = super().run(plan)
        found.publications_per_s = 1200.0 / plan.levels / (2 if plan.fault else 1)
        found.latency_ms = LatencySample(p50=1.0 + 2 * plan.levels, p99=9.0)
        return found


def rows(machine: Machine, runs: int = 1) -> dict[tuple[str, int], TreeRow]:
    found = run_tree(BenchPlan(), runs, run=machine.run)
    return {(row.policy, row.levels): row for row in found}


def test_tree_suite_has_each_depth_under_both_policies_in_three_kinds_of_runs() -> None:
    machine = Answers()
    found = rows(machine)
    assert list(found) == [(p, n) for p in ("ab+history", "total") for n in (1, 2, 3)]
    assert [row.cells for row in found.values()][:3] == [(4,), (4, 3), (4, 3, 3)]
    asked = [(plan.fault, plan.rate) for plan in machine.asked if plan.levels == 3]
    assert asked == [("", 0), ("alter", 0), ("", 100), ("", 0), ("lie-in-ordering", 0), ("", 100)]
    for plan in machine.asked:
        plan.check()


def test_tree_suite_computes_shares_of_the_root_and_what_a_level_adds() -> None:
    found = rows(Answers(), runs=2)["total", 3]
    assert (found.publications_per_s, found.share) == (400.0, 0.333)
    assert (found.lying_per_s, found.lying_share) == (200.0, 0.5)
    assert (found.latency_p50, found.added_p50) == (7.0, 2.0)
    assert rows(Answers())["total", 1].added_p50 is None


@pytest.mark.parametrize(
    "wrong", [{"lost": 1}, {"altered": 1}, {"duplicated": 1}, {"disordered": 1}]
)
def test_tree_suite_is_unsound_if_an_event_did_not_arrive_once_and_unaltered(
    wrong: dict[str, int],
) -> None:
    found = rows(Answers(**wrong))  # in the runs with liars
    assert not any(row.sound for row in found.values())
    assert all(row.sound for row in rows(Answers()).values())


def test_tree_suite_refuses_what_it_does_not_measure() -> None:
    with pytest.raises(UsageError, match="no --tls"):
        run_tree(BenchPlan(tls=True), 1, run=Answers().run)


@pytest.mark.runtime
def test_run_with_a_liar_in_each_of_two_cells_loses_nothing() -> None:
    plan = BenchPlan(levels=2, f=1, seconds=0.4, warmup=0.1, rate=400.0, fault="alter", skip=False)
    report = measure(plan)
    assert report.sound(plan)
    assert report.published == report.delivered > 40
    assert report.correct_suspected == {}
    # Brokers of the child name the liar of the root, and the reader that of the child.
    liars = {suspect.partition("/")[0] for suspect in report.suspicions}
    assert liars == {"root", "cell-1"}
    assert {name.partition("/")[0] for name in report.processes} >= {"root", "cell-1"}
