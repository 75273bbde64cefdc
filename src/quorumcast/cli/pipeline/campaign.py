"""`quorumcast pipeline campaign`: runs simulated scenarios on the executors of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.common import console, print_json
from quorumcast.cli.options import JsonOption, MasterOption, ScenarioOptions
from quorumcast.cli.progress import ProgressDisplay

if TYPE_CHECKING:
    from quorumcast.pipeline.campaign.run import CampaignResult

EXAMPLE = "pipeline campaign --scenarios 20000 --output nightly --json"

#: Failures in the summary.
SHOWN = 10


def campaign(
    output: Annotated[Path, typer.Option("--output", "-o", help="A new directory for results.")],
    which: ScenarioOptions,
    scenarios: Annotated[int, typer.Option(help="How many seeds.")] = 1000,
    known_bad: Annotated[
        str,
        typer.Option(
            metavar="VARIANT", help="Plant a mistake of 'docs/simulator.md'; it must be found."
        ),
    ] = "",
    master: MasterOption = None,
    json_: JsonOption = False,
) -> None:
    """Run simulated scenarios on Spark; write all results, and a shrunk plan of each failure.

    Exit code 1 if any property was violated; with --known-bad, if the mistake was not found.
    """
    from quorumcast.pipeline.campaign.run import Campaign, prepare_directory, run_campaign
    from quorumcast.pipeline.campaign.scenarios import ScenarioChoice
    from quorumcast.pipeline.session import spark_session

    choice = ScenarioChoice(
        system=which.one_system,
        policy=which.one_policy,
        adversary=which.one_adversary,
        variant=known_bad,
    )
    chosen = Campaign(scenarios=scenarios, start=which.start, choice=choice)
    chosen.check()
    prepare_directory(output)
    with ProgressDisplay("starting Spark") as shown:

        def tell(done: int, bad: int, seconds: float) -> None:
            rate = done / seconds if seconds else 0.0
            shown(f"{done:,} of {scenarios:,} scenarios, {rate:,.1f}/s, {bad:,} violations")

        # Brief, however long it takes: the simulator is Python, and Java hands out seeds.
        spark = spark_session("campaign", master=master)
        report = run_campaign(spark, chosen, output, tell, shown.say)
    if json_:
        print_json(report)
    else:
        _print(report)
    if bool(report.violations) != bool(known_bad):
        raise typer.Exit(1)


def _print(report: CampaignResult) -> None:
    out = console()
    colour = "red" if report.violations else "green"
    planted = f" with {report.variant} planted" if report.variant else ""
    out.print(
        f"[{colour}]{report.violations:,} violations[/] in {report.scenarios:,} scenarios{planted}"
        f", {report.scenarios_per_s:,.2f} scenarios/s: {report.simulated_s:,.0f} simulated "
        f"seconds, {report.messages:,} messages, {report.faults_injected:,} faults, "
        f"{report.evidence:,} pieces of evidence, {report.false_accusations} false accusations"
    )
    for failure in report.failures[:SHOWN]:
        out.print(f"{failure.property}, {failure.count:,} times: {failure.detail}", markup=False)
        out.print(f"  {failure.replay}", markup=False)
        if failure.replay_plan:
            left = f"  # {failure.acts_left} of {failure.acts} acts"
            out.print(f"  {failure.replay_plan}{left}", markup=False, soft_wrap=True)
    rest = len(report.failures[SHOWN:]) + report.others
    if rest:
        out.print(f"and {rest:,} more ways to fail; see {report.output}/results", markup=False)
