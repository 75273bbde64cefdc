"""A Spark session with settings for a small machine.

All functions of this package accept any session; `register` makes `format("quorumcast")` known to
one that the user created.
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

#: Spark parses the exceptions of Python functions with a regular expression that recurses for every
#: character: with the default stack, a long text kills the thread.
DEEP_JAVA = "-Xss32m"
#: A garbage collector for few cores, for a driver with executors in its process.
LOCAL_JAVA = "-XX:+UseSerialGC"
#: Starts in half the time, but needs nearly twice the processor time for the same work.
BRIEF_JAVA = "-XX:TieredStopAtLevel=1"
#: Set in the environment of a program that `spark-submit` started.
SUBMITTED = "PYSPARK_GATEWAY_PORT"

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
#: Partitions of a stream's state on a cluster. Each costs a task and some files per micro-batch;
#: Spark's default of 200 takes minutes, and the number cannot be changed later.
STATE_PARTITIONS = 8
#: For streaming queries with much state: it is kept outside the heap.
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
    """Return the session of this process, or create one that knows `format("quorumcast")`.

    `master` is Spark's address, all cores of this machine by default. `settings` override ours. A
    `brief` session starts faster but runs Java code slower: good if Python does the work. A
    `stateful` one has few partitions on a cluster. A program of `spark-submit` keeps the master and
    the settings given there.
    """
    if find_spec("pyspark") is None:
        raise UsageError("PySpark is not installed: run 'make install' in the clone of Quorumcast")
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
        tasks = None  # a remote session does not say

    class Registered(QuorumcastDataSource):
        """The data source of this session."""

        parallelism = tasks

    spark.dataSource.register(Registered)


def reason_of(error: BaseException) -> str | None:
    """Return the message of the `UsageError` that caused an exception of Spark, or None.

    Spark passes exceptions of its Python processes on as the text of a traceback.
    """
    said = re.findall(rf"^{_SENTENCE}: (.+)$", str(error), re.MULTILINE)
    return said[-1] if said else None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    lines = (line.strip().rstrip(".") for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


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
            # No checksum files beside those of a checkpoint: they are a third of a micro-batch's
            # cost. Not `fs.file.impl` as well: RocksDB needs its default.
            "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        }
    return chosen
