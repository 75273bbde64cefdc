"""Many scenarios, and which protocol states they reach; steered towards new ones if asked for.

Plain: seed after seed. Steered: of several seeds the one is run whose plan promises most, by what
plans of its kind (policy, quorum size and harm; policy and adversary) showed lately that was new.
Drawing a plan costs a hundredth of running it. Every scenario still follows from its seed, and the
choice from the first seed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import msgspec

from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.cell.scenario import draw
from quorumcast.sim.coverage.states import ProtocolState, known_states, states_of
from quorumcast.sim.coverage.transitions import Transition, harm_of, transitions_of
from quorumcast.sim.kernel.plan import Outcome

#: Seeds of which one is run.
CANDIDATES = 8
#: The part of its worth that a kind of plan keeps with each run, and what an untried one is worth.
MEMORY, HOPE = 0.6, 400.0


class Exploration(msgspec.Struct, kw_only=True):
    """What scenarios reached."""

    scenarios: int = 0
    #: How many scenarios showed each transition.
    transitions: dict[Transition, int] = msgspec.field(default_factory=dict)
    reached: set[ProtocolState] = msgspec.field(default_factory=set)
    #: Distinct transitions after each scenario.
    growth: list[int] = msgspec.field(default_factory=list)
    #: Runs that broke a property.
    failed: list[Outcome] = msgspec.field(default_factory=list)

    def unreached(self, policies: Sequence[str] = POLICY_NAMES) -> list[ProtocolState]:
        """States that the code names and no scenario showed."""
        return [s for s in known_states() if s.policy in policies and s not in self.reached]

    def add(self, seen: Sequence[Transition]) -> int:
        """Take in what one run showed; how much of it is new."""
        before = len(self.transitions)
        for transition in seen:
            if transition not in self.transitions:
                self.reached.update(states_of(transition))
            self.transitions[transition] = self.transitions.get(transition, 0) + 1
        self.scenarios += 1
        self.growth.append(len(self.transitions))
        return len(self.transitions) - before


class _Choice:
    """What plans of each kind are worth: how much that is new they showed lately."""

    def __init__(self) -> None:
        self._worth: dict[Hashable, float] = {}

    def best(self, plans: Sequence[CellPlan]) -> CellPlan:
        return max(plans, key=self._promise)

    def _promise(self, plan: CellPlan) -> float:
        return sum(self._worth.get(kind, HOPE) for kind in _kinds(plan))

    def learn(self, plan: CellPlan, new: int) -> None:
        for kind in _kinds(plan):
            self._worth[kind] = MEMORY * self._worth.get(kind, HOPE) + (1 - MEMORY) * new


def _kinds(plan: CellPlan) -> tuple[Hashable, ...]:
    policy = plan.policy.name
    return (policy, plan.brokers, plan.f, harm_of(plan)), (policy, plan.adversary)


def explore(
    seeds: int,
    start: int = 0,
    policy: str | None = None,
    adversary: str | None = None,
    *,
    steer: bool = False,
    progress: Callable[[Exploration], None] = lambda exploration: None,
) -> Exploration:
    """Run that many scenarios and note what they reach."""
    exploration = Exploration()
    choice = _Choice()
    each = CANDIDATES if steer else 1
    for first in range(start, start + seeds * each, each):
        plans = [draw(seed, policy, adversary) for seed in range(first, first + each)]
        plan = choice.best(plans)
        run, probe = transitions_of(plan)
        outcome = run.perform()
        choice.learn(plan, exploration.add(list(probe.seen)))
        if outcome.violations:
            exploration.failed.append(outcome)
        progress(exploration)
    return exploration
