"""The sink in Spark: every row once, and columns that do not fit refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.numbered import PATIENCE_S, entry, held

from quorumcast.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    channels = {name: entry(name) for name in ("one", "two", "three")}
    with LocalCluster(channels=channels) as cluster:
        yield cluster


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("id AS n", "'x' AS name")


def cell_of(cluster: LocalCluster, channel: str) -> dict[str, str]:
    """The options that every query has."""
    options = {"manifest": str(cluster.directory), "identity": "alice", "channel": channel}
    return {**options, "timeout": str(PATIENCE_S)}


def write(frame: DataFrame, cluster: LocalCluster, channel: str, **options: str) -> None:
    cell = cell_of(cluster, channel)
    frame.write.format("quorumcast").mode("append").options(**cell, **options).save()


def test_rows_of_a_frame_are_published_and_again_with_the_same_id_only_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    frame, again = rows(spark, 1000), {"writeId": "today", "staging": str(tmp_path)}
    write(frame, cluster, "one", eventsPerPublication="64", **again)
    write(rows(spark, 1000, 3), cluster, "one", eventsPerPublication="32", **again)
    wanted = [(number, "x") for number in range(1000)]
    assert held(cluster, "one") == wanted  # partitions come in their order
    write(frame, cluster, "one")  # a write of its own
    assert sorted(held(cluster, "one")) == sorted(wanted * 2)
    with pytest.raises(PySparkException, match="1,000 rows were written with 'writeId' 'today'"):
        write(rows(spark, 900), cluster, "one", eventsPerPublication="64", **again)
    assert len(list(tmp_path.glob("*/*"))) == 2  # nothing is left but the two notes


def test_micro_batch_that_runs_again_publishes_nothing_twice(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Spark forgets that a micro-batch is done, as if it had been killed just before the note.

    It runs again with other partitions, and without rows that its input has given up meanwhile.
    """
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    cell = cell_of(cluster, "two")

    def stream(partitions: int) -> None:
        reader = spark.readStream.schema("n LONG, name STRING")
        frame = reader.option("ignoreMissingFiles", "true").json(str(source))
        query = (
            frame.repartition(partitions, "n")
            .writeStream.format("quorumcast")
            .queryName("copy")
            .options(**cell, eventsPerPublication="50", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for batch in range(2):
        rows(spark, 300).write.mode("append").json(str(source))
        stream(2)
        (checkpoint / "commits" / str(batch)).unlink()
        next(source.glob("*.json")).unlink()
        stream(3)
    assert sorted(held(cluster, "two")) == sorted([(n, "x") for n in range(300)] * 2)


def test_columns_that_do_not_fit_are_refused_by_name(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    with pytest.raises(PySparkException, match="column 'name' is missing: channel 'three' has"):
        write(spark.range(3).selectExpr("id AS n"), cluster, "three")
    with pytest.raises(PySparkException, match="column 'n' is string in the query and int64"):
        write(spark.range(3).selectExpr("'a' AS n", "'b' AS name"), cluster, "three")
    cell = cell_of(cluster, "three")
    replacing = rows(spark, 3).write.format("quorumcast").mode("overwrite").options(**cell)
    with pytest.raises(PySparkException, match="what is published stays published"):
        replacing.save()
    assert held(cluster, "three") == []
