"""A plan that breaks a property, made as short as it can be and still break it.

Delta debugging over *episodes*: halves, quarters, … of them are left out as long as the same
property breaks. What belongs together goes together, so that a shorter plan asks no more of the
cell than the long one did: a crash and its restart, a partition and its healing, all changes of
members. Liars, clients, the second channel and the weather are tried afterwards. Shrunk plans no
longer follow from a seed, so they are kept as files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Outcome, Plan
from quorumcast.sim.systems import find, perform

#: Runs that are tried at most, unless told otherwise; and steps that these may take together, for
#: a cell that never comes to rest would keep us for half an hour.
MOST_RUNS = 150
MOST_STEPS = 300_000

#: What ends an episode that begins so.
_ENDS = {
    "crash": "restart",
    "wipe": "restart",
    "damage": "restart",
    "pause": "resume",
    "partition": "heal",
    "mute": "heal",
}
_STEPS = ("add", "remove")

CELL = "cell"

Episode = tuple[Act, ...]


class Shrunk(msgspec.Struct, frozen=True):
    """The shortest plan that was found, and what it does."""

    plan: Plan
    outcome: Outcome
    runs: int


def breaks(outcome: Outcome, broken: str) -> bool:
    """Whether a run broke this property."""
    return any(violation.property == broken for violation in outcome.violations)


def episodes(acts: Sequence[Act]) -> list[Episode]:
    """Acts that can only be left out together."""
    left = list(acts)
    found: list[Episode] = []
    while left:
        first = left.pop(0)
        episode = [first]
        if first.what in _STEPS:
            episode += [act for act in left if act.what in _STEPS]
        elif first.what in _ENDS:
            end = _ENDS[first.what]
            ended = [act for act in left if act.what == end and act.node in ("", first.node)]
            episode += ended[:1]
        left = [act for act in left if not any(act is taken for taken in episode)]
        found.append(tuple(episode))
    return found


class _Shortening:
    def __init__(self, plan: Plan, broken: str, most_runs: int) -> None:
        self.best = plan
        self.outcome: Outcome | None = None
        self.runs = 0
        self._steps = 0
        self._broken = broken
        self._most = most_runs

    @property
    def spent(self) -> bool:
        return self.runs >= self._most or self._steps >= MOST_STEPS

    def keeps(self, plan: Plan) -> bool:
        """Whether a plan still breaks the property; it is then the best so far."""
        if self.spent:
            return False
        self.runs += 1
        outcome = perform(plan)
        self._steps += outcome.steps
        if not breaks(outcome, self._broken):
            return False
        self.best, self.outcome = plan, outcome
        return True

    def shorten(self) -> None:
        """Leave out episodes, large parts first."""
        kept = episodes(self.best.acts)
        size = max(1, len(kept) // 2)
        while kept and not self.spent:
            start = 0
            while start < len(kept):
                fewer = kept[:start] + kept[start + size :]
                if self.keeps(msgspec.structs.replace(self.best, acts=_in_order(fewer))):
                    kept = fewer
                else:
                    start += size
            if size == 1:
                return
            size = max(1, size // 2)

    def simplify(self) -> None:
        """Leave out what is not an act."""
        for change in (_fewer_liars, *find(self.best.system).simpler, _milder):
            for plan in change(self.best):
                if self.keeps(plan):
                    break


def _in_order(kept: Sequence[Episode]) -> tuple[Act, ...]:
    return tuple(sorted((act for episode in kept for act in episode), key=lambda act: act.at_ms))


def _fewer_liars(plan: Plan) -> Iterator[Plan]:
    for index in range(len(plan.corruptions)):
        fewer = plan.corruptions[:index] + plan.corruptions[index + 1 :]
        yield msgspec.structs.replace(plan, corruptions=fewer)


def _milder(plan: Plan) -> Iterator[Plan]:
    if plan.weather.links:
        alike = msgspec.structs.replace(plan.weather, links=())
        yield msgspec.structs.replace(plan, weather=alike)
    calm = Weather(latency_ms=1, jitter_ms=0)
    if plan.weather != calm:
        yield msgspec.structs.replace(plan, weather=calm)


def shrink(plan: Plan, broken: str, most_runs: int = MOST_RUNS) -> Shrunk | None:
    """The shortest plan found that breaks the property; None if this one does not."""
    search = _Shortening(plan, broken, most_runs)
    if not search.keeps(plan):
        return None
    size = -1
    while not search.spent and size != len(search.best.acts):
        size = len(search.best.acts)
        search.shorten()
        search.simplify()
    if search.outcome is None:
        return None
    return Shrunk(search.best, search.outcome, search.runs)


# ---------------------------------------------------------------------- files


def encode_plan(plan: Plan) -> bytes:
    """A plan as JSON; attacks of known-bad variants are code and have no such form."""
    if any(corruption.attack is not None for corruption in plan.corruptions):
        raise UsageError("a plan with attacks that are not in the catalogue cannot be written")
    lines = []
    system = {} if plan.system == CELL else {"system": plan.system}
    for name, value in (system | _told(plan)).items():
        items = value if isinstance(value, list) else ()
        if any(isinstance(item, dict) for item in items):
            rows = b",\n  ".join(map(msgspec.json.encode, items))
            lines.append(b'"%s": [\n  %s\n ]' % (name.encode(), rows))
        else:
            lines.append(b'"%s": %s' % (name.encode(), msgspec.json.encode(value)))
    return b"{\n " + b",\n ".join(lines) + b"\n}\n"


def _told(value: msgspec.Struct) -> dict[str, object]:
    """The fields of a struct that are not at their defaults, as JSON has them.

    What is left out may change its default and its name, and an old plan can still be read.
    """
    told: dict[str, object] = {}
    for field in msgspec.structs.fields(value):
        held = getattr(value, field.name)
        if held == field.default:
            continue
        if isinstance(held, msgspec.Struct):
            told[field.encode_name] = _told(held)
        elif isinstance(held, tuple) and any(isinstance(item, msgspec.Struct) for item in held):
            told[field.encode_name] = [_told(item) for item in held]
        else:
            told[field.encode_name] = msgspec.to_builtins(held)
    return told


def _no_attack(kind: object, value: object) -> Callable[..., object] | None:
    if value is None:
        return None
    raise ValueError("an attack cannot be read from a file")


class _Kind(msgspec.Struct):
    """Which system a plan is of; a cell where it does not say."""

    system: str = CELL


def decode_plan(data: bytes) -> Plan:
    """A plan that was written."""
    kind = find(msgspec.json.decode(data, type=_Kind).system).plan
    return msgspec.json.decode(data, type=kind, dec_hook=_no_attack)


def read_plan(path: Path) -> Plan:
    """A plan from a file."""
    try:
        return decode_plan(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not a plan of the simulator ({error})") from None
