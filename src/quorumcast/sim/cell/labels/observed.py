"""A simulated run with an observer beside every node, and a record of each fault's deeds.

The observers write the logs that an audit reads; `Deeds` holds the ground truth that the audit is
measured by. After the plan is over the cell goes on with ordinary traffic for a while, because an
observer calls a message missing only after some patience.
"""

from __future__ import annotations

from functools import partial

import msgspec

from quorumcast.broadcast.application import Join, Leave
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Connected, Effect, Event, Receive
from quorumcast.manifest.manifest import Manifest
from quorumcast.sim.cell.labels.deeds import DeedKey, Deeds, Difference
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.run import CellRun
from quorumcast.sim.cell.world import role_of
from quorumcast.sim.kernel.plan import Act, Outcome
from quorumcast.watch.observation import Observation
from quorumcast.watch.observer import Document, Observer
from quorumcast.watch.turnout import OVERDUE_MS

#: Time of ordinary traffic after the plan's liveness properties hold.
LINGER_MS = 32_000
#: Time without submissions at the end of it, so that outstanding messages arrive.
REST_MS = OVERDUE_MS + 200
#: Interval of each publisher's submissions, and of each subscriber's requests for a receipt.
SUBMIT_EVERY_MS, PROVE_EVERY_MS = 80, 400
MAX_STEPS = 800_000


class ObservedRun(msgspec.Struct):
    """The evidence of a run that an audit may see, and the ground truth that it may not."""

    #: The cell at the end of the run.
    manifest: Manifest
    outcome: Outcome
    observations: list[Observation]
    #: Signed documents, each with the node that kept it.
    documents: list[tuple[NodeId, Document]]
    #: Faulty nodes and the names of their faults.
    faulty: dict[NodeId, str]
    deeds: dict[DeedKey, int]
    differences: dict[Difference, int]


class _Observers:
    """One observer per node. It survives the node's crashes, as a log on disk does."""

    def __init__(self, run: CellRun, deeds: Deeds) -> None:
        self.observers: dict[NodeId, Observer] = {}
        self._world = run.world
        self._knowledge = deeds.knowledge

    def _observer(self, node: NodeId) -> Observer:
        found = self.observers.get(node)
        if found is None:
            role = role_of(self._world.nodes[node].machine)
            found = self.observers[node] = Observer(self._world.cell.manifest, node, role)
        return found

    def on_event(self, node: NodeId, event: Event, now: Millis) -> None:
        self._observer(node).on_event(event, now)
        match event:
            case Connected(peer=peer):
                self._knowledge.on_loss(peer, node, now)
            case Receive():
                self._knowledge.on_receive(node, event.sender, event.message, now)
            case Join(channel=channel):
                self._knowledge.on_join(node, channel)
            case Leave(channel=channel):
                self._knowledge.on_leave(node, channel, now)
            case _:
                pass

    def on_effect(self, node: NodeId, effect: Effect, now: Millis) -> None:
        self._observer(node).on_effect(effect, now)

    def on_lost(self, node: NodeId, peer: NodeId) -> None:
        world, observer = self._world, self._observer(node)
        # The observer must see the packets that arrived before the loss first.
        world.nodes[node].in_turn(lambda: observer.on_lost(peer, Millis(world.scheduler.now)))
        self._knowledge.on_loss(peer, node, world.scheduler.now)


def perform_observed(plan: CellPlan, linger_ms: int = LINGER_MS) -> ObservedRun:
    """Run a plan with observers, then ordinary traffic for `linger_ms`."""
    run = CellRun(plan)
    world = run.world

    def reached(node: NodeId, peer: NodeId) -> bool:
        link = world.network.link(node, peer)
        return world.adversary.is_correct(peer) and link is not None and len(link.sessions) == 2

    deeds = Deeds(reached, world.cell.manifest)
    observers = _Observers(run, deeds)
    world.watch(observers)
    world.adversary.on_fault = deeds.around
    world.network.on_lost = observers.on_lost
    outcome = run.perform()
    linger(run, linger_ms)
    observations: list[Observation] = []
    documents: list[tuple[NodeId, Document]] = []
    for name, observer in observers.observers.items():
        observer.close(Millis(world.scheduler.now))
        observations += observer.notes.take(all_=True)
        documents += [(name, document) for document in observer.take_documents()]
    return ObservedRun(
        manifest=world.cell.manifest,
        outcome=outcome,
        observations=observations,
        documents=documents,
        faulty=dict(world.adversary.faulty),
        deeds=deeds.done(world.scheduler.now),
        differences=deeds.differences(),
    )


def linger(run: CellRun, linger_ms: int) -> None:
    """Run ordinary traffic: publishers submit, and subscribers ask for receipts."""
    world, plan = run.world, run.plan
    for publisher in plan.publishers:
        for channel in plan.channels:
            if world.cell.manifest.may_publish(publisher, channel.name):
                act = Act(0, "submit", publisher, channel.name, 1)
                for at_ms in range(0, linger_ms - REST_MS, SUBMIT_EVERY_MS):
                    world.scheduler.after(at_ms, partial(run.act, act))
    for subscriber in plan.subscribers:
        for channel in plan.channels:
            prove = Act(0, "prove", subscriber, channel.name)
            for at_ms in range(PROVE_EVERY_MS, linger_ms, PROVE_EVERY_MS):
                world.scheduler.after(at_ms, partial(run.act, prove))
    world.scheduler.run_until(world.scheduler.now + linger_ms, MAX_STEPS)
