"""A Spark session with settings for a small machine.

Everything in this room takes any session: this one is for those who have none. `register` makes
`format("quorumcast")` known to a session of the user's own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.archive import archive_options
from quorumcast.pipeline.interpreter import prepare_python
from quorumcast.pipeline.java import prepare_java
from quorumcast.pipeline.master import check_master, cores_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: When a query stops, Spark looks at what its Python function raised, by an expression that goes
#: deeper with every character: with the usual stack a long text is the end of the thread.
DEEP_JAVA = "-Xss32m"
#: For a driver, and executors in its process, that start quickly and keep to few cores.
LOCAL_JAVA = "-XX:+UseSerialGC"
#: Starts in half the time, and then needs nearly twice the processor time for the same work.
BRIEF_JAVA = "-XX:TieredStopAtLevel=1"
#: In the environment of a program that `spark-submit` started.
SUBMITTED = "PYSPARK_GATEWAY_PORT"

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
#: Partitions of what streams remember on a cluster: each is a task and some files of every
#: micro-batch, so that Spark's 200 take it minutes, and their number stays for good.
STATE_PARTITIONS = 8
#: For streaming queries with much state: off the heap, and cheaper than objects in Python.
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}

_SENTENCE = re.escape(f"{UsageError.__module__}.{UsageError.__qualname__}")


def spark_session(
    name: str = "quorumcast",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    brief: bool = True,
    stateful: bool = False,
) -> SparkSession:
    """A session that knows `format("quorumcast")`; the one of this process, if there is one.

    `master` is as Spark has it, all cores of this machine unless said otherwise. `settings` are
    Spark's and go before ours. What keeps Java itself busy for minutes on this machine should not
    be `brief`; what is Python's work, such as simulations, may. What keeps `stateful` streams on a
    cluster has few partitions there. What `spark-submit` started keeps the master and the settings
    of that.
    """
    if find_spec("pyspark") is None:
        raise UsageError("PySpark is not installed: run 'pip install quorumcast[spark]'")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    chosen = dict(settings or {})
    if SUBMITTED not in os.environ:
        master = master or os.environ.get("SPARK_MASTER") or "local[*]"
        java = ""
        if SparkSession.getActiveSession() is None:
            check_master(master)
            java = archive_options(prepare_java())
            here = cores_of(master) is not None
            python = prepare_python() if here else sys.executable
            os.environ.setdefault("PYSPARK_PYTHON", python)
        chosen = {**_defaults(cores_of(master), brief, java, stateful), **chosen}
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("quorumcast")` known to a session."""
    from pyspark.errors import PySparkException

    from quorumcast.pipeline.streams.datasource import QuorumcastDataSource

    try:
        tasks: int | None = spark.sparkContext.defaultParallelism
    except PySparkException:
        tasks = None  # a session on another machine does not tell

    class Registered(QuorumcastDataSource):
        """The data source of this session."""

        parallelism = tasks

    spark.dataSource.register(Registered)


def reason_of(error: BaseException) -> str | None:
    """The sentence for people in what Spark raised, if one of ours is the cause.

    Spark passes on what happens in its Python processes as the text of a traceback.
    """
    said = re.findall(rf"^{_SENTENCE}: (.+)$", str(error), re.MULTILINE)
    return said[-1] if said else None


def _defaults(cores: int | None, brief: bool, java: str, stateful: bool = False) -> dict[str, str]:
    log4j = files(__package__) / "log4j2.properties"
    java = f"{DEEP_JAVA} -Dlog4j2.configurationFile={log4j} {java}"
    chosen = {
        "spark.driver.extraJavaOptions": java,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if stateful:
        chosen[SHUFFLE_PARTITIONS] = str(STATE_PARTITIONS)
    if cores is not None:
        chosen |= {
            "spark.driver.extraJavaOptions": f"{java} {LOCAL_JAVA} {BRIEF_JAVA if brief else ''}",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            SHUFFLE_PARTITIONS: str(cores),
            "spark.default.parallelism": str(cores),
            # No checksum file beside each file of a checkpoint: a third of a micro-batch's cost.
            # Not `fs.file.impl` as well, which RocksDB wants as it is.
            "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        }
    return chosen
