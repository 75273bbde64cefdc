"""Describes a workload: its counts, their distribution, deliveries and matching density.

Everything is counted from the files, not taken from the header; `sound` compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from quorumcast.bench.workload import (
    BY_CONTENT,
    EVENTS,
    SUBSCRIPTIONS,
    TOPICS,
    WorkloadHeader,
    read_header,
)
from quorumcast.pipeline.lazy import sql
from quorumcast.pipeline.workload.content import TOLERANCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class NodeSpread(msgspec.Struct, frozen=True):
    """The distribution of a count over nodes."""

    least: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    most: int = 0
    #: Pairs of an amount and the number of nodes with it.
    histogram: tuple[tuple[int, int], ...] = ()


class TopicLine(msgspec.Struct, frozen=True):
    """One topic."""

    topic: str
    node: str
    events: int
    subscribers: int
    deliveries: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a workload."""

    path: str
    header: WorkloadHeader
    events: int
    subscriptions: int
    deliveries: int
    #: Nodes that publish, and nodes that subscribe.
    publishers: int
    subscribers: int
    seconds: float
    bytes: int = 0
    #: The slope of events over rank, both as logarithms: the exponent of the power law.
    exponent: float | None = None
    #: The share of (event, node) or (publication, subscription) pairs that are deliveries.
    density: float = 0.0
    #: The density that was asked for; None for a workload of topics.
    wanted_density: float | None = None
    events_per_node: NodeSpread = NodeSpread()
    subscriptions_per_node: NodeSpread = NodeSpread()
    topics: list[TopicLine] = msgspec.field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether the files hold what the header says, and match as densely as they should."""
        header = self.header
        counted = (self.events, self.subscriptions, self.deliveries)
        close = (
            self.wanted_density is None or abs(self.density / self.wanted_density - 1) <= TOLERANCE
        )
        return close and counted == (header.events, header.subscriptions, header.deliveries)


def power_law_exponent(events: list[int]) -> float | None:
    """Fit log events to log rank; return the negative slope, or None for less than two topics."""
    counts = np.sort(np.array([count for count in events if count], np.float64))[::-1]
    if len(counts) < 2:
        return None
    ranks = np.arange(1, len(counts) + 1)
    slope = np.polyfit(np.log(ranks), np.log(counts), 1)[0]
    return round(float(-slope), 4)


def _spread(rows: DataFrame, nodes: int, *, histogram: bool = False) -> NodeSpread:
    """Return how rows are distributed over nodes; nodes without rows count as well."""
    counts = rows.groupBy("node").agg(sql.count("*").alias("amount"))
    many, least, most, total, squares = counts.agg(
        sql.count("*"),
        sql.min("amount"),
        sql.max("amount"),
        sql.sum("amount"),
        sql.sum(sql.col("amount").cast("double") * sql.col("amount")),
    ).collect()[0]
    if not many:
        return NodeSpread()
    mean = total / nodes
    shown: list[tuple[int, int]] = []
    if histogram:
        grouped = counts.groupBy("amount").agg(sql.count("*").alias("nodes")).orderBy("amount")
        shown = [(row["amount"], row["nodes"]) for row in grouped.collect()]
        if nodes > many:
            shown.insert(0, (0, nodes - many))
    return NodeSpread(
        least=least if many >= nodes else 0,
        mean=round(mean, 3),
        deviation=round(max(squares / nodes - mean * mean, 0.0) ** 0.5, 4),
        most=most,
        histogram=tuple(shown),
    )


def describe(spark: SparkSession, path: Path) -> Description:
    """Count everything in a workload."""
    header = read_header(path)
    events = spark.read.parquet(str(path / EVENTS))
    subscriptions = spark.read.parquet(str(path / SUBSCRIPTIONS))
    by_content = header.kind == BY_CONTENT
    weight = sql.sum("matches") if by_content else sql.sum("size")
    count, last, publishers, amount = events.agg(
        sql.count("*"), sql.max("at_ms"), sql.count_distinct("node"), weight
    ).collect()[0]
    counted = subscriptions.agg(sql.count("*"), sql.count_distinct("node"))
    entries, subscribers = counted.collect()[0]
    topics = [] if by_content else _topics(spark, path, events, subscriptions)
    deliveries = amount if by_content else sum(topic.deliveries for topic in topics)
    pairs = count * (entries if by_content else header.nodes)
    return Description(
        path=str(path),
        header=header,
        events=count,
        subscriptions=entries,
        deliveries=deliveries,
        publishers=publishers,
        subscribers=subscribers,
        seconds=round((last or 0) / 1000, 3),
        bytes=0 if by_content else amount or 0,
        exponent=power_law_exponent([topic.events for topic in topics]),
        density=round(deliveries / pairs, 6) if pairs else 0.0,
        wanted_density=header.made.get("density") if by_content else None,
        events_per_node=_spread(events, header.nodes),
        subscriptions_per_node=_spread(subscriptions, header.nodes, histogram=not by_content),
        topics=topics,
    )


def _topics(
    spark: SparkSession, path: Path, events: DataFrame, subscriptions: DataFrame
) -> list[TopicLine]:
    published = events.groupBy("topic").agg(sql.count("*").alias("events"))
    wanted = subscriptions.groupBy("topic").agg(sql.count("*").alias("subscribers"))
    known = spark.read.parquet(str(path / TOPICS)).select("topic", "node")
    rows = (
        known.join(published, "topic", "full")
        .join(wanted, "topic", "full")
        .na.fill(0, ["events", "subscribers"])
        .na.fill("", ["node"])
        .orderBy(sql.desc("events"), "topic")
        .collect()
    )
    return [
        TopicLine(topic, node, events, subscribers, events * subscribers)
        for topic, node, events, subscribers in rows
    ]
