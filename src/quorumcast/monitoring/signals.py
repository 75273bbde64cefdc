"""Turns observations into signals, and aggregates signals into buckets.

A signal is a named number of a host. There are measurements, log lines by level (`logs`, with the
level as item), log lines that a rule counts (`rule:NAME`), and brokers that dissented (`dissent`,
with the broker as item). Measurements that neither a rule nor the report uses become `heard`, so
that their host does not count as silent.
"""

from __future__ import annotations

from pyspark.errors import SparkRuntimeException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.lines import SEVERITIES
from quorumcast.monitoring.rules import Logs, Rules

#: The signals that the report draws for each host.
DRAWN_SIGNALS = (
    "cpu.percent", "memory.percent", "disk.percent", "load.1",
    "net.received_bytes_s", "net.sent_bytes_s",
)  # fmt: skip
LINES, DISSENT, HEARD = "logs", "dissent", "heard"


def signals(observations: DataFrame, rules: Rules) -> DataFrame:
    """Return the signals of valid observations: at, host, signal, item, value."""
    wanted = sorted(rules.signals | set(DRAWN_SIGNALS))
    is_line = F.col("channel") == "logs"
    measured = F.when(
        ~is_line,
        F.when(F.col("metric").isin(wanted), _signal(F.col("metric"), F.col("item"), "value"))
        .otherwise(_signal(F.lit(HEARD), F.lit(""), None)),
    )  # fmt: skip
    words = F.array(*map(F.lit, SEVERITIES))
    found = [
        measured,
        F.when(is_line, _signal(F.lit(LINES), F.get(words, "severity"), None)),
        *(
            F.when(is_line & _matches(rule), _signal(F.lit(rule.signal), F.lit(""), None))
            for rule in rules.logs
        ),
    ]
    dissents = F.transform(
        F.coalesce("dissent", F.array().cast("array<string>")),
        lambda broker: _signal(F.lit(DISSENT), broker, None),
    )
    return (
        observations.where(F.col("flaw").isNull())
        .select("at", "host", F.explode(F.concat(F.array_compact(F.array(*found)), dissents)))
        .select("at", "host", "col.signal", "col.item", "col.value")
    )


def buckets(found: DataFrame, rules: Rules) -> DataFrame:
    """Aggregate signals by window, host, name and item; late ones are dropped."""
    return (
        found.withWatermark("at", f"{rules.late_s} seconds")
        .groupBy(F.window("at", f"{rules.bucket_s} seconds"), "host", "signal", "item")
        .agg(
            F.count("*").alias("count"),
            F.sum("value").alias("total"),
            F.min("value").alias("least"),
            F.max("value").alias("most"),
            F.max_by("value", "at").alias("last"),
            F.max("at").alias("heard"),
        )
        .select(
            F.col("window.start").cast("long").alias("start"),
            "host", "signal", "item", "count", "total", "least", "most", "last",
            F.col("heard").cast("double").alias("heard"),
        )
    )  # fmt: skip


def check_patterns(spark: SparkSession, rules: Rules) -> None:
    """Raise `UsageError` for patterns that Java cannot compile: Spark matches with Java."""
    with_pattern = [rule for rule in rules.logs if rule.pattern]
    if not with_pattern or _compiles(spark, with_pattern):
        return
    for rule in with_pattern:
        if not _compiles(spark, [rule]):
            raise UsageError(
                f"rule {rule.name!r}: Java does not know the pattern {rule.pattern!r}; write it so "
                "that Python and Java do"
            )


def _compiles(spark: SparkSession, rules: list[Logs]) -> bool:
    try:
        spark.range(1).select(*(F.lit("").rlike(rule.pattern) for rule in rules)).collect()
    except SparkRuntimeException:
        return False
    return True


def _signal(name: Column, item: Column, value: str | None) -> Column:
    number = F.lit(1.0) if value is None else F.col(value)
    return F.struct(name.alias("signal"), item.alias("item"), number.alias("value"))


def _matches(rule: Logs) -> Column:
    matches = F.lit(True)
    if rule.level:
        matches &= F.col("severity") <= SEVERITIES.index(rule.level)
    if rule.pattern:
        matches &= F.col("message").rlike(rule.pattern)
    return matches
