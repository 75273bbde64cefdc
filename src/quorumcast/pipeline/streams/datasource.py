"""The Spark data source `format("quorumcast")`: its readers and writers.

Spark pickles the data source, its readers and its writers, and creates them again in several
processes. They share nothing but their options.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

NAME = "quorumcast"


class QuorumcastDataSource(DataSource):
    """Channels of a cell as tables and streams."""

    #: The number of parallel tasks of the session, if known.
    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the channels and of the origin of rows."""
        from quorumcast.pipeline.streams.options import source_options
        from quorumcast.pipeline.streams.rows import spark_schema

        return spark_schema(*source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """`spark.read`."""
        from quorumcast.pipeline.streams.source import BatchReader

        return BatchReader(self.options, schema, self.parallelism)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """`spark.readStream`."""
        from quorumcast.pipeline.streams.source import StreamReader

        return StreamReader(self.options, schema, self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """`df.write`."""
        from quorumcast.pipeline.streams.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """`df.writeStream`; asked for anew with every micro-batch."""
        from quorumcast.pipeline.streams.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
