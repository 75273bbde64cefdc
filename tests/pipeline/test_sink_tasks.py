"""Tasks of the sink in processes of their own: every row once, whatever dies or runs twice."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from tests.pipeline.numbered import COLUMNS, PATIENCE_S, SCHEMA, entry, held

import quorumcast
from quorumcast.client import run
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.streams.fitting import Fit
from quorumcast.pipeline.streams.options import Access
from quorumcast.pipeline.streams.writing import write_partition
from quorumcast.testing import LocalCluster

#: As many as two micro-batches of the query that is killed, and those that it never comes to.
EVENTS, LATER = 3000, 500


def task(
    cluster: LocalCluster, partition: int, *, epoch: int = 1, timeout_s: float = PATIENCE_S
) -> int:
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


def test_tasks_that_run_twice_at_the_same_time_publish_each_row_once() -> None:
    """As with speculative execution, or when a driver does not know that a task still lives."""
    with LocalCluster(channels={"four": entry("four")}) as cluster, ThreadPoolExecutor() as threads:
        made = list(threads.map(lambda number: task(cluster, number % 3), range(6)))
        assert made == [10] * 6
        assert sorted(held(cluster, "four")) == [(number, "x") for number in range(1500)]
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
        for first in events[::50]:
            numbers = list(range(first, first + 50))
            columns = {"n": numbers, "name": [f"event {number}" for number in numbers]}
            await out.publish(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))


async def killed_after_first_rows(cluster: LocalCluster, checkpoint: Path) -> None:
    """A query that has published something and would go on for ever, but for us."""
    async with (
        await quorumcast.connect(
            cluster.manifest_path, cluster.identity_path("bob"), timeout_s=PATIENCE_S
        ) as node,
        node.subscribe("out", start="earliest") as events,
    ):
        query = copy(cluster, checkpoint, "forever")
        published = asyncio.ensure_future(anext(events))
        ended = asyncio.ensure_future(asyncio.to_thread(query.wait))
        try:
            await asyncio.wait((published, ended), return_when=asyncio.FIRST_COMPLETED)
            assert not ended.done(), "it ended by itself"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(query.pid, signal.SIGKILL)
            await ended


def copy(cluster: LocalCluster, checkpoint: Path, *how: str) -> subprocess.Popen[bytes]:
    command = ["-m", "tests.pipeline.copying_query", str(cluster.directory), str(checkpoint), *how]
    return subprocess.Popen([sys.executable, *command], start_new_session=True)


@pytest.mark.spark
def test_query_that_is_killed_has_copied_everything_once_when_it_has_run_again(
    tmp_path: Path,
) -> None:
    durable = {name: entry(name, "total+durable") for name in ("in", "out")}
    with LocalCluster(channels=durable) as cluster:
        fill(cluster, range(EVENTS))
        cluster.make_lie("broker-2", "alter")
        run(killed_after_first_rows(cluster, tmp_path))
        before = held(cluster, "out")
        # However late the query was killed, there is something left to do.
        fill(cluster, range(EVENTS, EVENTS + LATER))
        with copy(cluster, tmp_path) as query:
            assert query.wait() == 0
        after = held(cluster, "out")
    assert 0 < len(before) <= EVENTS
    assert sorted(after) == [(number, f"event {number}") for number in range(EVENTS + LATER)]
