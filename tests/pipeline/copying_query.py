"""A query for tests that kill it: copies the events of the channel "in" to the channel "out".

python -m tests.pipeline.copying_query MASTER CELL CHECKPOINT
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.pipeline.numbered import PATIENCE_S

from quorumcast.pipeline.session import spark_session

#: What is copied; brokers send the rows.
EVENTS = "name like 'event %'"


def copying(session: SparkSession, directory: str, checkpoint: str) -> DataStreamWriter:
    """The query, yet to be started."""
    cell = {"manifest": directory, "identity": "carol", "timeout": str(PATIENCE_S)}
    return (
        session.readStream.format("quorumcast")
        .options(**cell, channel="in", maxEventsPerTrigger="3300", where=EVENTS)
        .load()
        .writeStream.format("quorumcast")
        .options(**cell, channel="out", eventsPerPublication="100", checkpointLocation=checkpoint)
    )


if __name__ == "__main__":
    master, *where = sys.argv[1:]
    copying(spark_session("copy", master=master), *where).start().awaitTermination()
