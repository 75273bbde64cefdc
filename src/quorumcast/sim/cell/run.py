"""A plan carried out: what goes wrong, then calm, then time for promises to come true.

The *safety phase* lets everything go wrong that the plan says. From `calm_at` on the network
behaves, every node that can recover has recovered, and some last publications are made; then the
promises get a bounded time to come true.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from quorumcast.cell.messages import Vote
from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.session import encode_parcel
from quorumcast.faults.contract import Role
from quorumcast.sim.cell.cells import broker_names, make_simulated_cell, operator_of
from quorumcast.sim.cell.consumers import examine_subscriptions
from quorumcast.sim.cell.epochs import call_with_stolen_key, change_key, own_keyrings
from quorumcast.sim.cell.harm import entry_of
from quorumcast.sim.cell.judges.bounds import bounds_of
from quorumcast.sim.cell.judges.checkers import safety_checkers
from quorumcast.sim.cell.judges.documents import SoundCourt, examine_manifests, examine_quorums
from quorumcast.sim.cell.judges.facts import may_publish
from quorumcast.sim.cell.judges.promises import Boundedness, Promise, promised
from quorumcast.sim.cell.judges.upkeep import Upkeep
from quorumcast.sim.cell.members import Members, first_epoch
from quorumcast.sim.cell.plan import Act, Corruption, Outcome, Plan
from quorumcast.sim.cell.tracing import Tracer
from quorumcast.sim.cell.world import World
from quorumcast.sim.kernel.node import Watcher

#: How often promises and sizes are looked at while time passes.
LOOK_MS = 60
#: So many times a plan's patience are enough, however much progress there is.
MOST_PATIENCES = 6


def promises_validity(plan: Plan) -> bool:
    """Whether the policy promises validity in spite of everything that the plan does."""
    for corruption in plan.corruptions:
        entry = entry_of(corruption.fault)
        if entry is None:
            return False
        if entry.role is Role.BROKER and plan.policy.name not in entry.valid_under:
            return False
    # A chain makes progress only while its brokers are correct, and one that crashes is not.
    crashed = any(
        act.what == "crash" and act.node in broker_names(plan.brokers) for act in plan.acts
    )
    return plan.policy.live or not (plan.doomed or crashed)


class Run:
    """A plan being carried out."""

    __slots__ = (
        "_bodies",
        "_boundedness",
        "_count",
        "_members",
        "_paper",
        "_plots",
        "plan",
        "world",
    )

    def __init__(self, plan: Plan, watchers: Sequence[Watcher] = ()) -> None:
        self.plan = plan
        clients = (*plan.publishers, *plan.subscribers)
        pool = cell = make_simulated_cell(
            plan.brokers + plan.newcomers, plan.f, plan.channels, clients
        )
        if plan.newcomers:
            cell = first_epoch(pool, plan.brokers)
        if any(act.what == "rotate" for act in plan.acts):
            cell = own_keyrings(cell)
        # Drawn apart from the rest.
        self._paper = random.Random(f"documents {plan.seed}")
        checkers = [*safety_checkers(gaps_allowed=plan.gaps_allowed), SoundCourt(self._paper)]
        self.world = World(
            cell,
            plan.seed,
            plan.weather,
            checkers,
            sync_ms=plan.sync_ms,
            coalesce_ms=plan.coalesce_ms,
            watchers=watchers,
        )
        self.world.facts.gaps_allowed = plan.gaps_allowed
        self._members: Members | None = None
        if plan.newcomers:
            patient = not plan.policy.total
            self._members = Members(self.world, pool.manifest, patient=patient)
        self._count = 0
        #: What the conspirators of each plot know.
        self._plots: dict[str, dict[bytes, bytes]] = {}
        self._bodies = self.world.scheduler.fork("bodies")
        self._boundedness = Boundedness(bounds_of(pool.manifest))

    def perform(self) -> Outcome:
        """The whole run."""
        try:
            self._play()
        except Exception as error:  # whatever it is: the seed that leads to it is worth knowing
            failure = f"a machine failed: {type(error).__name__}: {error}"
            self.world.facts.violate("Robustness", failure)
        return self._outcome()

    def _play(self) -> None:
        plan, world = self.plan, self.world
        if plan.documents:
            self._examine_documents()
        self._cast()
        for act in plan.acts:
            world.scheduler.after(act.at_ms, self._action(act))
        self._pass_time(plan.calm_at_ms)
        self._calm_down()
        valid = promises_validity(plan)
        promises = promised(plan.policy, valid=valid, lies=world.lies)
        if valid:
            promises.append(Upkeep(world.nodes))
        self._finale()
        self._await(promises)
        for checker in world.checkers:
            checker.at_end(world.facts)

    def _examine_documents(self) -> None:
        """Show the code of this cell manifests that are wrong in one thing."""
        manifest = self.world.cell.manifest
        operator = operator_of(len(manifest.brokers))
        for said in examine_quorums(len(manifest.brokers), manifest.f):
            self.world.facts.violate("Sound quorums", said)
        for said in examine_manifests(manifest, operator, self._paper):
            self.world.facts.violate("Sound manifests", said)
        if self.plan.policy.total:
            for said in examine_subscriptions(self._paper):
                self.world.facts.violate("Named subscriptions", said)

    def _cast(self) -> None:
        plan, world = self.plan, self.world
        # Who is faulty is known to the checkers from the start: promises are made to the others.
        for node, how in plan.doomed:
            world.adversary.declare(node, how)
        for corruption in plan.corruptions:
            world.adversary.declare(corruption.node, corruption.fault)
        world.add_brokers()
        for publisher in plan.publishers:
            world.add_publisher(publisher, resumes=publisher in plan.resuming)
        for subscriber in plan.subscribers:
            world.add_subscriber(subscriber)
        for corruption in plan.corruptions:
            world.scheduler.after(corruption.at_ms, self._corruption(corruption))

    def _corruption(self, corruption: Corruption) -> Callable[[], None]:
        return lambda: self.world.adversary.corrupt(
            corruption.node,
            corruption.fault,
            percent=corruption.percent,
            victims=corruption.victims,
            shared=self._plots.setdefault(corruption.plot, {}) if corruption.plot else None,
            attack=corruption.attack,
        )

    # ------------------------------------------------------------- acts

    def _action(self, act: Act) -> Callable[[], None]:
        return lambda: self.act(act)

    def act(self, act: Act) -> None:
        """Let this happen now."""
        world = self.world
        match act.what:
            case "submit":
                self._submit(act.node, act.channel, act.amount)
            case "join":
                world.join(act.node, act.channel)
            case "read":
                world.read(act.node, act.channel)
            case "extract":
                world.extract(act.node, act.channel, act.amount)
            case "roll" | "cycle":
                # With a cycle they keep their disks.
                wipe = act.what == "roll"
                then = partial(world.read, act.node, act.channel)
                world.roll(act.peers, act.amount, then, wipe=wipe)
            case "leave":
                world.leave(act.node, act.channel)
            case "crash":
                world.stop(act.node, tear=act.amount, remembers=self.plan.policy.journal)
            case "wipe":
                world.stop(act.node, wipe=True)
            case "damage":
                world.stop(act.node, corrupt=True)
            case "pause":
                world.adversary.pause(act.node)
            case "resume":
                world.adversary.resume(act.node)
            case "stop":
                # For good: a stopped broker counts against f, whatever is in its journal.
                world.stop(act.node)
            case "restart":
                world.adversary.restart(act.node)
            case "twin":
                world.adversary.twin(act.node, act.peers)
            case "partition":
                world.network.partition(act.peers)
                world.adversary.injected += 1
            case "mute":
                world.network.mute(act.node, act.peers)
            case "heal":
                world.network.heal()
            case "cut":
                self._cut(act.node, act.peers[0])
            case "add" | "remove" if self._members is not None:
                self._members.step(act.what, act.node)
            case "rotate":
                change_key(world, act.node)
            case "steal":
                call_with_stolen_key(world, act.node, act.channel)
            case "forge":
                self._forge(act.node, act.channel)
            case "prove":
                world.prove(act.node, act.channel)
            case "recall":
                world.recall(act.node, act.channel, act.amount)
            case _:
                raise ValueError(f"no such act: {act.what}")

    def _cut(self, node: NodeId, peer: NodeId) -> None:
        link = self.world.network.link(node, peer)
        if link is not None and link.sessions:
            self.world.network.break_link(link)
            self.world.adversary.injected += 1

    def _forge(self, reader: NodeId, channel: Channel) -> None:
        """An attacker on the wire, with no keys, speaks for every broker at once."""
        world = self.world
        body = b"forged"
        for stream, published in list(world.facts.published.items()):
            if stream.channel != channel:
                continue
            vote = Vote(stream, len(published) + 1, world.cell.manifest.hash(body))
            for broker in world.cell.manifest.broker_ids:
                world.network.forge(broker, reader, [encode_parcel(vote, (body,))])

    def _submit(self, publisher: NodeId, channel: Channel, count: int) -> None:
        bodies = []
        for _ in range(count):
            self._count += 1
            size = self._bodies.choice((0, 4, 40))
            bodies.append(b"%d:" % self._count + self._bodies.randbytes(size))
        self.world.submit(publisher, channel, tuple(bodies))

    # ------------------------------------------------------------- time

    def _pass_time(self, until: int) -> None:
        world = self.world
        while world.scheduler.now < until and not world.facts.violations:
            world.scheduler.run_until(
                min(world.scheduler.now + LOOK_MS, until),
                self.plan.max_steps - world.scheduler.steps,
            )
            self._look()

    def _look(self) -> None:
        world = self.world
        if world.scheduler.steps >= self.plan.max_steps:
            steps = world.scheduler.steps
            world.facts.violate("Boundedness", f"still chattering after {steps} steps")
        for name, node in world.nodes.items():
            if node.up and world.adversary.is_correct(name):
                self._boundedness.check(world.facts, name, node.machine)

    def _calm_down(self) -> None:
        world = self.world
        world.network.calm()
        stopped = [act.node for act in self.plan.acts if act.what == "stop"]
        for name in world.nodes:
            world.adversary.resume(name)
            if name not in stopped:
                world.adversary.restart(name)
        world.lies.calm = world.facts.calm = True

    def _finale(self) -> None:
        """Last publications, some at once, some when links are up again; and receipts of them."""
        plan = self.plan
        if not plan.finale:
            return
        for delay_ms in (0, 150, 300):
            for publisher in plan.publishers:
                for channel in plan.channels:
                    if may_publish(self.world.cell.manifest, publisher, channel.name):
                        act = Act(0, "submit", publisher, channel.name, plan.finale)
                        self.world.scheduler.after(delay_ms, self._action(act))
        for subscriber in plan.subscribers:
            for channel in plan.channels:
                act = Act(0, "prove", subscriber, channel.name)
                self.world.scheduler.after(400, self._action(act))

    def _await(self, promises: list[Promise]) -> None:
        world = self.world
        latest = world.scheduler.now + MOST_PATIENCES * self.plan.patience_ms
        deadline, progress = world.scheduler.now + self.plan.patience_ms, 0
        self._pass_time(world.scheduler.now + 450)
        broken: list[tuple[str, str]] = []
        while not world.facts.violations:
            broken = []
            for promise in promises:
                missing = promise.pending(world.facts)
                if missing is not None:
                    broken.append((promise.name, missing))
                    break
            if world.facts.progress > progress:
                progress = world.facts.progress
                deadline = min(world.scheduler.now + self.plan.patience_ms, latest)
            if not broken or world.scheduler.now >= deadline:
                break
            self._pass_time(world.scheduler.now + LOOK_MS)
        for name, missing in broken:
            world.facts.violate(name, f"after {world.scheduler.now} ms: {missing}")

    def _outcome(self) -> Outcome:
        world, facts = self.world, self.world.facts
        correct = world.adversary.is_correct
        return Outcome(
            seed=self.plan.seed,
            policy=self.plan.policy.name,
            adversary=self.plan.adversary,
            violations=facts.violations,
            trace_hash=world.scheduler.trace_hash,
            simulated_ms=world.scheduler.now,
            messages=world.network.messages,
            packets=world.network.packets,
            deliveries=sum(
                len(accepted) for reader in facts.readers for accepted in reader.accepted.values()
            ),
            faults_injected=world.adversary.injected,
            false_accusations=sum(
                correct(accuse.evidence.accused) for _, accuse in facts.accusations
            ),
            false_suspicions=sum(correct(suspect) for _, suspect, _ in facts.suspicions),
            suspicions=sum(facts.suspicions.values()),
            evidence=len(facts.accusations),
            steps=world.scheduler.steps,
        )


def perform(plan: Plan, trace: Path | None = None) -> Outcome:
    """Carry out a plan; with a directory for it, leave a trace."""
    run = Run(plan)
    tracer = Tracer(plan, run.world, trace) if trace is not None else None
    outcome = run.perform()
    if tracer is not None:
        tracer.close()
    return outcome
