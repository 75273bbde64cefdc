"""A query between source and sink that is killed, and goes on with another number of cores."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.copying_query import copying
from tests.pipeline.numbered import PATIENCE_S, SCHEMA, entry, held

import quorumcast
from quorumcast.client import run
from quorumcast.testing import LocalCluster

#: As many as two micro-batches of the query that is killed, and those that it never comes to.
EVENTS, LATER = 3000, 500
#: Rows of a publication.
SIZE = 50


def fill(cluster: LocalCluster, events: range) -> None:
    run(publish(cluster, events))
    cluster.wait_executed()


async def publish(cluster: LocalCluster, events: range) -> None:
    async with (
        await quorumcast.connect(
            cluster.manifest_path, cluster.identity_path("alice"), timeout_s=PATIENCE_S
        ) as node,
        node.publisher("in") as out,
    ):
        left = list(events)
        while left:
            # Brokers send the whole publication, some of its rows, nothing.
            for count in (SIZE, 2 * SIZE // 5, 0):
                numbers, left = left[:count], left[count:]
                noise = SIZE - count
                names = [f"event {number}" for number in numbers]
                columns = {"n": numbers + [-1] * noise, "name": names + ["noise"] * noise}
                await out.publish(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))


async def killed_after_first_rows(cluster: LocalCluster, checkpoint: Path) -> None:
    """A query that has published something and would go on for ever, but for us."""
    async with (
        await quorumcast.connect(
            cluster.manifest_path, cluster.identity_path("bob"), timeout_s=PATIENCE_S
        ) as node,
        node.subscribe("out", start="earliest") as events,
    ):
        query = copy("local[1]", cluster, checkpoint)
        published = asyncio.ensure_future(anext(events))
        ended = asyncio.ensure_future(asyncio.to_thread(query.wait))
        try:
            await asyncio.wait((published, ended), return_when=asyncio.FIRST_COMPLETED)
            assert not ended.done(), "it ended by itself"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(query.pid, signal.SIGKILL)
            await ended


def copy(master: str, cluster: LocalCluster, checkpoint: Path) -> subprocess.Popen[bytes]:
    where = (master, str(cluster.directory), str(checkpoint))
    command = ["-m", "tests.pipeline.copying_query", *where]
    return subprocess.Popen([sys.executable, *command], start_new_session=True)


@pytest.mark.walk
def test_query_that_is_killed_has_copied_everything_once_when_it_has_run_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Killed with one core, it goes on with two: its micro-batch runs again with other tasks."""
    durable = {name: entry(name, "total+durable") for name in ("in", "out")}
    with LocalCluster(channels=durable) as cluster:
        fill(cluster, range(EVENTS))
        cluster.make_lie("broker-2", "alter")
        run(killed_after_first_rows(cluster, tmp_path))
        before = held(cluster, "out")
        # However late the query was killed, there is something left to do.
        fill(cluster, range(EVENTS, EVENTS + LATER))
        again = copying(spark, str(cluster.directory), str(tmp_path))
        again.trigger(availableNow=True).start().awaitTermination()
        after = held(cluster, "out")
    assert 0 < len(before) <= EVENTS
    assert sorted(after) == [(number, f"event {number}") for number in range(EVENTS + LATER)]
