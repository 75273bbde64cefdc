"""The streaming job: three queries, each of which resumes from its checkpoint.

    keep      channels → clean → remove duplicates → store             foreachBatch, by batch number
    watch     fresh files of the store → signals → buckets → engine   Spark's windows and watermark
    publish   alarm files of the engine → the channel `alarms`        the sink

A directory of files connects two queries. Every step is idempotent, so that a crash neither loses
nor repeats anything: `keep` overwrites the files of a replayed batch with the same rows, `watch`
passes absolute values to the engine, and the engine writes each alarm once.

Each publication is read and verified once. Silent hosts are found by the clock, but only while the
job has no backlog: a backlog is not silence.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from quorumcast.core.errors import UsageError
from quorumcast.monitoring import clean
from quorumcast.monitoring.durable_engine import DurableEngine
from quorumcast.monitoring.engine import Alarm, Bucket
from quorumcast.monitoring.rules import Rules
from quorumcast.monitoring.signals import buckets, signals
from quorumcast.monitoring.store import ObservationStore
from quorumcast.pipeline.session import first_line, reason_of
from quorumcast.pipeline.streams.progress import lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Turns alarms into the writer that publishes them.
Sink = Callable[[DataFrame], "DataStreamWriter"]

ALARM_FILES = ", ".join(
    f"{name} {'double' if name in ('time', 'value') else 'string'}"
    for name in Alarm.__struct_fields__
)
#: Files per micro-batch of the later queries. It bounds the memory of the driver after a backlog.
MAX_FILES = 4
#: Time between two searches of the later queries for files.
POLL_S = 1


#: Attempts of a query that never worked, and of one that fails with a `UsageError`.
MAX_ATTEMPTS, MAX_REFUSALS = 8, 3
#: The pause after the first failure; it doubles with each failure up to the maximum.
PAUSE_S, MAX_PAUSE_S = 2.0, 60.0


class Query:
    """A query that is restarted when it fails; `make` returns its writer without the trigger.

    The cell may be unreachable for a while, or a Spark worker may start too slowly on a busy
    machine. A query that has worked before is restarted without limit, with exponential backoff.
    One that never worked is given up after MAX_ATTEMPTS, or after MAX_REFUSALS if the error is a
    `UsageError`: then its options are wrong.
    """

    def __init__(self, name: str, every_s: float, make: Callable[[], DataStreamWriter]) -> None:
        self.name = name
        self._every_s = every_s
        self._make = make
        self._running: StreamingQuery | None = None
        #: Whether it has ever made progress in this process.
        self._worked = False
        #: Failures since the last progress, and the time of the next start.
        self._failures = 0
        self._restart_at: float | None = None
        #: The reason of the last failure; "" after progress.
        self.trouble = ""

    @property
    def progress(self) -> StreamingQueryProgress | None:
        """Spark's report of the last micro-batch, or None."""
        return self._running.lastProgress if self._running is not None else None

    def start(self) -> None:
        """Start the query."""
        self._running = self._make().trigger(processingTime=f"{self._every_s} seconds").start()

    def tick(self) -> None:
        """Restart the query if it failed and the pause is over."""
        if self._running is None:
            return
        error = self._running.exception()
        if error is None:
            if self.progress is not None:
                self._on_progress()
        elif self._restart_at is None:
            self._restart_at = time.monotonic() + self._pause(error)
        elif time.monotonic() >= self._restart_at:
            self._restart_at = None
            self.start()

    @property
    def polled_at(self) -> float:
        """The start of the last poll that Spark reported; 0 if there is none, or it failed."""
        last = self.progress
        if last is None or self.trouble:
            return 0.0
        return datetime.fromisoformat(last.timestamp).timestamp()

    def run_once(self) -> None:
        """Process everything that is available now, and stop."""
        while True:
            self._running = self._make().trigger(availableNow=True).start()
            try:
                self._running.awaitTermination()
            except StreamingQueryException as error:
                time.sleep(self._pause(error))
            else:
                self._on_progress()
                return

    def stop(self) -> None:
        """Stop; an unfinished micro-batch is repeated at the next start."""
        if self._running is not None:
            self._running.stop()

    def _on_progress(self) -> None:
        self._worked, self._failures, self.trouble = True, 0, ""

    def _pause(self, error: Exception) -> float:
        """Return the pause after a failure; raise `UsageError` if the query is given up."""
        self._failures += 1
        refusal = reason_of(error)
        self.trouble = refusal or first_line(error)
        limit = MAX_REFUSALS if refusal else MAX_ATTEMPTS
        if self._failures >= limit and not self._worked:
            raise UsageError(f"the query {self.name!r} does not begin: {self.trouble}")
        return float(min(PAUSE_S * 2 ** (self._failures - 1), MAX_PAUSE_S))


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the job."""

    directory: Path
    rules: Rules
    #: Time between two reads of the channels.
    trigger_s: float = 5.0
    #: Time during which duplicates of a row are recognised.
    repeats_s: int = 600


class MonitoringJob:
    """The three queries. `sources` are streams of the channels `metrics` and `logs`."""

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
        self.store = ObservationStore(settings.directory)
        self.durable = DurableEngine(settings.directory, settings.rules)
        self._compacted_on = ""
        self._keeping = Query("keep", settings.trigger_s, self._keep)
        self._watching = Query("watch", POLL_S, self._watch)
        self._publishing = Query("publish", POLL_S, self._publish)
        self._queries = (self._keeping, self._watching, self._publishing)
        #: Rows that this process has stored, and the time of the last batch.
        self.stored = 0
        self._kept_at = 0.0

    # ------------------------------------------------------------------ the queries

    def _keep(self) -> DataStreamWriter:
        metrics, logs = (
            rows.withColumn("received", F.current_timestamp()) for rows in self._sources
        )
        observed = clean.clean_metrics(metrics).unionByName(clean.clean_logs(logs))
        once = clean.without_duplicates(observed, self._settings.repeats_s)
        return self._with_checkpoint(once.writeStream.foreachBatch(self._keep_batch), "keep")

    def _keep_batch(self, rows: DataFrame, batch: int) -> None:
        today = datetime.now(UTC).date()
        if self._compacted_on != today.isoformat():
            self.store.compact(today, before=batch)
            self._compacted_on = today.isoformat()
        table = rows.toArrow()
        self.store.keep(table, batch)
        self.stored += table.num_rows
        self._kept_at = time.time()

    def _watch(self) -> DataStreamWriter:
        rows = (
            self._spark.readStream.schema(clean.SCHEMA)
            .options(cleanSource="delete", maxFilesPerTrigger=MAX_FILES)
            .parquet(str(self.store.fresh))
        )
        counted = buckets(signals(rows, self._settings.rules), self._settings.rules)
        writer = counted.writeStream.outputMode("update").foreachBatch(self._watch_batch)
        # The state of windows of another length cannot be reused.
        return self._with_checkpoint(writer, f"watch-{self._settings.rules.bucket_s}")

    def _watch_batch(self, rows: DataFrame, batch: int) -> None:
        found = [Bucket(*row) for row in rows.collect()]
        if found:
            self.durable.apply(lambda engine: engine.absorb(found))

    def _publish(self) -> DataStreamWriter:
        rows = (
            self._spark.readStream.schema(ALARM_FILES)
            .options(cleanSource="delete", maxFilesPerTrigger=MAX_FILES)
            .json(str(self.durable.alarms))
        )
        alarms = rows.withColumn("time", F.col("time").cast("timestamp"))
        return self._with_checkpoint(self._sink(alarms), "publish")

    def _with_checkpoint(self, writer: DataStreamWriter, name: str) -> DataStreamWriter:
        checkpoint = self._settings.directory / "checkpoints" / name
        return writer.option("checkpointLocation", str(checkpoint))

    # ---------------------------------------------------------------------- running

    def start(self) -> None:
        """Start the queries; call `tick` regularly."""
        for query in self._queries:
            query.start()

    def once(self) -> None:
        """Process everything that is available now, and stop."""
        began = time.time()
        self._keeping.run_once()
        self._watching.run_once()
        self.durable.apply(lambda engine: engine.elapse(began))
        self._publishing.run_once()

    def tick(self) -> None:
        """Restart failed queries, and evaluate the rules up to the time that has been processed."""
        for query in self._queries:
            query.tick()
        processed_until = self._processed_until()
        if processed_until > self.durable.engine.now:
            self.durable.apply(lambda engine: engine.elapse(processed_until))

    @property
    def troubles(self) -> dict[str, str]:
        """The failed queries that have made no progress since, with the reason."""
        return {query.name: query.trouble for query in self._queries if query.trouble}

    def _processed_until(self) -> float:
        """Return a time before which every publication has been processed; 0 if unknown.

        An idle query reports progress every few seconds. A query that waits for the cell reports
        nothing, so that no host is called silent meanwhile. Under a backlog the time is unknown as
        well: the rows themselves advance the engine.
        """
        last, read_until = self._keeping.progress, self._keeping.polled_at
        # A micro-batch that is replayed after a crash does not ask for the ends of the channels.
        if last is None or any(source.latestOffset is None for source in last.sources):
            return 0.0
        watched_at = self._watching.polled_at
        if any(lag(last).values()) or not watched_at or watched_at < self._kept_at:
            return 0.0
        return read_until

    @property
    def lag(self) -> dict[str, int]:
        """The unread publications of each channel at the last poll."""
        last = self._keeping.progress
        return {} if last is None else lag(last)

    def stop(self) -> None:
        """Stop all queries."""
        for query in self._queries:
            query.stop()
