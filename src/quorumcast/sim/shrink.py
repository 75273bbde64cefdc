"""Shrinking: the smallest plan found that still violates a given property.

Delta debugging leaves out halves, quarters, … of the plan's *episodes*. An episode is a set of acts
that are removed together, such as a crash and its restart, so that a smaller plan stays within the
fault model. Afterwards faulty nodes, clients, channels and network conditions are simplified. A
shrunk plan no longer follows from a seed, so it is stored as a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from quorumcast.cell import CELL_SYSTEM
from quorumcast.core.errors import UsageError
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Outcome, Plan
from quorumcast.sim.systems import find, perform

#: Default limit of runs, and limit of their steps together: a run that never comes to rest would
#: take minutes each time.
MAX_RUNS = 150
MAX_TOTAL_STEPS = 300_000

#: The act that ends an episode, by the act that starts it.
_ENDED_BY = {
    "crash": "restart",
    "wipe": "restart",
    "damage": "restart",
    "pause": "resume",
    "partition": "heal",
    "mute": "heal",
}
#: Each change of members builds on the one before, so all of them are one episode.
_MEMBER_CHANGES = ("add", "remove")

Episode = tuple[Act, ...]


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest plan found, its outcome, and the number of runs that it took."""

    plan: Plan
    outcome: Outcome
    runs: int


def breaks(outcome: Outcome, broken: str) -> bool:
    """Whether a run violated this property."""
    return any(violation.property == broken for violation in outcome.violations)


def episodes(acts: Sequence[Act]) -> list[Episode]:
    """The episodes of these acts, in order of their first acts."""
    left = list(acts)
    found: list[Episode] = []
    while left:
        first = left.pop(0)
        episode = [first]
        if first.what in _MEMBER_CHANGES:
            episode += [act for act in left if act.what in _MEMBER_CHANGES]
        elif first.what in _ENDED_BY:
            end = _ENDED_BY[first.what]
            ended = [act for act in left if act.what == end and act.node in ("", first.node)]
            episode += ended[:1]
        left = [act for act in left if not any(act is taken for taken in episode)]
        found.append(tuple(episode))
    return found


class _Search:
    """The search for a smaller plan that violates the property."""

    def __init__(self, plan: Plan, broken: str, max_runs: int) -> None:
        self.best = plan
        self.outcome: Outcome | None = None
        self.runs = 0
        self._steps = 0
        self._broken = broken
        self._max_runs = max_runs

    @property
    def is_over(self) -> bool:
        return self.runs >= self._max_runs or self._steps >= MAX_TOTAL_STEPS

    def accepts(self, plan: Plan) -> bool:
        """Run a plan; if it violates the property, it becomes the best one."""
        if self.is_over:
            return False
        self.runs += 1
        outcome = perform(plan)
        self._steps += outcome.steps
        if not breaks(outcome, self._broken):
            return False
        self.best, self.outcome = plan, outcome
        return True

    def remove_episodes(self) -> None:
        """Leave out episodes, half of them at a time, then a quarter, and so on."""
        kept = episodes(self.best.acts)
        size = max(1, len(kept) // 2)
        while kept and not self.is_over:
            start = 0
            while start < len(kept):
                fewer = kept[:start] + kept[start + size :]
                if self.accepts(replace(self.best, acts=_in_order(fewer))):
                    kept = fewer
                else:
                    start += size
            if size == 1:
                return
            size = max(1, size // 2)

    def simplify(self) -> None:
        """Simplify the rest of the plan."""
        for change in (_fewer_faulty, *find(self.best.system).simpler, _calmer):
            for plan in change(self.best):
                if self.accepts(plan):
                    break


def _in_order(kept: Sequence[Episode]) -> tuple[Act, ...]:
    return tuple(sorted((act for episode in kept for act in episode), key=lambda act: act.at_ms))


def _fewer_faulty(plan: Plan) -> Iterator[Plan]:
    for index in range(len(plan.corruptions)):
        fewer = plan.corruptions[:index] + plan.corruptions[index + 1 :]
        yield replace(plan, corruptions=fewer)


def _calmer(plan: Plan) -> Iterator[Plan]:
    if plan.weather.links:
        yield replace(plan, weather=replace(plan.weather, links=()))
    calm = Weather(latency_ms=1, jitter_ms=0)
    if plan.weather != calm:
        yield replace(plan, weather=calm)


def shrink(plan: Plan, broken: str, max_runs: int = MAX_RUNS) -> Shrunk | None:
    """The smallest plan found that violates the property; None if the given one does not."""
    search = _Search(plan, broken, max_runs)
    if not search.accepts(plan):
        return None
    size = -1
    while not search.is_over and size != len(search.best.acts):
        size = len(search.best.acts)
        search.remove_episodes()
        search.simplify()
    return None if search.outcome is None else Shrunk(search.best, search.outcome, search.runs)


# ---------------------------------------------------------------------- files


def encode_plan(plan: Plan) -> bytes:
    """A plan as JSON; attacks of known-bad variants are code and cannot be written."""
    if any(corruption.attack is not None for corruption in plan.corruptions):
        raise UsageError("a plan with attacks that are not in the catalogue cannot be written")
    lines = []
    system = {} if plan.system == CELL_SYSTEM else {"system": plan.system}
    for name, value in (system | _set_fields(plan)).items():
        items = value if isinstance(value, list) else ()
        if any(isinstance(item, dict) for item in items):
            rows = b",\n  ".join(map(msgspec.json.encode, items))
            lines.append(b'"%s": [\n  %s\n ]' % (name.encode(), rows))
        else:
            lines.append(b'"%s": %s' % (name.encode(), msgspec.json.encode(value)))
    return b"{\n " + b",\n ".join(lines) + b"\n}\n"


def _set_fields(value: msgspec.Struct) -> dict[str, object]:
    """The fields of a struct that differ from their defaults, as JSON values.

    A field that is left out may later change its default or name without making old plans invalid.
    """
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(value):
        held = getattr(value, field.name)
        if held == field.default:
            continue
        if isinstance(held, msgspec.Struct):
            found[field.encode_name] = _set_fields(held)
        elif isinstance(held, tuple) and any(isinstance(item, msgspec.Struct) for item in held):
            found[field.encode_name] = [_set_fields(item) for item in held]
        else:
            found[field.encode_name] = msgspec.to_builtins(held)
    return found


def _no_attack(kind: object, value: object) -> Callable[..., object] | None:
    if value is None:
        return None
    raise ValueError("an attack cannot be read from a file")


class _SystemOf(msgspec.Struct):
    """The system of a stored plan; plans of cells do not name it."""

    system: str = CELL_SYSTEM


def decode_plan(data: bytes) -> Plan:
    """The plan that `encode_plan` wrote."""
    kind = find(msgspec.json.decode(data, type=_SystemOf).system).plan
    return msgspec.json.decode(data, type=kind, dec_hook=_no_attack)


def read_plan(path: Path) -> Plan:
    """A plan from a file."""
    try:
        return decode_plan(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not a plan of the simulator ({error})") from None
