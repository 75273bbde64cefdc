"""What a publisher can do to the past of its stream: nothing, however it lies and however it dies.

Each plan was an attack that succeeded once.
"""

import pytest
from msgspec.structs import replace

from quorumcast.cell.subscribing.lives import DISPLACED_TICKS
from quorumcast.cell.subscribing.subscriber import REFRESH_MS
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.known_bad.plans import PUB1, SUB2
from quorumcast.sim.cell.known_bad.recovery import leapt, past, retold
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.scenario import ORDERS
from quorumcast.sim.kernel.plan import Act

pytestmark = pytest.mark.sim


def lives(policy: Policy, count: int) -> CellPlan:
    """A publisher that dies after every two publications, so many times."""
    acts = [Act(40, "partition", peers=(SUB2,)), Act(100 + 60 * count, "heal")]
    for life in range(count):
        at = 60 + 60 * life
        acts += [Act(at, "submit", PUB1, ORDERS, 2)]
        acts += [Act(at + 50, "crash", PUB1), Act(at + 55, "restart", PUB1)]
    plan = past(policy)
    joins = [act for act in plan.acts if act.what == "join"]
    return replace(plan, acts=tuple(joins + acts), calm_at_ms=200 + 60 * count)


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb"])
def test_brokers_restarted_one_by_one_stand_by_what_they_no_longer_retain(policy: str) -> None:
    run = CellRun(retold(policy))
    outcome = run.perform()
    assert not [v for v in outcome.violations if v.property in ("Agreement", "Sound statements")]
    first, second = run.world.facts.readers
    ((stream, accepted),) = first.accepted.items()
    assert len(accepted) > 40  # there was something to contradict
    told = dict(accepted)
    assert all(told.get(n, d) == d for n, d in second.accepted.get(stream, []))
    assert second.gaps[stream][0][0] == 1  # and the loss was announced


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "chain+history"])
def test_publisher_that_leaps_ahead_erases_nothing(policy: str) -> None:
    run = CellRun(leapt(policy))
    outcome = run.perform()
    assert outcome.violations == []
    first, second = run.world.facts.readers
    (stream,) = first.accepted
    assert len(first.accepted[stream]) == 40
    assert second.gaps == {}
    assert second.accepted[stream] == first.accepted[stream]


@pytest.mark.parametrize("count", [7, 20])
@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "direct", "chain+history"])
def test_subscriber_that_was_away_gets_every_life_of_a_publisher(policy: str, count: int) -> None:
    run = CellRun(lives(Policy.named(policy, alpha=4, limits=small_limits()), count))
    assert run.perform().violations == []
    first, second = run.world.facts.readers
    assert len(first.accepted) == count
    assert second.gaps == {}
    assert second.accepted == first.accepted


@pytest.mark.parametrize(
    "limits",
    [
        {"retained_publications": 8, "window": 8},
        {"streams_per_publisher": 4},
        {"retained_publications": 8, "window": 8, "streams_per_publisher": 2},
    ],
)
def test_subscriber_is_told_of_every_life_that_brokers_gave_up(limits: dict[str, int]) -> None:
    policy = Policy.named("ab", limits=Limits(segment=8, replay=64, **limits))
    run = CellRun(lives(policy, 12))
    run.perform()
    scheduler = run.world.scheduler
    # Lives that later ones have displaced are followed for some seconds more.
    scheduler.run_until(scheduler.now + (DISPLACED_TICKS + 1) * REFRESH_MS)
    first, second = run.world.facts.readers
    assert len(first.accepted) == 12
    for stream, accepted in first.accepted.items():
        gaps = second.gaps.get(stream, [])
        told = {number for a, z in gaps for number in range(a, z + 1)}
        got = {number for number, _ in second.accepted.get(stream, [])}
        assert {number for number, _ in accepted} == told | got
    assert second.gaps
    assert second.accepted
