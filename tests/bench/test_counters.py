"""Counters that several processes share, and which of them count."""

from pathlib import Path

from quorumcast.bench.counters import BenchCounters
from quorumcast.bench.plan import BenchPlan


def test_counters_second_view_sees_what_the_first_wrote(tmp_path: Path) -> None:
    plan = BenchPlan(publishers=2, subscribers=2)
    counters = BenchCounters(tmp_path / "counters", plan, create=True)
    other = BenchCounters(tmp_path / "counters", plan)
    counters.set_posted(1, 7)
    counters.add_accepted(0, 1, 5, 2)
    counters.add_accepted(1, 1, 4, 2)
    assert other.posted(1) == 7
    assert other.accepted(0) == (5, 2)
    assert other.accepted_by_all(1) == 4
    assert other.accepted_by_all(0) == 0
    for view in (counters, other):
        view.close()


def test_counters_extra_client_paces_itself_and_counts_for_nothing(tmp_path: Path) -> None:
    plan = BenchPlan(extra_client="publisher")
    counters = BenchCounters(tmp_path / "counters", plan, create=True)
    extra = plan.lane(plan.publishers, 0)
    counters.set_posted(0, 10)
    counters.set_posted(extra, 99)
    counters.add_accepted(0, 0, 10, 10)
    counters.add_accepted(0, extra, 50, 50)
    assert counters.accepted_by_all(extra) == 50
    assert counters.accepted(0) == (10, 10)
    assert not counters.complete()
    counters.set_finished(0)
    assert counters.complete()
    counters.close()
