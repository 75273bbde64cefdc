"""Writes workloads with Spark, in the format of `bench.workload`.

Events are written first and the rest is computed from the written files, so that the source is read
as seldom as possible. The header is written last: without it a directory is unfinished.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from quorumcast.bench.workload import (
    EVENT_COLUMNS,
    EVENTS,
    HEADER,
    SUBSCRIPTIONS,
    TOPICS,
    WorkloadHeader,
    write_header,
)
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.lazy import sql
from quorumcast.pipeline.workload.content import ContentGenerator, event_columns
from quorumcast.pipeline.workload.draws import Ints
from quorumcast.pipeline.workload.shapes import Generator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Most events in a file, roughly.
EVENTS_PER_FILE = 1_000_000


@contextmanager
def new_workload(path: Path, *, overwrite: bool, sources: Sequence[str] = ()) -> Iterator[None]:
    """Empty a directory for a new workload; if that fails, the old contents are restored.

    The sources of the workload must not be in the directory.
    """
    for source in sources:
        plain = re.sub("^file:/+", "/", source)
        if "://" not in plain and Path(plain).resolve().is_relative_to(path.resolve()):
            raise UsageError(f"{source} is in {path}, which is to be written; choose another")
    occupied = path.exists() and any(path.iterdir() if path.is_dir() else [path])
    if occupied and not (overwrite and path.is_dir() and _has_only_a_workload(path)):
        raise UsageError(f"{path} is there already; choose another, or say --overwrite")
    path.mkdir(parents=True, exist_ok=True)
    before = Path(tempfile.mkdtemp(dir=path.resolve().parent, prefix=f".{path.name}-"))
    for entry in list(path.iterdir()):
        entry.rename(before / entry.name)
    try:
        yield
    except BaseException:
        for entry in list(path.iterdir()):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for entry in list(before.iterdir()):
            entry.rename(path / entry.name)
        before.rmdir()
        raise
    shutil.rmtree(before)


def _has_only_a_workload(path: Path) -> bool:
    """Whether a directory contains nothing but a workload: other files are never deleted."""
    return {entry.name for entry in path.iterdir()} <= {HEADER, EVENTS, SUBSCRIPTIONS, TOPICS}


def write_table(spark: SparkSession, table: pa.Table, path: Path) -> None:
    """Write a small table as one file."""
    spark.createDataFrame(table).coalesce(1).write.parquet(str(path))


def write_events(events: DataFrame, path: Path, partitions: int) -> None:
    """Write events, ordered across files."""
    order = ("at_ms", "id", "node", "topic")
    cut = events.select(*EVENT_COLUMNS.names).repartitionByRange(partitions, *order)
    cut.sortWithinPartitions(*order).write.parquet(str(path / EVENTS))


def partitions_for(spark: SparkSession, events: int) -> int:
    """Return the number of files for events: one for each core, more if they would be large."""
    return max(spark.sparkContext.defaultParallelism, -(-events // EVENTS_PER_FILE))


def _generated(
    spark: SparkSession,
    count: int,
    partitions: int,
    make: Callable[[Ints], pa.RecordBatch],
    schema: pa.Schema,
) -> DataFrame:
    """Generate the rows 0 … count-1 in parallel."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def make_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield make(np.asarray(batch.column(0)))

    return spark.range(0, count, 1, partitions).mapInArrow(make_all, from_arrow_schema(schema))


def write_generated(
    spark: SparkSession, generator: Generator, path: Path, partitions: int = 0
) -> WorkloadHeader:
    """Generate and write a workload of topics."""
    parts = partitions or partitions_for(spark, generator.events)
    events = _generated(spark, generator.events, parts, generator.event_columns, EVENT_COLUMNS)
    events.write.parquet(str(path / EVENTS))
    subscriptions = generator.subscription_table()
    write_table(spark, subscriptions, path / SUBSCRIPTIONS)
    write_table(spark, generator.topic_table(), path / TOPICS)
    header = WorkloadHeader(
        name=generator.shape.name,
        seed=generator.seed,
        nodes=generator.nodes,
        topics=len(generator.names),
        events=generator.events,
        subscriptions=len(subscriptions),
        deliveries=generator.deliveries,
        made={"generated": generator.shape.name},
    )
    write_header(path, header)
    return header


def write_content(
    spark: SparkSession, generator: ContentGenerator, path: Path, partitions: int = 0
) -> WorkloadHeader:
    """Generate and write a workload of predicates, and count its matches."""
    parts = partitions or partitions_for(spark, generator.events)
    schema = event_columns(generator.shape)
    _generated(spark, generator.events, parts, generator.event_columns, schema).write.parquet(
        str(path / EVENTS)
    )
    write_table(spark, generator.subscription_table(), path / SUBSCRIPTIONS)
    counted = spark.read.parquet(str(path / EVENTS)).agg(sql.sum("matches")).first()
    header = generator.header(int(counted[0]) if counted else 0)
    write_header(path, header)
    return header
