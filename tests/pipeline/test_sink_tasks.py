"""Micro-batches without Spark: every row once, whatever runs again with whichever rows."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, rmtree

import pyarrow as pa
import pytest
from tests.pipeline.numbered import COLUMNS, PATIENCE_S, SCHEMA, entry, held

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.streams.fitting import Fit
from quorumcast.pipeline.streams.options import Access
from quorumcast.pipeline.streams.staging import Publication, StagedBatch, Staging
from quorumcast.pipeline.streams.writing import Cut, Written, publish_batch, stage_partition
from quorumcast.testing import LocalCluster

QUERY = "query"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    names = ("parts", "drivers", "equal", "two", "lost", "late", "away")
    with LocalCluster(channels={name: entry(name) for name in names}) as cluster:
        yield cluster


class Driver:
    """What Spark does for one query: tasks that stage, then the commit."""

    def __init__(
        self, cluster: LocalCluster, channel: str, directory: Path, timeout_s: float = PATIENCE_S
    ) -> None:
        self._channel = channel
        self._directory = directory
        self._access = Access(
            manifest=str(cluster.manifest_path),
            identity=str(cluster.identity_path("alice")),
            seats=tuple(range(9, 15)),
            timeout_s=timeout_s,
        )

    def staging(self, epoch: int) -> Staging:
        return Staging(str(self._directory), str(epoch))

    def stage(self, epoch: int, partitions: Sequence[range], name: str = QUERY) -> list[Written]:
        staging = self.staging(epoch)
        staging.make_directory()
        written: list[Written] = []
        for partition, numbers in enumerate(partitions):
            if staging.batch() is not None:
                written.append(Written(name, None, 0))
                continue
            columns = {"n": list(numbers), "name": ["x"] * len(numbers)}
            batch = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
            cut = Cut(Fit(self._channel, COLUMNS, (0, 1)), 50)
            rows = [batch.slice(0, 7), batch.slice(7)]
            written.append(stage_partition(staging, cut, rows, name=name, partition=partition))
        return written

    def commit(self, epoch: int, written: Sequence[Written]) -> None:
        publish_batch(self._access, self._channel, self.staging(epoch), written, epoch=epoch)

    def run(self, epoch: int, *partitions: range, name: str = QUERY) -> None:
        self.commit(epoch, self.stage(epoch, partitions, name))


def rows(*numbers: range) -> list[tuple[int, str]]:
    return sorted((number, "x") for part in numbers for number in part)


class Killed(BaseException):
    """The driver is no more."""


def die_in_the_middle(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, cluster: LocalCluster, *partitions: range
) -> None:
    """Run micro-batch 1 until some of it has been published."""
    channel = driver._channel

    def some(staging: Staging, batch: StagedBatch) -> Iterator[Publication]:
        found = publications(staging, batch)
        for _ in range(8):
            yield next(found)
        while held(cluster, channel) == before:
            pass
        raise Killed

    before = held(cluster, channel)
    publications = Staging.publications
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "publications", some)
        with pytest.raises(Killed):
            driver.run(1, *partitions)
    assert 0 < len(held(cluster, channel)) - len(before) < sum(map(len, partitions))


def test_micro_batch_published_in_part_is_completed_whatever_it_consists_of_when_it_runs_again(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More partitions, fewer, others; an input that has been cut; none at all."""
    driver = Driver(cluster, "parts", tmp_path)
    driver.run(0, range(9))
    whole = (range(1000, 1500), range(1500, 2000))
    die_in_the_middle(monkeypatch, driver, cluster, *whole)
    after: tuple[list[range], ...] = (
        [range(first, first + 125) for first in range(1000, 2000, 125)],
        [range(1000, 2000)],
        [range(1000, 2000, 2), range(1001, 2000, 2)],
        [range(1500, 2000)],
        [],
    )
    for partitions in after:
        driver.run(1, *partitions)
        assert sorted(held(cluster, "parts")) == rows(range(9), *whole)
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["batch.json", "published"]
    driver.run(2, range(3))
    assert sorted(held(cluster, "parts")) == rows(range(9), range(3), *whole)


def test_drivers_that_run_one_micro_batch_at_the_same_time_publish_each_row_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A driver that was taken for dead, with other partitions than the one that follows it."""
    drivers = [Driver(cluster, "drivers", tmp_path) for _ in range(3)]
    layouts = ([range(800)], [range(400), range(400, 800)], [range(0, 800, 2), range(1, 800, 2)])
    staged = [driver.stage(1, parts) for driver, parts in zip(drivers, layouts, strict=True)]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda driver, written: driver.commit(1, written), drivers, staged))
    assert sorted(held(cluster, "drivers")) == rows(range(800))


def test_equal_rows_of_several_micro_batches_and_partitions_are_all_published(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    driver = Driver(cluster, "equal", tmp_path)
    for epoch in (1, 2):
        driver.run(epoch, range(60), range(60))
    assert sorted(held(cluster, "equal")) == rows(*[range(60)] * 4)


def test_queries_on_one_channel_publish_their_rows_and_share_no_directory(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    one, other = (Driver(cluster, "two", tmp_path / name) for name in ("one", "other"))
    one.run(0, range(60))
    other.run(0, range(60), name="other")
    assert sorted(held(cluster, "two")) == rows(range(60), range(60))
    with pytest.raises(UsageError, match="holds rows of 'query', and this is 'other': give each"):
        one.run(0, range(5), name="other")
    assert len(held(cluster, "two")) == 120


def test_micro_batch_whose_staged_rows_are_lost_is_refused_before_its_first_row(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A staging directory that was deleted, or copied before the micro-batch was decided."""
    driver, copied = (Driver(cluster, "lost", tmp_path / name) for name in ("one", "copy"))
    driver.run(0, range(9))
    copytree(tmp_path / "one", tmp_path / "copy")
    die_in_the_middle(monkeypatch, driver, cluster, range(1000, 1500), range(1500, 2000))
    before = held(cluster, "lost")
    with pytest.raises(UsageError, match="'query', epoch 1, on channel 'lost' was published with"):
        copied.run(1, range(1250, 1500), range(1500, 2000), range(1000, 1250))
    assert held(cluster, "lost") == before
    rmtree(tmp_path / "one")
    with pytest.raises(UsageError, match="was published with other contents before"):
        driver.run(1, range(1100, 2000))
    assert held(cluster, "lost") == before


def test_driver_that_is_late_publishes_nothing_after_a_later_micro_batch(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    driver, copied = (Driver(cluster, "late", tmp_path / name) for name in ("one", "copy"))
    staged = copied.stage(1, [range(60)])
    driver.run(1, range(60))
    driver.run(2, range(60, 90))
    with pytest.raises(UsageError, match="a later epoch has been published than 'query', epoch 1"):
        copied.commit(1, staged)
    assert sorted(held(cluster, "late")) == rows(range(90))


def test_rows_that_vanish_while_a_micro_batch_runs_are_missed(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), "1")
    written = [Written(QUERY, "part-0-x.arrow", 5), Written(QUERY, None, 0)]
    access = Access(manifest="", identity="", seats=(9,), timeout_s=1)
    with pytest.raises(UsageError, match="were removed while it ran: leave the staging directory"):
        publish_batch(access, "nowhere", staging, written, epoch=1)


def test_staging_directory_that_a_machine_lacks_is_named(tmp_path: Path) -> None:
    missing = Staging(str(tmp_path / "missing"), "1")
    with pytest.raises(UsageError, match=r"missing cannot be used .* every machine of the query"):
        missing.write_part(0, SCHEMA, iter(()))
    with pytest.raises(UsageError, match="nowhere://x cannot be used"):
        Staging("nowhere://x", "1")


def test_folders_of_earlier_micro_batches_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("8", "9", "10", "mine"):
        (tmp_path / name).mkdir()
    Staging(str(tmp_path), "9").remove_before(9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "9", "mine"]


def test_driver_says_which_brokers_are_away_when_nothing_is_acknowledged(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    driver = Driver(cluster, "away", tmp_path, timeout_s=2)
    driver.run(0, range(60))
    for broker in ("broker-1", "broker-3"):
        cluster.kill(broker)
    with pytest.raises(UsageError, match=r"2 of 4 brokers|broker-1") as caught:
        driver.run(1, range(60))
    assert "broker-3" in str(caught.value)
    for broker in ("broker-1", "broker-3"):
        cluster.restart(broker)
    cluster.wait_for_links()
