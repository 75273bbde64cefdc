"""The hunt: it tries every mistake and known-bad variant, and reports what caught each.

The hunt works in rounds, so that a bounded time is well spent: a few scenarios for every mistake,
then more for the survivors. Each round first finds, on the unchanged code, the scenarios in which a
mistake makes a difference, and runs only those (`probing`). After the last round each surviving
known-bad variant is tried with its own attack, and, if asked for, each surviving mistake with the
unit tests that name its module.
"""

from __future__ import annotations

import enum
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.manifest.policy import POLICY_NAMES, RELAYED_NAMES
from quorumcast.sim.cell.known_bad.catalogue import VARIANTS
from quorumcast.sim.mutants.mistakes import PACKAGE, Mistake, chosen_policies, read_catalogue
from quorumcast.sim.mutants.worker import Answer, Caught, Drawn, MutantTask
from quorumcast.sim.systems import run_scenario, try_variant

Item = TypeVar("Item")

KNOWN_BAD = "known-bad"
#: Scenarios per mistake after each round but the last one.
ROUNDS = (30, 120)
#: Scenarios that one process probes.
CHUNK = 50
#: Scenarios for a mistake that is judged equivalent, to test that judgement; and for a known-bad
#: variant, which has an attack of its own.
FOR_EQUIVALENT, FOR_KNOWN_BAD = 30, 120


class MutantVerdict(enum.Enum):
    """The result for one mistake."""

    #: Caught by a drawn scenario.
    CAUGHT = "caught"
    #: Caught by the attack that was written for the known-bad variant.
    BY_PLAN = "caught by its plan"
    BY_TEST = "caught by a unit test"
    #: Not caught, for a reason that the catalogue gives.
    EXPECTED = "missed, as the catalogue says"
    MISSED = "missed"
    #: Not caught, and the time was up before all scenarios were tried.
    UNFINISHED = "not finished"
    EQUIVALENT = "equivalent"
    #: Judged equivalent, and caught all the same.
    NOT_EQUIVALENT = "not equivalent"
    #: The worker process ended without an answer.
    BROKEN = "broken"


BAD = (
    MutantVerdict.MISSED,
    MutantVerdict.UNFINISHED,
    MutantVerdict.NOT_EQUIVALENT,
    MutantVerdict.BROKEN,
)


#: The field of `RoomFigures` that counts each verdict; all others count as missed.
FIGURE_OF = {
    MutantVerdict.CAUGHT: "caught",
    MutantVerdict.BY_PLAN: "by_plan",
    MutantVerdict.BY_TEST: "by_test",
    MutantVerdict.EQUIVALENT: "equivalent",
    MutantVerdict.NOT_EQUIVALENT: "equivalent",
}


class MutantEntry(msgspec.Struct, frozen=True):
    """A mistake of the catalogue, or a known-bad variant."""

    id: str
    room: str
    why: str
    policies: tuple[str, ...]
    mistake: Mistake | None = None

    @property
    def known_bad(self) -> bool:
        """Whether this is a known-bad variant, which has an attack of its own."""
        return self.mistake is None

    @property
    def equivalent(self) -> bool:
        """Whether the catalogue judges the mistake equivalent to the original."""
        return self.mistake is not None and bool(self.mistake.equivalent)

    def depth(self, seeds: int) -> int:
        """The number of scenarios to try, of at most `seeds`."""
        if self.equivalent:
            return min(seeds, FOR_EQUIVALENT)
        return min(seeds, FOR_KNOWN_BAD) if self.known_bad else seeds


class Result(msgspec.Struct):
    """The result for one entry."""

    id: str
    room: str
    why: str
    verdict: MutantVerdict = MutantVerdict.UNFINISHED
    #: Drawn scenarios that were tried, including the one that caught it.
    scenarios: int = 0
    #: Those of them in which it makes a difference; for known-bad variants, all.
    reached: int = 0
    by: Caught | None = None
    #: The catalogue's reason why it is equivalent, or missed by drawn scenarios.
    reason: str = ""


class RoomFigures(msgspec.Struct, kw_only=True):
    """The figures of one room."""

    mistakes: int = 0
    equivalent: int = 0
    caught: int = 0
    by_plan: int = 0
    by_test: int = 0
    missed: int = 0

    @property
    def percent(self) -> float:
        """The percentage of non-equivalent mistakes that drawn scenarios caught."""
        return 100 * self.caught / max(1, self.mistakes - self.equivalent)


class MutantReport(msgspec.Struct, kw_only=True):
    """The results of a hunt."""

    results: list[Result]
    seconds: float
    rooms: dict[str, RoomFigures]
    total: RoomFigures
    #: Seeds at which the unchanged code violates a property: they prove nothing and were skipped.
    unclean: list[tuple[int, str]]

    @property
    def failed(self) -> list[Result]:
        """Results that need attention."""
        return [result for result in self.results if result.verdict in BAD]


def entries(rooms: Sequence[str] = (), only: Sequence[str] = ()) -> list[MutantEntry]:
    """The entries of these rooms and ids; all entries if neither is given."""
    found = [
        MutantEntry(
            m.id, m.room, m.why, chosen_policies(m.policies, POLICY_NAMES, RELAYED_NAMES), m
        )
        for m in read_catalogue()
    ]
    found += [
        MutantEntry(variant.name, KNOWN_BAD, variant.mistake, (variant.attack(0).kind,))
        for variant in VARIANTS
    ]
    _check_choice("room", rooms, {entry.room for entry in found})
    _check_choice("mistake", only, {entry.id for entry in found})
    chosen = [entry for entry in found if entry.room in rooms or entry.id in only]
    return chosen if rooms or only else found


def in_turn(chosen: Sequence[MutantEntry]) -> list[MutantEntry]:
    """The same entries with the rooms interleaved, so that a short hunt covers all rooms."""
    sizes = Counter(entry.room for entry in chosen)
    places = Counter[str]()
    shares: dict[str, float] = {}
    for entry in chosen:
        shares[entry.id] = places[entry.room] / sizes[entry.room]
        places[entry.room] += 1
    return sorted(chosen, key=lambda entry: shares[entry.id])


def _check_choice(what: str, asked: Iterable[str], known: set[str]) -> None:
    for name in asked:
        if name not in known:
            raise UsageError(f"there is no {what} {name!r}; {did_you_mean(name, sorted(known))}")


class Hunt:
    """One pass over a list of entries."""

    def __init__(
        self,
        chosen: Sequence[MutantEntry],
        *,
        start: int = 0,
        seeds: int = 500,
        jobs: int = 2,
        minutes: float = 55.0,
        tests: Path | None = None,
        progress: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self._entries = in_turn(chosen)
        self._start = start
        self._seeds = seeds
        self._jobs = jobs
        self._began = time.time()
        self._until = self._began + 60 * minutes
        self._tests = tests
        self._progress = progress
        self._results = {entry.id: Result(entry.id, entry.room, entry.why) for entry in chosen}
        #: The mistakes that each probed scenario reaches.
        self._reached: dict[Drawn, frozenset[str]] = {}
        #: Error messages of failed worker processes, by entry.
        self._broken: dict[str, str] = {}
        #: Whether the unchanged code passes a scenario, for the scenarios tried so far.
        self._clean: dict[tuple[int, str], bool] = {}
        self._lock = threading.Lock()

    def run(self) -> MutantReport:
        """Run all rounds and return the report."""
        depths = [*(depth for depth in ROUNDS if depth < self._seeds), self._seeds]
        for depth in depths:
            self._find_reached(depth)
            self._each(f"up to {depth} scenarios", partial(self._try_scenarios, depth=depth))
        for entry in self._entries:
            self._judge(entry)
        left = self._left()
        for number, entry in enumerate(left, 1):
            if entry.known_bad:
                self._progress(f"{number} of {len(left)}: the attack of {entry.id}")
                self._try_own_attack(entry)
        if self._tests is not None:
            self._each("unit tests", self._try_tests)
        return self._report()

    def _left(self) -> list[MutantEntry]:
        """The surviving entries, those that scenarios reach most often first."""
        left = [
            entry
            for entry in self._entries
            if self._results[entry.id].by is None and entry.id not in self._broken
        ]
        return sorted(left, key=lambda entry: -self._results[entry.id].reached)

    def _in_parallel(self, act: Callable[[Item], None], items: Iterable[Item]) -> None:
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(act, items))  # raises what an act raised

    def _each(self, what: str, act: Callable[[MutantEntry], None]) -> None:
        """Do something with every surviving entry, and show progress."""
        left = self._left()
        done = 0

        def one(entry: MutantEntry) -> None:
            nonlocal done
            try:
                act(entry)
            except UsageError as error:
                self._broken[entry.id] = str(error)
            with self._lock:
                done += 1
                caught = sum(result.by is not None for result in self._results.values())
                self._progress(
                    f"{what}: {done} of {len(left)} mistakes tried, "
                    f"{caught} of {len(self._entries)} caught"
                )

        self._in_parallel(one, left)

    # ---------------------------------------------------------------- scenarios

    def _drawn(self, entry: MutantEntry, first: int, depth: int) -> list[Drawn]:
        """The scenarios of an entry in the range [first, depth); its policies take turns."""
        seeds = range(self._start + first, self._start + entry.depth(depth))
        return [(seed, entry.policies[seed % len(entry.policies)]) for seed in seeds]

    def _find_reached(self, depth: int) -> None:
        """Probe the scenarios of a round for the mistakes that they reach."""
        left = [entry for entry in self._left() if not entry.known_bad]
        wanted = {
            drawn: None
            for entry in left
            for drawn in self._drawn(entry, self._results[entry.id].scenarios, depth)
            if drawn not in self._reached
        }
        # No later round asks for another mistake.
        names = tuple(entry.id for entry in left)
        parts = [list(wanted)[i : i + CHUNK] for i in range(0, len(wanted), CHUNK)]

        def probe(part: list[Drawn]) -> None:
            if time.time() < self._until:
                answer = work(MutantTask(drawn=tuple(part), reach=names, until=self._until))
                with self._lock:
                    self._reached |= dict(zip(part, map(frozenset, answer.reached), strict=False))
                    known, lacking = len(self._reached), len(wanted)
                    self._progress(f"what scenarios reach: {known} known, {lacking} were lacking")

        self._in_parallel(probe, parts)

    def _try_scenarios(self, entry: MutantEntry, depth: int) -> None:
        """Try scenarios up to a total of `depth`, or until one catches the mistake.

        Scenarios that do not reach the mistake count as tried.
        """
        result = self._results[entry.id]
        if entry.mistake is not None:
            entry.mistake.source()  # raises here if the entry does not fit the code
        while time.time() < self._until:
            coming = self._drawn(entry, result.scenarios, depth)
            everything = frozenset((entry.id,)) if entry.known_bad else frozenset()
            chosen = [d for d in coming if entry.id in self._reached.get(d, everything)]
            task = MutantTask(
                name=entry.id, known_bad=entry.known_bad, drawn=tuple(chosen), until=self._until
            )
            answer = work(task) if chosen else Answer(0)
            result.reached += answer.tried
            if answer.tried < len(chosen):
                last = chosen[answer.tried - 1][0] + 1 if answer.tried else 0
                result.scenarios = max(result.scenarios, last - self._start)
            else:
                result.scenarios += len(coming)
            if answer.caught is None:
                return
            result.scenarios = answer.caught.seed + 1 - self._start
            if self._is_clean(answer.caught):
                result.by = answer.caught
                return

    def _is_clean(self, caught: Caught) -> bool:
        """Whether the unchanged code passes the scenario that caught a mistake."""
        key = (caught.seed, caught.policy)
        with self._lock:
            if key not in self._clean:
                self._clean[key] = not run_scenario(*key).violations
            return self._clean[key]

    def _judge(self, entry: MutantEntry) -> None:
        """Set the verdict after all scenarios."""
        result = self._results[entry.id]
        if entry.mistake is not None:
            result.reason = entry.mistake.equivalent or entry.mistake.missed
        if result.by is not None:
            caught = MutantVerdict.CAUGHT
            result.verdict = MutantVerdict.NOT_EQUIVALENT if entry.equivalent else caught
        elif entry.equivalent:
            result.verdict = MutantVerdict.EQUIVALENT
        elif result.reason:
            result.verdict = MutantVerdict.EXPECTED
        elif result.scenarios >= entry.depth(self._seeds):
            result.verdict = MutantVerdict.MISSED

    # ------------------------------------------------------------ plans and tests

    def _try_own_attack(self, entry: MutantEntry) -> None:
        variant = next(variant for variant in VARIANTS if variant.name == entry.id)
        catch = try_variant(variant)
        if catch.caught and catch.clean:
            result = self._results[entry.id]
            policy = entry.policies[0]
            result.by = Caught(catch.by, "", catch.seed, policy, "its own plan")
            result.verdict = MutantVerdict.BY_PLAN

    def _try_tests(self, entry: MutantEntry) -> None:
        mistake = entry.mistake
        if mistake is None or mistake.equivalent or self._tests is None:
            return
        for tests in test_files(self._tests, mistake):
            caught = work(MutantTask(name=entry.id, tests=tests)).caught
            if caught is not None and work(MutantTask(name="", tests=(caught.by,))).caught is None:
                result = self._results[entry.id]
                result.by, result.verdict = caught, MutantVerdict.BY_TEST
                return

    # ------------------------------------------------------------------- figures

    def _report(self) -> MutantReport:
        rooms: dict[str, RoomFigures] = {}
        total = RoomFigures()
        results = list(self._results.values())
        for name, said in self._broken.items():
            self._results[name].verdict, self._results[name].reason = MutantVerdict.BROKEN, said
        for result in results:
            figure = FIGURE_OF.get(result.verdict, "missed")
            for figures in (rooms.setdefault(result.room, RoomFigures()), total):
                figures.mistakes += 1
                setattr(figures, figure, getattr(figures, figure) + 1)
        unclean = [key for key, clean in self._clean.items() if not clean]
        seconds = round(time.time() - self._began, 1)
        return MutantReport(
            results=results, seconds=seconds, rooms=rooms, total=total, unclean=unclean
        )


def work(task: MutantTask) -> Answer:
    """Run a task in a worker process and return its answer."""
    command = [sys.executable, "-m", "quorumcast.sim.mutants.worker"]
    task = msgspec.structs.replace(task, parent=os.getpid())
    done = subprocess.run(
        [*command, msgspec.json.encode(task).decode()],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parents[1] if task.tests else None,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise UsageError(f"the process for {task.name!r} failed and said: {said}")
    return msgspec.json.decode(lines[-1], type=Answer)


def test_files(tests: Path, mistake: Mistake) -> list[tuple[str, ...]]:
    """The tests that name the module of a mistake, then the other tests of its room."""
    room, name = mistake.module.split(".", 2)[1:]
    spellings = (mistake.module, f"from quorumcast.{room} import {name}")
    paths = sorted(path for path in tests.rglob("test_*.py") if path.parent.name != "sim")
    naming = [
        path
        for path in paths
        if path.parent.name not in ("runtime", "pipeline", "cli")
        and any(spelling in path.read_text(encoding="utf-8") for spelling in spellings)
    ]
    others = [path for path in paths if path.parent.name == room and path not in naming]
    return [tuple(map(str, some)) for some in (naming, others) if some]
