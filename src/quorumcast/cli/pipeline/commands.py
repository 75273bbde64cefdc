"""The commands of `quorumcast pipeline`."""

from __future__ import annotations

from quorumcast.cli.options import Commands
from quorumcast.cli.pipeline import audit, bench, campaign, evaluate, monitor, workload
from quorumcast.cli.pipeline.sentences import sentences

app = Commands(
    no_args_is_help=True,
    help="Workloads, evaluation, audit and more on Spark; install the extra 'spark'.",
)


@app.callback()
def _main() -> None:
    """Workloads, evaluation, audit and more on Spark; install the extra 'spark'."""


app.command(example=bench.EXAMPLE)(sentences()(bench.bench))
app.command(example=evaluate.EXAMPLE)(sentences()(evaluate.evaluate))
app.command(example=audit.EXAMPLE)(sentences()(audit.audit))
app.add_typer(workload.app, name="workload")
app.command("campaign", example=campaign.EXAMPLE)(sentences()(campaign.campaign))
app.add_typer(monitor.app, name="monitor")
