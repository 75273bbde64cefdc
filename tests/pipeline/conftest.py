"""One Spark session for the tests of the pipeline that take one, all of them in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.together import SPARK, piece

from quorumcast.pipeline.session import register, spark_session

HERE = Path(__file__).parent


#: Java and Python processes start one after the other, on a machine that may be busy.
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if piece(item.nodeid) == SPARK:
                item.add_marker(pytest.mark.spark)


@pytest.fixture(autouse=True)
def _format(request: pytest.FixtureRequest) -> None:
    """The session knows the format, whatever commands in this process did meanwhile."""
    if "spark" in request.fixturenames:
        register(request.getfixturevalue("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session("tests", master="local[2]")
    yield session
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    # Java ends when its standard input does, and PySpark leaves that to the end of Python.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
