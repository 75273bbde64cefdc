"""One Spark session for the tests of the pipeline that take one, all of them in one process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.scheduling import ROOT, SPARK, work_unit

from quorumcast.pipeline.session import register, spark_session

HERE = Path(__file__).parent


#: Every query in these tests is new and small, so compiling it or planning it again while it runs
#: costs more than it saves. Recording the line that made each column, for error messages, takes
#: half of the Python time of a query. The examples run with Spark's own settings.
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.python.daemon.module": "tests.support.worker_daemon",
}
#: Java and Python processes start one after the other, on a machine that may be busy.
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if work_unit(item.nodeid) == SPARK:
                item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _format(request: pytest.FixtureRequest) -> None:
    """The session knows the format, whatever commands in this process did meanwhile."""
    if "spark" in request.fixturenames:
        register(request.getfixturevalue("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # for those workers
        session = spark_session("tests", master="local[2]", settings=SETTINGS)
    yield session
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    # Java ends when its standard input does, and PySpark leaves that to the end of Python.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
