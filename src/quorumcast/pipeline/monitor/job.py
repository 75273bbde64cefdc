"""The streaming job: three queries, each of which goes on where it stopped.

    keep      channels → clean → without repetitions → store          foreachBatch, by batch number
    watch     fresh files of the store → signals → buckets → book     Spark's windows and watermark
    publish   alarm files of the book → the channel `alarms`          the sink

Between two queries is a directory of files that are written once under one name, so each query may
die at any time and nothing is lost or done twice: `keep` writes the files of a replayed batch over
themselves, `watch` gives the book absolute values, and the book writes each alarm once.

The cell is read once and verified once. Hosts that fall silent are found by the clock, and only
when there is nothing left to read: a backlog is not silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.monitor import clean
from quorumcast.pipeline.monitor.book import Book
from quorumcast.pipeline.monitor.rules import Rules
from quorumcast.pipeline.monitor.signals import bucket_of, buckets, signals
from quorumcast.pipeline.monitor.store import Store

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

#: What a query is to be given, beside where it writes to.
Sink = Callable[[DataFrame], "DataStreamWriter"]

OBSERVATIONS = (
    "channel string, host string, day date, at timestamp, time timestamp, received timestamp, "
    "clock string, flaw string, metric string, item string, value double, severity int, "
    "source string, origin string, device string, program string, message string, "
    "publisher string, number long, position long, row int, votes int, dissent array<string>"
)
ALARM_FILES = (
    "time double, id string, state string, rule string, severity string, host string, "
    "item string, value double, text string"
)
#: State of streaming queries off the heap: two and a half times cheaper than objects in Python.
STATE_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
#: How often the later queries look for files.
LOOK_S = 1


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the job does, whatever it reads from."""

    directory: Path
    rules: Rules
    #: How often channels are read.
    trigger_s: float = 5.0
    #: For how long a row that is published again is recognised.
    repeats_s: int = 600


class Monitor:
    """The three queries; `sources` are the channels `metrics` and `logs` as streams."""

    def __init__(
        self,
        spark: SparkSession,
        settings: MonitorSettings,
        sources: tuple[DataFrame, DataFrame],
        sink: Sink,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._sources = sources
        self._sink = sink
        self.store = Store(settings.directory)
        self.book = Book(settings.directory, settings.rules)
        self._compacted = ""
        self._queries: dict[str, StreamingQuery] = {}
        #: Rows that this process has stored.
        self.stored = 0

    # ------------------------------------------------------------------ the queries

    def _keep(self) -> DataStreamWriter:
        metrics, logs = (
            rows.withColumn("received", F.current_timestamp()) for rows in self._sources
        )
        observed = clean.unite([clean.clean_metrics(metrics), clean.clean_logs(logs)])
        once = clean.without_repetitions(observed, self._settings.repeats_s)
        return self._written(once.writeStream.foreachBatch(self._keep_batch), "keep")

    def _keep_batch(self, rows: DataFrame, batch: int) -> None:
        today = datetime.now(UTC).date()
        if self._compacted != today.isoformat():
            self.store.compact(today, before=batch)
            self._compacted = today.isoformat()
        table = rows.toArrow()
        self.store.keep(table, batch)
        self.stored += table.num_rows

    def _watch(self) -> DataStreamWriter:
        rows = (
            self._spark.readStream.schema(OBSERVATIONS)
            .option("cleanSource", "delete")
            .parquet(str(self.store.fresh))
        )
        counted = buckets(signals(rows, self._settings.rules), self._settings.rules)
        writer = counted.writeStream.outputMode("update").foreachBatch(self._watch_batch)
        return self._written(writer, "watch")

    def _watch_batch(self, rows: DataFrame, batch: int) -> None:
        found = [bucket_of(row) for row in rows.collect()]
        self.book.turn(lambda watch: watch.absorb(found))

    def _publish(self) -> DataStreamWriter:
        rows = self._spark.readStream.schema(ALARM_FILES).json(str(self.book.alarms))
        alarms = rows.withColumn("time", F.col("time").cast("timestamp"))
        return self._written(self._sink(alarms), "publish")

    def _written(self, writer: DataStreamWriter, name: str) -> DataStreamWriter:
        checkpoint = self._settings.directory / "checkpoints" / name
        return writer.queryName(f"monitor-{name}").option("checkpointLocation", str(checkpoint))

    # ---------------------------------------------------------------------- running

    def start(self) -> None:
        """Begin; `wait` goes on from there."""
        every = f"{self._settings.trigger_s} seconds"
        self._queries = {
            "keep": self._keep().trigger(processingTime=every).start(),
            "watch": self._watch().trigger(processingTime=f"{LOOK_S} seconds").start(),
            "publish": self._publish().trigger(processingTime=f"{LOOK_S} seconds").start(),
        }

    def once(self) -> None:
        """Everything that there is now, and then no more."""
        for name, made in (("keep", self._keep), ("watch", self._watch)):
            self._to_the_end(name, made())
        self.book.turn(lambda watch: watch.elapse(time.time()))
        self._to_the_end("publish", self._publish())

    def _to_the_end(self, name: str, writer: DataStreamWriter) -> None:
        query = writer.trigger(availableNow=True).start()
        self._queries[name] = query
        query.awaitTermination()

    def tick(self) -> None:
        """Let time pass for the rules, if nothing is left to read; raise what a query raised."""
        for name, query in self._queries.items():
            error = query.exception()
            if error is not None:
                raise UsageError(f"the query {name!r} failed: {_sentence(str(error))}")
        if self.caught_up:
            self.book.turn(lambda watch: watch.elapse(time.time()))

    @property
    def caught_up(self) -> bool:
        """Whether everything that the cell had a moment ago has been watched."""
        keep = self._queries.get("keep")
        if keep is None or keep.lastProgress is None:
            return False
        waiting = any(self.store.fresh.glob("[0-9]*.parquet"))
        return not waiting and keep.lastProgress["numInputRows"] < self.most_rows

    #: A batch with as many rows may not be the last one of a backlog.
    most_rows = 50_000

    @property
    def progress(self) -> dict[str, dict[str, Any]]:
        """The last progress of each query, as Spark tells it."""
        found = {name: query.lastProgress for name, query in self._queries.items()}
        return {name: dict(last) for name, last in found.items() if last is not None}

    def stop(self) -> None:
        """End all queries; what is under way is done again at the next start."""
        for query in self._queries.values():
            query.stop()


def _sentence(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "it does not say why")
