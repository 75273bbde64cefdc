"""Workloads in the simulator: every event reaches every subscriber of its topic, once."""

import json
from pathlib import Path

import pytest
from tests.support.workloads import small_workload

from quorumcast.cli.main import main
from quorumcast.core.errors import UsageError
from quorumcast.sim.cell.workload import expected, replay, workload_plan
from quorumcast.sim.systems import planted

pytestmark = pytest.mark.sim

SUBSCRIBERS = {"news": ["node-1", "node-2", "node-3"], "cats": ["node-2"]}
EVENTS = [(5_000 * n, f"node-{1 + n % 2}", "cats" if n % 5 == 0 else "news") for n in range(20)]


@pytest.mark.parametrize(
    ("policy", "adversary"),
    [("direct", "none"), ("ab+history", "crash"), ("brb", "alter"), ("total", "none")],
)
def test_everything_expected_is_delivered_once(policy: str, adversary: str) -> None:
    plan = workload_plan(EVENTS, SUBSCRIBERS, policy=policy, adversary=adversary)
    found = replay(plan, expected(EVENTS, SUBSCRIBERS))
    assert found.outcome.violations == []
    assert found.outcome.deliveries == found.expected == 4 * 1 + 16 * 3
    assert (found.events, found.publishers, found.readers) == (20, 2, 3)


def test_same_workload_and_seed_give_the_same_run() -> None:
    plan = workload_plan(EVENTS, SUBSCRIBERS, seed=4)
    other = workload_plan(EVENTS, SUBSCRIBERS, seed=5)
    first, again = replay(plan, 52).outcome, replay(plan, 52).outcome
    assert first.trace_hash == again.trace_hash
    assert replay(other, 52).outcome.trace_hash != first.trace_hash


def test_delivery_too_few_is_a_violation() -> None:
    found = replay(workload_plan(EVENTS, SUBSCRIBERS), 53)
    assert [v.property for v in found.outcome.violations] == ["Deliveries"]


def test_planted_mistake_is_noticed() -> None:
    with planted("no-dedup"):
        found = replay(workload_plan(EVENTS, SUBSCRIBERS, policy="direct"), 52)
    assert found.outcome.violations


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"policy": "gossip"}, "no policy 'gossip'"),
        ({"adversary": "skip-broker"}, "'skip-broker' is not for workloads"),
        ({"policy": "ab", "adversary": "alter", "events": []}, "no events"),
        ({"policy": "chain", "adversary": "drop"}, "does not claim to withstand"),
    ],
)
def test_wrong_wish_is_refused(wish: dict[str, object], sentence: str) -> None:
    events = wish.pop("events", EVENTS)
    with pytest.raises(UsageError, match=sentence):
        workload_plan(events, SUBSCRIBERS, **wish)  # type: ignore[arg-type]


def test_sim_replays_a_workload_from_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_workload(tmp_path)
    command = ["sim", "--workload", str(tmp_path), "--events", "24", "--policy", "direct"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["events"] == 24
    assert found["expected"] == found["outcome"]["deliveries"] == 18 * 4 + 6 * 2
    assert main(command) == 0
    assert "84 of 84 deliveries" in capsys.readouterr().out
    assert main([*command, "--known-bad"]) == 2
    assert "exclude each other; give one" in capsys.readouterr().err
