"""`df.write` and `df.writeStream`: publishes each row exactly once.

Tasks stage the rows of their partitions (`streams.staging`). When all tasks have ended, Spark calls
`commit` on the driver, which decides the micro-batch and publishes it. Spark repeats a micro-batch
that it has not recorded as done, in the same process or after a restart. If the micro-batch was
decided before, tasks read nothing and the driver publishes the rest. If not, nothing of it has been
published. So the number of partitions, the plan and the input may change in between.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType, TimestampType

from quorumcast.client.arguments import check_validity
from quorumcast.core.envelope import microseconds_of, time_of
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_ROWS
from quorumcast.manifest.files import read_identity
from quorumcast.manifest.rights import to_publish
from quorumcast.pipeline.streams.fitting import Fit, fit
from quorumcast.pipeline.streams.options import (
    SINK_SEATS,
    Access,
    Given,
    count,
    seconds,
    take_access,
    text,
)
from quorumcast.pipeline.streams.staging import StagedBatch, Staging, directory_uri
from quorumcast.pipeline.streams.writing import EVENTS, Cut, Written, publish_batch, stage_partition

#: The time at which the micro-batch was decided.
BATCH_TIME = "batch"
#: The staging directory of a streaming query, in its checkpoint.
CHECKPOINT_STAGING = "quorumcast"


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a sink; sent to the executors."""

    access: Access
    fit: Fit
    events: int
    valid_for_s: float | None
    #: The index of the column of times; None: one time for all rows.
    time_column: int | None
    #: The time of all rows; -1: the time of the decision.
    at_us: int
    #: The staging directory.
    staging: str
    #: The stream of `df.write`; that of `df.writeStream` is named after the query.
    name: str = ""
    #: Whether a later write may resume this one.
    kept: bool = True

    @property
    def at(self) -> datetime | None:
        """The time of all rows, if the user gave one."""
        return None if self.at_us < 0 else time_of(self.at_us)


def sink_options(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkOptions:
    """Parse the options of a sink, and check them against the manifest and the schema."""
    given = Given(options)
    channel = given.take("channel", text, "")
    events = given.take("eventsPerPublication", count, EVENTS)
    valid_for_s = given.take("validFor", seconds, None)
    published = given.take("publishedAt", text, "")
    checkpoint = given.take("checkpointLocation", text, "") if streaming else ""
    if streaming:
        given.take("queryName", text, "")  # an option of Spark itself
    name = "" if streaming else given.take("writeId", text, "")
    staging = given.take("staging", text, "")
    access, manifest = take_access(given, SINK_SEATS)
    given.finish("the sink")
    if not channel:
        raise UsageError("option 'channel' is missing: name the channel to publish on")
    check_validity(valid_for_s)
    if events > MAX_ROWS:
        raise UsageError(f"option 'eventsPerPublication' is {events}: give at most {MAX_ROWS:,}")
    entry = to_publish(manifest, read_identity(Path(access.identity)).name, channel)
    if not entry.policy.total:
        raise UsageError(
            f"channel {channel!r} cannot tell what was published before, because it has no "
            "total order: write to a channel with one of the policies 'total' and 'total-crash'"
        )
    time_column, at_us = None, -1
    if published and published != BATCH_TIME:
        time_column, at_us = _given_time(published, schema)
    return SinkOptions(
        access=access,
        fit=fit(entry, schema),
        events=events,
        valid_for_s=valid_for_s,
        time_column=time_column,
        at_us=at_us,
        staging=_staging(staging, checkpoint, name, streaming=streaming),
        name=name or ("" if streaming else uuid4().hex),
        kept=streaming or bool(name),
    )


def _staging(given: str, checkpoint: str, name: str, *, streaming: bool) -> str:
    """Return the staging directory."""
    if given:
        directory = directory_uri(given).rstrip("/")
        return directory if streaming or name else f"{directory}/{uuid4().hex}"
    if name:
        raise UsageError(
            "option 'writeId' needs 'staging' beside it, a directory that is kept: what a write "
            "with the same id publishes is what was staged there first"
        )
    if not streaming:
        return tempfile.mkdtemp(prefix="quorumcast-rows-")
    if not checkpoint:
        raise UsageError(
            "option 'checkpointLocation' is missing: the rows of a micro-batch wait there until "
            "all of them are published; or name a directory for them with 'staging'"
        )
    return f"{directory_uri(checkpoint).rstrip('/')}/{CHECKPOINT_STAGING}"


def _given_time(published: str, schema: StructType) -> tuple[int | None, int]:
    """Parse `publishedAt`: the index of a column, or one time."""
    for place, field in enumerate(schema.fields):
        if field.name == published:
            if not isinstance(field.dataType, TimestampType):
                kind = field.dataType.simpleString()
                raise UsageError(f"column {published!r} of 'publishedAt' is {kind}, no timestamp")
            return place, -1
    try:
        time = datetime.fromisoformat(published)
    except ValueError:
        raise UsageError(
            f"option 'publishedAt' is {published!r}: give a column with times, {BATCH_TIME!r} for "
            "the time of the micro-batch, or a time such as 2026-11-01T12:00:00Z"
        ) from None
    if time.utcoffset() is None:
        raise UsageError(f"option 'publishedAt' is {published!r} without a time zone: say which")
    if microseconds_of(time) < 0:
        raise UsageError(f"option 'publishedAt' is {published!r}: give a time from 1970 on")
    return None, microseconds_of(time)


class _Sink:
    """The common part of both writers; Spark sends it to the executors."""

    _streaming = False

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(
                "what is published stays published: write with mode('append'), or stream with "
                "outputMode('append') or outputMode('update')"
            )
        self._options = sink_options(options, schema, streaming=self._streaming)
        self._staging(0).make_directory()

    def _staging(self, epoch: int) -> Staging:
        """Return the folder of a micro-batch or a batch write."""
        name = self._options.name
        folder = hashlib.sha256(name.encode()).hexdigest()[:32] if name else str(epoch)
        return Staging(self._options.staging, folder)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a partition, on an executor."""
        context = TaskContext.get()
        if context is None:
            raise UsageError(
                "this writer works inside a Spark task: use df.write or df.writeStream"
            )
        options, name, epoch = self._options, self._options.name, 0
        if self._streaming:
            name = context.getLocalProperty("sql.streaming.queryId") or ""
            epoch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
            if not name or epoch < 0:
                raise UsageError(
                    "Spark does not say which query and micro-batch this task belongs to, so "
                    "nothing could be published once: use the micro-batch mode of PySpark 4.2 or "
                    "later"
                )
        staging = self._staging(epoch)
        if staging.batch() is not None:
            # The rows of a stream are not read again: the input may no longer retain them.
            return Written(name, None, 0 if self._streaming else sum(b.num_rows for b in iterator))
        cut = Cut(options.fit, options.events, time_column=options.time_column)
        return stage_partition(staging, cut, iterator, name=name, partition=context.partitionId())

    def _publish(
        self, messages: Sequence[WriterCommitMessage | None], epoch: int
    ) -> StagedBatch | None:
        """Publish the staged rows, on the driver."""
        options = self._options
        return publish_batch(
            options.access,
            options.fit.channel,
            self._staging(epoch),
            _written(messages),
            epoch=epoch,
            at=options.at,
            valid_for_s=options.valid_for_s,
        )

    def _discard(self, messages: Sequence[WriterCommitMessage | None], epoch: int) -> None:
        """Remove the rows that these tasks staged, unless the micro-batch has been decided."""
        staging = self._staging(epoch)
        if staging.batch() is None:
            staging.remove_parts(found.part for found in _written(messages) if found.part)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return the messages of successful tasks."""
    return [message for message in messages if isinstance(message, Written)]


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("quorumcast")`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish everything; return when it is ordered."""
        before, written = self._staging(0).batch(), _written(messages)
        rows = sum(found.rows for found in written)
        if before is not None and before.rows != rows:
            raise UsageError(
                f"{before.rows:,} rows were written with 'writeId' {before.name!r} before, and "
                f"these are {rows:,}: give what is not the same another id"
            )
        self._publish(messages, 0)
        self._clear()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish nothing more; a write with the same `writeId` publishes the rest."""
        self._discard(messages, 0)
        self._clear()

    def _clear(self) -> None:
        if not self._options.kept:
            self._staging(0).remove_directory()


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("quorumcast")`."""

    _streaming = True

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish everything; return when it is ordered."""
        if self._publish(messages, batchId) is not None:
            self._staging(batchId).remove_before(batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish nothing more; the rest is published when the micro-batch runs again."""
        self._discard(messages, batchId)


__all__ = ["BatchWriter", "SinkOptions", "StreamWriter", "Written", "sink_options"]
