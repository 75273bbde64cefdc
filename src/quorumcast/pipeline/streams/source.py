"""`spark.read` and `spark.readStream`: which positions a query reads, and who reads them.

Offsets are the next position of each channel, `{"orders": 120}`, with their keys sorted because
Spark compares them as text. A position that f+1 brokers report is one that a correct broker has
executed, so every correct broker comes to it: whatever the driver offers, executors can read.

The driver has one node for as long as the query runs. It asks for the ends of the channels and
never for contents, except for a few publications when the size of a micro-batch is limited.
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
from quorumcast.pipeline.streams.reading import Range, read_range
from quorumcast.pipeline.streams.rows import arrow_of, spark_schema
from quorumcast.pipeline.streams.watch import Watch

Positions = dict[str, int]


class _Source:
    """What batch and stream readers have in common; goes to the executors."""

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
        """On an executor: the rows of a range."""
        if isinstance(partition, Range):
            yield from read_range(self._options, self._schema, partition)


class BatchReader(_Source, DataSourceReader):
    """`spark.read.format("quorumcast")`."""

    def partitions(self) -> list[InputPartition]:
        """Everything from the starting to the ending offsets, as they are now."""
        watch = Watch(self._options, self._schema)
        try:
            start, end = watch.starting(), watch.ending()
        finally:
            watch.close()
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
        #: On the driver, from the first question on.
        self._watch: Watch | None = None
        #: Where a query that reads what is available now stops.
        self._target: Positions | None = None
        #: Where a query begins that Spark has noted nothing of yet.
        self._beginning: Positions | None = None

    def __getstate__(self) -> dict[str, object]:
        """What executors get."""
        return {**self.__dict__, "_watch": None}

    @property
    def _driver(self) -> Watch:
        if self._watch is None:
            self._watch = Watch(self._options, self._schema)
        return self._watch

    def initialOffset(self) -> Positions:  # noqa: N802
        """Where a new query begins.

        Spark notes where micro-batches end, and asks this again if the first one is to run again,
        when the oldest and the latest position are others. So the first one is empty and ends here.
        """
        self._beginning = self._driver.starting()
        return self._beginning

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What comes from now on is for another run."""
        self._target = self._driver.ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say of the size of a micro-batch."""
        if self._options.max_events:
            return ReadMaxRows(self._options.max_events)
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:  # noqa: N802
        """Where the next micro-batch ends."""
        beginning, self._beginning = self._beginning, None
        if start == beginning:
            return start
        driver = self._driver
        ends = driver.ends() if self._target is None else self._target
        # A channel that is new, or begun anew, begins where it is now; what it has comes with the
        # next micro-batch.
        whole = driver.complete(driver.held(start))
        ends = {
            name: max(ends.get(name, first), first) if start.get(name) == first else first
            for name, first in whole.items()
        }
        if isinstance(limit, ReadAllAvailable):
            return dict(sorted(ends.items()))
        return driver.limited(whole, ends)

    def reportLatestOffset(self) -> Positions | None:  # noqa: N802
        """How far the channels are, for the query's progress."""
        return self._driver.last_ends()

    def partitions(self, start: Positions, end: Positions) -> Sequence[InputPartition]:
        """The ranges of a micro-batch."""
        # Whatever runs, the first time or again, has been noted.
        self._beginning = None
        return split(start, end, self._options)

    def stop(self) -> None:
        """The query has ended."""
        if self._watch is not None:
            self._watch.close()


def split(start: Positions, end: Positions, options: SourceOptions) -> list[InputPartition]:
    """Ranges of about the same number of publications, as many as can be read side by side."""
    total = sum(max(0, upto - start.get(name, upto)) for name, upto in end.items())
    if not total:
        return []
    size = -(-total // options.partitions)
    ranges: list[InputPartition] = []
    for name, upto in sorted(end.items()):
        for first in range(start.get(name, upto), upto, size):
            ranges.append(Range(name, first, min(first + size, upto), len(ranges)))
    return ranges
