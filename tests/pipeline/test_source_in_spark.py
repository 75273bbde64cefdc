"""The source in Spark itself: tables, streams and checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.pipeline.numbered import PATIENCE_S
from tests.pipeline.test_source_retention import COUNT, durable_cell, gone, lower_retention

from quorumcast import sync
from quorumcast.client.sync import SyncNode
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.session import reason_of
from quorumcast.pipeline.streams.bench import measure
from quorumcast.pipeline.streams.progress import lag, watched
from quorumcast.testing.cluster import LocalCluster

COLUMNS = (("id", "int64"), ("site", "string"))
PUBLICATIONS, EVENTS = 60, 50

PER_BATCH = 300


@pytest.fixture(scope="module")
def cell() -> Iterator[LocalCluster]:
    orders = ChannelEntry(Channel("orders"), Policy.named("total"), schema=COLUMNS)
    limits = Limits(retained_publications=8, window=8, segment=8)
    short = msgspec.structs.replace(Policy.named("total"), limits=limits)
    channels: dict[str, ChannelEntry | Policy] = {"orders": orders, "short": short}
    with LocalCluster(clients=("alice", "spark"), channels=channels) as cluster:
        cluster.wait_for_links()
        publish(cluster, range(PUBLICATIONS))
        yield cluster


def publish(cell: LocalCluster, publications: range) -> None:
    schema = cell.manifest.channels[0].arrow_schema()
    with alice(cell) as node, node.publisher("orders") as publisher:
        for number in publications:
            ids = range(number * EVENTS, (number + 1) * EVENTS)
            rows = [{"id": id_, "site": f"site-{id_ % 3}"} for id_ in ids]
            publisher.post_batch(pa.RecordBatch.from_pylist(rows, schema))
        publisher.flush()
    cell.wait_executed()


def alice(cell: LocalCluster) -> SyncNode:
    return sync.connect(cell.manifest_path, cell.identity_path("alice"), timeout_s=PATIENCE_S)


def said(cell: LocalCluster, **options: str) -> dict[str, str]:
    usual = {"identity": "spark", "channel": "orders", "timeout": str(PATIENCE_S)}
    return {"manifest": str(cell.directory), **usual, **options}


def stored(stream: DataFrame, output: Path) -> StreamingQuery:
    """Write what is there to a table, from where the checkpoint says on."""
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(output / "table"))
    )
    query.awaitTermination()
    return query


def check_once(table: DataFrame, events: int) -> None:
    """Every event of the channel is in the table, in its place, and none twice."""
    found = sorted(
        (row.id, row.site, row._position, row._index)
        for row in table.select("id", "site", "_position", "_index").toLocalIterator()
    )
    assert found == [
        (id_, f"site-{id_ % 3}", 1 + id_ // EVENTS, id_ % EVENTS) for id_ in range(events)
    ]


def test_table_is_what_was_published(spark: SparkSession, cell: LocalCluster) -> None:
    table = spark.read.format("quorumcast").options(**said(cell)).load()
    check_once(table, PUBLICATIONS * EVENTS)
    part = said(cell, startingOffsets='{"orders": 11}', endingOffsets='{"orders": 13}')
    assert spark.read.format("quorumcast").options(**part).load().count() == 2 * EVENTS


def test_wrong_option_is_named_in_what_spark_says(spark: SparkSession, cell: LocalCluster) -> None:
    wrong = said(cell, startingOffset="latest")
    with pytest.raises(PySparkException) as raised:
        spark.readStream.format("quorumcast").options(**wrong).load()
    sentence = "the source has no option 'startingoffset': did you mean 'startingOffsets'?"
    assert reason_of(raised.value) == sentence


def test_bench_accounts_for_every_event(spark: SparkSession) -> None:
    steps: list[str] = []
    report = measure(spark, 5000, 1000, steps.append)
    for rate in (report.verified, report.parquet, report.parquet_stream):
        assert rate.events == 5000
    assert report.share == report.verified.per_second / report.parquet.per_second
    print(f"{report.narrow_bytes:.1%} of the bytes for 9 % of the rows")
    assert 0 < report.narrow_bytes < 0.5
    assert steps[0] == "publishing 5,000 events"


def test_first_rows_are_not_passed_over_when_they_are_gone_before_they_are_read_again(
    spark: SparkSession, cell: LocalCluster, tmp_path: Path
) -> None:
    def publish_short(first: int) -> None:
        with alice(cell) as node, node.publisher("short") as publisher:
            for number in range(first, first + 8):
                publisher.publish(b"%d" % number)
        cell.wait_executed()

    def read(rows: DataFrame, batch: int) -> None:
        seen.append([int(row.payload) for row in rows.collect()])
        if seen[-1]:
            raise ValueError("not yet")

    seen: list[list[int]] = []
    stream = spark.readStream.format("quorumcast").options(**said(cell, channel="short")).load()
    query = stream.writeStream.foreachBatch(read).option("checkpointLocation", str(tmp_path))
    publish_short(1)
    with pytest.raises(PySparkException, match="not yet"):
        query.trigger(availableNow=True).start().awaitTermination()
    assert seen == [[], [*range(1, 9)]]
    publish_short(9)
    with pytest.raises(PySparkException, match=r"positions \d to \d of 'short' are gone"):
        query.trigger(availableNow=True).start().awaitTermination()


def test_query_that_is_behind_stops_or_goes_on_without_what_is_gone_and_reads_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[int] = []
    once = COUNT // 4

    def keep(rows: DataFrame, batch: int) -> None:
        found = [int(row.payload) for row in rows.collect()]
        if len(seen) == once and not lowered:
            raise ValueError("this query falls behind")
        seen.extend(found)

    def run(cell: LocalCluster, **more: str) -> None:
        options = said(
            cell, channel="events", partitions="1", maxEventsPerTrigger=str(once), **more
        )
        stream = spark.readStream.format("quorumcast").options(**options).load()
        query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()

    lowered = 0
    with durable_cell() as cell:
        with pytest.raises(PySparkException, match="this query falls behind"):
            run(cell)
        assert seen == [*range(1, once + 1)]
        lowered = lower_retention(cell)
        with pytest.raises(PySparkException) as stopped:
            run(cell)
        # Spark asks again for the micro-batch that it had planned.
        assert gone(once + 1, 2 * once) in str(stopped.value)
        assert "set failOnDataLoss to 'false' to go on without them" in str(stopped.value)
        assert seen == [*range(1, once + 1)]
        run(cell, failOnDataLoss="false")
        assert seen == [*range(1, once + 1), *range(lowered, COUNT + 1)]


def test_stream_ends_where_it_was_and_goes_on_from_there_with_a_liar_in_the_cell(
    spark: SparkSession, cell: LocalCluster, tmp_path: Path
) -> None:
    options = said(cell, maxEventsPerTrigger="1000")
    stream = watched(spark.readStream.format("quorumcast").options(**options).load())
    first = [
        progress for progress in stored(stream, tmp_path).recentProgress if progress.numInputRows
    ]
    assert len(first) == 3
    assert lag(first[0]) == {"orders": 40}
    assert lag(first[-1]) == {"orders": 0}
    cell.make_lie("broker-3", "alter", victims=["contents"])
    try:
        publish(cell, range(PUBLICATIONS, PUBLICATIONS + 5))
        (second,) = [p for p in stored(stream, tmp_path).recentProgress if p.numInputRows]
    finally:
        cell.make_honest("broker-3")
    seen = second.observedMetrics["quorumcast"]
    # It alters the first of each run that it votes on.
    assert (seen.events, seen.disputed, seen.dissent) == (5 * EVENTS, 2 * EVENTS, ["broker-3"])
    check_once(spark.read.parquet(str(tmp_path / "table")), (PUBLICATIONS + 5) * EVENTS)
