"""A query for tests that kill it: copies the channel "in" to the channel "out", and ends.

python -m tests.pipeline.copying_query DIRECTORY CHECKPOINT
"""

import sys

from quorumcast.pipeline.session import spark_session


def main(directory: str, checkpoint: str) -> None:
    cell = {"manifest": directory, "identity": "carol"}
    session = spark_session("copy", master="local[2]")
    query = (
        session.readStream.format("quorumcast")
        .options(**cell, channel="in", maxEventsPerTrigger="1500", partitions="2")
        .load()
        .writeStream.format("quorumcast")
        .options(**cell, channel="out", eventsPerPublication="100", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
