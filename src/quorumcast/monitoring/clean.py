"""Cleaning: what probes published becomes one table of observations, with what is wrong marked.

Nothing is thrown away but repetitions. A row that cannot be true gets a `flaw` and is stored, and
no rule ever sees it. Functions take and give DataFrames and know no clock: `received`, when the job
got the row, is a column.

Times are claims of publishers, and one clock that is ahead would carry a watermark away from
everybody. So rules go by `at`, which is never later than `received`: the claimed time if it can be
true; where the publisher's clock is ahead (`clock` says so), the age of the row by that same clock,
back from `received`.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.core.limits import MAX_NAME
from quorumcast.monitoring.channels import HOST
from quorumcast.monitoring.lines import MAX_LINE_BYTES

#: How far a clock may be ahead before it is said so.
AHEAD_S = 5
#: Rows older than this when they come are called late.
LATE_S = 600

#: The table of observations; the first three are how it is stored.
COLUMNS = (
    "channel", "host", "day",
    "at", "time", "received", "clock", "flaw",
    "metric", "item", "value",
    "severity", "source", "origin", "device", "program", "message",
    "publisher", "number", "position", "row", "votes", "dissent",
)  # fmt: skip
#: Rows that claim to be older than this are not believed: days are directories of the store.
ANCIENT_S = 31 * 24 * 3600
#: Measurements that cannot be negative, by how their names begin.
_NEVER_NEGATIVE = r"^(cpu|load|memory|swap|disk|net|processes|probe)\."
_NOWHERE = "unknown"


def clean_metrics(rows: DataFrame) -> DataFrame:
    """Measurements as observations; `rows` are the channel's, with `received`."""
    value = F.col("value")
    flaw = F.coalesce(
        _named_flaw(),
        F.when(F.col("metric").isNull() | (F.col("metric") == ""), "no metric"),
        F.when(value.isNull() | F.isnan(value) | (F.abs(value) == float("inf")), "no number"),
        F.when(
            F.col("metric").endswith(".percent") & ~value.between(0, 100.01), "impossible percent"
        ),
        F.when(F.col("metric").rlike(_NEVER_NEGATIVE) & (value < 0), "negative"),
    )
    return _observations(
        rows.withColumn("flaw", flaw),
        metric=F.substring("metric", 1, MAX_NAME),
        item=F.substring(F.coalesce("item", F.lit("")), 1, MAX_NAME),
        value=value,
        channel=F.lit("metrics"),
    )


def clean_logs(rows: DataFrame) -> DataFrame:
    """Lines as observations."""
    flaw = F.coalesce(
        _named_flaw(),
        F.when(F.col("message").isNull(), "no message"),
        F.when(~F.coalesce(F.col("severity").between(0, 7), F.lit(False)), "impossible severity"),
    )
    return _observations(
        rows.withColumn("flaw", flaw),
        severity=F.col("severity"),
        source=F.col("source"),
        origin=F.col("origin"),
        device=F.col("device"),
        program=F.col("program"),
        message=F.substring("message", 1, MAX_LINE_BYTES),
        channel=F.lit("logs"),
    )


def unite(frames: list[DataFrame]) -> DataFrame:
    """Observations of several channels as one table."""
    return reduce(lambda one, other: one.unionByName(other), frames)


def without_repetitions(observations: DataFrame, within_s: int) -> DataFrame:
    """Each observation once, however often its probe published it.

    The key is what a probe says of the row itself and not the publication, which is another one
    when it publishes again. The publisher is part of it: nobody suppresses another one's rows. Of a
    row that does not say which one it is, because its publisher is no probe, the key is its place
    in the channel: it is a repetition of none. The watermark is on `received`, which never goes
    backwards: no row comes too late to be stored.
    """
    is_line = F.col("channel") == "logs"
    says_which = F.when(is_line, F.col("origin") != "").otherwise(
        F.col("time").isNotNull() & F.col("metric").isNotNull()
    )
    # Hosts whose names are impossible have all become one.
    nameless = ~F.coalesce(says_which, F.lit(False)) | (F.col("host") == _NOWHERE)
    keys = {
        # A line that is read again may have no time but that at which it was read.
        "_measured": F.when(~is_line, F.col("time")),
        "_position": F.when(nameless, F.col("position")),
        "_row": F.when(nameless, F.col("row")),
    }
    marked = observations.withColumns(keys).withWatermark("received", f"{within_s} seconds")
    once = marked.dropDuplicatesWithinWatermark(
        ["channel", "publisher", "host", "metric", "item", "source", "origin", *keys]
    )
    return once.drop(*keys)


def _named_flaw() -> Column:
    return F.coalesce(
        F.when(~_believable_host(), "impossible host"),
        F.when(F.col("time").isNull(), "no time"),
        F.when(_age(F.col("received")) > ANCIENT_S, "impossible time"),
    )


def _believable_host() -> Column:
    return F.coalesce(F.col("host").rlike(rf"\A{HOST}\z"), F.lit(False))


def _age(until: Column) -> Column:
    """Seconds from the claimed time until another."""
    return until.cast("double") - F.col("time").cast("double")


def _observations(rows: DataFrame, channel: Column, **values: Column) -> DataFrame:
    time, received, published = F.col("time"), F.col("received"), F.col("_published_at")
    ahead = (published > received + F.make_dt_interval(secs=F.lit(AHEAD_S))) | (
        time > published + F.make_dt_interval(secs=F.lit(AHEAD_S))
    )
    age = F.greatest(_age(published), F.lit(0.0))
    at = F.coalesce(
        F.when((_age(received) > ANCIENT_S) | (age > ANCIENT_S), received)
        .when(ahead, (received.cast("double") - age).cast("timestamp"))
        .otherwise(F.least(time, received)),
        received,
    )
    late = received.cast("double") - at.cast("double") > LATE_S
    types = {"value": "double", "severity": "int"}
    made = {
        "channel": channel,
        "host": F.when(_believable_host(), F.col("host")).otherwise(_NOWHERE),
        "day": F.to_date(at),
        "at": at,
        "time": time,
        "received": received,
        "clock": F.when(ahead, "ahead").when(late, "late"),
        "flaw": F.col("flaw"),
        "publisher": F.col("_publisher"),
        "number": F.col("_number"),
        "position": F.col("_position"),
        "row": F.col("_index"),
        "votes": F.col("_votes"),
        "dissent": F.col("_dissent"),
        **values,
    }
    nothing = F.lit(None)
    return rows.select(
        *(made.get(name, nothing.cast(types.get(name, "string"))).alias(name) for name in COLUMNS)
    )
