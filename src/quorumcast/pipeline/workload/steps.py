"""The steps from a data set to a workload, as functions on DataFrames.

Samples, nodes, topics and subscriptions are hashes of the seed and of the row, not draws from a
generator. So the same source and seed give the same workload on any number of cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_NAME
from quorumcast.pipeline.lazy import sql
from quorumcast.pipeline.workload.draws import (
    DISTRIBUTIONS,
    Floats,
    inclusion,
    ranks_at,
    uniform_column,
    weights,
)
from quorumcast.pipeline.workload.recipes import Recipe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: The authors of a topic subscribe to it.
AUTHORS = "authors"
#: Bits of the hash by which rows are counted to find where a sample ends.
_SAMPLE_BITS = 16
#: Time between two events if the source has no times.
GAP_MS = 10


class WorkloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a source is turned into a workload."""

    nodes: int = 100
    seed: int = 1
    #: Rows to take; 0 takes all, or as many as the recipe says.
    sample: int = 0
    #: How many of the most popular topics to keep, 0 keeps all; or how many to draw.
    topics: int = 0
    #: Distribution of users over nodes, and of events over topics if topics are drawn.
    users: str = "uniform"
    drawn_topics: str = "zipf"
    #: AUTHORS, or the distribution of topics from which nodes draw `mean` subscriptions each.
    subscriptions: str = AUTHORS
    mean: float = 5.0
    exponent: float = 0.0
    partitions: int = 0

    def check(self, recipe: Recipe) -> None:
        """Raise `UsageError` if a setting is invalid."""
        if self.nodes < 1 or self.sample < 0 or self.topics < 0 or self.partitions < 0:
            raise UsageError("--nodes is 1 or more, --sample, --topics and --partitions 0 or more")
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError("--seed is a number of at most 63 bits and a sign")
        weights(self.users, self.nodes, self.exponent)
        weights(self.drawn_topics, self.topics or 1, self.exponent)
        if self.subscriptions != AUTHORS and self.subscriptions not in DISTRIBUTIONS:
            raise UsageError(
                f"there are no subscriptions by {self.subscriptions!r}; choose {AUTHORS} or one "
                f"of {', '.join(DISTRIBUTIONS)}"
            )
        if self.subscriptions != AUTHORS and not self.mean > 0:
            raise UsageError("--mean is more than 0: so many topics a node subscribes to")
        if not recipe.topic and not self.topics:
            raise UsageError("name the column of topics with --topic, or say how many to draw")


def row_id(seed: int) -> Column:
    """Return a hash of the contents of a row."""
    return sql.xxhash64(sql.lit(seed), "author", "topic", "time", "size", "tag")


def clean_and_sample(
    rows: DataFrame, recipe: Recipe, settings: WorkloadSettings
) -> tuple[DataFrame, dict[str, int]]:
    """Return the rows with author, topic and time, and the number of others by reason."""
    wanted = settings.sample or recipe.sample
    if wanted and recipe.sample_first:
        rows = sampled(rows, wanted)
    unknown = (
        sql.col("author").isNull()
        | (sql.col("author") == "")
        | sql.col("author").isin(list(recipe.unknown))
    )
    reason = (
        sql.when(~sql.col("readable"), "unreadable")
        .when(unknown, "unknown author")
        .when(sql.lit(bool(recipe.topic)) & (sql.coalesce("topic", sql.lit("")) == ""), "no topic")
        .when(sql.lit(bool(recipe.time)) & sql.col("time").isNull(), "no time")
    )
    judged = rows.withColumn("reason", reason)
    counts = judged.where("reason is not null").groupBy("reason").count().collect()
    kept = judged.where("reason is null").drop("reason", "readable")
    if wanted and not recipe.sample_first:
        kept = sampled(kept, wanted)
    return kept, {row["reason"]: row["count"] for row in counts}


def sampled(rows: DataFrame, count: int) -> DataFrame:
    """Return the `count` rows with the smallest hashed ids, or all rows if there are fewer.

    Ids are counted in buckets by their first bits, and only the bucket in which the sample ends is
    sorted, so that no shuffle of all rows is needed.
    """
    # Hashed again, because events are ordered by id.
    key = sql.xxhash64(sql.lit("sample"), "id")
    bucketed = rows.withColumn("key", key).withColumn(
        "bucket", sql.shiftrightunsigned("key", 64 - _SAMPLE_BITS)
    )
    left = count
    last = None
    for bucket, many in sorted(
        (row["bucket"], row["count"]) for row in bucketed.groupBy("bucket").count().collect()
    ):
        if many > left:
            last = bucket
            break
        left -= many
    if last is None:
        return rows
    whole = bucketed.where(sql.col("bucket") < last)
    rest = bucketed.where(sql.col("bucket") == last).orderBy("key").limit(left)
    return whole.unionByName(rest).drop("key", "bucket")


def with_topics(
    rows: DataFrame, recipe: Recipe, settings: WorkloadSettings
) -> tuple[DataFrame, int]:
    """Turn topics into channel names and keep the most popular; return the number of lost rows.

    If the source has no topics, they are drawn.
    """
    if not recipe.topic:
        popularity = weights(settings.drawn_topics, settings.topics, settings.exponent)
        rank = ranked(uniform_column(settings.seed, "topic", sql.col("id")), popularity)
        width = len(str(settings.topics))
        name = sql.concat(sql.lit("topic-"), sql.lpad((rank + 1).cast("string"), width, "0"))
        return rows.withColumn("topic", name), 0
    rows = rows.withColumn("topic", channel_name(sql.col("topic")))
    if not settings.topics:
        return rows, 0
    counts = rows.groupBy("topic").count().orderBy(sql.desc("count"), "topic")
    popular = [row["topic"] for row in counts.limit(settings.topics).collect()]
    kept = rows.where(sql.col("topic").isin(popular))
    return kept, rows.count() - kept.count()


def channel_name(topic: Column) -> Column:
    """Turn a topic into a valid channel name."""
    plain = sql.regexp_replace(topic, r"[^A-Za-z0-9_.:+/-]", "_")
    plain = sql.regexp_replace(plain, r"^([^A-Za-z0-9_])", "_$1")
    cut = sql.concat(
        sql.substring(plain, 1, MAX_NAME - 17),
        sql.lit("-"),
        sql.lower(sql.hex(sql.xxhash64(topic))),
    )
    return sql.when(sql.length(plain) > MAX_NAME, cut).otherwise(plain)


def as_events(rows: DataFrame, settings: WorkloadSettings) -> tuple[DataFrame, int]:
    """Return events with their author's node and times from 0 on, and their number."""
    draw = uniform_column(settings.seed, "node", sql.col("author"))
    place = ranked(draw, weights(settings.users, settings.nodes, settings.exponent))
    first, timed, count = rows.agg(sql.min("time"), sql.count("time"), sql.count("*")).collect()[0]
    if timed:
        at = (sql.round((sql.col("time") - sql.lit(first)) * 1000)).cast("long")
    else:
        spread = uniform_column(settings.seed, "time", sql.col("id")) * sql.lit(count * GAP_MS)
        at = sql.floor(spread).cast("long")
    events = rows.select(
        at.alias("at_ms"),
        "id",
        sql.concat(sql.lit("node-"), (place + 1).cast("string")).alias("node"),
        "topic",
        sql.col("size").cast("int").alias("size"),
    )
    return events, count


def ranked(draw: Column, shares: Floats) -> Column:
    """Return the rank, from 0, of a draw between 0 and 1."""
    from pyspark.sql.pandas.functions import arrow_udf

    if np.all(shares == shares[0]):
        return sql.floor(draw * len(shares)).cast("long")
    cumulative = np.cumsum(shares)

    @arrow_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def rank(draws: pa.Array) -> pa.Array:
        return pa.array(ranks_at(cumulative, draws.to_numpy(zero_copy_only=False)))

    found: Column = rank(draw)
    return found


def subscribed_by_authors(events: DataFrame) -> DataFrame:
    """Subscribe the authors of each topic to it, as in Pulsarcast's workload."""
    return events.select("topic", "node").distinct()


def subscribed_by_chance(
    spark: SparkSession, events: DataFrame, settings: WorkloadSettings
) -> DataFrame:
    """Subscribe every node to `mean` topics on average, to popular ones more often."""
    ranks = events.groupBy("topic").count().orderBy(sql.desc("count"), "topic").collect()
    shares = weights(settings.subscriptions, len(ranks), settings.exponent)
    chances = inclusion(shares, min(settings.mean, len(ranks)))
    topics = spark.createDataFrame(
        [(row["topic"], float(chance)) for row, chance in zip(ranks, chances, strict=True)],
        "topic string, chance double",
    )
    nodes = spark.range(1, settings.nodes + 1).select(
        sql.concat(sql.lit("node-"), sql.col("id").cast("string")).alias("node")
    )
    draw = uniform_column(settings.seed, "subscription", sql.col("node"), sql.col("topic"))
    pairs = nodes.crossJoin(sql.broadcast(topics))
    return pairs.where(draw < sql.col("chance")).select("topic", "node")
