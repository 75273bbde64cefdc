"""The bad hour, shortened to seconds: real brokers are harmed while work goes on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from quorumcast.bench.soak import Soak, SoakPlan, SoakReport, run_soak
from quorumcast.core.errors import UsageError

GOOD = SoakReport(
    policy="total",
    brokers=4,
    f=1,
    seconds=1.0,
    seed=1,
    harms={},
    published=10,
    acknowledged=10,
    lost={"carol": 0, "dave": 0},
    duplicated={"carol": 0, "dave": 0},
    disordered=0,
    longest_silence_s=0.1,
    memory_mb=(1.0, 1.0),
    store_mb=(1.0, 1.0),
)


def test_report_with_anything_wrong_is_not_sound() -> None:
    assert GOOD.sound
    assert not replace(GOOD, lost={"carol": 0, "dave": 1}).sound
    assert not replace(GOOD, duplicated={"carol": 1, "dave": 0}).sound
    assert not replace(GOOD, disordered=1).sound


def test_plan_without_total_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="total order"):
        run_soak(SoakPlan(policy="ab"), tmp_path)


def test_wiped_broker_has_caught_up_when_it_is_as_far_as_the_furthest_other(
    tmp_path: Path,
) -> None:
    soak = Soak(SoakPlan(), tmp_path, lambda stage: None)
    behind = {"broker-1": iter((5, 9)), "broker-2": iter((4,)), "broker-3": iter((9,))}

    def status(broker: str) -> dict[str, Any]:
        return {"streams": [{"next": next(behind[broker])}]}

    cluster: Any = SimpleNamespace(brokers=list(behind), running=lambda broker: True, status=status)
    soak.cluster = cluster
    soak._wait_caught_up("broker-1")
    assert [list(left) for left in behind.values()] == [[], [], []]


@pytest.mark.walk
@pytest.mark.runtime
def test_a_short_bad_hour_loses_nothing(tmp_path: Path) -> None:
    stages: list[str] = []
    report = run_soak(SoakPlan(seconds=12.0, rate=20.0, seed=4), tmp_path, stages.append)
    assert report.sound
    assert report.acknowledged == report.published > 0
    assert sum(report.harms.values()) > 0
    assert stages
