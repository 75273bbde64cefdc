"""Whole cells: a smoke over all policies and adversaries, determinism, and the campaign's sums."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from tests.runtime.world import PATIENCE_S, eventually

from quorumcast.core.errors import UsageError
from quorumcast.core.quorum import Quorums
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.sim.campaign import replay_of, run_campaign
from quorumcast.sim.cell.aimed import AIMED
from quorumcast.sim.cell.harm import BY_NAME, WORLD, applicable
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.run import promises_validity
from quorumcast.sim.cell.scenario import ADVERSARIES, HARMS, draw
from quorumcast.sim.kernel.known_bad import Patch, mistaken
from quorumcast.sim.systems import perform, run_scenario

pytestmark = pytest.mark.sim


def partners(adversary: str) -> list[str]:
    return [policy for policy in POLICY_NAMES if applicable(adversary, Policy.named(policy))]


def cost(plan: CellPlan) -> int:
    """About what it takes to run a plan."""
    return plan.brokers * len(plan.subscribers) * (len(plan.acts) + plan.finale)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_scenario_adversary_breaks_no_promise(adversary: str) -> None:
    policies = partners(adversary)
    # Another policy and another seed for each adversary, and all policies over all of them.
    index = ADVERSARIES.index(adversary)
    policy, seeds = policies[index % len(policies)], range(300 + index, 1100, 100)
    plan = min((draw(seed, policy, adversary) for seed in seeds), key=cost)
    outcome = perform(plan)
    assert outcome.violations == [], replay_of(outcome)
    assert outcome.false_accusations == 0
    liars = [corruption.node for corruption in plan.corruptions]
    left = {act.node for act in plan.acts if act.what in ("leave", "read-promptly")}
    stay = {act.node for act in plan.acts if act.what == "join"} - {*left, *liars}
    if promises_validity(plan) and stay and any(name not in liars for name in plan.publishers):
        assert outcome.deliveries > 0


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_scenario_policy_keeps_its_promises(policy: str) -> None:
    for seed in (1, 2):
        outcome = run_scenario(seed, policy)
        assert outcome.violations == [], replay_of(outcome)


def test_scenario_fault_that_settling_brokers_can_prove_leaves_evidence() -> None:
    outcomes = [run_scenario(seed, "brb", "equivocate") for seed in range(3)]
    assert all(outcome.evidence for outcome in outcomes)


PROGRAM = """
import json
from quorumcast.sim.systems import run_scenario
runs = [(3, "chain+history", "conspiracy"), (4, "brb", "flood"), (5, "ab", "wire"),
        (6, "ab+history", "crash-recover"), (7, "relay", "liars")]
print(json.dumps([run_scenario(*run).trace_hash for run in runs]))
"""


def test_scenario_same_seed_same_trace_under_any_hash_seed() -> None:
    traces = []
    for hash_seed in ("1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.append(json.loads(done.stdout))
    assert traces[0] == traces[1]
    assert len(set(traces[0])) == len(traces[0])


def test_scenario_other_seed_other_trace() -> None:
    one, other = (run_scenario(seed, "ab", "none") for seed in (1, 2))
    assert one.trace_hash != other.trace_hash


def test_draw_is_a_function_of_the_seed_alone() -> None:
    assert draw(99) == draw(99)
    assert draw(99) != draw(98)


def test_draw_naming_policy_and_adversary_replays_the_same_plan() -> None:
    for seed in range(20):
        plan = draw(seed)
        assert draw(seed, plan.policy.name, plan.adversary) == plan


def test_draw_visits_every_policy_and_adversary() -> None:
    plans = [draw(seed) for seed in range(5000)]
    assert {plan.policy.name for plan in plans} == set(POLICY_NAMES)
    assert {plan.adversary for plan in plans} == set(ADVERSARIES) - set(BY_NAME)
    assert {(plan.brokers, plan.f) for plan in plans} >= {(2, 1), (3, 1), (4, 1), (7, 2)}


def test_draw_every_fault_of_the_catalogue_is_an_adversary() -> None:
    assert set(ADVERSARIES) == {*CATALOGUE, *AIMED, *WORLD}
    assert set(HARMS) == set(WORLD)


@pytest.mark.parametrize(
    ("policy", "adversary", "message"),
    [
        ("hope", None, "choose one of"),
        (None, "grumpy", "choose one of"),
        ("direct-crash", "alter", "does not claim to withstand"),
    ],
)
def test_draw_impossible_wish_says_so(
    policy: str | None, adversary: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        draw(1, policy, adversary)


def test_campaign_sums_up_and_does_not_depend_on_the_workers() -> None:
    alone = run_campaign(10, 40, "ab", "none", workers=1)
    together = run_campaign(10, 40, "ab", "none", workers=2)
    assert alone == together
    assert (alone.scenarios, alone.violations, alone.failures) == (10, 0, [])
    assert alone.policies == {"ab": 10}
    assert alone.deliveries > 100


def test_campaign_that_is_killed_leaves_no_process_behind() -> None:
    campaign = subprocess.Popen(
        [sys.executable, "-m", "quorumcast", "sim", "--seeds", "100000", "--workers", "2"],
        stderr=subprocess.DEVNULL,
    )
    parent = psutil.Process(campaign.pid)
    try:
        # Two workers, and the process that tracks the resources which they share.
        assert eventually(lambda: len(parent.children(recursive=True)) == 3)
        started = parent.children(recursive=True)
    finally:
        campaign.kill()
        campaign.wait()
    _, left = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert left == []


def test_campaign_failure_carries_the_command_that_replays_it() -> None:
    mistake = Patch(Quorums, "one_correct", property(lambda quorums: quorums.f))
    with mistaken([mistake]):
        report = run_campaign(6, 0, "direct", "alter", workers=1)
    assert report.violations == len(report.failures) > 0
    seed = report.failures[0].seed
    assert report.failures[0].replay == (
        f"quorumcast sim --start {seed} --seeds 1 --policy direct --adversary alter"
    )
    assert sum(report.by_property().values()) == report.violations
