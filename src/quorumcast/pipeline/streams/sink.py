"""`df.write` and `df.writeStream`: rows become publications, each of them once.

What a partition publishes is a stream of its own that can be gone on with (`client.resuming`): its
name is the query and the partition, its epoch the micro-batch. Spark runs a micro-batch again that
it has not noted as done, in the same process or after the death of everything; the stream says how
far it got. Of what runs again the same rows must come in the same order, or the option `sorted`
puts them into one; the time in a publication is one that comes again as well (`publishedAt`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType, TimestampType

from quorumcast.client.arguments import check_validity
from quorumcast.client.rights import to_publish
from quorumcast.core.envelope import microseconds_of, time_of
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_ROWS
from quorumcast.manifest.files import read_identity
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.pipeline.streams.fitting import Fit, fit
from quorumcast.pipeline.streams.options import (
    SINK_SEATS,
    Access,
    Given,
    count,
    seconds,
    switch,
    take_access,
    text,
)
from quorumcast.pipeline.streams.writing import EVENTS, Written, write_partition

#: The time of a micro-batch, as Spark has it in its checkpoint.
BATCH_TIME = "batch"


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was said of a sink; goes to the executors."""

    access: Access
    fit: Fit
    events: int
    valid_for_s: float | None
    #: Whether the rows of a partition are put into one order before they are cut.
    sorted: bool
    #: Where the query has the time of each row; None: one time for all, `at_us`.
    time_column: int | None
    at_us: int
    #: What the streams are named after; empty: after the query.
    name: str = ""
    #: The micro-batch that `at_us` is the time of; -1: of none.
    batch: int = -1


def sink_options(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkOptions:
    """The options of a sink, checked against the manifest and the rows."""
    given = Given(options)
    channel = given.take("channel", text, "")
    events = given.take("eventsPerPublication", count, EVENTS)
    valid_for_s = given.take("validFor", seconds, None)
    in_order = given.take("sorted", switch, False)
    published = given.take("publishedAt", text, "")
    checkpoint = given.take("checkpointLocation", text, "") if streaming else ""
    if streaming:
        given.take("queryName", text, "")  # Spark's own; it hands that over as well
    name = "" if streaming else given.take("writeId", text, "")
    access, manifest = take_access(given, SINK_SEATS)
    given.finish("the sink")
    if not channel:
        raise UsageError("option 'channel' is missing: name the channel to publish on")
    check_validity(valid_for_s)
    if events > MAX_ROWS:
        raise UsageError(f"option 'eventsPerPublication' is {events}: give at most {MAX_ROWS:,}")
    entry = to_publish(manifest, read_identity(Path(access.identity)).name, channel)
    _check_order(entry)
    time_column, at_us, batch = None, 0, -1
    if published and published != BATCH_TIME:
        time_column, at_us = _given_time(published, schema)
    elif streaming:
        at_us, batch = batch_time(checkpoint)
    elif name:
        raise UsageError(
            "option 'writeId' needs 'publishedAt' beside it, a time or a column with times: what "
            "is written again must be the same to the byte, and the clock is not"
        )
    else:
        at_us = microseconds_of(datetime.now().astimezone())
    return SinkOptions(
        access=access,
        fit=fit(entry, schema),
        events=events,
        valid_for_s=valid_for_s,
        sorted=in_order,
        time_column=time_column,
        at_us=at_us,
        name=name or ("" if streaming else uuid4().hex),
        batch=batch,
    )


def _check_order(entry: ChannelEntry) -> None:
    if not entry.policy.total:
        raise UsageError(
            f"channel {str(entry.name)!r} cannot tell what was published before, because it has no "
            "total order: write to a channel with one of the policies 'total' and 'total-crash'"
        )


def _given_time(published: str, schema: StructType) -> tuple[int | None, int]:
    """A column with times, or one time."""
    for place, field in enumerate(schema.fields):
        if field.name == published:
            if not isinstance(field.dataType, TimestampType):
                kind = field.dataType.simpleString()
                raise UsageError(f"column {published!r} of 'publishedAt' is {kind}, no timestamp")
            return place, 0
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


def batch_time(checkpoint: str) -> tuple[int, int]:
    """When the newest micro-batch of a query was begun, by its checkpoint, and its number.

    Spark notes both before it plans the batch, and goes by the note when it runs the batch again.
    """
    advice = (
        "set 'publishedAt' to a column with times, such as one made with current_timestamp(), "
        "which is the same when a micro-batch runs again"
    )
    if not checkpoint:
        raise UsageError(f"without the option 'checkpointLocation' no time comes again: {advice}")
    try:
        plain = re.sub("^file:/+", "/", checkpoint)  # as Java writes it, or as others do
        where = plain if "://" in plain else str(Path(plain).absolute())
        files, path = fs.FileSystem.from_uri(where)
        noted = files.get_file_info(fs.FileSelector(f"{path}/offsets"))
        batches = {int(info.base_name): info.path for info in noted if info.base_name.isdecimal()}
        newest = max(batches)
        with files.open_input_stream(batches[newest]) as stream:
            lines = stream.read().decode().splitlines()
        return int(json.loads(lines[1])["batchTimestampMs"]) * 1000, newest
    except (OSError, ValueError, KeyError, IndexError, pa.ArrowException) as error:
        raise UsageError(
            f"the checkpoint in {checkpoint} cannot be read ({error}): {advice}"
        ) from None


class _Sink:
    """What both writers have in common; goes to the executors."""

    _streaming = False

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UsageError(
                "what is published stays published: write with mode('append'), or stream with "
                "outputMode('append') or outputMode('update')"
            )
        self._options = sink_options(options, schema, streaming=self._streaming)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: publish a partition, and wait until all of it is ordered."""
        context = TaskContext.get()
        if context is None:
            raise UsageError(
                "this writer works inside a Spark task: use df.write or df.writeStream"
            )
        options, partition = self._options, context.partitionId()
        name, epoch = options.name, 0
        if self._streaming:
            name = context.getLocalProperty("sql.streaming.queryId") or ""
            epoch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
            self._check_batch(name, epoch)
        return write_partition(
            options.access,
            options.fit,
            iterator,
            name=name,
            epoch=epoch,
            partition=partition,
            events=options.events,
            in_order=options.sorted,
            valid_for_s=options.valid_for_s,
            time_column=options.time_column,
            at=time_of(options.at_us),
        )

    def _check_batch(self, query: str, epoch: int) -> None:
        if not query or epoch < 0:
            raise UsageError(
                "Spark does not say which query and micro-batch this task belongs to, so nothing "
                "could be published once: use the micro-batch mode of PySpark 4.2 or later"
            )
        if self._options.batch not in (-1, epoch):
            raise UsageError(
                f"the checkpoint is at micro-batch {self._options.batch} and Spark at {epoch}: set "
                "'publishedAt' to a column with times"
            )


class BatchWriter(_Sink, DataSourceArrowWriter):
    """`df.write.format("quorumcast")`."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything was published before its task ended."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was published stays; with the same `writeId` the rest is published once."""


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("quorumcast")`."""

    _streaming = True

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Everything was published before its task ended."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was published stays; when the micro-batch runs again the rest is published."""


__all__ = ["BatchWriter", "SinkOptions", "StreamWriter", "Written", "batch_time", "sink_options"]
