"""`spark.read` and `spark.readStream`: the positions that a query reads, and their partitions.

Offsets are the next position of each channel, `{"orders": 120}`, with their keys sorted because
Spark compares them as text. A position that f+1 brokers report is one that a correct broker has
executed, so every correct broker reaches it: executors can read every offset that the driver plans.

The driver has one node while the query runs. It asks for the ends of the channels, and for contents
only to sample publications when the size of a micro-batch is limited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.streams.options import SourceOptions, source_options
from quorumcast.pipeline.streams.planner import OffsetPlanner
from quorumcast.pipeline.streams.reading import Range, read_range
from quorumcast.pipeline.streams.rows import arrow_of, spark_schema

Positions = dict[str, int]


class _Source:
    """The common part of batch and stream readers; Spark sends it to the executors."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, parallelism: int | None = None
    ) -> None:
        self._options, entries = source_options(options, parallelism)
        wanted = spark_schema(self._options, entries)
        if schema != wanted:
            raise UsageError(
                "the columns of a channel are in the manifest: leave '.schema(…)' out, and select "
                "from what is there"
            )
        self._schema = arrow_of(wanted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a range, on an executor."""
        if isinstance(partition, Range):
            yield from read_range(self._options, self._schema, partition)


class BatchReader(_Source, DataSourceReader):
    """`spark.read.format("quorumcast")`."""

    def partitions(self) -> list[InputPartition]:
        """Return the ranges from the starting to the ending offsets."""
        planner = OffsetPlanner(self._options, self._schema)
        try:
            start, end = planner.starting(), planner.ending()
        finally:
            planner.close()
        return list(split(start, end, self._options))


class StreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("quorumcast")`."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, parallelism: int | None = None
    ) -> None:
        super().__init__(options, schema, parallelism)
        if self._options.ending.positions:
            raise UsageError(
                "option 'endingOffsets' is for batch reads: a stream ends when it is stopped"
            )
        #: Created on the driver at the first use.
        self._started: OffsetPlanner | None = None
        #: The end of a query with the trigger `availableNow`.
        self._target: Positions | None = None
        #: The start of a query that has no checkpoint yet.
        self._beginning: Positions | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state for executors."""
        return {**self.__dict__, "_started": None}

    @property
    def _planner(self) -> OffsetPlanner:
        if self._started is None:
            self._started = OffsetPlanner(self._options, self._schema)
        return self._started

    def initialOffset(self) -> Positions:  # noqa: N802
        """Return the offsets at which a new query starts.

        Spark records only the ends of micro-batches. It asks again if it repeats the first one, and
        the bounds may have changed by then. So the first micro-batch is empty and ends here.
        """
        self._beginning = self._planner.starting()
        return self._beginning

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run."""
        self._target = self._planner.ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch from the options."""
        if self._options.max_events:
            return ReadMaxRows(self._options.max_events)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:  # noqa: N802
        """Return the end of the next micro-batch."""
        beginning, self._beginning = self._beginning, None
        if start == beginning:
            return start
        planner = self._planner
        ends = planner.ends() if self._target is None else self._target
        # A channel that is new, or was reset, starts at its current offset; its publications
        # follow in the next micro-batch.
        whole = planner.complete(planner.check_reached(start))
        ends = {
            name: max(ends.get(name, first), first) if start.get(name) == first else first
            for name, first in whole.items()
        }
        if isinstance(limit, ReadAllAvailable):
            return dict(sorted(ends.items()))
        return planner.limited(whole, ends)

    def reportLatestOffset(self) -> Positions | None:  # noqa: N802
        """Return the ends of the channels for the progress of the query."""
        return self._planner.last_ends

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch."""
        # A micro-batch that runs has been recorded by Spark.
        self._beginning = None
        return split(start, end, self._options)

    def stop(self) -> None:
        """Disconnect at the end of the query."""
        if self._started is not None:
            self._started.close()


def split(start: Positions, end: Positions, options: SourceOptions) -> list[InputPartition]:
    """Split offsets into ranges of about equal size, one per parallel task."""
    total = sum(max(0, upto - start.get(name, upto)) for name, upto in end.items())
    if not total:
        return []
    size = -(-total // options.partitions)
    ranges: list[InputPartition] = []
    for name, upto in sorted(end.items()):
        for first in range(start.get(name, upto), upto, size):
            ranges.append(Range(name, first, min(first + size, upto), len(ranges)))
    return ranges
