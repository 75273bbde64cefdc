"""Many scenarios, and which protocol states they reach; steered towards new ones if asked for.

Plain: seed after seed. Steered: a greedy search. Policies and adversaries whose scenarios showed
something new are drawn more often, and every other scenario is a plan of that kind which showed
something new, with a small change (`vary`). Everything follows from the first seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.sim.coverage.states import State, known_states, states_of
from quorumcast.sim.coverage.transitions import Transition, transitions_of
from quorumcast.sim.harm import applicable
from quorumcast.sim.plan import Act, Corruption, Outcome, Plan
from quorumcast.sim.scenario import ADVERSARIES, draw

#: Plans that showed something new, the newest ones, that others are derived from.
CORPUS = 256
#: How slowly what a pair showed is forgotten, and what one that was never tried is worth.
MEMORY, HOPE = 0.8, 20.0
#: The part of steered scenarios that vary a plan instead of drawing one.
VARIED = 0.5

Pair = tuple[str, str]


class Found(msgspec.Struct, frozen=True):
    """A plan that broke a property."""

    plan: Plan
    outcome: Outcome
    #: Whether the plan follows from its seed alone.
    drawn: bool


class Exploration(msgspec.Struct, kw_only=True):
    """What scenarios reached."""

    scenarios: int = 0
    #: How many scenarios showed each transition.
    transitions: dict[Transition, int] = msgspec.field(default_factory=dict)
    reached: set[State] = msgspec.field(default_factory=set)
    #: Distinct transitions after each scenario.
    growth: list[int] = msgspec.field(default_factory=list)
    found: list[Found] = msgspec.field(default_factory=list)

    def unreached(self, policies: Sequence[str] = POLICY_NAMES) -> list[State]:
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
    """Which policy and adversary come next: by what they showed lately."""

    def __init__(self, policy: str | None, adversary: str | None) -> None:
        self._worth: dict[Pair, float] = {
            (p, a): HOPE
            for p in (POLICY_NAMES if policy is None else (policy,))
            for a in (ADVERSARIES if adversary is None else (adversary,))
            if applicable(a, p)
        }
        self._corpus: dict[Pair, list[Plan]] = {}

    def pair(self, rng: random.Random) -> Pair:
        return rng.choices(list(self._worth), [1 + worth for worth in self._worth.values()])[0]

    def parent(self, rng: random.Random, pair: Pair) -> Plan | None:
        plans = self._corpus.get(pair)
        return rng.choice(plans) if plans else None

    def learn(self, pair: Pair, plan: Plan, new: int) -> None:
        self._worth[pair] = MEMORY * self._worth[pair] + (1 - MEMORY) * new
        if new:
            plans = self._corpus.setdefault(pair, [])
            plans.append(plan)
            del plans[:-CORPUS]


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
    rng = random.Random(f"explore {start}")
    choice = _Choice(policy, adversary)
    for seed in range(start, start + seeds):
        pair: Pair | None = choice.pair(rng) if steer else None
        parent = choice.parent(rng, pair) if pair is not None and rng.random() < VARIED else None
        if parent is not None:
            plan = vary(parent, rng, seed)
        else:
            plan = draw(seed, *(pair or (policy, adversary)))
        run, probe = transitions_of(plan)
        outcome = run.perform()
        new = exploration.add(list(probe.seen))
        if pair is not None:
            choice.learn(pair, plan, new)
        if outcome.violations:
            exploration.found.append(Found(plan, outcome, parent is None))
        progress(exploration)
    return exploration


# ------------------------------------------------------------------------ changes


def vary(plan: Plan, rng: random.Random, seed: int) -> Plan:
    """The same plan with other dice and one small change, within the same fault model."""
    change = rng.choice((_other_dice, _busier, _other_times, _other_lies, _other_disk))
    return msgspec.structs.replace(change(plan, rng), seed=f"varied {seed}")


def _other_dice(plan: Plan, rng: random.Random) -> Plan:
    return plan


def _busier(plan: Plan, rng: random.Random) -> Plan:
    """Some publications more, next to those that there are."""
    submits = [act for act in plan.acts if act.what == "submit"]
    more = [
        msgspec.structs.replace(act, at_ms=act.at_ms + rng.randrange(20))
        for act in rng.choices(submits, k=rng.randrange(1, 12))
        if submits
    ]
    return _with_acts(plan, [*plan.acts, *more])


def _other_times(plan: Plan, rng: random.Random) -> Plan:
    """Publications and joins move a little; harm stays where it is."""
    moved = [
        msgspec.structs.replace(act, at_ms=max(0, act.at_ms + rng.randrange(-60, 60)))
        if act.what == "submit"
        else act
        for act in plan.acts
    ]
    return _with_acts(plan, moved)


def _other_lies(plan: Plan, rng: random.Random) -> Plan:
    """A liar lies in another way, more rarely, or from another time on."""
    if not plan.corruptions or any(corruption.plot for corruption in plan.corruptions):
        return plan
    changed = [_another(corruption, plan, rng) for corruption in plan.corruptions]
    return msgspec.structs.replace(plan, corruptions=tuple(changed))


def _another(corruption: Corruption, plan: Plan, rng: random.Random) -> Corruption:
    percent = rng.choice((100, 60, 25))
    at_ms = rng.choice((0, rng.randrange(plan.calm_at_ms)))
    return msgspec.structs.replace(corruption, percent=percent, at_ms=at_ms)


def _other_disk(plan: Plan, rng: random.Random) -> Plan:
    sync_ms, coalesce_ms = rng.choice((0, 2, 5, 20)), rng.choice((0, 0, 1, 3))
    return msgspec.structs.replace(plan, sync_ms=sync_ms, coalesce_ms=coalesce_ms)


def _with_acts(plan: Plan, acts: Sequence[Act]) -> Plan:
    return msgspec.structs.replace(plan, acts=tuple(sorted(acts, key=lambda act: act.at_ms)))
