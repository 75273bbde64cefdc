"""What is drawn: every ingredient turns up within so many seeds, and within the fault model."""

import random

import pytest

from quorumcast.cell.messages import Unsubscribe
from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.contract import Later
from quorumcast.ordering.leader_change import LEADER_TIMEOUT_MS
from quorumcast.sim.cell.cells import CLIENTS, broker_names
from quorumcast.sim.cell.drawing.links import FAR_MS, draw_links
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.kernel.adversary import Combined
from quorumcast.sim.kernel.network import LinkWeather

pytestmark = pytest.mark.sim

BROKERS = broker_names(4)


def links(seeds: range) -> list[tuple[LinkWeather, ...]]:
    return [draw_links(random.Random(seed), BROKERS, CLIENTS, 600) for seed in seeds]


def test_links_are_alike_far_asymmetric_lossy_and_changing() -> None:
    drawn = links(range(60))
    assert () in drawn
    whole = [change for changes in drawn for change in changes]
    assert {change.latency_ms for change in whole} >= {0, *FAR_MS}
    assert any(change.loss for change in whole)
    assert any(change.since_ms for change in whole)

    def far(changes: tuple[LinkWeather, ...]) -> set[NodeId]:
        ends = [{change.sender, change.receiver} for change in changes]
        return set.intersection(*ends) if ends else set()

    assert any(far(changes) & set(BROKERS) for changes in drawn if len(changes) > 8)
    pairs = [{(c.sender, c.receiver): c.latency_ms for c in changes} for changes in drawn]
    assert any(
        latency != there.get((receiver, sender), latency)
        for there in pairs
        for (sender, receiver), latency in there.items()
    )


def test_links_lead_to_brokers_only() -> None:
    for changes in links(range(30)):
        assert all(c.sender in BROKERS or c.receiver in BROKERS for c in changes)


def test_draw_has_weather_for_single_links_and_more_patience_where_they_are_slow() -> None:
    plans = [draw(seed, "ab", "none") for seed in range(40)]
    far = [plan for plan in plans if any(c.latency_ms == 200 for c in plan.weather.links)]
    alike = [plan for plan in plans if not plan.weather.links]
    assert far
    assert alike
    assert min(plan.patience_ms for plan in far) > max(plan.patience_ms for plan in alike)


def test_draw_has_little_retention_and_streams_many_times_longer() -> None:
    brief = [p for p in map(draw, range(60)) if p.policy.limits.retained_publications <= 32]
    assert brief
    longest = []
    for plan in brief:
        amounts = [(act.node, act.amount) for act in plan.acts if act.what == "submit"]
        longest.append(max(sum(n for who, n in amounts if who == name) for name, _ in amounts))
    assert max(longest) > 4 * 32


def test_draw_has_several_faults_at_once_and_never_too_many_brokers() -> None:
    plans = [draw(seed) for seed in range(400)]
    for plan in plans:
        brokers = broker_names(plan.brokers + plan.newcomers)
        liars = {c.node for c in plan.corruptions} | {node for node, _ in plan.doomed}
        most = max([plan.f, *(act.amount for act in plan.acts if act.what == "faults")])
        assert len(liars & set(brokers)) <= most
    assert any(len({c.node for c in plan.corruptions}) > plan.f for plan in plans)
    names = [[c.node for c in plan.corruptions] for plan in plans]
    assert any(len(nodes) != len(set(nodes)) for nodes in names), "two faults of one node"


@pytest.mark.parametrize(
    "what",
    [
        *("mute", "partition", "recall", "prove", "read", "read-promptly", "extract"),
        *("wipe", "stop", "cycle"),
    ],
)
def test_draw_lets_it_happen(what: str) -> None:
    assert any(act.what == what for seed in range(400) for act in draw(seed).acts)


@pytest.mark.parametrize("what", ["faults", "retain", "delete", "create", "widen"])
@pytest.mark.parametrize("policy", ["brb", "total"])
def test_draw_members_lets_epochs_change_it(what: str, policy: str) -> None:
    plans = [draw(seed, policy, "members") for seed in range(60)]
    assert any(act.what == what for plan in plans for act in plan.acts)


@pytest.mark.parametrize("policy", ["total", "total-crash"])
def test_draw_lets_a_log_lose_its_only_channel_and_get_it_back(policy: str) -> None:
    plans = [draw(seed, policy, "members") for seed in range(60)]
    deleted = [[act for act in plan.acts if act.what in ("delete", "create")] for plan in plans]
    lone = [acts for acts, plan in zip(deleted, plans, strict=True) if len(plan.channels) == 1]
    assert any(lone)
    for delete, create in filter(None, lone):
        assert delete.what == "delete"
        assert create.what == "create"


def test_draw_members_lets_one_more_broker_lie_once_f_is_larger() -> None:
    plans = [draw(seed, "brb", "members") for seed in range(60)]
    late = [(plan, act) for plan in plans for act in plan.acts if act.what == "faults" and act.node]
    assert late
    for plan, act in late:
        assert act.amount == plan.f + 1
        assert [node for node, _ in plan.doomed] == [act.node]


def test_draw_has_partitions_that_outlast_a_leaders_patience() -> None:
    plan = draw(1, "total", "isolation")
    cuts = [act.at_ms for act in plan.acts if act.what in ("partition", "mute")]
    heals = [act.at_ms for act in plan.acts if act.what == "heal"]
    assert any(min(h for h in heals if h > cut) - cut > LEADER_TIMEOUT_MS for cut in cuts)


def test_draw_publishers_have_many_lives() -> None:
    plans = [draw(seed, "ab", "lives") for seed in range(20)]
    lives = [
        sum(act.what == "crash" and act.node == name for act in plan.acts)
        for plan in plans
        for name in plan.publishers
    ]
    assert max(lives) >= 7


def test_draw_none_is_left_alone() -> None:
    for seed in range(40):
        plan = draw(seed, "ab", "none")
        assert {act.what for act in plan.acts} <= {"join", "leave", "submit", "select"}
        assert not plan.corruptions


def test_scripts_of_leaders_use_every_part_of_the_plot() -> None:
    faults = [
        c.fault for s in range(120) for c in draw(s, "total", "leaders", extras=False).corruptions
    ]
    assert {"show-to-some", "false-stop-data", "late-words"} <= set(faults)
    acts = [act.what for s in range(40) for act in draw(s, "total-crash", "leaders").acts]
    assert {"mute", "pause", "partition"} <= set(acts)


def test_combined_faults_act_one_after_the_other_and_leave_alone_what_is_put_off() -> None:
    class Double:
        name = "double"

        def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
            return [*effects, *effects]

    class PutOff:
        name = "put-off"

        def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
            return [Later(effect, 5) for effect in effects]

    send = Send((BROKERS[0],), Unsubscribe(Channel("orders")))
    both = Combined([Double(), PutOff()])
    assert both.tamper([send], Millis(0)) == [Later(send, 5)] * 2
    assert Combined([PutOff(), Double()]).tamper([send], Millis(0)) == [Later(send, 5)]
    assert both.name == "double and put-off"
