"""What happens to correct brokers gives nobody a name: simulated cells with real observers.

Labelled runs have observers that outlive their nodes. Those of real brokers end with them, and meet
everybody anew.
"""

from __future__ import annotations

import pytest
from tests.support.judging import features_of

from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Effect, Event
from quorumcast.faults.diagnosis import Model
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.audit.charges import Case
from quorumcast.pipeline.audit.verdicts import RunJudgement, judge
from quorumcast.sim.cell.cells import PUBLISHERS, channel_entry, make_simulated_cell
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.network import Weather
from quorumcast.watch.observer import Observer

ALICE = PUBLISHERS[0]
ORDERS = Channel("orders")
STEPS = 10**6


class Observed:
    """A cell of four brokers, each with an observer, and a publisher."""

    def __init__(self, policy: Policy, seed: int, weather: Weather | None = None) -> None:
        self.cell = make_simulated_cell(4, 1, (channel_entry(ORDERS, policy),))
        self.observers: dict[NodeId, Observer] = {}
        weather = weather or Weather()
        self.world = CellWorld(self.cell, seed, weather, (), sync_ms=2)
        self.world.watch(self)
        self.world.add_brokers()
        self.world.add_publisher(ALICE)
        self.began = 0

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        if node not in self.cell.manifest.broker_ids:
            return
        if node not in self.observers:
            self.observers[node] = Observer(self.cell.manifest, node, "broker")
        self.observers[node].on_event(event, now)

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        if node in self.observers:
            self.observers[node].on_effect(effect, now)

    def publish(self, begin: int, end: int, every: int) -> None:
        for at in range(begin, end, every):
            self.world.scheduler.after(at, lambda: self.world.submit(ALICE, ORDERS, (b"x" * 10,)))

    def run_until(self, at: int) -> None:
        self.world.scheduler.run_until(Millis(at), STEPS)

    def stop(self, *brokers: NodeId) -> None:
        """Processes end, and their observers with them."""
        for broker in brokers:
            self.world.adversary.crash(broker, wipe=False)
            self.world.network.break_all(broker)
            self.observers.pop(broker, None)
        self.began = self.world.scheduler.now

    def judged(self, *expected: str) -> RunJudgement:
        rows = [row for one in self.observers.values() for row in one.notes.take(all_=True)]
        assert len(rows) > 100, "they have something to say"
        assert {row.reason for row in rows}.issuperset(expected)
        model = Model(self.cell.manifest.broker_ids, 1)
        return judge(Case(self.cell.manifest, features_of(rows, self.began)), model, [])


@pytest.mark.parametrize("policy", ["total+durable", "total-crash+durable"])
@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_is_named_when_all_brokers_restart_with_their_journals(
    policy: str, seed: int
) -> None:
    """The leader repeats what it voted for, and may not propose again in the same regency."""
    cell = Observed(Policy.parse(policy), seed)
    brokers = cell.cell.manifest.broker_ids
    cell.publish(1000, 3000, 5)
    cell.run_until(2003 + seed)
    cell.stop(*brokers)
    cell.run_until(2500)
    for broker in brokers:
        cell.world.adversary.restart(broker)
    cell.run_until(9000)
    assert cell.judged().named == ()


@pytest.mark.parametrize("checkpoint", [1, 3])
def test_nobody_is_named_if_brokers_tick_at_different_times(checkpoint: int) -> None:
    """Who says at once that it has made a checkpoint is silent for up to two rounds after."""
    cell = Observed(Policy.named("total", limits=Limits(checkpoint=checkpoint)), 7)
    other = cell.cell.manifest.broker_ids[2]
    cell.run_until(900)
    cell.world.adversary.pause(other)
    cell.run_until(1300)
    cell.world.adversary.resume(other)
    cell.publish(100, 20000, 1000)
    cell.run_until(21000)
    assert cell.judged().named == ()


def test_distant_node_that_starts_late_is_not_named() -> None:
    cell = Observed(Policy.named("total"), 7, Weather(latency_ms=120, jitter_ms=30))
    late = cell.cell.manifest.broker_ids[3]
    cell.stop(late)
    cell.publish(1000, 20000, 50)
    cell.run_until(12000)
    cell.world.adversary.restart(late)
    cell.run_until(22000)
    assert cell.judged().named == ()


@pytest.mark.parametrize("policy", ["total", "ab+history", "brb"])
def test_nobody_is_named_for_contents_that_were_altered_on_the_wire(policy: str) -> None:
    """No MAC covers contents; a few on each link do not match their digests."""
    cell = Observed(Policy.named(policy), 7, Weather(jitter_ms=5, corruption=100))
    cell.publish(100, 9000, 10)
    cell.run_until(10000)
    assert cell.judged("bad-body").named == ()
