"""How a query that reads channels is doing: how far behind it is, and who disagreed.

Spark's own progress has, for each source, where a micro-batch ended and how far the channels were;
`lag` is the difference. What the rows say of the brokers is counted by `watched`, as metrics that
Spark puts into the progress (`observedMetrics`) and hands to its listeners.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress

METRICS = "quorumcast"


def lag(progress: StreamingQueryProgress | None) -> dict[str, int]:
    """How many positions each channel was ahead of the query after a micro-batch.

    Of a query that has had none yet, which has no progress, nothing is known.
    """
    behind: dict[str, int] = {}
    for source in progress.sources if progress is not None else ():
        end, latest = _positions(source.endOffset), _positions(source.latestOffset)
        for channel, position in latest.items():
            if channel in end:
                behind[channel] = max(0, position - end[channel])
    return behind


def _positions(text: str | None) -> dict[str, int]:
    """Offsets as our source writes them; those of other sources are nothing to us."""
    try:
        found: Any = json.loads(text or "")
    except ValueError:
        return {}
    if not isinstance(found, dict) or not all(type(place) is int for place in found.values()):
        return {}
    return found


def watched(rows: DataFrame, name: str = METRICS) -> DataFrame:
    """The same rows; Spark counts what the brokers said of them.

    `events`, `publications`, `disputed` (events of which a broker said otherwise), `fewest_votes`
    and `dissent`, the brokers that did.
    """
    from pyspark.sql import functions as f

    return rows.observe(
        name,
        f.count(f.lit(1)).alias("events"),
        f.count_if(f.col("_index") == 0).alias("publications"),
        f.count_if(f.size("_dissent") > 0).alias("disputed"),
        f.min("_votes").alias("fewest_votes"),
        f.array_sort(f.array_distinct(f.flatten(f.collect_set("_dissent")))).alias("dissent"),
    )
