"""The execution of a plan for a cell: its nodes, the acts of applications, and its promises."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from quorumcast.cell.messages import Vote
from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.session import encode_parcel
from quorumcast.faults.cell.entry import Role
from quorumcast.sim.cell.cells import Cell, broker_names, make_simulated_cell, operator_of
from quorumcast.sim.cell.epochs import (
    STEPS,
    Members,
    call_with_stolen_key,
    change_key,
    first_epoch,
    own_keyrings,
)
from quorumcast.sim.cell.harm import entry_of
from quorumcast.sim.cell.judges.bounds import bounds_of
from quorumcast.sim.cell.judges.checkers import safety_checkers
from quorumcast.sim.cell.judges.documents import SoundCourt, examine_manifests, examine_quorums
from quorumcast.sim.cell.judges.facts import CellFacts, may_publish
from quorumcast.sim.cell.judges.promises import SharedEvidence, promised
from quorumcast.sim.cell.judges.subscriptions import examine_subscriptions
from quorumcast.sim.cell.judges.upkeep import Upkeep
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.rows import rows_body
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.judging import Checker, Promise
from quorumcast.sim.kernel.plan import Act
from quorumcast.sim.kernel.run import Run


def promises_validity(plan: CellPlan) -> bool:
    """Whether the policy promises validity under all faults of the plan."""
    for corruption in plan.corruptions:
        entry = entry_of(corruption.fault)
        if entry is None:
            return False
        if entry.role is Role.BROKER and plan.policy.like not in entry.valid_under:
            return False
    # A chain makes progress only while none of its brokers is down.
    crashed = any(
        act.what == "crash" and act.node in broker_names(plan.brokers) for act in plan.acts
    )
    return plan.policy.live or not (plan.doomed or crashed)


#: Acts after which nodes and links are as before, except for delays.
HARMLESS = frozenset(
    (
        *("submit", "join", "read", "read-promptly", "leave", "prove", "extract", "recall"),
        *("select", "pause", "resume"),
    )
)


def is_honest(plan: CellPlan) -> bool:
    """Whether nodes and links are slow at most."""
    calm = not (plan.corruptions or plan.doomed or plan.weather.corruption or plan.weather.replay)
    return calm and all(act.what in HARMLESS for act in plan.acts)


#: Time between two publications of a restless publisher: less than between two looks of a
#: subscriber whether a channel moves.
RESTLESS_MS = 200


class CellRun(Run[CellPlan, CellWorld]):
    """The execution of one plan for a cell."""

    def __init__(self, plan: CellPlan) -> None:
        self.plan = plan
        # A generator of its own, so that documents do not change the rest of the run.
        self._rng = random.Random(f"documents {plan.seed}")
        #: The cell, or the one in which publishers are, with all brokers that it may ever have.
        self.pool = self.make_pool()
        operated = plan.newcomers > 0 or any(act.what in STEPS for act in plan.acts)
        cell = first_epoch(self.pool, plan.brokers) if operated else self.pool
        if any(act.what == "rotate" for act in plan.acts):
            cell = own_keyrings(cell)
        checkers = [*safety_checkers(gaps_allowed=plan.gaps_allowed), SoundCourt(self._rng)]
        world = self.make_world(cell, checkers)
        world.facts.gaps_allowed = plan.gaps_allowed
        world.facts.is_honest = is_honest(plan)
        late = [act.node for act in plan.acts if act.what == "faults" and act.node]
        world.facts.honest_yet = dict.fromkeys(late)
        super().__init__(plan, world, self.make_bounds())
        self._members: Members | None = None
        if operated:
            waits = not plan.policy.total
            self._members = Members(
                world, self.pool.manifest, waits_for_new=waits, corrupt=self._corrupt_late
            )
        #: Subscribers that read a channel from its oldest publication on as soon as something on it
        #: is acknowledged.
        self._prompt: dict[Channel, list[NodeId]] = {}
        world.on_acknowledged = self._on_acknowledged
        #: Number of publications so far, which makes their contents distinct.
        self._count = 0
        self._bodies = world.scheduler.fork("bodies")

    # ------------------------------------- what a family of cells may replace

    def make_pool(self) -> Cell:
        """The cell of a plan, with all brokers that it may ever have."""
        plan = self.plan
        clients = (*plan.publishers, *plan.subscribers)
        return make_simulated_cell(plan.brokers + plan.newcomers, plan.f, plan.channels, clients)

    def make_world(self, cell: Cell, checkers: Sequence[Checker[CellFacts]]) -> CellWorld:
        """The world of a plan, without nodes."""
        plan = self.plan
        return CellWorld(
            cell,
            plan.seed,
            plan.weather,
            checkers,
            sync_ms=plan.sync_ms,
            coalesce_ms=plan.coalesce_ms,
            most_faulty=max([plan.f, *(a.amount for a in plan.acts if a.what == "faults")]),
        )

    def make_bounds(self) -> Mapping[str, int]:
        """The largest size of every container of a machine."""
        amounts = [act.amount for act in self.plan.acts if act.what == "retain"]
        return bounds_of(self.pool.manifest, max(amounts, default=0))

    # ---------------------------------------------------------------- the run

    def prepare(self) -> None:
        if self.plan.documents:
            self._examine_documents()

    def _examine_documents(self) -> None:
        """Compare quorums, manifests and named subscriptions with independent models."""
        manifest = self.world.cell.manifest
        operator = operator_of()
        for flaw in examine_quorums(len(manifest.brokers), manifest.f):
            self.world.facts.violate("Sound quorums", flaw)
        for flaw in examine_manifests(manifest, operator, self._rng):
            self.world.facts.violate("Sound manifests", flaw)
        if self.plan.policy.total:
            for flaw in examine_subscriptions(self._rng):
                self.world.facts.violate("Named subscriptions", flaw)

    def add_nodes(self) -> None:
        plan, world = self.plan, self.world
        world.add_brokers()
        for publisher in plan.publishers:
            world.add_publisher(publisher, resumes=publisher in plan.resuming)
        for subscriber in plan.subscribers:
            world.add_subscriber(subscriber)

    def promises(self) -> list[Promise[Any]]:
        valid = promises_validity(self.plan)
        promises = promised(self.plan.policy, valid=valid, lies=self.world.lies)
        promises.append(SharedEvidence(self.world.nodes))
        if valid:
            promises.append(Upkeep(self.world.nodes))
        if valid and self._members is not None:
            promises.append(self._members)
        return promises

    def finale(self) -> None:
        """Publish once the operator is done and links are up again, then ask for receipts."""
        for subscriber in self.plan.subscribers:
            self.world.wake(subscriber)
        if self._members is None:
            self._publish_at_the_end()
        else:
            # A channel that is created later ends the streams of publishers before it.
            self._members.after_steps(self._publish_at_the_end)

    def _publish_at_the_end(self) -> None:
        plan = self.plan
        if not plan.finale:
            return
        for delay_ms in (0, 150, 300):
            for publisher in [plan.restless] if plan.restless else plan.publishers:
                for channel in plan.channels:
                    if may_publish(self.world.cell.manifest, publisher, channel.name):
                        act = Act(0, "submit", publisher, channel.name, plan.finale)
                        self.schedule(delay_ms, act)
        for subscriber in plan.subscribers:
            for channel in plan.channels:
                act = Act(0, "prove", subscriber, channel.name)
                self.schedule(400, act)

    def await_promises(self, promises: Sequence[Promise[Any]]) -> None:
        """Await them while one publisher goes on and others are quiet, and then in silence.

        What was lost must come although something always moves.
        """
        if self.plan.restless:
            self.world.facts.restless = self.plan.restless
            self._go_on()
            super().await_promises(promises)
            self.world.facts.restless = NodeId("")
        super().await_promises(promises)

    def _go_on(self) -> None:
        publisher = self.world.facts.restless
        if not publisher:
            return
        for channel in self.plan.channels:
            if may_publish(self.world.cell.manifest, publisher, channel.name):
                self.act(Act(0, "submit", publisher, channel.name, 1))
        self.world.scheduler.after(RESTLESS_MS, self._go_on)

    # ------------------------------------------------------------- acts

    def forgets(self, broker: NodeId) -> bool:
        """Whether a broker that crashed may contradict what it vouched for: it has no journal."""
        return not self.plan.policy.journal

    def crash(self, act: Act) -> None:
        world, now = self.world, self.world.scheduler.now
        is_broker = world.cell_of(act.node).manifest.broker(act.node) is not None
        if is_broker and act.what == "crash" and self.forgets(act.node):
            world.adversary.declare(act.node, "amnesia")
        super().crash(act)
        world.facts.stopped(act.node, now)
        if is_broker:
            world.facts.forgot_at = now
        if world.adversary.has_lost_contents(act.node):
            world.facts.lost_contents(act.node, now)

    def act(self, act: Act) -> None:
        world = self.world
        if self._members is not None and act.what in STEPS:
            self._members.step(act)
            return
        if act.channel and world.facts.manifest.channel(act.channel) is None:
            return  # it was deleted
        if self._members is not None and self._members.is_behind(act.node, act.channel):
            return
        match act.what:
            case "submit":
                self._submit(act.node, act.channel, act.amount)
            case "join" | "read" | "leave" | "prove":
                getattr(world, act.what)(act.node, act.channel)
            case "stall" | "wake":
                getattr(world, act.what)(act.node)
            case "extract" | "recall":
                getattr(world, act.what)(act.node, act.channel, act.amount)
            case "select":
                wanted = ((), *self.plan.predicates)[act.amount]
                world.select(act.node, act.channel, wanted)
            case "read-promptly":
                self._prompt.setdefault(act.channel, []).append(act.node)
            case "roll" | "cycle":
                then = partial(world.read, act.node, act.channel)
                world.restart_in_turn(act.peers, act.amount, then, wipe=act.what == "roll")
            case "rotate":
                change_key(world, act.node)
            case "steal":
                call_with_stolen_key(world, act.node, act.channel)
            case "forge":
                self._forge(act.node, act.channel)
            case _:
                super().act(act)

    def _on_acknowledged(self, channel: Channel) -> None:
        for reader in self._prompt.pop(channel, ()):
            self.schedule(0, Act(0, "read", reader, channel))

    def _corrupt_late(self, liar: NodeId) -> None:
        """Let one more broker lie as the first faulty broker of the plan does."""
        brokers = broker_names(self.plan.brokers)
        first = next(one for one in self.plan.corruptions if one.node in brokers)
        self._corrupt(replace(first, node=liar))

    def _forge(self, reader: NodeId, channel: Channel) -> None:
        """Forge a vote of every broker, as an attacker on the wire without keys."""
        world, body = self.world, b"forged"
        for stream, published in list(world.facts.published.items()):
            if stream.channel != channel:
                continue
            vote = Vote(stream, len(published) + 1, world.cell.manifest.hash(body))
            for broker in world.cell.manifest.broker_ids:
                world.network.forge(broker, reader, [encode_parcel(vote, (body,))])

    def _columns_known(self, publisher: NodeId, channel: Channel) -> int:
        """How many columns a channel has in the epoch of its publisher; 0 if it carries bytes."""
        cell = self.world.cell_of(publisher)
        epoch = cell.keyrings[publisher].epoch
        known = self.world.facts.manifests.get(epoch, cell.manifest).channel(channel)
        return 0 if known is None else len(known.schema)

    def _submit(self, publisher: NodeId, channel: Channel, count: int) -> None:
        bodies = []
        columns = self._columns_known(publisher, channel)
        for _ in range(count):
            self._count += 1
            if columns:
                bodies.append(rows_body(self.plan.seed, self._count, columns))
                continue
            size = self._bodies.choice((0, 4, 40))
            bodies.append(b"%d:" % self._count + self._bodies.randbytes(size))
        self.world.submit(publisher, channel, tuple(bodies))
