"""From observations to signals, and from signals to buckets.

A signal is a number with a name, of a host: a measurement is one, and so is a line of a level
(`logs`, with the level as item), a line that a rule is about (`rule:NAME`) and a broker that voted
otherwise (`dissent`, with its name as item). Measurements that no rule and no report asks for count
as `heard`, so that their host is not called silent.
"""

from __future__ import annotations

from pyspark.errors import SparkRuntimeException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.core.errors import UsageError
from quorumcast.monitoring.lines import SEVERITIES
from quorumcast.monitoring.rules import Logs, Rules
from quorumcast.monitoring.watch import Bucket

#: What the report draws of each host.
DRAWN_SIGNALS = (
    "cpu.percent", "memory.percent", "disk.percent", "load.1",
    "net.received_bytes_s", "net.sent_bytes_s",
)  # fmt: skip
LINES, DISSENT, HEARD = "logs", "dissent", "heard"


def signals(observations: DataFrame, rules: Rules) -> DataFrame:
    """The signals of observations without a flaw: at, host, signal, item, value."""
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
    """Signals counted up by window, host, name and item; late ones are left out."""
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
    """Refuse patterns that Java does not know, which looks for them; Python's are others."""
    with_pattern = [rule for rule in rules.logs if rule.pattern]
    if not with_pattern or _known(spark, with_pattern):
        return
    for rule in with_pattern:
        if not _known(spark, [rule]):
            raise UsageError(
                f"rule {rule.name!r}: Java does not know the pattern {rule.pattern!r}; write it so "
                "that Python and Java do"
            )


def _known(spark: SparkSession, rules: list[Logs]) -> bool:
    try:
        spark.range(1).select(*(F.lit("").rlike(rule.pattern) for rule in rules)).collect()
    except SparkRuntimeException:
        return False
    return True


def bucket_of(row: Row) -> Bucket:
    """A row of `buckets` as the watch takes it."""
    return Bucket(*row)


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
