"""The session that people without one of their own get."""

import os

import pytest
from pyspark.sql import SparkSession

from quorumcast.core.errors import UsageError
from quorumcast.pipeline import session
from quorumcast.pipeline.master import cores_of
from quorumcast.pipeline.session import spark_session


def test_session_keeps_utc_and_runs_arrow_functions(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    doubled = spark.range(1000).mapInArrow(lambda batches: batches, "id long")
    assert doubled.count() == 1000


def test_session_survives_the_expression_by_which_spark_reads_tracebacks(
    spark: SparkSession,
) -> None:
    traceback = "x" * 20_000
    pattern = spark._jvm.java.util.regex.Pattern  # type: ignore[union-attr]
    assert pattern.matches(r"(\r\n|\r|\n|.)*", traceback)


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[17,2]", 17), ("local-cluster[2,3,1024]", 6)],
)
def test_session_has_as_many_partitions_as_its_master_has_cores(master: str, cores: int) -> None:
    chosen = session._defaults(cores_of(master), True, "")
    assert chosen["spark.default.parallelism"] == str(cores)
    assert chosen["spark.sql.shuffle.partitions"] == str(cores)


def test_cluster_keeps_its_own_partitions_and_a_machine_its_cores() -> None:
    assert "spark.default.parallelism" not in session._defaults(cores_of("yarn"), True, "")
    assert cores_of("local[*]") == os.cpu_count()


@pytest.mark.parametrize(
    ("master", "stateful", "partitions"),
    [
        ("yarn", False, None),
        ("yarn", True, "8"),
        ("spark://h:1", True, "8"),
        ("local[2]", True, "2"),
    ],
)
def test_state_of_streams_has_few_partitions_on_a_cluster(
    master: str, stateful: bool, partitions: str | None
) -> None:
    chosen = session._defaults(cores_of(master), True, "", stateful)
    assert chosen.get("spark.sql.shuffle.partitions") == partitions


def test_second_call_gives_the_session_of_the_process(spark: SparkSession) -> None:
    again = spark_session(settings={"spark.sql.shuffle.partitions": "7"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "7"
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_missing_pyspark_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="run 'make install'"):
        spark_session()
