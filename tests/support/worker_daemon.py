"""Where Spark's Python workers come from in tests: Spark's own daemon, with two differences.

What every worker loads is loaded here once, before workers are forked; to load it is most of what a
short task costs. And workers wait for everybody's vote as long as it takes: on a busy machine a
broker may be slower than a reader usually waits for it, and its dissent would not be seen.
"""

import gc
import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a thread would not live on in what is forked

import pandas as pd
import pyarrow as pa
import pyspark.worker
from pyspark import daemon

from quorumcast.cell.subscribing import subscriber
from quorumcast.pipeline.audit import job
from quorumcast.pipeline.streams import datasource, reading, writing

LOADED = (pd, pa, pyspark.worker, job, datasource, reading, writing)
subscriber.ALL_VOTES_MS = 120_000  # type: ignore[attr-defined]  # it has it from `excerpt`

if __name__ == "__main__":
    gc.freeze()  # what is loaded stays shared, as in a worker of pytest
    gc.set_threshold(50_000, 20, 50)
    daemon.manager()
