"""Turns rows into publications: tasks split and stage them, and the driver publishes them.

A task splits its rows into publications of a fixed number of rows, and halves those that are too
large. The driver publishes the staged rows as one resumable stream (`client.publishing.resuming`),
named by the query, with the micro-batch as epoch. A driver that publishes a micro-batch again, or
beside another driver, publishes the same bytes under the same numbers: each publication is ordered
once. The node has a thread of its own, so that it hashes, signs and sends while the next rows are
read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from quorumcast.client.options import Resumption
from quorumcast.client.publishing.packing import wall_us
from quorumcast.client.publishing.resuming import ResumedPublisher
from quorumcast.core.envelope import MAX_US, microseconds_of, time_of
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.streams.connections import POOL, PooledNode
from quorumcast.pipeline.streams.fitting import Fit, rows_of_channel
from quorumcast.pipeline.streams.options import Access
from quorumcast.pipeline.streams.staging import Publication, StagedBatch, Staging

#: Default rows of a publication, and its size in bytes above which it is halved.
EVENTS = 4096
MAX_BYTES = 4 * 1024 * 1024
#: Publications per call to the thread of the node.
AT_ONCE = 4


class Written(WriterCommitMessage):
    """The result of one task."""

    def __init__(self, name: str, part: str | None, rows: int) -> None:
        #: The name of the stream.
        self.name = name
        #: The part that holds the rows; None if the micro-batch had been decided before.
        self.part = part
        self.rows = rows


def stage_partition(
    staging: Staging, cut: Cut, batches: Iterable[pa.RecordBatch], *, name: str, partition: int
) -> Written:
    """Stage the rows of a partition, on an executor."""
    part = staging.write_part(partition, cut.schema, cut.publications(batches))
    return Written(name, part, cut.rows)


def publish_batch(
    access: Access,
    channel: str,
    staging: Staging,
    written: Sequence[Written],
    *,
    epoch: int,
    at: datetime | None = None,
    valid_for_s: float | None = None,
) -> StagedBatch | None:
    """Decide a micro-batch and publish it, on the driver; return when all of it is ordered."""
    batch = staging.batch() or _decide(staging, written, epoch, at)
    if batch is None:
        return None
    others = {found.name for found in written} - {batch.name}
    if others:
        raise UsageError(
            f"the staging directory holds rows of {batch.name!r}, and this is {others.pop()!r}: "
            "give each query a directory of its own with the option 'staging'"
        )
    if staging.published:
        return batch
    resume = Resumption(batch.name, epoch, time_of(batch.decided_us))
    # Seats on other machines are unknown, so each query starts at another one.
    wish = int.from_bytes(hashlib.sha256(batch.name.encode()).digest()[:4], "big")
    try:
        with POOL.borrow(access, wish) as pooled:
            publishing = _Publishing(pooled, access, channel, resume, valid_for_s)
            publishing.publish_all(staging.publications(batch))
    except UsageError:
        if not staging.published:  # another driver published them and removed the rows
            raise
    staging.finish()
    return batch


def _decide(
    staging: Staging, written: Sequence[Written], epoch: int, at: datetime | None
) -> StagedBatch | None:
    """Decide that the micro-batch is what these tasks staged; None if it has no rows."""
    parts = tuple(found.part for found in written if found.part is not None)
    if len(parts) < len(written):
        raise UsageError(
            "rows that were staged for this micro-batch were removed while it ran: leave the "
            "staging directory to the query, and start the query again"
        )
    rows = sum(found.rows for found in written)
    if not rows:
        staging.remove_parts(parts)
        return None
    decided_us = wall_us() if at is None else microseconds_of(at)
    return staging.decide(StagedBatch(written[0].name, epoch, decided_us, rows, parts))


class Cut:
    """Splits rows into publications."""

    def __init__(self, fit: Fit, events: int, *, time_column: int | None = None) -> None:
        self._fit = fit
        self._events = events
        self._time_column = time_column
        self.schema = fit.schema()
        #: Rows so far.
        self.rows = 0

    def publications(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Publication]:
        """Yield the publications of these rows."""
        pieces: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            start = 0
            while start < batch.num_rows:
                piece = batch.slice(start, self._events - rows)
                pieces.append(piece)
                rows += piece.num_rows
                start += piece.num_rows
                if rows == self._events:
                    yield from self._publication(pieces)
                    pieces, rows = [], 0
        if pieces:
            yield from self._publication(pieces)

    def _publication(self, pieces: list[pa.RecordBatch]) -> Iterator[Publication]:
        whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        self.rows += whole.num_rows
        yield from self._halved(rows_of_channel(self._fit, self.schema, whole), whole)

    def _halved(self, batch: pa.RecordBatch, whole: pa.RecordBatch) -> Iterator[Publication]:
        if batch.num_rows > 1 and pa.ipc.get_record_batch_size(batch) > MAX_BYTES:
            half = batch.num_rows // 2
            for start, length in ((0, half), (half, batch.num_rows - half)):
                part, rows = batch.slice(start, length), whole.slice(start, length)
                yield from self._halved(part, rows)
            return
        yield batch, self._time_of(whole)

    def _time_of(self, rows: pa.RecordBatch) -> datetime | None:
        """Return the newest time in these rows, if there is a time column."""
        if self._time_column is None:
            return None
        newest = pc.max(rows.column(self._time_column).cast(pa.int64())).as_py()
        if newest is None or not 0 <= newest <= MAX_US:
            name = rows.schema.field(self._time_column).name
            raise UsageError(f"column {name!r} of 'publishedAt' is null or no time since 1970")
        return time_of(newest)


class _Publishing:
    """The publishing of one micro-batch."""

    def __init__(
        self,
        pooled: PooledNode,
        access: Access,
        channel: str,
        resume: Resumption,
        valid_for_s: float | None,
    ) -> None:
        self._pooled = pooled
        self._access = access
        self._channel = channel

        def open_() -> ResumedPublisher:
            found = pooled.node.publisher(channel, resume=resume, valid_for_s=valid_for_s)
            if not isinstance(found, ResumedPublisher):
                raise TypeError("a publisher that resumes was asked for")
            return found

        self._publisher = pooled.thread.call(open_)

    def publish_all(self, publications: Iterator[Publication]) -> None:
        """Publish as fast as the cell accepts, and wait until everything is ordered."""
        thread, waiting = self._pooled.thread, list[Publication]()
        try:
            for publication in publications:
                waiting.append(publication)
                if len(waiting) == AT_ONCE:
                    thread.run(self._post(waiting))
                    waiting = []
            thread.run(self._post(waiting))
            thread.run(self._conclude())
        except BaseException:
            thread.call(self._publisher.abandon)
            raise

    async def _post(self, publications: list[Publication]) -> None:
        for batch, at in publications:
            await self._wait_for_progress(self._publisher.ready)
            self._publisher.post_batch(batch, at)

    async def _conclude(self) -> None:
        """Wait until everything is ordered, and close the stream."""
        await self._wait_for_progress(self._publisher.flush)
        try:
            async with asyncio.timeout(self._access.timeout_s):
                await self._publisher.close()
        except TimeoutError:
            raise self._timeout_error() from None

    async def _wait_for_progress(self, wait: Callable[[], object]) -> None:
        """Wait as long as acknowledgements keep arriving within the timeout."""
        while True:
            pending = self._publisher.pending
            try:
                async with asyncio.timeout(self._access.timeout_s):
                    await wait()  # type: ignore[misc]
                return
            except TimeoutError:
                if self._publisher.pending >= pending:
                    raise self._timeout_error() from None

    def _timeout_error(self) -> UsageError:
        return UsageError(
            f"publications on {self._channel!r} are not acknowledged: for "
            f"{self._access.timeout_s:g} s nothing moved, and {self._pooled.reached}; see to the "
            "brokers and run the query again, which publishes what is lacking and nothing twice"
        )
