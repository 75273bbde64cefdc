"""Benchmark of the sink: rows per second that Spark writes exactly once to a durable channel.

A streaming query reads rows of about 250 bytes from Parquet and writes them to a cell of four
broker processes with journals. The query ends when all rows are ordered and on the disks of a
quorum; that is the end of the measurement.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.bench import Progress, Rate
from quorumcast.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANNEL = Channel("copies")
COLUMNS = (("n", "int64"), ("text", "string"))
#: Bytes of text in a row; with its number and Arrow's offset about 250.
TEXT_BYTES = 241
#: Files, each of which is a partition of the one micro-batch that counts.
FILES = 4
#: Rows of the micro-batch before it.
WARM = 20_000


def measure_sink(spark: SparkSession, events: int, progress: Progress) -> Rate:
    """Write so many rows to a durable channel."""
    limits = Limits(retained_bytes=1 << 30)
    policy = msgspec.structs.replace(Policy.parse("total+durable"), limits=limits)
    entry = ChannelEntry(CHANNEL, policy, schema=COLUMNS)
    with (
        tempfile.TemporaryDirectory(prefix="quorumcast-spark-") as folder,
        LocalCluster(clients=("spark",), channels={CHANNEL: entry}) as cell,
    ):
        cell.wait_for_links()
        progress("starting tasks")
        _write(spark, cell, Path(folder) / "warm", WARM)
        progress(f"writing {events:,} rows to a durable channel")
        return _write(spark, cell, Path(folder) / "rows", events)


def _write(spark: SparkSession, cell: LocalCluster, folder: Path, rows: int) -> Rate:
    table = str(folder / "table")
    text = f"repeat(cast(id % 10 AS string), {TEXT_BYTES})"
    made = spark.range(0, rows, 1, FILES).selectExpr("id AS n", f"{text} AS text")
    made.write.parquet(table)
    stream = spark.readStream.schema(made.schema).parquet(table)
    started = time.perf_counter()
    query = (
        stream.writeStream.format("quorumcast")
        .options(manifest=str(cell.directory), identity="spark", channel=str(CHANNEL))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - started
    read = sum(found.numInputRows for found in query.recentProgress)
    if read != rows:
        raise UsageError(f"{read:,} of {rows:,} rows were written")
    return Rate(what="written durably", events=rows, seconds=seconds)
