"""The recipe `pulsarcast`: reads a workload as Pulsarcast's author published his.

One JSON object per line (§5.2, Listing 5.1): `topic` rows have a topic and the node that creates
it; `user` rows have a node, its numbered events and the topics it subscribes to. There are no
times: events are GAP_MS apart, in the order of their numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.bench.workload import WorkloadHeader
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.lazy import sql
from quorumcast.pipeline.session import first_line
from quorumcast.pipeline.workload.files import partitions_for, write_events
from quorumcast.pipeline.workload.prepare import finish
from quorumcast.pipeline.workload.steps import GAP_MS, WorkloadSettings, channel_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "pulsarcast"
_SCHEMA = """type string, node string, name string, totalNumberEvents long,
    events array<struct<internalId: long, topic: string, body: string>>,
    subscriptions map<string, boolean>, _unreadable string"""


def prepare_published(
    spark: SparkSession, sources: list[str], path: Path, *, seed: int = 1, partitions: int = 0
) -> WorkloadHeader:
    """Read such files and write the workload."""
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.json(sources, schema=_SCHEMA, columnNameOfCorruptRecord="_unreadable")
        rows = rows.persist()
    except AnalysisException as error:
        raise UsageError(f"{', '.join(sources)} cannot be read: {first_line(error)}") from None
    try:
        users = rows.where("type = 'user'")
        events = users.select("node", sql.explode("events").alias("event")).select(
            (sql.col("event.internalId") * GAP_MS).alias("at_ms"),
            sql.col("event.internalId").alias("id"),
            "node",
            channel_name(sql.col("event.topic")).alias("topic"),
            sql.coalesce(sql.octet_length("event.body"), sql.lit(0)).alias("size"),
        )
        count, nodes = events.count(), users.select("node").distinct().count()
        if not count:
            raise UsageError(
                f"{', '.join(sources)} holds no events of users; is it in Pulsarcast's form?"
            )
        unreadable = rows.where("_unreadable is not null").count()
        write_events(events, path, partitions or partitions_for(spark, count))
        chosen = users.select("node", sql.explode("subscriptions").alias("topic", "stands"))
        subscriptions = (
            chosen.where("stands")
            .select(channel_name(sql.col("topic")).alias("topic"), "node")
            .distinct()
        )
        settings = WorkloadSettings(seed=seed, nodes=nodes, partitions=partitions)
        made = {"recipe": NAME, **msgspec.to_builtins(settings)}
        dropped = {"unreadable": unreadable} if unreadable else {}
        makers = rows.where("type = 'topic'").select(
            channel_name(sql.col("name")).alias("topic"), sql.col("node").alias("maker")
        )
        return finish(spark, subscriptions, path, NAME, settings, made, dropped, makers.distinct())
    finally:
        rows.unpersist()
