"""Spark reads the last cell of a tree like any other: whole tables, rows by predicate, streams."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.test_source_in_spark import (
    COLUMNS,
    EVENTS,
    alice,
    check_once,
    publish,
    said,
    stored,
)

from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.tree import LocalTree

PUBLICATIONS = 12
LIARS = {"root": "lie-in-ordering", "cell-1": "omit-rows"}


@pytest.fixture(scope="module")
def leaf() -> Iterator[LocalCluster]:
    """The child of a cell in which all was published; a broker of each lies."""
    orders = ChannelEntry(Channel("orders"), Policy.named("total"), schema=COLUMNS)
    with LocalTree(clients=("alice", "spark"), channels={"orders": orders}) as tree:
        for name, fault in LIARS.items():
            tree[name].wait_for_links()
            tree[name].make_lie("broker-2", fault)
        publish(tree["root"], range(PUBLICATIONS))
        with alice(tree["cell-1"]) as node, node.subscribe("orders", start="earliest") as inbox:
            for _ in range(PUBLICATIONS):  # all of it is in the child now
                inbox.next_batch()
        yield tree["cell-1"]


def read(spark: SparkSession, leaf: LocalCluster, **options: str) -> DataFrame:
    return spark.read.format("quorumcast").options(**said(leaf, **options)).load()


def test_leaf_has_what_was_published_at_the_root(spark: SparkSession, leaf: LocalCluster) -> None:
    check_once(read(spark, leaf), PUBLICATIONS * EVENTS)


def test_rows_by_predicate_are_those_of_a_full_read_filtered_later(
    spark: SparkSession, leaf: LocalCluster
) -> None:
    where = "id < 100 AND site = 'site-1'"
    columns = ("id", "site", "_position", "_index")
    some = sorted(read(spark, leaf, where=where).select(*columns).collect())
    assert some == sorted(read(spark, leaf).where(where).select(*columns).collect())
    assert len(some) == 33


def test_stream_from_a_leaf_ends_where_it_was(
    spark: SparkSession, leaf: LocalCluster, tmp_path: Path
) -> None:
    stream = spark.readStream.format("quorumcast").options(**said(leaf)).load()
    stored(stream, tmp_path)
    check_once(spark.read.parquet(str(tmp_path / "table")), PUBLICATIONS * EVENTS)
