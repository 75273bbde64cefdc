"""Turns a data set of any size into a workload, with the steps of Pulsarcast §5.2.1 (`steps`).

    source → (sample) → remove unknown authors → (sample) → topics → nodes → events
    events → subscriptions → topics

Events are never collected by the driver; counts per topic are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.bench.workload import EVENTS, SUBSCRIPTIONS, TOPICS, WorkloadHeader, write_header
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.lazy import sql
from quorumcast.pipeline.workload.files import partitions_for, write_events
from quorumcast.pipeline.workload.recipes import Recipe, read_source
from quorumcast.pipeline.workload.steps import (
    AUTHORS,
    WorkloadSettings,
    as_events,
    clean_and_sample,
    row_id,
    subscribed_by_authors,
    subscribed_by_chance,
    with_topics,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def prepare(
    spark: SparkSession,
    sources: list[str],
    kind: str,
    recipe: Recipe,
    settings: WorkloadSettings,
    path: Path,
) -> WorkloadHeader:
    """Turn a source into a workload at `path`."""
    from pyspark import StorageLevel

    settings.check(recipe)
    rows = read_source(spark, sources, kind, recipe).withColumn("id", row_id(settings.seed))
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        kept, dropped = clean_and_sample(rows, recipe, settings)
        kept, others = with_topics(kept, recipe, settings)
        events, count = as_events(kept, settings)
        dropped["other topics"] = others
        dropped = {reason: many for reason, many in dropped.items() if many}
        if not count:
            reasons = ", ".join(f"{many:,} {reason}" for reason, many in dropped.items())
            raise UsageError(
                f"nothing is left of {', '.join(sources)} ({reasons or 'it is empty'}); do the "
                f"columns {', '.join(recipe.columns)} fit?"
            )
        write_events(events, path, settings.partitions or partitions_for(spark, count))
    finally:
        rows.unpersist()
    written = spark.read.parquet(str(path / EVENTS))
    subscriptions = (
        subscribed_by_authors(written)
        if settings.subscriptions == AUTHORS
        else subscribed_by_chance(spark, written, settings)
    )
    made = {"recipe": recipe.name, **msgspec.to_builtins(settings)}
    return finish(spark, subscriptions, path, recipe.name, settings, made, dropped)


def finish(
    spark: SparkSession,
    subscriptions: DataFrame,
    path: Path,
    name: str,
    settings: WorkloadSettings,
    made: dict[str, object],
    dropped: dict[str, int],
    makers: DataFrame | None = None,
) -> WorkloadHeader:
    """Write subscriptions, topics and the header beside the events that were written.

    `makers` has the node that creates each topic; without it, it is the topic's first publisher.
    """
    written = spark.read.parquet(str(path / EVENTS))
    # Not `coalesce`, which would put all draws into one task as well.
    subscriptions.select("topic", "node").repartition(1).sortWithinPartitions(
        "topic", "node"
    ).write.parquet(str(path / SUBSCRIPTIONS))
    subscribers = (
        spark.read.parquet(str(path / SUBSCRIPTIONS))
        .groupBy("topic")
        .agg(sql.count("*").alias("subscribers"))
    )
    first = sql.min_by("node", sql.struct("at_ms", "id", "node")).alias("first")
    topics = written.groupBy("topic").agg(first, sql.count("*").alias("events"))
    if makers is None:
        makers = topics.select("topic", sql.col("first").alias("maker"))
    topics = (
        topics.join(subscribers, "topic", "full")
        .join(makers, "topic", "left")
        .select(
            "topic",
            sql.coalesce("maker", "first", sql.lit("")).alias("node"),
            sql.coalesce("events", sql.lit(0)).alias("events"),
            sql.coalesce("subscribers", sql.lit(0)).alias("subscribers"),
        )
    )
    topics.coalesce(1).sortWithinPartitions(sql.desc("events"), "topic").write.parquet(
        str(path / TOPICS)
    )
    sums = (
        spark.read.parquet(str(path / TOPICS))
        .agg(
            sql.count("*"),
            sql.sum("events"),
            sql.sum("subscribers"),
            sql.sum(sql.col("events") * sql.col("subscribers")),
        )
        .collect()[0]
    )
    header = WorkloadHeader(
        name=name,
        seed=settings.seed,
        nodes=settings.nodes,
        topics=sums[0],
        events=sums[1],
        subscriptions=sums[2],
        deliveries=sums[3],
        dropped=dropped,
        made=made,
    )
    write_header(path, header)
    return header
