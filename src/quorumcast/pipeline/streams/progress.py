"""The progress of a query that reads channels: its lag, and dissenting brokers.

Spark reports for each source the end of a micro-batch and the ends of the channels; `lag` is the
difference. `watched` counts votes and dissents as metrics that Spark adds to the progress
(`observedMetrics`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from quorumcast.pipeline.lazy import sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

METRICS = "quorumcast"


def lag(progress: StreamingQueryProgress | None) -> dict[str, int]:
    """Return how many positions the query lags behind each channel; {} without progress."""
    behind: dict[str, int] = {}
    for source in progress.sources if progress is not None else ():
        end, latest = _positions(source.endOffset), _positions(source.latestOffset)
        for channel, position in latest.items():
            if channel in end:
                behind[channel] = max(0, position - end[channel])
    return behind


def _positions(text: str | None) -> dict[str, int]:
    """Parse the offsets of our source; return {} for those of other sources."""
    try:
        found: Any = json.loads(text or "")
    except ValueError:
        return {}
    if not isinstance(found, dict) or not all(type(place) is int for place in found.values()):
        return {}
    return found


def watched(rows: DataFrame, name: str = METRICS) -> DataFrame:
    """Return the same rows with metrics for Spark.

    The metrics are `events`, `publications`, `disputed` (events with a dissenting broker),
    `fewest_votes` and `dissent` (the dissenting brokers).
    """
    return rows.observe(
        name,
        sql.count(sql.lit(1)).alias("events"),
        sql.count_if(sql.col("_index") == 0).alias("publications"),
        sql.count_if(sql.size("_dissent") > 0).alias("disputed"),
        sql.min("_votes").alias("fewest_votes"),
        sql.array_sort(sql.array_distinct(sql.flatten(sql.collect_set("_dissent")))).alias(
            "dissent"
        ),
    )
