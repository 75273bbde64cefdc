"""A worker process with one mistake: it runs drawn scenarios, or tests, until one fails.

It compiles the changed module by an import hook, so it imports protocol code only afterwards.

    python -m quorumcast.sim.mutants.worker TASK        TASK is JSON; the answer is one JSON line

Processor time and memory of a scenario are limited. A machine that exceeds a limit raises, and the
run reports that as a violation of Robustness.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, FrameType, ModuleType

import msgspec

from quorumcast.core.errors import UsageError, ensure
from quorumcast.sim.mutants.mistakes import Mistake, mistake_named, read_catalogue
from quorumcast.sim.mutants.probing import collect_probes, probed

#: Processor time of one scenario (many times that of the slowest), and memory of a worker.
SCENARIO_S = 30.0
MEMORY_BYTES = 4 << 30


#: Seed and policy of a drawn scenario.
Drawn = tuple[int, str]


class MutantTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task for a worker."""

    #: An id of the catalogue, or the name of a known-bad variant; empty: the unchanged code.
    name: str = ""
    known_bad: bool = False
    #: Scenarios to run until one violates a property.
    drawn: tuple[Drawn, ...] = ()
    #: With ids of the catalogue: find out instead which of them these scenarios reach.
    reach: tuple[str, ...] = ()
    #: Deadline, by `time.time()`.
    until: float = 0.0
    #: The process that waits for the answer; 0: not known.
    parent: int = 0
    #: Arguments for pytest; with them tests are run, and no scenarios.
    tests: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether there is no time for another scenario, or nobody waits for the answer."""
        return time.time() > self.until or self.parent not in (0, os.getppid())


class Caught(msgspec.Struct, frozen=True):
    """The violation or failed test that caught a mistake."""

    #: The violated property, or the failed test.
    by: str
    detail: str = ""
    seed: int = -1
    policy: str = ""
    adversary: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A worker's result."""

    tried: int
    caught: Caught | None = None
    #: The mistakes that each scenario reached.
    reached: list[list[str]] = []


# --------------------------------------------------- modules with changed source


class _Loader(SourceFileLoader):
    """Compiles the given source; neither reads nor writes cached bytecode."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._trees = trees

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._trees:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._trees[fullname])
        return spec


def import_instead(trees: Mapping[str, ast.Module]) -> None:
    """Compile these modules from the given trees when they are imported; none may be loaded yet."""
    early = trees.keys() & sys.modules.keys()
    ensure(not early, f"imported already: {', '.join(early)}")
    sys.meta_path.insert(0, _Finder(trees))


# --------------------------------------------------------------- scenarios and tests


class Hangs(Exception):
    """A scenario that takes far too long."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hangs` in code that takes more processor time than this."""

    def over(number: int, frame: FrameType | None) -> None:
        raise Hangs(f"it hangs: more than {seconds:.0f} s of processor time")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_scenarios(task: MutantTask) -> Answer:
    """Run drawn scenarios until a checker reports a violation."""
    from quorumcast.sim.systems import run_scenario

    for tried, (seed, policy) in enumerate(task.drawn):
        if task.is_over:
            return Answer(tried)
        try:
            with limited(SCENARIO_S):
                outcome = run_scenario(seed, policy)
        except Exception as error:  # raised before the run starts, where no checker sees it
            found = Caught("Robustness", f"{type(error).__name__}: {error}", seed, policy)
            return Answer(tried + 1, found)
        for first in outcome.violations[:1]:
            found = Caught(first.property, first.detail, seed, policy, outcome.adversary)
            return Answer(tried + 1, found)
    return Answer(len(task.drawn))


def find_reached(task: MutantTask) -> Answer:
    """Find the mistakes that drawn scenarios reach on the unchanged code."""
    wanted, fitting = frozenset(task.reach), dict[str, list[Mistake]]()
    for mistake in (one for one in read_catalogue() if one.id in wanted):
        with suppress(UsageError):  # an outdated entry is reported when it is planted
            mistake.source()
            fitting.setdefault(mistake.module, []).append(mistake)
    import_instead({name: probed(some[0].text(), some) for name, some in fitting.items()})
    probes = collect_probes()
    from quorumcast.sim.systems import run_scenario

    reached: list[list[str]] = []
    for seed, policy in task.drawn:
        if task.is_over:
            break
        probes.clear()
        run_scenario(seed, policy)
        reached.append(list(probes))
    return Answer(len(reached), reached=reached)


def run_tests(task: MutantTask) -> Answer:
    """Run tests until one fails."""
    import pytest

    failed: list[Caught] = []

    class Failures:
        def pytest_runtest_logreport(
            self, report: pytest.TestReport | pytest.CollectReport
        ) -> None:
            if report.failed:
                failed.append(Caught(report.nodeid))

        pytest_collectreport = pytest_runtest_logreport

    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header"]
    # Otherwise pytest imports this package, which has a plugin for it, by a hook of its own.
    options.append("--assert=plain")
    code = pytest.main([*options, *task.tests], plugins=[Failures()])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not failed:
        raise UsageError(f"pytest ended with {code!r}")
    return Answer(len(task.tests), failed[0] if failed else None)


def carry_out(task: MutantTask) -> Answer:
    """Plant the mistake, then run the task's scenarios or tests."""
    if task.reach:
        return find_reached(task)
    planted: AbstractContextManager[None] = nullcontext()
    if task.known_bad:
        from quorumcast.sim.systems import planted as plant_variant

        planted = plant_variant(task.name)
    elif task.name:
        mistake = mistake_named(task.name)
        import_instead({mistake.module: ast.parse(mistake.source())})
    with planted:
        return run_tests(task) if task.tests else run_scenarios(task)


def main() -> None:
    """Read the task, answer on standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    answer = carry_out(msgspec.json.decode(sys.argv[1], type=MutantTask))
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
