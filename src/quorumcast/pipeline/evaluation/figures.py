"""One pass over all rows of all traces on Spark; the result is sums that fit on a page.

    `passed_on`, `forwarded` and `sent`    summed directly
    `published`                            one row per publication: when it was sent
    `accepted`                             one row per publication and subscriber
    `passed`                               the same; what was passed rightly was not owed

Publications and acceptances are joined once. The headers say to which subscribers each publication
was owed; that small table is broadcast. The join gives one row per owed delivery, with or without
its acceptance, and one per acceptance that was not owed. Grouping sets sum them by latency bucket,
by subscriber, channel and hops, and by subscriber and second. Only these sums reach the driver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.evaluation.histogram import bucket_of
from quorumcast.pipeline.evaluation.runs import Trace
from quorumcast.pipeline.lazy import sql
from quorumcast.traces.form import COLUMNS, Header, Listening

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows of traces per task: the hash table of acceptances must fit into a task's memory. This many
#: rows take some tens of megabytes.
ROWS_PER_TASK = 500_000

PUBLICATION = ["run", "channel", "publisher", "incarnation", "number"]

#: Kinds of sums: values of the column `part`.
TRAFFIC, LATENCY, DELIVERY, SECOND = range(4)

#: A fictitious subscriber to whom everything was owed.
NOBODY = ""

_SPARK_TYPES = {
    "string": "string",
    "int64": "bigint",
    "int16": "smallint",
    "int8": "tinyint",
    "bool": "boolean",
}
SCHEMA = ", ".join(f"{name} {_SPARK_TYPES[kind]}" for name, kind in COLUMNS.items())


def sums(spark: SparkSession, traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return all sums of all traces; the column `part` has their kind."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    session = session_for(spark, traces)
    try:
        found = summed(rows_of(session, traces), owed(session, traces)).toArrow()
    except (Py4JError, PySparkException) as error:
        raise UsageError(
            f"Spark could not read the traces ({_reason(error)}): trace the runs again, or see to "
            "it that every worker can read their files"
        ) from error
    return list(found.to_pylist())


def _reason(error: Exception) -> str:
    """Return the root cause of an error in one line."""
    cause: Any = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    text = str(error) if cause is None else str(cause.toString())
    return " ".join(text.split())[:300]


def session_for(spark: SparkSession, traces: Sequence[Trace]) -> SparkSession:
    """Return a session with settings of its own, and enough tasks for these traces."""
    session = spark.newSession()
    tasks = math.ceil(sum(trace.rows for trace in traces) / ROWS_PER_TASK)
    usual = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    session.conf.set("spark.sql.shuffle.partitions", str(max(usual, tasks)))
    # Spark must not merge tasks: they would not fit into a small driver's memory.
    session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    # Rows that are partitioned by publication need no second shuffle for the join.
    session.conf.set("spark.sql.requireAllClusterKeysForCoPartition", "false")
    return session


def rows_of(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """Return all rows of all traces."""
    files = [str(trace.directory / "*.parquet") for trace in traces]
    return session.read.schema(SCHEMA).parquet(*files)


def owed(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """Return to whom each publisher's publications on a channel are owed, and measured times."""
    import pyarrow as pa
    from pyspark.sql import SparkSession

    lines = [
        (header.run, publisher, listening.channel, listening.node, listening.since_ns,
         header.from_ns, header.upto_ns)
        for header in (trace.header for trace in traces)
        for publisher in header.publishers
        for listening in listeners(header)
    ]  # fmt: skip
    names = ("run", "publisher", "channel", "node", "since_ns", "from_ns", "upto_ns")
    schema = pa.schema([(name, "int64" if name.endswith("_ns") else "string") for name in names])
    # From Arrow: for Python rows, Spark would start Python workers.
    columns = [pa.array([line[i] for line in lines], field.type) for i, field in enumerate(schema)]
    active = SparkSession.getActiveSession()
    frame = session.createDataFrame(pa.table(columns, schema=schema))
    if active is not None:
        # `createDataFrame` makes its session the active one, in which Spark looks up formats. So
        # make the caller's session active again.
        active.createDataFrame([], "nothing int")
    return frame


def listeners(header: Header) -> list[Listening]:
    """Return all subscribers, and NOBODY for channels without one from the beginning.

    What is owed to a subscriber from the beginning is everything published on the channel.
    """
    channels = dict.fromkeys(listening.channel for listening in header.listening)
    heard = {listening.channel for listening in header.listening if not listening.since_ns}
    return [
        *header.listening,
        *(Listening(NOBODY, channel) for channel in channels if channel not in heard),
    ]


def summed(rows: DataFrame, owed: DataFrame) -> DataFrame:
    """Return all sums, as one query."""
    found = deliveries(rows, publications(rows), owed)
    return traffic(rows).unionByName(delivered(found), allowMissingColumns=True)


def traffic(rows: DataFrame) -> DataFrame:
    """Sum what every node sent, by peer and channel, and what it passed on and forwarded."""
    counted = rows.where("kind in ('passed_on', 'forwarded', 'sent')")
    return counted.groupBy(
        sql.lit(TRAFFIC).alias("part"), "run", "role", "node", "kind", "message", "place",
        sql.expr("if(kind = 'sent', peer, null)").alias("peer"),
        sql.expr("if(kind = 'sent', channel, null)").alias("channel"),
    ).agg(
        sql.count(sql.expr("if(lane = 0, 1, null)")).alias("count"),
        sql.sum("number").alias("messages"),
        sql.sum("bytes").alias("bytes"),
    )  # fmt: skip


def publications(rows: DataFrame) -> DataFrame:
    """Return every publication, and when its publisher first sent it."""
    sent = rows.where("kind = 'published' and lane = 0")
    return sent.groupBy(*PUBLICATION).agg(sql.min("t_ns").alias("sent_ns"))


def deliveries(rows: DataFrame, published: DataFrame, owed: DataFrame) -> DataFrame:
    """Return owed deliveries, with their acceptance if there was one, and other acceptances."""
    expected = (
        published.join(sql.broadcast(owed), ["run", "publisher", "channel"])
        .where("sent_ns >= since_ns")
        .select(*PUBLICATION, "node", "sent_ns", "from_ns", "upto_ns")
    )
    # The first acceptance counts. Its time and whether it was by history are one number, because
    # Spark aggregates numbers faster than structs.
    accepted = (
        rows.where("kind in ('accepted', 'passed') and lane = 0")
        .select(
            *PUBLICATION,
            "node",
            sql.expr("if(kind = 'accepted', t_ns * 2 + int(by_history), null)").alias("first"),
            "bytes",
            "hops",
        )
        .repartition(*PUBLICATION)
        .groupBy(*PUBLICATION, "node")
        .agg(
            sql.min("first").alias("first"),
            sql.count("first").alias("times"),
            sql.max("bytes").alias("bytes"),
            sql.max("hops").alias("hops"),
        )
    )
    found = expected.join(accepted.hint("shuffle_hash"), [*PUBLICATION, "node"], "full")
    return found.where("times is null or times > 0")


def delivered(deliveries: DataFrame) -> DataFrame:
    """Sum deliveries by latency, by subscriber, channel and hops, and by subscriber and second."""
    rows = deliveries.select(
        *("run", "node", "channel", "sent_ns", "times", "bytes", "hops", "from_ns"),
        sql.expr("shiftright(first, 1)").alias("accepted_ns"),
        sql.expr("first % 2").alias("by_history"),
        sql.expr("sent_ns is not null and first is not null").alias("kept"),
        "upto_ns",
    ).select(
        "*",
        sql.expr("if(kept and sent_ns >= from_ns, accepted_ns - sent_ns, null)").alias("latency"),
        sql.expr(
            "if(kept and accepted_ns >= from_ns and accepted_ns < upto_ns, "
            "(accepted_ns - from_ns) div 1000000000, null)"
        ).alias("second"),
    )
    rows = rows.withColumn("bucket", bucket_of("latency"))
    sets = (("run", "bucket"), ("run", "node", "channel", "hops"), ("run", "node", "second"))
    groups = rows.groupingSets(
        [[rows[name] for name in names] for names in sets],
        *("run", "node", "channel", "hops", "bucket", "second"),
    )
    part = sql.expr(
        f"case when grouping(channel) = 0 then {DELIVERY} when grouping(bucket) = 0 then {LATENCY} "
        f"else {SECOND} end"
    )
    return groups.agg(
        part.alias("part"),
        sql.count("sent_ns").alias("owed"),
        sql.count(sql.expr("if(kept, 1, null)")).alias("delivered"),
        sql.sum(sql.expr("if(kept, by_history, 0)")).alias("by_history"),
        sql.count("times").alias("accepted"),
        sql.sum("times").alias("times"),
        sql.sum(sql.expr("if(kept, bytes, 0)")).alias("bytes"),
        sql.count("latency").alias("count"),
        sql.avg("latency").alias("mean"),
        sql.var_pop("latency").alias("variance"),
        sql.min("latency").alias("least"),
        sql.max("latency").alias("most"),
    )
