"""Benchmarks of the source and the sink, on this machine with a cell of four broker processes.

*Source*: a channel is filled; a streaming query reads all of it, counts votes and discards the
rows. The same rows are read from Parquet in the same session. Both are read once before the
measurement, to start the processes and to warm up the JVM. Then a range is read with and without
the option `where`, to compare the bytes that brokers send.

*Sink*: a streaming query reads rows of about 250 bytes from Parquet and writes them exactly once to
a durable channel. It ends when all rows are ordered and on the disks of a quorum.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast import client
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.connections import ConnectionPool
from quorumcast.pipeline.streams.options import source_options
from quorumcast.pipeline.streams.planner import OffsetPlanner
from quorumcast.pipeline.streams.reading import Range, read_with
from quorumcast.pipeline.streams.rows import arrow_of, spark_schema
from quorumcast.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CHANNEL = Channel("readings")
COLUMNS = (
    ("sensor", "int32"),
    ("value", "float64"),
    ("at", "timestamp[us, UTC]"),
    ("site", "string"),
    ("valid", "bool"),
)
#: Selects 9 % of the rows.
NARROW = "sensor < 90"
#: Publications that are read to compare bytes, at most.
COMPARED = 256
SITES = pa.array([f"site-{number}" for number in range(16)])
SINK_CHANNEL = Channel("copies")
SINK_COLUMNS = (("n", "int64"), ("text", "string"))
#: Bytes of text in a row; with its number and Arrow's offset about 250.
TEXT_BYTES = 241
#: Files, each of which is a partition of the one micro-batch that counts.
FILES = 4
#: Rows of the micro-batch before it.
WARM = 20_000

Progress = Callable[[str], None]


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A measured rate."""

    what: str
    events: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Events per second."""
        return self.events / self.seconds


class SourceRates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of the source and of Parquet."""

    published: Rate
    verified: Rate
    parquet: Rate
    parquet_stream: Rate
    #: Bytes received for 9 % of the rows, divided by those for all rows.
    narrow_bytes: float

    @property
    def share(self) -> float:
        """The rate of verified streaming divided by that of reading Parquet."""
        return self.verified.per_second / self.parquet.per_second


def measure(
    spark: SparkSession, events: int, per_publication: int, progress: Progress
) -> SourceRates:
    """Fill a channel, and measure both ways of reading it."""
    limits = Limits(retained_publications=max(4096, events), retained_bytes=4 << 30)
    policy = msgspec.structs.replace(Policy.named("total"), limits=limits)
    entry = ChannelEntry(CHANNEL, policy, schema=COLUMNS)
    with (
        tempfile.TemporaryDirectory(prefix="quorumcast-spark-") as folder,
        LocalCluster(clients=("alice", "spark"), channels={CHANNEL: entry}) as cell,
    ):
        cell.wait_for_links()
        progress(f"publishing {events:,} events")
        published = client.run(_publish(cell, events, per_publication))
        cell.wait_executed()
        bench = _Bench(spark, cell, Path(folder))
        progress("storing them as Parquet")
        bench.verified_rows().write.parquet(bench.table)
        progress("reading the channel")
        verified = bench.stream(bench.verified_stream(events), "verified")
        progress("reading Parquet")
        parquet = bench.parquet()
        stream = bench.stream(bench.parquet_stream(), "parquet")
        progress("comparing bytes")
        narrow_bytes = bench.narrow_bytes()
        for what, found in (("the channel", verified), ("the table", parquet)):
            if found.events != events:
                raise UsageError(f"{found.events:,} of {events:,} events were read from {what}")
    return SourceRates(
        published=published,
        verified=verified,
        parquet=parquet,
        parquet_stream=stream,
        narrow_bytes=narrow_bytes,
    )


def batches(events: int, per_publication: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield sensor readings."""
    for first in range(0, events, per_publication):
        ids = np.arange(first, min(first + per_publication, events))
        columns = [
            pa.array((ids % 1000).astype(np.int32)),
            pa.array(np.sin(ids)),
            pa.array(1_700_000_000_000_000 + ids * 1000).view(pa.timestamp("us", "UTC")),
            SITES.take(pa.array(ids % len(SITES))),
            pa.array(ids % 7 > 0),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


async def _publish(cell: LocalCluster, events: int, per_publication: int) -> Rate:
    schema = cell.manifest.channels[0].arrow_schema()
    async with (
        await client.connect(cell.manifest_path, cell.identity_path("alice")) as node,
        node.publisher(CHANNEL) as publisher,
    ):
        started = time.perf_counter()
        for batch in batches(events, per_publication, schema):
            await publisher.ready()
            publisher.post_batch(batch)
        await publisher.flush()
    return Rate(what="published", events=events, seconds=time.perf_counter() - started)


class _Bench:
    def __init__(self, spark: SparkSession, cell: LocalCluster, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._options = {"manifest": str(cell.directory), "identity": "spark", "channel": CHANNEL}
        self.table = str(folder / "table")

    def verified_rows(self) -> DataFrame:
        return self._spark.read.format("quorumcast").options(**self._options).load()

    def verified_stream(self, events: int) -> DataFrame:
        # Micro-batches of the size of a query that keeps up with a busy channel.
        options = {**self._options, "maxEventsPerTrigger": str(max(events // 4, 1))}
        return self._spark.readStream.format("quorumcast").options(**options).load()

    def parquet_stream(self) -> DataFrame:
        schema = self._spark.read.parquet(self.table).schema
        return self._spark.readStream.schema(schema).parquet(self.table)

    def parquet(self) -> Rate:
        rows = self._spark.read.parquet(self.table)
        _discard(rows)
        started = time.perf_counter()
        _discard(rows)
        seconds = time.perf_counter() - started
        return Rate(what="parquet", events=rows.count(), seconds=seconds)

    def narrow_bytes(self) -> float:
        """Bytes received for 9 % of the rows, divided by those for all rows."""
        pool = ConnectionPool()
        try:
            every, narrow = (self._received(pool, more) for more in ({}, {"where": NARROW}))
        finally:
            pool.close()
        return narrow / every

    def _received(self, pool: ConnectionPool, more: dict[str, str]) -> int:
        """Bytes that come of the first publications when this process reads them."""
        options, entries = source_options({**self._options, **more})
        schema = arrow_of(spark_schema(options, entries))
        planner = OffsetPlanner(options, schema)
        end = planner.ending()[CHANNEL]
        planner.close()
        part = Range(CHANNEL, 1, min(end, 1 + COMPARED), 0)
        with pool.borrow(options.access, 1) as pooled:
            before = pooled.node.telemetry.bytes_in
            for _ in read_with(pooled, options, schema, part):
                pass
            return pooled.node.telemetry.bytes_in - before

    def stream(self, rows: DataFrame, name: str) -> Rate:
        return _run(rows.writeStream.format("noop"), self._folder / name, f"{name} stream")


def _run(writer: DataStreamWriter, checkpoint: Path, what: str) -> Rate:
    """Run a query over everything available, and measure it."""
    started = time.perf_counter()
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.perf_counter() - started
    events = sum(progress.numInputRows for progress in query.recentProgress)
    return Rate(what=what, events=events, seconds=seconds)


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


# --------------------------------------------------------------------------- the sink


def measure_sink(spark: SparkSession, events: int, progress: Progress) -> Rate:
    """Write so many rows to a durable channel."""
    limits = Limits(retained_bytes=1 << 30)
    policy = msgspec.structs.replace(Policy.parse("total+durable"), limits=limits)
    entry = ChannelEntry(SINK_CHANNEL, policy, schema=SINK_COLUMNS)
    with (
        tempfile.TemporaryDirectory(prefix="quorumcast-spark-") as folder,
        LocalCluster(clients=("spark",), channels={SINK_CHANNEL: entry}) as cell,
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
    writer = stream.writeStream.format("quorumcast").options(
        manifest=str(cell.directory), identity="spark", channel=str(SINK_CHANNEL)
    )
    rate = _run(writer, folder / "checkpoint", "written durably")
    if rate.events != rows:
        raise UsageError(f"{rate.events:,} of {rows:,} rows were written")
    return rate
