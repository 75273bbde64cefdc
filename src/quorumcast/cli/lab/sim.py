"""`quorumcast sim`: runs simulated scenarios and reports violated properties."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cell import CELL_SYSTEM
from quorumcast.cli.common import console, print_json, table
from quorumcast.cli.options import JsonOption, ScenarioOptions
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.sim.campaign import CampaignFindings
    from quorumcast.sim.coverage.explore import Exploration
    from quorumcast.sim.coverage.states import ProtocolState
    from quorumcast.sim.kernel.plan import Outcome
    from quorumcast.sim.mutants.run import MutantReport, Result, RoomFigures

EXAMPLE = "sim --seeds 200 --policy ab+history --adversary alter"

#: Defaults: scenarios of a campaign, scenarios per planted mistake, and processes for the latter.
SEEDS, MUTANT_SEEDS, MUTANT_JOBS = 100, 500, 2
#: Failing seeds in the summary.
SHOWN = 10


def sim(
    which: ScenarioOptions,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many scenarios: 100, or with --mutants 500 for each mistake."),
    ] = None,
    known_bad: Annotated[
        bool, typer.Option("--known-bad", help="Break the code on purpose; checkers must notice.")
    ] = False,
    variant: Annotated[
        str,
        typer.Option(
            help="Plant this known-bad variant in whatever is run; with --known-bad, try it alone."
        ),
    ] = "",
    mutants: Annotated[
        bool,
        typer.Option("--mutants", help="Plant single mistakes; drawn scenarios must notice them."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="With --mutants: this mistake alone.")
    ] = None,
    room: Annotated[
        list[str] | None, typer.Option(help="With --mutants: the mistakes of this room.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="With --mutants: when to stop looking for what is left.")
    ] = 55.0,
    with_tests: Annotated[
        bool,
        typer.Option("--with-tests", help="With --mutants: unit tests for what seeds missed."),
    ] = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Say which protocol states are never reached.")
    ] = False,
    steer: Annotated[
        bool, typer.Option("--steer", help="With --coverage: prefer what reaches new states.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Carry out a plan that a campaign has made small."),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Replay a workload of 'quorumcast pipeline workload'; --start is the seed.",
        ),
    ] = None,
    events: Annotated[
        int, typer.Option(help="With --workload: the first so many events; 0 is all.")
    ] = 100,
    workers: Annotated[int, typer.Option(help="Processes; 0 is one per core.")] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write Parquet traces here, a directory per seed."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Run whole cells in the simulator: network, disks, crashes and liars drawn from a seed.

    Exit code 1 if a property was violated, or if a known-bad variant or mistake was not noticed.
    """
    if sum((known_bad, mutants, coverage, plan is not None, workload is not None)) > 1:
        raise UsageError(
            "--known-bad, --mutants, --coverage, --plan and --workload exclude each other; give one"
        )
    if which.one_system != CELL_SYSTEM and (mutants or coverage or workload is not None):
        raise UsageError(
            "--mutants, --coverage and --workload are for cells: leave out --system, and name a "
            "policy of a cell"
        )
    if mutants:
        _mutants(
            only=only or [],
            room=room or [],
            start=which.start,
            seeds=MUTANT_SEEDS if seeds is None else seeds,
            jobs=workers or MUTANT_JOBS,
            minutes=minutes,
            with_tests=with_tests,
            json_=json_,
        )
        return
    if only or room or with_tests:
        raise UsageError("--only, --room and --with-tests go with --mutants")
    if steer and not coverage:
        raise UsageError("--steer goes with --coverage")
    if coverage and (variant or trace is not None):
        raise UsageError("--coverage takes neither --variant nor --trace")
    if known_bad and trace is not None:
        raise UsageError("--known-bad leaves no traces: leave out --trace")
    if known_bad:
        _known_bad(which.one_system, variant, json_)
    elif coverage:
        _coverage(which, seeds=SEEDS if seeds is None else seeds, steer=steer, json_=json_)
    elif plan is not None:
        _plan(plan, variant, json_)
    elif workload is not None:
        _workload(workload, events, which, variant, json_)
    else:
        _campaign(which, SEEDS if seeds is None else seeds, variant, workers, trace, json_)


def _plan(path: Path, variant: str, json_: bool) -> None:
    from quorumcast.sim.shrink import read_plan
    from quorumcast.sim.systems import perform, planted

    plan = read_plan(path)
    with planted(variant, plan.system):
        outcome = perform(plan)
    if json_:
        print_json(outcome)
    else:
        what = f"{len(plan.acts)} acts, {plan.kind}, {plan.adversary or 'no adversary'}"
        _print_outcome(outcome, what)
    if outcome.violations:
        raise typer.Exit(1)


def _workload(path: Path, events: int, which: ScenarioOptions, variant: str, json_: bool) -> None:
    from quorumcast.bench.workload import read_workload
    from quorumcast.sim.cell.workload import expected, replay, workload_plan
    from quorumcast.sim.systems import planted

    if events < 0 or which.start < 0:
        raise UsageError("--events and --start are 0 or more")
    workload = read_workload(path)
    some = [(event.at_ms, event.node, event.topic) for event in workload.events(events)]
    plan = workload_plan(
        some,
        workload.subscribers,
        seed=which.start,
        policy=which.one_policy or "ab+history",
        adversary=which.one_adversary or "none",
    )
    with (
        planted(variant),
        ProgressDisplay(f"{len(some):,} events of {workload.header.name}"),
    ):
        found = replay(plan, expected(some, workload.subscribers))
    outcome = found.outcome
    if json_:
        print_json(found)
    else:
        _print_outcome(
            outcome,
            f"{found.events:,} events, {outcome.deliveries:,} of {found.expected:,} deliveries, "
            f"{outcome.policy}",
        )
    if outcome.violations:
        raise typer.Exit(1)


def _print_outcome(outcome: Outcome, what: str) -> None:
    out = console()
    colour = "red" if outcome.violations else "green"
    out.print(
        f"[{colour}]{len(outcome.violations)} violations[/]: {what}, "
        f"{outcome.simulated_ms / 1000:,.1f} simulated seconds, {outcome.messages:,} messages"
    )
    for violation in outcome.violations[:SHOWN]:
        out.print(f"{violation.property}: {violation.detail}", markup=False)


def _campaign(
    which: ScenarioOptions,
    seeds: int,
    variant: str,
    workers: int,
    trace: Path | None,
    json_: bool,
) -> None:
    from quorumcast.sim.campaign import run_campaign
    from quorumcast.sim.systems import planted

    if seeds < 1 or which.start < 0 or workers < 0:
        raise UsageError("--seeds is 1 or more, --start and --workers 0 or more")
    planted(variant, which.one_system)
    done = count(1)
    with ProgressDisplay() as shown:
        report = run_campaign(
            seeds,
            which.start,
            which.one_policy,
            which.one_adversary,
            system=which.one_system,
            variant=variant,
            workers=workers or None,
            progress=lambda _: shown(f"{next(done):,} of {seeds:,} scenarios"),
            trace=trace,
        )
    if json_:
        print_json(report)
    else:
        _print(report)
    if report.violations:
        raise typer.Exit(1)


def _print(report: CampaignFindings) -> None:
    out = console()
    colour = "red" if report.violations else "green"
    out.print(
        f"[{colour}]{report.violations} violations[/] in {report.scenarios:,} scenarios: "
        f"{report.simulated_s:,.0f} simulated seconds, {report.messages:,} messages, "
        f"{report.faults_injected:,} faults, {report.evidence:,} pieces of evidence, "
        f"{report.false_accusations} false accusations"
    )
    for failure in report.failures[:SHOWN]:
        out.print(f"{failure.property}: {failure.detail}", markup=False)
        out.print(f"  {failure.replay}", markup=False)


def _known_bad(system: str, only: str, json_: bool) -> None:
    from quorumcast.sim.systems import find, try_variant, variant_named

    catches = []
    variants = [variant_named(only, system)] if only else find(system).variants()
    with ProgressDisplay() as shown:
        for variant in variants:
            catches.append(try_variant(variant))
            shown(f"{len(catches)} of {len(variants)} variants")
    missed = [catch for catch in catches if not (catch.caught and catch.clean)]
    if json_:
        print_json(
            {
                "variants": len(catches),
                "caught": len(catches) - len(missed),
                "catches": catches,
            }
        )
    else:
        out = console()
        for catch in catches:
            verdict = f"caught by {catch.by}" if catch.caught else "NOT CAUGHT"
            unfair = "" if catch.clean else ", but the correct code fails as well"
            out.print(f"{catch.name:32} {verdict}{unfair}", markup=False)
        out.print(f"{len(catches) - len(missed)} of {len(catches)} caught")
    if missed:
        raise typer.Exit(1)


# --------------------------------------------------------------------- coverage


def _coverage(which: ScenarioOptions, *, seeds: int, steer: bool, json_: bool) -> None:
    """Run scenarios and print the reached states; exit code 1 if a property was violated."""
    from quorumcast.manifest.policy import POLICY_NAMES
    from quorumcast.sim.campaign import replay_of
    from quorumcast.sim.coverage.explore import explore
    from quorumcast.sim.coverage.states import known_states

    if seeds < 1 or which.start < 0:
        raise UsageError("--seeds is 1 or more, --start 0 or more")
    with ProgressDisplay() as shown:
        exploration = explore(
            seeds,
            which.start,
            which.one_policy,
            which.one_adversary,
            steer=steer,
            progress=lambda so_far: shown(
                f"{so_far.scenarios:,} of {seeds:,} scenarios, "
                f"{len(so_far.transitions):,} transitions"
            ),
        )
    policies = POLICY_NAMES if which.one_policy is None else (which.policy,)
    unreached = exploration.unreached(policies)
    known = sum(state.policy in policies for state in known_states())
    replays = [replay_of(outcome) for outcome in exploration.failed]
    if json_:
        print_json(
            {
                "scenarios": exploration.scenarios,
                "transitions": len(exploration.transitions),
                "growth": exploration.growth,
                "known_states": known,
                "unreached": unreached,
                "violations": len(replays),
                "failures": replays,
            }
        )
    else:
        _print_coverage(exploration, known, unreached, replays)
    if replays:
        raise typer.Exit(1)


def _print_coverage(
    exploration: Exploration, known: int, unreached: list[ProtocolState], replays: list[str]
) -> None:
    out = console()
    colour = "red" if replays else "green"
    out.print(
        f"[{colour}]{len(replays)} violations[/] in {exploration.scenarios:,} scenarios; "
        f"{len(exploration.transitions):,} distinct transitions; "
        f"{known - len(unreached)} of {known} known states reached"
    )
    for outcome, replay in zip(exploration.failed, replays, strict=True):
        first = outcome.violations[0]
        out.print(f"{first.property}: {first.detail}", markup=False)
        out.print(f"  {replay}", markup=False)
    grouped: dict[tuple[str, str], list[str]] = {}
    for state in unreached:
        grouped.setdefault((state.role, state.what), []).append(state.policy)
    if grouped:
        out.print("never reached:")
    for (role, what), policies in grouped.items():
        out.print(f"  {role:10} {what:32} {', '.join(policies)}", markup=False, highlight=False)


# ---------------------------------------------------------------------- mutants


def _mutants(
    *,
    only: list[str],
    room: list[str],
    start: int,
    seeds: int,
    jobs: int,
    minutes: float,
    with_tests: bool,
    json_: bool,
) -> None:
    """Run the catalogue and print what noticed each mistake; exit code 1 if nothing noticed one."""
    from quorumcast.sim.mutants.run import Hunt, entries

    if seeds < 1 or start < 0 or jobs < 1 or minutes <= 0:
        raise UsageError("--seeds and --jobs are 1 or more, --start 0 or more, --minutes above 0")
    tests = _tests_directory() if with_tests else None
    with ProgressDisplay() as shown:
        hunt = Hunt(
            entries(room, only),
            start=start,
            seeds=seeds,
            jobs=jobs,
            minutes=minutes,
            tests=tests,
            progress=shown,
        )
        report = hunt.run()
    if json_:
        print_json(_mutants_json(report))
    else:
        _print_mutants(report, seeds)
    if report.failed:
        raise typer.Exit(1)


def _tests_directory() -> Path:
    from quorumcast.sim.mutants.mistakes import PACKAGE

    found = PACKAGE.parents[1] / "tests"
    if not found.is_dir():
        raise UsageError(
            "--with-tests needs the tests of the source tree; run it from a checkout that is "
            "installed with 'make install'"
        )
    return found


def _mutants_json(report: MutantReport) -> object:
    rooms = {room: _share(share) for room, share in report.rooms.items()}
    return {**msgspec.to_builtins(report), "rooms": rooms, "total": _share(report.total)}


def _share(share: RoomFigures) -> dict[str, object]:
    return {**msgspec.to_builtins(share), "percent": round(share.percent, 1)}


def _print_mutants(report: MutantReport, seeds: int) -> None:

    out = console()
    for result in report.results:
        out.print(_mutant_line(result), markup=False, highlight=False, soft_wrap=True)
    shown = table("room", "mistakes", "equivalent", "caught", "%", "by plan", "by test", "missed")
    for room, share in [*report.rooms.items(), ("all", report.total)]:
        shown.add_row(
            *(room, str(share.mistakes), str(share.equivalent), str(share.caught)),
            *(f"{share.percent:.0f}", str(share.by_plan), str(share.by_test), str(share.missed)),
        )
    out.print(shown)
    out.print(
        f"{report.total.caught} of {report.total.mistakes - report.total.equivalent} caught by at "
        f"most {seeds} drawn scenarios each, in {report.seconds / 60:.1f} minutes",
        highlight=False,
    )
    for seed, policy in report.unclean:
        out.print(
            f"the code as it is fails too, so this proves nothing: "
            f"quorumcast sim --start {seed} --seeds 1 --policy {policy}",
            markup=False,
        )
    if any(result.verdict.value == "not finished" for result in report.results):
        out.print("time was up before all scenarios were tried: raise --minutes, or lower --seeds")


def _mutant_line(result: Result) -> str:
    said = f"{result.id:36} {result.verdict.value}"
    if result.by is not None:
        said += f" by {result.by.by}"
        if result.by.seed >= 0:
            said += f", seed {result.by.seed}, {result.by.policy}, {result.by.adversary}"
    elif result.verdict.value not in ("equivalent", "broken"):
        said += f" by {result.scenarios} scenarios, of which {result.reached} met it"
    if result.by is None:
        said += f": {result.reason or result.why}"
    return said
