"""The suite of floods: what is compared with what, and what counts as sound."""

import pytest
from tests.bench.test_faults import report

from quorumcast.bench.flooder import KINDS
from quorumcast.bench.floods import FloodMeasurement, run_floods
from quorumcast.bench.plan import BenchPlan
from quorumcast.bench.run import Progress
from quorumcast.core.errors import UsageError


class Machine:
    """Instead of processes: a rate alone and one beside the flood, and what the flood cost."""

    def __init__(self, alone: float, flooded: float, flooder_s: float, page_s: float = 0.1) -> None:
        self.asked: list[BenchPlan] = []
        self._rates = {False: alone, True: flooded}
        self._flooder_s = flooder_s
        self._page_s = page_s

    def run(self, plan: BenchPlan, progress: Progress) -> FloodMeasurement:
        self.asked.append(plan)
        floods = bool(plan.flood)
        rate = report(plan, self._rates[floods])
        return FloodMeasurement(rate, 10.0, self._flooder_s if floods else 0.0, 3, 4, self._page_s)


def test_floods_suite_every_kind_is_compared_with_the_same_processes_without_it() -> None:
    machine = Machine(1000.0, 700.0, 2.0)
    lines = run_floods(BenchPlan(policy="brb"), run=machine.run)
    assert [line.flood for line in lines] == list(KINDS)
    assert all(line.sound for line in lines)
    assert {line.share for line in lines} == {0.2}
    assert {line.kept for line in lines} == {0.875}
    for alone, flooded in zip(machine.asked[::2], machine.asked[1::2], strict=True):
        assert (alone.flood, alone.flooders, alone.workers()) == ("", 1, flooded.workers())
        assert flooded.policy == ("total" if flooded.flood == "offer" else "brb")


@pytest.mark.parametrize(
    "machine",
    [
        Machine(1000.0, 600.0, 3.1),
        Machine(1000.0, 540.0, 2.0),
        Machine(1000.0, 800.0, 2.0, page_s=1.1),
    ],
)
def test_floods_suite_beyond_a_budget_is_not_sound(machine: Machine) -> None:
    (line,) = run_floods(BenchPlan(flood="pull"), run=machine.run)
    assert not line.sound


def test_floods_suite_unknown_flood_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no flood 'rain'"):
        run_floods(BenchPlan(flood="rain"), run=Machine(1.0, 1.0, 0.0).run)
