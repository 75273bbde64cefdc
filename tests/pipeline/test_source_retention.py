"""Retention of a durable channel is lowered while a query is behind: nothing is lost unsaid."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.pipeline.numbered import PATIENCE_S
from tests.pipeline.test_source import begun, reader

from quorumcast import sync
from quorumcast.core.errors import UsageError
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.connections import POOL
from quorumcast.testing.cluster import LocalCluster

COUNT = 240
KEPT = 40
#: Most publications of a run.
RUN = 8


@contextmanager
def durable_cell() -> Iterator[LocalCluster]:
    """A cell with COUNT publications of one event each on a channel that keeps everything."""
    limits = msgspec.structs.replace(
        Policy.parse("total+durable").limits, window=8, segment=8, checkpoint=8, pipeline=4
    )
    policy = msgspec.structs.replace(Policy.parse("total+durable"), limits=limits)
    with LocalCluster(clients=("alice", "spark"), channels={"events": policy}) as cluster:
        cluster.wait_for_links()
        identity = cluster.identity_path("alice")
        with (
            sync.connect(cluster.manifest_path, identity, timeout_s=PATIENCE_S) as node,
            node.publisher("events", batching=False) as publisher,
        ):
            for number in range(1, COUNT + 1):
                publisher.post(b"%d" % number)
        cluster.wait_executed()
        yield cluster


@pytest.fixture
def cell() -> Iterator[LocalCluster]:
    with durable_cell() as cluster:
        yield cluster
        POOL.close()


def lower_retention(cell: LocalCluster) -> int:
    """Keep KEPT publications from now on; returns the oldest position that brokers hold then."""
    (entry,) = cell.manifest.channels
    limits = msgspec.structs.replace(entry.policy.limits, retained_publications=KEPT)
    policy = msgspec.structs.replace(entry.policy, limits=limits)
    lowered = msgspec.structs.replace(entry, policy=policy)
    cell.write_manifest(next_epoch(cell.manifest, channels=(lowered,)))
    cell.reload()
    cell.wait_for_epoch()
    oldest: set[int] = set()

    def dropped() -> bool:
        oldest.clear()
        oldest.update(cell.status(name)["streams"][0]["base"] for name in cell.brokers)
        # Whole runs are dropped.
        return len(oldest) == 1 and min(oldest) > COUNT - KEPT - RUN

    cell.wait_until(dropped, "the brokers keep more than they should")
    return min(oldest)


def gone(first: int, upto: int) -> str:
    """What a reader is told."""
    return (
        f"positions {first} to {upto} of 'events' are gone: channel events keeps {KEPT} "
        "publications, and may have kept less before; to keep more from now on: quorumcast "
        "channel change events --retain everything; "
    )


@pytest.mark.parametrize("fails", [True, False])
def test_range_of_which_brokers_drop_a_part_while_it_is_read_ends_with_an_account_of_all(
    cell: LocalCluster,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in (("BATCH_ROWS", 16), ("QUEUE", 16), ("FIRST_TAKEN", 4)):
        monkeypatch.setattr(f"quorumcast.pipeline.streams.reading.{name}", value)
    monkeypatch.setattr("quorumcast.cell.subscribing.excerpt.SPAN_BYTES", 400)
    said = {"failOnDataLoss": "true" if fails else "false"}
    source = reader(cell, channel="events", partitions="1", **said)
    start = begun(source)
    end = source.latestOffset(start, ReadAllAvailable())
    assert (start, end) == ({"events": 1}, {"events": COUNT + 1})
    (part,) = source.partitions(start, end)
    batches = source.read(part)
    found = [row["_position"] for row in next(batches).to_pylist()]
    oldest = lower_retention(cell)
    caplog.clear()
    try:
        for batch in batches:
            found += [row["_position"] for row in batch.to_pylist()]
        text = "; ".join(caplog.messages)
        assert not fails
    except UsageError as error:
        text = str(error)
        assert fails
    source.stop()
    told = re.search(r"positions (\d+) to (\d+) of 'events' are gone", text)
    assert told is not None
    first, upto = int(told[1]), int(told[2])
    assert text.startswith(gone(first, upto))
    assert (first > 1, upto) == (True, oldest - 1)
    before, after = [*range(1, first)], [*range(oldest, COUNT + 1)]
    # Rows that were taken together with the gap are not handed out if the query fails.
    assert found == before[: len(found)] if fails else before + after
