"""All rows of all traces, once, down to sums that fit on a page.

Three streams of rows leave the files, and no row group is read for more than one of them:

    `passed_on`, `forwarded` and `sent`    summed up where they are read
    `published`                            one row per publication: when it left
    `accepted`                             one row per publication and subscriber

Publications and acceptances meet once, hashed by publication. Each publication was owed to
subscribers that the headers name, a small table that every task has. What comes out of the meeting
is a row for each delivery that was owed, with or without its acceptance, and for each acceptance
that was not owed. These are summed up three times in one go: by latency bucket, by subscriber,
channel and hops, and by subscriber and second. Nothing larger than those sums comes to the driver.

Shuffles: publications, acceptances, and sums, which are few. Cost is proportional to rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.evaluation.histogram import bucket_of
from quorumcast.pipeline.evaluation.runs import Trace
from quorumcast.traces.form import COLUMNS, Header, Listening

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Rows of traces per task: the table in which acceptances are looked up has to fit into a task's
#: memory, and with these it takes some tens of megabytes, however long the trace is.
ROWS_PER_TASK = 500_000

PUBLICATION = ["run", "channel", "publisher", "incarnation", "number"]

#: What a sum is about.
TRAFFIC, LATENCY, DELIVERY, SECOND = range(4)

#: A listener who is not there, and to whom everything was owed.
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
    """Every sum of every trace, as rows with a `part` that says what they are about."""
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
    """What was wrong in the end, in a line."""
    cause: Any = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    text = str(error) if cause is None else str(cause.toString())
    return " ".join(text.split())[:300]


def session_for(spark: SparkSession, traces: Sequence[Trace]) -> SparkSession:
    """A session whose settings are ours, with tasks for so many rows."""
    session = spark.newSession()
    tasks = math.ceil(sum(trace.rows for trace in traces) / ROWS_PER_TASK)
    usual = int(str(session.conf.get("spark.sql.shuffle.partitions")))
    session.conf.set("spark.sql.shuffle.partitions", str(max(usual, tasks)))
    # Tasks stay as many as they are: merged ones would not fit into a small driver's memory.
    session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    # Rows that are hashed by publication need not be hashed by publication and subscriber again.
    session.conf.set("spark.sql.requireAllClusterKeysForCoPartition", "false")
    return session


def rows_of(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """All rows of all traces."""
    files = [str(trace.directory / "*.parquet") for trace in traces]
    return session.read.schema(SCHEMA).parquet(*files)


def owed(session: SparkSession, traces: Sequence[Trace]) -> DataFrame:
    """Whose publications on which channel are owed to whom, and what time is measured."""
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
    # From Arrow, for rows of Python would have Spark start a Python of its own.
    columns = [pa.array([line[i] for line in lines], field.type) for i, field in enumerate(schema)]
    active = SparkSession.getActiveSession()
    frame = session.createDataFrame(pa.table(columns, schema=schema))
    if active is not None:
        # A frame made of rows makes its session the active one, where Spark looks formats up; an
        # empty one gives the caller's session that place back.
        active.createDataFrame([], "nothing int")
    return frame


def listeners(header: Header) -> list[Listening]:
    """Everybody who listened, and NOBODY where nobody did from the beginning.

    What is owed to one who listened from the beginning is what was published on the channel.
    """
    channels = dict.fromkeys(listening.channel for listening in header.listening)
    heard = {listening.channel for listening in header.listening if not listening.since_ns}
    return [
        *header.listening,
        *(Listening(NOBODY, channel) for channel in channels if channel not in heard),
    ]


def summed(rows: DataFrame, owed: DataFrame) -> DataFrame:
    """The whole evaluation as one query."""
    told = deliveries(rows, publications(rows), owed)
    return traffic(rows).unionByName(delivered(told), allowMissingColumns=True)


def traffic(rows: DataFrame) -> DataFrame:
    """What every node sent, passed on and forwarded, by kind and peer."""
    from pyspark.sql import functions as sf

    counted = rows.where("kind in ('passed_on', 'forwarded', 'sent')")
    return counted.groupBy(
        sf.lit(TRAFFIC).alias("part"), "run", "role", "node", "kind", "message", "place",
        sf.expr("if(kind = 'sent', peer, null)").alias("peer"),
    ).agg(
        sf.count(sf.expr("if(lane = 0, 1, null)")).alias("count"),
        sf.sum("number").alias("messages"),
        sf.sum("bytes").alias("bytes"),
    )  # fmt: skip


def publications(rows: DataFrame) -> DataFrame:
    """Every publication, and when its publisher first sent it to anybody."""
    from pyspark.sql import functions as sf

    sent = rows.where("kind = 'published' and lane = 0")
    return sent.groupBy(*PUBLICATION).agg(sf.min("t_ns").alias("sent_ns"))


def deliveries(rows: DataFrame, published: DataFrame, owed: DataFrame) -> DataFrame:
    """Deliveries that were owed, with their acceptance if there was one, and all others."""
    from pyspark.sql import functions as sf

    expected = (
        published.join(sf.broadcast(owed), ["run", "publisher", "channel"])
        .where("sent_ns >= since_ns")
        .select(*PUBLICATION, "node", "sent_ns", "from_ns", "upto_ns")
    )
    # The first acceptance counts; its time and whether it was by history fit into one number, and
    # numbers are summed up without objects.
    accepted = (
        rows.where("kind = 'accepted' and lane = 0")
        .select(
            *PUBLICATION,
            "node",
            sf.expr("t_ns * 2 + int(by_history)").alias("first"),
            "bytes",
            "hops",
        )
        .repartition(*PUBLICATION)
        .groupBy(*PUBLICATION, "node")
        .agg(
            sf.min("first").alias("first"),
            sf.count(sf.lit(1)).alias("times"),
            sf.max("bytes").alias("bytes"),
            sf.max("hops").alias("hops"),
        )
    )
    return expected.join(accepted.hint("shuffle_hash"), [*PUBLICATION, "node"], "full")


def delivered(deliveries: DataFrame) -> DataFrame:
    """Deliveries by latency, by subscriber, channel and hops, and by subscriber and second."""
    from pyspark.sql import functions as sf

    told = deliveries.select(
        "run",
        "node",
        "channel",
        "sent_ns",
        "times",
        "bytes",
        "hops",
        "from_ns",
        sf.expr("shiftright(first, 1)").alias("accepted_ns"),
        sf.expr("first % 2").alias("by_history"),
        sf.expr("sent_ns is not null and first is not null").alias("kept"),
        "upto_ns",
    ).select(
        "*",
        sf.expr("if(kept and sent_ns >= from_ns, accepted_ns - sent_ns, null)").alias("latency"),
        sf.expr(
            "if(kept and accepted_ns >= from_ns and accepted_ns < upto_ns, "
            "(accepted_ns - from_ns) div 1000000000, null)"
        ).alias("second"),
    )
    told = told.withColumn("bucket", bucket_of("latency"))
    groups = told.groupingSets(
        [
            [told["run"], told["bucket"]],
            [told["run"], told["node"], told["channel"], told["hops"]],
            [told["run"], told["node"], told["second"]],
        ],
        "run",
        "node",
        "channel",
        "hops",
        "bucket",
        "second",
    )
    part = sf.expr(
        f"case when grouping(channel) = 0 then {DELIVERY} when grouping(bucket) = 0 then {LATENCY} "
        f"else {SECOND} end"
    )
    return groups.agg(
        part.alias("part"),
        sf.count("sent_ns").alias("owed"),
        sf.count(sf.expr("if(kept, 1, null)")).alias("delivered"),
        sf.sum(sf.expr("if(kept, by_history, 0)")).alias("by_history"),
        sf.count("times").alias("accepted"),
        sf.sum("times").alias("times"),
        sf.sum(sf.expr("if(kept, bytes, 0)")).alias("bytes"),
        sf.count("latency").alias("count"),
        sf.avg("latency").alias("mean"),
        sf.var_pop("latency").alias("variance"),
        sf.min("latency").alias("least"),
        sf.max("latency").alias("most"),
    )
