"""Execution of a plan: a safety phase with fault injection, then a liveness phase without.

In the *safety phase* the plan's faults and acts happen. At `calm_at_ms` the network becomes
reliable and every crashed node is restarted, unless an act `stop` ended it for good. In the
*liveness phase* the promises (liveness properties) get a bounded time to come true. A system
extends `Run` with its nodes (`add_nodes`), its own acts (`act`), its last acts
(`finale`) and its promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from quorumcast.sim.kernel.judging import Boundedness, Promise
from quorumcast.sim.kernel.plan import Act, Corruption, Outcome, Plan
from quorumcast.sim.kernel.world import World

#: Interval at which promises and sizes are checked.
CHECK_MS = 60
#: Duration of the finale, before promises are first checked.
FINALE_MS = 450
#: Longest liveness phase, in multiples of the plan's patience, however much progress there is.
MAX_WAITS = 6

Planned = TypeVar("Planned", bound=Plan)
Place = TypeVar("Place", bound=World[Any])


class Run(Generic[Planned, Place]):
    """The execution of one plan."""

    def __init__(self, plan: Planned, world: Place, bounds: Mapping[str, int]) -> None:
        self.plan = plan
        self.world = world
        self._boundedness = Boundedness(bounds)
        #: Shared knowledge of the conspirators, by plot.
        self._plots: dict[str, dict[bytes, bytes]] = {}

    # ------------------------------------------------- what a system brings

    def prepare(self) -> None:
        """Set up the world before nodes are added."""

    def add_nodes(self) -> None:
        """Add every node that takes part from the start."""
        raise NotImplementedError

    def promises(self) -> list[Promise[Any]]:
        """The liveness properties of the system."""
        return []

    def finale(self) -> None:
        """Start the last acts, at the beginning of the liveness phase."""

    def crash(self, act: Act) -> None:
        """Crash a node as the act says."""
        self.world.adversary.crash(
            act.node, wipe=act.what == "wipe", tear=act.amount, corrupt=act.what == "damage"
        )

    def act(self, act: Act) -> None:
        """Carry out an act now."""
        adversary, network = self.world.adversary, self.world.network
        match act.what:
            case "crash" | "wipe" | "damage" | "stop":
                if self.world.nodes[act.node].up:
                    self.crash(act)
            case "pause" | "resume" | "restart":
                getattr(adversary, act.what)(act.node)
            case "twin":
                adversary.twin(act.node, act.peers)
            case "partition":
                adversary.partition(act.peers)
            case "mute":
                network.mute(act.node, act.peers)
            case "heal":
                network.heal()
            case "cut":
                adversary.cut(act.node, act.peers[0])
            case _:
                raise ValueError(f"there is no act {act.what!r}")

    # -------------------------------------------------------------- the run

    def perform(self) -> Outcome:
        """Carry out the plan and return its outcome."""
        try:
            self._execute()
        except Exception as error:  # any exception is a finding, and its seed is worth reporting
            failure = f"the run raised {type(error).__name__}: {error}"
            self.world.facts.violate("Robustness", failure)
        return self._outcome()

    def _execute(self) -> None:
        self.prepare()
        # Checkers know the faulty nodes from the start: promises are made to the others.
        for node, how in self.plan.doomed:
            self.world.adversary.declare(node, how)
        for corruption in self.plan.corruptions:
            self.world.adversary.declare(corruption.node, corruption.fault)
        self.add_nodes()
        for corruption in self.plan.corruptions:
            self.world.scheduler.after(corruption.at_ms, partial(self._corrupt, corruption))
        for act in self.plan.acts:
            self.schedule(act.at_ms, act)
        self._pass_time(self.plan.calm_at_ms)
        self._calm_down()
        promises = self.promises()
        self.finale()
        self.await_promises(promises)
        for checker in self.world.checkers:
            checker.at_end(self.world.facts)

    def schedule(self, after_ms: int, act: Act) -> None:
        """Schedule an act."""
        self.world.scheduler.after(after_ms, partial(self.act, act))

    def _corrupt(self, corruption: Corruption) -> None:
        self.world.adversary.corrupt(
            corruption.node,
            corruption.fault,
            percent=corruption.percent,
            victims=corruption.victims,
            shared=self._plots.setdefault(corruption.plot, {}) if corruption.plot else None,
            attack=corruption.attack,
        )

    # ----------------------------------------------------------------- time

    def _pass_time(self, until: int) -> None:
        scheduler = self.world.scheduler
        while scheduler.now < until and not self.world.facts.violations:
            scheduler.run_until(
                min(scheduler.now + CHECK_MS, until), self.plan.max_steps - scheduler.steps
            )
            self._check_bounds()

    def _check_bounds(self) -> None:
        steps = self.world.scheduler.steps
        if steps >= self.plan.max_steps:
            self.world.facts.violate("Boundedness", f"messages still flow after {steps} steps")
        for name, node in self.world.nodes.items():
            if node.up and self.world.adversary.is_correct(name):
                self._boundedness.check(self.world.facts, name, node.machine)

    def _calm_down(self) -> None:
        self.world.network.calm()
        adversary = self.world.adversary
        stopped = [act.node for act in self.plan.acts if act.what == "stop"]
        inside = [name for names in adversary.companions.values() for name in names]
        for name in [name for name in self.world.nodes if name not in inside]:
            adversary.resume(name)
            if name not in stopped:
                adversary.restart(name)
        self.world.facts.calm = True

    def await_promises(self, promises: Sequence[Promise[Any]]) -> None:
        """Let time pass until all promises hold; one that does not in time is a violation."""
        scheduler, facts = self.world.scheduler, self.world.facts
        latest = scheduler.now + MAX_WAITS * self.plan.patience_ms
        deadline, progress = scheduler.now + self.plan.patience_ms, 0
        self._pass_time(scheduler.now + FINALE_MS)
        name, missing = "", None
        while not facts.violations:
            for promise in promises:
                name, missing = promise.name, promise.pending(facts)
                if missing is not None:
                    break
            if facts.progress > progress:
                progress = facts.progress
                deadline = min(scheduler.now + self.plan.patience_ms, latest)
            if missing is None or scheduler.now >= deadline:
                break
            self._pass_time(scheduler.now + CHECK_MS)
        if missing is not None:
            facts.violate(name, f"after {scheduler.now} ms: {missing}")

    def _outcome(self) -> Outcome:
        scheduler, network, facts = self.world.scheduler, self.world.network, self.world.facts
        correct = self.world.adversary.is_correct
        readers, filtered_readers = facts.subscriptions()
        return Outcome(
            system=self.plan.system,
            seed=self.plan.seed,
            policy=self.plan.kind,
            adversary=self.plan.adversary,
            violations=facts.violations,
            trace_hash=scheduler.trace_hash,
            simulated_ms=scheduler.now,
            messages=network.messages,
            packets=network.packets,
            deliveries=facts.deliveries(),
            readers=readers,
            filtered_readers=filtered_readers,
            faults_injected=self.world.adversary.injected,
            false_accusations=sum(
                correct(accuse.evidence.accused) for _, accuse in facts.accusations
            ),
            false_suspicions=sum(correct(suspect) for _, suspect, _ in facts.suspicions),
            suspicions=sum(facts.suspicions.values()),
            evidence=len(facts.accusations),
            steps=scheduler.steps,
        )
