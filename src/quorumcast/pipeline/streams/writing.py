"""What an executor does: cut the rows of a partition into publications, and see them ordered.

The cut depends on the rows alone: so many to a publication, halved where they are too large. How
Spark happens to divide them into record batches makes no difference.

The node works in a thread of its own: while it hashes, signs and sends, the next rows are cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from quorumcast.client.resuming import ResumedPublisher, Resumption
from quorumcast.core.envelope import MAX_US, time_of
from quorumcast.core.errors import UsageError
from quorumcast.ordering.state import LINES_KEPT
from quorumcast.pipeline.streams.fitting import Fit, canonical, rows_of_channel
from quorumcast.pipeline.streams.lines import LINES, Line
from quorumcast.pipeline.streams.options import Access

#: Rows of a publication, unless the user says otherwise, and bytes beyond which it is halved.
EVENTS = 4096
MOST_BYTES = 4 * 1024 * 1024
#: Publications that are handed to the node at a time.
AT_ONCE = 4

Publication = tuple[pa.RecordBatch, datetime]


class Written(WriterCommitMessage):
    """What one task has published."""

    def __init__(self, rows: int, publications: int) -> None:
        self.rows = rows
        self.publications = publications


def write_partition(
    access: Access,
    fit: Fit,
    batches: Iterable[pa.RecordBatch],
    *,
    name: str,
    epoch: int,
    partition: int,
    events: int,
    in_order: bool,
    valid_for_s: float | None,
    time_column: int | None,
    at: datetime,
) -> Written:
    """Publish the rows of a partition as one epoch of its stream; returns when all are ordered."""
    if partition >= LINES_KEPT:
        raise UsageError(
            f"this query has more than {LINES_KEPT:,} partitions, more than a cell remembers: "
            f"coalesce({LINES_KEPT}) or fewer before writing"
        )
    resume = Resumption(f"{name}/{partition}", epoch, at)
    cut = Cut(fit, events, time_column=time_column, at=at, in_order=in_order)
    with LINES.borrow(access, partition) as line:
        task = _Task(line, access, fit.channel, resume, valid_for_s)
        try:
            task.publish(cut.publications(batches))
            return task.conclude()
        except BaseException:
            task.give_up()
            raise


def _sorted_by(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """What tells values of a column apart: 0.0 and -0.0 are equal, and not the same."""
    if not pa.types.is_floating(column.type):
        return [column]
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return [column, pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)]


class Cut:
    """Makes publications of rows."""

    def __init__(
        self,
        fit: Fit,
        events: int,
        *,
        time_column: int | None = None,
        at: datetime | None = None,
        in_order: bool = False,
    ) -> None:
        self._fit = fit
        self._schema = fit.schema()
        self._events = events
        self._time_column = time_column
        self._at = time_of(0) if at is None else at
        self._in_order = in_order

    def publications(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Publication]:
        """The publications that these rows make, one after the other."""
        ordered = self._ordered(batches) if self._in_order else batches
        pieces: list[pa.RecordBatch] = []
        rows = 0
        for batch in ordered:
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

    def _ordered(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """All rows of the partition, in an order that does not depend on how they came."""
        found = list(batches)
        if not found:
            return []
        table = pa.Table.from_batches(found)
        places = [*self._fit.places]
        if self._time_column is not None:
            places.append(self._time_column)
        columns = [by for place in places for by in _sorted_by(table.column(place))]
        named = pa.table(columns, [str(index) for index in range(len(columns))])
        order = pc.sort_indices(named, [(name, "ascending") for name in named.column_names])
        return list(table.take(order).to_batches())

    def _publication(self, pieces: list[pa.RecordBatch]) -> Iterator[Publication]:
        whole = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        batch = canonical(rows_of_channel(self._fit, self._schema, whole))
        yield from self._halved(batch, whole)

    def _halved(self, batch: pa.RecordBatch, whole: pa.RecordBatch) -> Iterator[Publication]:
        if batch.num_rows > 1 and pa.ipc.get_record_batch_size(batch) > MOST_BYTES:
            half = batch.num_rows // 2
            for start, length in ((0, half), (half, batch.num_rows - half)):
                part = canonical(batch.slice(start, length))
                yield from self._halved(part, whole.slice(start, length))
            return
        yield batch, self._time_of(whole)

    def _time_of(self, rows: pa.RecordBatch) -> datetime:
        """The newest time in these rows, or the one time for all of them."""
        if self._time_column is None:
            return self._at
        newest = pc.max(rows.column(self._time_column).cast(pa.int64())).as_py()
        if newest is None or not 0 <= newest <= MAX_US:
            name = rows.schema.field(self._time_column).name
            raise UsageError(f"column {name!r} of 'publishedAt' is null or no time since 1970")
        return time_of(newest)


class _Task:
    """One partition on its way into the cell."""

    def __init__(
        self,
        line: Line,
        access: Access,
        channel: str,
        resume: Resumption,
        valid_for_s: float | None,
    ) -> None:
        self._line = line
        self._access = access
        self._channel = channel
        self._rows = self._publications = 0
        self._publisher: ResumedPublisher = line.thread.call(self._opener(resume, valid_for_s))

    def _opener(
        self, resume: Resumption, valid_for_s: float | None
    ) -> Callable[[], ResumedPublisher]:
        def open_() -> ResumedPublisher:
            found = self._line.node.publisher(self._channel, resume=resume, valid_for_s=valid_for_s)
            if not isinstance(found, ResumedPublisher):
                raise TypeError("a publisher that resumes was asked for")
            return found

        return open_

    def publish(self, publications: Iterator[Publication]) -> None:
        """Hand everything to the node, as fast as the cell takes it."""
        waiting: list[Publication] = []
        for publication in publications:
            waiting.append(publication)
            if len(waiting) == AT_ONCE:
                self._line.thread.run(self._post(waiting))
                waiting = []
        self._line.thread.run(self._post(waiting))

    async def _post(self, publications: list[Publication]) -> None:
        for batch, at in publications:
            await self._patiently(self._publisher.ready)
            self._publisher.post_batch(batch, at)
            self._rows += batch.num_rows
            self._publications += 1

    def conclude(self) -> Written:
        """Wait until all of it is ordered."""
        self._line.thread.run(self._concluded())
        return Written(self._rows, self._publications)

    async def _concluded(self) -> None:
        await self._patiently(self._publisher.flush)
        try:
            async with asyncio.timeout(self._access.timeout_s):
                await self._publisher.close()
        except TimeoutError:
            raise self._late() from None

    async def _patiently(self, wait: Callable[[], object]) -> None:
        """As long as something is acknowledged now and then, however long it takes."""
        while True:
            pending = self._publisher.pending
            try:
                async with asyncio.timeout(self._access.timeout_s):
                    await wait()  # type: ignore[misc]
                return
            except TimeoutError:
                if self._publisher.pending >= pending:
                    raise self._late() from None

    def _late(self) -> UsageError:
        node = self._line.node
        brokers = node.manifest.broker_ids
        away = [broker for broker in brokers if broker not in node.connected]
        return UsageError(
            f"publications on {self._channel!r} are not acknowledged: for "
            f"{self._access.timeout_s:g} s nothing moved, and {len(brokers) - len(away)} of "
            f"{len(brokers)} brokers can be reached"
            f"{' (not ' + ', '.join(away) + ')' if away else ''}; see to the brokers and run the "
            "query again, which publishes what is lacking and nothing twice"
        )

    def give_up(self) -> None:
        """Something went wrong: publish no more."""
        self._line.thread.call(self._publisher.abandon)
