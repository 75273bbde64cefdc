"""A query for tests that kill it: copies the channel "in" to the channel "out".

python -m tests.pipeline.copying_query MASTER CELL CHECKPOINT            what is there, and ends
python -m tests.pipeline.copying_query MASTER CELL CHECKPOINT forever    whatever comes
"""

import sys

from tests.pipeline.numbered import PATIENCE_S

from quorumcast.pipeline.session import spark_session


def main(master: str, directory: str, checkpoint: str, how_long: str = "") -> None:
    cell = {"manifest": directory, "identity": "carol", "timeout": str(PATIENCE_S)}
    session = spark_session("copy", master=master)
    writer = (
        session.readStream.format("quorumcast")
        .options(**cell, channel="in", maxEventsPerTrigger="1500")
        .load()
        .writeStream.format("quorumcast")
        .options(**cell, channel="out", eventsPerPublication="100", checkpointLocation=checkpoint)
    )
    query = (writer if how_long else writer.trigger(availableNow=True)).start()
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
