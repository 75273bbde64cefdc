"""The sink in Spark: every row once, whatever dies; options and columns refused by name."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

import quorumcast
from quorumcast.client import Batch, run
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.fitting import Fit
from quorumcast.pipeline.streams.options import Access
from quorumcast.pipeline.streams.sink import sink_options
from quorumcast.pipeline.streams.writing import write_partition
from quorumcast.testing import LocalCluster

COLUMNS = (("n", "int64"), ("name", "string"))
SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])
EVENTS = 6000


def entry(name: str, policy: str = "total") -> ChannelEntry:
    return ChannelEntry(name=Channel(name), policy=Policy.parse(policy), schema=COLUMNS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    channels = {name: entry(name) for name in ("one", "two", "three", "four")}
    with LocalCluster(channels=channels) as cluster:
        yield cluster


SPARK_SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField("name", StringType()),
        StructField("made", TimestampType()),
    ]
)


@pytest.fixture(scope="module")
def files() -> Iterator[LocalCluster]:
    """A cell that does not run: only what is written of it."""
    columns = (*COLUMNS, ("made", "timestamp[us, UTC]"))
    total, fifo = (
        ChannelEntry(name=Channel(name), policy=Policy.named(policy), schema=columns)
        for name, policy in (("three", "total"), ("fifo", "ab"))
    )
    cluster = LocalCluster(channels={"three": total, "fifo": fifo})
    yield cluster
    cluster.stop()


async def held(cluster: LocalCluster, channel: str) -> list[tuple[int, str]]:
    """Every row of a channel, in order."""
    found: list[tuple[int, str]] = []
    async with (
        await quorumcast.connect(cluster.manifest_path, cluster.identity_path("bob")) as node,
        node.subscribe(channel, start="earliest") as events,
    ):
        async for item in events.held():
            assert isinstance(item, Batch)
            found += [(row["n"], row["name"]) for row in item.data.to_pylist()]
    return found


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("id AS n", "'x' AS name")


def write(frame: DataFrame, cluster: LocalCluster, channel: str, **options: str) -> None:
    cell = {"manifest": str(cluster.directory), "identity": "alice", "channel": channel}
    frame.write.format("quorumcast").mode("append").options(**cell, **options).save()


def test_rows_of_a_frame_are_published_and_again_with_the_same_id_only_once(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    frame, again = rows(spark, 1000), {"writeId": "today", "publishedAt": "2026-11-15T00:00:00Z"}
    write(frame, cluster, "one", eventsPerPublication="64", **again)
    write(frame, cluster, "one", eventsPerPublication="64", **again)
    wanted = [(number, "x") for number in range(1000)]
    assert sorted(run(held(cluster, "one"))) == wanted
    write(frame, cluster, "one")  # a write of its own
    assert sorted(run(held(cluster, "one"))) == sorted(wanted * 2)
    with pytest.raises(PySparkException, match=r"'today/\d', epoch 0, .* with other contents"):
        write(rows(spark, 900), cluster, "one", eventsPerPublication="64", **again)


def test_micro_batch_that_runs_again_publishes_nothing_twice(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Spark forgets that a micro-batch is done, as if it had been killed just before the note."""
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    cell = {"manifest": str(cluster.directory), "identity": "alice", "channel": "two"}

    def stream() -> None:
        frame = spark.readStream.schema("n LONG, name STRING").json(str(source))
        query = (
            frame.writeStream.format("quorumcast")
            .queryName("copy")
            .options(**cell, eventsPerPublication="50", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for batch in range(2):
        rows(spark, 300).write.mode("append").json(str(source))
        stream()
        (checkpoint / "commits" / str(batch)).unlink()
        stream()
    assert sorted(run(held(cluster, "two"))) == sorted([(n, "x") for n in range(300)] * 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eventPerPublication": "5"}, "did you mean 'eventsPerPublication'?"),
        ({"channel": ""}, "option 'channel' is empty"),
        ({"channel": "nowhere"}, "nowhere"),
        ({"channel": "fifo"}, "'fifo' cannot tell what was published before, because it has no"),
        ({"writeId": "today"}, "option 'writeId' needs 'publishedAt' beside it"),
        ({"publishedAt": "soon"}, "option 'publishedAt' is 'soon': give a column with times"),
        ({"publishedAt": "n"}, "column 'n' of 'publishedAt' is bigint, no timestamp"),
        ({"identity": "nobody"}, "there is no identity 'nobody'"),
    ],
)
def test_wrong_option_is_refused_by_name(
    files: LocalCluster, options: dict[str, str], sentence: str
) -> None:
    cell = {"manifest": str(files.directory), "identity": "alice", "channel": "three"} | options
    with pytest.raises(UsageError, match=re.escape(sentence)):
        sink_options(cell, SPARK_SCHEMA, streaming=False)


def test_time_of_a_micro_batch_comes_from_the_checkpoint_or_is_asked_for(
    files: LocalCluster, tmp_path: Path
) -> None:
    cell = {"manifest": str(files.directory), "identity": "alice", "channel": "three"}

    def asked(**options: str) -> tuple[int, int, int | None]:
        found = sink_options({**cell, **options}, SPARK_SCHEMA, streaming=True)
        return found.at_us, found.batch, found.time_column

    for missing in ({}, {"checkpointLocation": str(tmp_path)}):
        with pytest.raises(UsageError, match="set 'publishedAt' to a column with times"):
            asked(**missing)
    (tmp_path / "offsets").mkdir()
    for batch, time in ((9, 5), (10, 7)):
        note = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{time}}}\n{{}}\n'
        (tmp_path / "offsets" / str(batch)).write_text(note)
    (tmp_path / "offsets" / ".11.tmp").write_text("half a note")
    for path in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}"):
        assert asked(checkpointLocation=path) == (7000, 10, None)
    assert asked(publishedAt="1970-01-01T00:00:01Z") == (1_000_000, -1, None)
    assert asked(publishedAt="made") == (0, -1, 2)


def test_columns_that_do_not_fit_are_refused_by_name(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    with pytest.raises(PySparkException, match="column 'name' is missing: channel 'three' has"):
        write(spark.range(3).selectExpr("id AS n"), cluster, "three")
    with pytest.raises(PySparkException, match="column 'n' is string in the query and int64"):
        write(spark.range(3).selectExpr("'a' AS n", "'b' AS name"), cluster, "three")
    cell = {"manifest": str(cluster.directory), "identity": "alice", "channel": "three"}
    replacing = rows(spark, 3).write.format("quorumcast").mode("overwrite").options(**cell)
    with pytest.raises(PySparkException, match="what is published stays published"):
        replacing.save()
    assert run(held(cluster, "three")) == []


# ------------------------------------------------------------------ tasks, without Spark


def task(cluster: LocalCluster, partition: int, *, epoch: int = 1, timeout_s: float = 60) -> int:
    """What an executor does for a partition of 500 rows; how many publications it made."""
    access = Access(
        manifest=str(cluster.manifest_path),
        identity=str(cluster.identity_path("alice")),
        seats=tuple(range(9, 15)),
        timeout_s=timeout_s,
    )
    columns = {"n": list(range(500 * partition, 500 * partition + 500)), "name": ["x"] * 500}
    batch = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
    written = write_partition(
        access,
        Fit("four", COLUMNS, (0, 1)),
        [batch.slice(0, 7), batch.slice(7)],
        name="query",
        epoch=epoch,
        partition=partition,
        events=50,
        in_order=False,
        valid_for_s=None,
        time_column=None,
        at=datetime(2026, 11, 15, tzinfo=UTC),
    )
    return written.publications


def test_tasks_that_run_twice_at_the_same_time_publish_each_row_once(
    cluster: LocalCluster,
) -> None:
    """As with speculative execution, or when a driver does not know that a task still lives."""
    with ThreadPoolExecutor() as threads:
        made = list(threads.map(lambda number: task(cluster, number % 3), range(6)))
    assert made == [10] * 6
    assert sorted(run(held(cluster, "four"))) == [(number, "x") for number in range(1500)]
    with pytest.raises(UsageError, match="more than 1,024 partitions"):
        task(cluster, 1024)


def test_task_says_which_brokers_are_away_when_nothing_is_acknowledged() -> None:
    with LocalCluster(channels={"four": entry("four")}) as cluster:
        task(cluster, 0)
        for broker in ("broker-1", "broker-3"):
            cluster.kill(broker)
        with pytest.raises(UsageError, match=r"2 of 4 brokers|broker-1") as caught:
            task(cluster, 0, epoch=2, timeout_s=2)
        assert "broker-3" in str(caught.value)


# ------------------------------------------------------------------ killing everything


async def fill(cluster: LocalCluster) -> None:
    async with (
        await quorumcast.connect(cluster.manifest_path, cluster.identity_path("alice")) as node,
        node.publisher("in") as out,
    ):
        for first in range(0, EVENTS, 50):
            numbers = list(range(first, first + 50))
            columns = {"n": numbers, "name": [f"event {number}" for number in numbers]}
            await out.publish(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))


async def kill_after_first_rows(cluster: LocalCluster, query: subprocess.Popen[bytes]) -> None:
    async with (
        await quorumcast.connect(cluster.manifest_path, cluster.identity_path("bob")) as node,
        node.subscribe("out") as events,
    ):
        published = asyncio.ensure_future(anext(events))
        ended = asyncio.ensure_future(asyncio.to_thread(query.wait))
        await asyncio.wait((published, ended), return_when=asyncio.FIRST_COMPLETED)
        assert not ended.done(), "the query ended before it had published anything"
        os.killpg(query.pid, signal.SIGKILL)
        await ended


def copy(cluster: LocalCluster, checkpoint: Path) -> subprocess.Popen[bytes]:
    command = ["-m", "tests.pipeline.copying_query", str(cluster.directory), str(checkpoint)]
    return subprocess.Popen([sys.executable, *command], start_new_session=True)


def test_query_that_is_killed_has_copied_everything_once_when_it_has_run_again(
    tmp_path: Path,
) -> None:
    durable = {name: entry(name, "total+durable") for name in ("in", "out")}
    with LocalCluster(channels=durable) as cluster:
        run(fill(cluster))
        cluster.make_lie("broker-2", "alter")
        with copy(cluster, tmp_path) as query:
            run(kill_after_first_rows(cluster, query))
        before = run(held(cluster, "out"))
        with copy(cluster, tmp_path) as query:
            assert query.wait() == 0
        after = run(held(cluster, "out"))
    assert 0 < len(before) < EVENTS
    assert sorted(after) == [(number, f"event {number}") for number in range(EVENTS)]
