"""What is drawn: every ingredient turns up within so many seeds, and within the fault model."""

import random

import pytest

from quorumcast.core.ids import NodeId
from quorumcast.sim.cells import CLIENTS, broker_names
from quorumcast.sim.drawing.links import FAR_MS, draw_links
from quorumcast.sim.network import LinkWeather
from quorumcast.sim.scenario import draw

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
