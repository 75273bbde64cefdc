"""`quorumcast sim`: runs simulated scenarios and reports violated properties."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cell import CELL_SYSTEM
from quorumcast.cli.common import console, print_json
from quorumcast.cli.lab.coverage import run_coverage
from quorumcast.cli.lab.mutants import run_mutants
from quorumcast.cli.options import JsonOption, ScenarioOptions
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.sim.campaign import CampaignFindings
    from quorumcast.sim.kernel.plan import Outcome

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
        str, typer.Option(help="Plant this known-bad variant in whatever is run.")
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
            "--known-bad, --mutants, --coverage, --plan and --workload are five things; choose one"
        )
    if which.system != CELL_SYSTEM and (mutants or coverage or workload is not None):
        raise UsageError("--mutants, --coverage and --workload are for cells: leave out --system")
    if mutants:
        run_mutants(
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
        _known_bad(which.system, json_)
    elif coverage:
        run_coverage(which, seeds=SEEDS if seeds is None else seeds, steer=steer, json_=json_)
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
    planted(variant, which.system)
    done = count(1)
    with ProgressDisplay() as shown:
        report = run_campaign(
            seeds,
            which.start,
            which.one_policy,
            which.one_adversary,
            system=which.system,
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


def _known_bad(system: str, json_: bool) -> None:
    from quorumcast.sim.systems import find, try_variant

    catches = []
    variants = find(system).variants()
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
