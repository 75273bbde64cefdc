"""`quorumcast pipeline bench`: measures reading into Spark and writing from it."""

from __future__ import annotations

from typing import Annotated

import typer

from quorumcast.cli.common import console, print_json
from quorumcast.cli.options import JsonOption, MasterOption
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

EXAMPLE = "pipeline bench --events 1000000"


def bench(
    events: Annotated[int, typer.Option(help="Events to publish and to read.")] = 5_000_000,
    batch: Annotated[int, typer.Option(help="Events per publication.")] = 4096,
    written: Annotated[int, typer.Option(help="Events to write to a durable channel.")] = 500_000,
    master: MasterOption = None,
    json_: JsonOption = False,
) -> None:
    """Measure how fast verified events get into Spark, beside its own reading of Parquet, and out.

    Four brokers, Spark and its executors share this machine.
    """
    from quorumcast.pipeline.session import spark_session
    from quorumcast.pipeline.streams.bench import measure, measure_sink

    if events < 1 or batch < 1 or written < 1:
        raise UsageError("--events, --batch and --written are 1 or more")
    with ProgressDisplay("starting Spark") as shown:
        spark = spark_session("quorumcast bench", master=master, brief=False)
        try:
            report = measure(spark, events, batch, shown)
            sink = measure_sink(spark, written, shown)
        finally:
            spark.stop()
    rates = (report.published, report.verified, report.parquet, report.parquet_stream, sink)
    if json_:
        print_json(
            {
                **{rate.what: round(rate.per_second) for rate in rates},
                "share of Parquet": round(report.share, 3),
                "bytes for 9 % of the rows": round(report.narrow_bytes, 3),
            }
        )
        return
    for rate in rates:
        console().print(f"{rate.what:16} {rate.per_second:12,.0f} events/s", markup=False)
    console().print(f"verified streaming is {report.share:.0%} of Parquet", markup=False)
    console().print(
        f"9% of the rows, by 'where': {report.narrow_bytes:.1%} of the bytes", markup=False
    )
