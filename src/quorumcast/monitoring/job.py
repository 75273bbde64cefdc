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
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.monitoring import clean
from quorumcast.monitoring.book import Book
from quorumcast.monitoring.queries import Query
from quorumcast.monitoring.rules import Rules
from quorumcast.monitoring.signals import bucket_of, buckets, signals
from quorumcast.monitoring.store import Store
from quorumcast.pipeline.streams.progress import lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

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
#: Files of the store that are watched at a time: with one for each micro-batch of `keep`, what the
#: driver holds has a bound, also after the job was away.
MOST_FILES = 4
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
        self._keeping = Query("keep", settings.trigger_s, self._keep)
        self._watching = Query("watch", LOOK_S, self._watch)
        self._publishing = Query("publish", LOOK_S, self._publish)
        self._queries = (self._keeping, self._watching, self._publishing)
        #: Rows that this process has stored, and when it last did.
        self.stored = 0
        self._kept_at = 0.0

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
        self._kept_at = time.time()

    def _watch(self) -> DataStreamWriter:
        rows = (
            self._spark.readStream.schema(OBSERVATIONS)
            .options(cleanSource="delete", maxFilesPerTrigger=MOST_FILES)
            .parquet(str(self.store.fresh))
        )
        counted = buckets(signals(rows, self._settings.rules), self._settings.rules)
        writer = counted.writeStream.outputMode("update").foreachBatch(self._watch_batch)
        # Windows of another length are another state.
        return self._written(writer, f"watch-{self._settings.rules.bucket_s}")

    def _watch_batch(self, rows: DataFrame, batch: int) -> None:
        found = [bucket_of(row) for row in rows.collect()]
        if found:
            self.book.turn(lambda watch: watch.absorb(found))

    def _publish(self) -> DataStreamWriter:
        rows = (
            self._spark.readStream.schema(ALARM_FILES)
            .options(cleanSource="delete", maxFilesPerTrigger=MOST_FILES)
            .json(str(self.book.alarms))
        )
        alarms = rows.withColumn("time", F.col("time").cast("timestamp"))
        return self._written(self._sink(alarms), "publish")

    def _written(self, writer: DataStreamWriter, name: str) -> DataStreamWriter:
        checkpoint = self._settings.directory / "checkpoints" / name
        return writer.option("checkpointLocation", str(checkpoint))

    # ---------------------------------------------------------------------- running

    def start(self) -> None:
        """Begin; `tick` keeps it going."""
        for query in self._queries:
            query.start()

    def once(self) -> None:
        """Everything that there is now, and then no more."""
        began = time.time()
        self._keeping.run_once()
        self._watching.run_once()
        self.book.turn(lambda watch: watch.elapse(began))
        self._publishing.run_once()

    def tick(self) -> None:
        """Begin again what failed, and let time pass for the rules as far as all has been read."""
        for query in self._queries:
            query.tick()
        watched_until = self._watched_until()
        if watched_until > self.book.watch.now:
            self.book.turn(lambda watch: watch.elapse(watched_until))

    @property
    def troubles(self) -> dict[str, str]:
        """Queries that failed and have not got on since, and why."""
        return {query.name: query.trouble for query in self._queries if query.trouble}

    def _watched_until(self) -> float:
        """A time before which everything that was published has been watched; 0 if unknown.

        Spark tells of a query that finds nothing every few seconds; one that waits for the cell
        tells nothing, and no host is called silent for that. While one micro-batch follows the
        other nothing is known either: then time passes with the rows themselves.
        """
        last, read_until = self._keeping.progress, self._keeping.looked_at
        # A micro-batch that is done again after a crash does not look how far the channels are.
        if last is None or any(source.latestOffset is None for source in last.sources):
            return 0.0
        watched_at = self._watching.looked_at
        if any(lag(last).values()) or not watched_at or watched_at < self._kept_at:
            return 0.0
        return read_until

    @property
    def lag(self) -> dict[str, int]:
        """Publications of each channel that were there and not read at the last look."""
        last = self._keeping.progress
        return {} if last is None else lag(last)

    def stop(self) -> None:
        """End all queries."""
        for query in self._queries:
            query.stop()
