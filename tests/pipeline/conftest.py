"""One Spark session for the tests of the pipeline, all of them in one process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quorumcast.pipeline.session import spark_session

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


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
