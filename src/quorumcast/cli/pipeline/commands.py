"""The commands of `quorumcast pipeline`."""

from __future__ import annotations

import typer

from quorumcast.cli.pipeline import audit, bench, campaign, evaluate, monitor, workload

app = typer.Typer(
    no_args_is_help=True,
    help="Workloads, evaluation, audit and more on Spark; install the extra 'spark'.",
)


@app.callback()
def _main() -> None:
    """Workloads, evaluation, audit and more on Spark; install the extra 'spark'."""


app.command(epilog=bench.EXAMPLE)(bench.bench)
app.command(epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command(epilog=audit.EXAMPLE)(audit.audit)
app.add_typer(workload.app, name="workload")
app.command("campaign", epilog=campaign.EXAMPLE)(campaign.campaign)
app.add_typer(monitor.app, name="monitor")
