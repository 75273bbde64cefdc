"""`quorumcast pipeline evaluate`: computes figures and a report from traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.common import console, print_json, table
from quorumcast.cli.options import JsonOption, MasterOption
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.pipeline.evaluation.model import Evaluation, ScenarioResult

EXAMPLE = "pipeline evaluate traces --output report.html"


def evaluate(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Directories with traces of 'bench' or 'sim', at any depth."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML report here.")
    ] = None,
    master: MasterOption = None,
    json_: JsonOption = False,
) -> None:
    """Latency, throughput, coverage, messages, hops and the cost of faults, from traces.

    Runs of one scenario are combined. The cost of a fault needs a trace of the same scenario
    without it. Percentiles are within 0.05 %, all other figures exact.
    """
    from quorumcast.pipeline.evaluation.runs import find_traces
    from quorumcast.pipeline.evaluation.summary import evaluate
    from quorumcast.pipeline.session import spark_session

    if output is not None and (output.is_dir() or not output.resolve().parent.is_dir()):
        raise UsageError(f"{output} cannot be written: name a file in a directory that exists")
    found = find_traces(traces)
    rows = sum(trace.rows for trace in found)
    with ProgressDisplay("starting Spark") as shown:
        spark = spark_session("quorumcast evaluate", master=master)
        shown(f"reading {rows:,} rows of {len(found):,} traces")
        evaluation = evaluate(spark, found)
    if output is not None:
        from quorumcast.pipeline.evaluation.page import page

        output.write_text(page(evaluation), encoding="utf-8")
    if json_:
        print_json(evaluation)
    else:
        _print(evaluation)
        if output is not None:
            console().print(f"Report: {output}", highlight=False)


def _print(evaluation: Evaluation) -> None:
    console().print(_figures(evaluation))
    for shown in (_costs(evaluation), _documents(evaluation)):
        if shown.row_count:
            console().print(shown)


def _figures(evaluation: Evaluation) -> Table:
    shown = table(
        "scenario",
        right=(
            *("runs", "publications/s", "mean ± dev. ms", "50 %", "90 %", "99 %", "max."),
            *("coverage", "by history", "hops", "messages", "bytes"),
        ),
        title=f"{evaluation.rows:,} rows of {evaluation.traces:,} traces",
        caption="messages and bytes per delivery; red: not everything that was owed arrived",
    )
    for line in evaluation.lines:
        shown.add_row(*_row(line), style="" if line.delivered == line.owed else "red")
    return shown


def _row(line: ScenarioResult) -> list[str]:
    from quorumcast.charts.formatting import amount, percent

    latency = line.latency
    return [
        line.name,
        f"{line.runs:,}",
        f"{line.publications_per_s:,.0f}",
        f"{amount(latency.mean)} ± {amount(latency.deviation)}",
        amount(latency.p50),
        amount(latency.p90),
        amount(latency.p99),
        amount(latency.most),
        percent(line.coverage),
        percent(line.by_history_share),
        amount(line.mean_hops),
        amount(line.messages_per_delivery),
        amount(line.bytes_per_delivery),
    ]


def _costs(evaluation: Evaluation) -> Table:
    from quorumcast.charts.formatting import percent, times

    shown = table(
        "scenario",
        right=("rate", "mean latency", "99 % latency", "messages", "bytes"),
        title="What faults cost: figures to those of the same scenario without the fault",
    )
    for line in evaluation.lines:
        if (cost := line.cost) is not None:
            factors = (cost.mean_latency, cost.p99_latency, cost.messages, cost.bytes)
            shown.add_row(line.name, percent(cost.rate), *map(times, factors))
    return shown


def _documents(evaluation: Evaluation) -> Table:
    from quorumcast.charts.formatting import amount, times

    title = "The same scenarios in the documents, on other machines"
    shown = table("document", "figure", right=("theirs", "ours", "ratio"), title=title)
    for line in evaluation.lines:
        for row in line.beside:
            figure = f"{row.figure} ({row.unit})"
            ours, theirs = amount(row.ours), amount(row.theirs)
            shown.add_row(row.document, figure, theirs, ours, times(row.ratio))
    return shown
