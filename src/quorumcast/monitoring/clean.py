"""Cleaning: turns published rows into one table of observations and marks invalid ones.

Only duplicates are removed. An invalid row gets a `flaw`; it is stored, but no rule sees it. The
functions map DataFrames to DataFrames and read no clock: the time of arrival is the column
`received`.

Publishers claim times, and one fast clock would advance the watermark for all hosts. Rules
therefore use `at`, which is never later than `received`. It is the claimed time, unless the
publisher's clock is ahead. In that case it is `received` minus the age of the row by that clock.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.core.limits import MAX_NAME
from quorumcast.monitoring.channels import HOST
from quorumcast.monitoring.lines import MAX_LINE_BYTES

#: A clock further ahead than this is marked.
AHEAD_S = 5
#: Rows older than this on arrival are marked as late.
LATE_S = 600

#: The columns of observations and their types; the first three partition the store.
COLUMNS = {
    "channel": "string", "host": "string", "day": "date",
    "at": "timestamp", "time": "timestamp", "received": "timestamp",
    "clock": "string", "flaw": "string",
    "metric": "string", "item": "string", "value": "double",
    "severity": "int", "source": "string", "origin": "string",
    "device": "string", "program": "string", "message": "string",
    "publisher": "string", "number": "long", "position": "long", "row": "int",
    "votes": "int", "dissent": "array<string>",
}  # fmt: skip
SCHEMA = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
#: Older times are a flaw: each day is a directory of the store.
ANCIENT_S = 31 * 24 * 3600
#: Prefixes of metrics that cannot be negative.
_NEVER_NEGATIVE = r"^(cpu|load|memory|swap|disk|net|processes|probe)\."
_UNKNOWN_HOST = "unknown"


def clean_metrics(rows: DataFrame) -> DataFrame:
    """Turn rows of the channel `metrics`, with `received`, into observations."""
    value = F.col("value")
    flaw = F.coalesce(
        _common_flaw(),
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
    """Turn rows of the channel `logs`, with `received`, into observations."""
    flaw = F.coalesce(
        _common_flaw(),
        F.when(F.col("message").isNull(), "no message"),
        F.when(~F.coalesce(F.col("severity").between(0, 7), F.lit(False)), "impossible severity"),
    )
    return _observations(
        rows.withColumn("flaw", flaw),
        **{name: F.col(name) for name in ("severity", "source", "origin", "device", "program")},
        message=F.substring("message", 1, MAX_LINE_BYTES),
        channel=F.lit("logs"),
    )


def without_duplicates(observations: DataFrame, within_s: int) -> DataFrame:
    """Remove the duplicates of rows that a probe published again.

    The key identifies the row, not the publication, which differs when it is repeated. It contains
    the publisher, so that nobody suppresses rows of others. A row without an identity, because its
    publisher is no probe, is identified by its position and is never a duplicate. The watermark is
    on `received`, which never decreases: no row is too late to be stored.
    """
    is_line = F.col("channel") == "logs"
    has_identity = F.when(is_line, F.col("origin") != "").otherwise(
        F.col("time").isNotNull() & F.col("metric").isNotNull()
    )
    # All invalid host names have become one name.
    anonymous = ~F.coalesce(has_identity, F.lit(False)) | (F.col("host") == _UNKNOWN_HOST)
    keys = {
        # The time of a line may be the time at which it was read.
        "_measured": F.when(~is_line, F.col("time")),
        "_position": F.when(anonymous, F.col("position")),
        "_row": F.when(anonymous, F.col("row")),
    }
    keyed = observations.withColumns(keys).withWatermark("received", f"{within_s} seconds")
    unique = keyed.dropDuplicatesWithinWatermark(
        ["channel", "publisher", "host", "metric", "item", "source", "origin", *keys]
    )
    return unique.drop(*keys)


def _common_flaw() -> Column:
    return F.coalesce(
        F.when(~_is_valid_host(), "impossible host"),
        F.when(F.col("time").isNull(), "no time"),
        F.when(_age(F.col("received")) > ANCIENT_S, "impossible time"),
    )


def _is_valid_host() -> Column:
    return F.coalesce(F.col("host").rlike(rf"\A{HOST}\z"), F.lit(False))


def _age(until: Column) -> Column:
    """Return the seconds from the claimed time until another."""
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
    made = {
        "channel": channel,
        "host": F.when(_is_valid_host(), F.col("host")).otherwise(_UNKNOWN_HOST),
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
    return rows.select(
        *(made.get(name, F.lit(None).cast(kind)).alias(name) for name, kind in COLUMNS.items())
    )
