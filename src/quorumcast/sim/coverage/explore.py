"""Exploration: run many scenarios and collect the protocol states and transitions they reach.

Without steering, seeds are run one after the other. With steering (coverage guidance), several
plans are drawn and the most promising one is run. A plan is promising if recent plans of its kind
(policy, quorum size and harm; policy and adversary) showed many new transitions. Drawing a plan
costs a hundredth of running it. A scenario still depends on its seed alone, and the choice of seeds
on the first seed.
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

#: Number of drawn plans of which one is run.
CANDIDATES = 8
#: Weight of the past in a kind's moving average of new transitions.
MEMORY = 0.6
#: Expected new transitions of a kind that was never run.
HOPE = 400.0


class Exploration(msgspec.Struct, kw_only=True):
    """The coverage of a series of scenarios."""

    scenarios: int = 0
    #: Number of scenarios that showed each transition.
    transitions: dict[Transition, int] = msgspec.field(default_factory=dict)
    reached: set[ProtocolState] = msgspec.field(default_factory=set)
    #: Number of distinct transitions after each scenario.
    growth: list[int] = msgspec.field(default_factory=list)
    #: Runs that violated a property.
    failed: list[Outcome] = msgspec.field(default_factory=list)

    def unreached(self, policies: Sequence[str] = POLICY_NAMES) -> list[ProtocolState]:
        """States that the code names and no scenario showed."""
        return [s for s in known_states() if s.policy in policies and s not in self.reached]

    def add(self, seen: Sequence[Transition]) -> int:
        """Add the transitions of one run; return how many are new."""
        before = len(self.transitions)
        for transition in seen:
            if transition not in self.transitions:
                self.reached.update(states_of(transition))
            self.transitions[transition] = self.transitions.get(transition, 0) + 1
        self.scenarios += 1
        self.growth.append(len(self.transitions))
        return len(self.transitions) - before


class _Choice:
    """Chooses plans by the moving average of new transitions of their kinds."""

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
    """Run `seeds` scenarios and return their coverage."""
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
