"""The streaming job on channels that are directories: cleaned, stored and told exactly once."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)
from tests.runtime.world import eventually

from quorumcast.core.errors import UsageError
from quorumcast.manifest.schema import arrow_schema
from quorumcast.monitoring import job
from quorumcast.monitoring.channels import LOGS, METRICS
from quorumcast.monitoring.clean import (
    clean_logs,
    clean_metrics,
    without_duplicates,
)
from quorumcast.monitoring.engine import Alarm, Bucket
from quorumcast.monitoring.job import MAX_REFUSALS, MonitoringJob, MonitorSettings, Query
from quorumcast.monitoring.rules import parse_rules
from quorumcast.monitoring.signals import check_patterns, signals
from quorumcast.monitoring.store import ObservationStore
from quorumcast.pipeline.session import ROCKSDB

RULES = """
[[rule]]
name = "busy"
kind = "threshold"
signal = "cpu.percent"
aggregate = "last"
above = 90
over_s = 3000

[[rule]]
name = "oom"
kind = "logs"
pattern = "out of memory"
over_s = 3000

[[rule]]
name = "liar"
kind = "threshold"
signal = "dissent"
aggregate = "count"
above = 0
over_s = 3000

[[rule]]
name = "silent"
kind = "absence"
after_s = 300
hosts = "db"
"""

#: What the source adds to a channel's columns.
ORIGIN = pa.schema(
    [
        ("_publisher", pa.string()),
        ("_number", pa.int64()),
        ("_position", pa.int64()),
        ("_index", pa.int32()),
        ("_published_at", pa.timestamp("us", "UTC")),
        ("_votes", pa.int32()),
        ("_dissent", pa.list_(pa.string())),
    ]
)
SCHEMAS = {
    name: pa.schema([*arrow_schema(columns), *ORIGIN])
    for name, columns in (("metrics", METRICS), ("logs", LOGS))
}
#: Long enough ago for everything that a test adds to it.
THEN = datetime.now(UTC) - timedelta(minutes=10)


def row(position: int, at: datetime, **columns: Any) -> dict[str, Any]:
    return {
        "time": at, "host": "web-1", "_publisher": "alice", "_number": position,
        "_position": position, "_index": 0, "_published_at": at, "_votes": 4, "_dissent": [],
        **columns,
    }  # fmt: skip


def cpu(position: int, value: float, at: datetime = THEN, **columns: Any) -> dict[str, Any]:
    return row(position, at, metric="cpu.percent", item="", value=value, **columns)


def line(position: int, message: str, at: datetime = THEN, **columns: Any) -> dict[str, Any]:
    more = {"source": "app.log", "origin": f"f@{position}", "severity": 6, **columns}
    return row(position, at, message=message, device="", program="", **more)


class Channels:
    """Two directories in the place of channels."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._directory = directory
        self._files = 0
        #: How many files a micro-batch has.
        self.files_at_a_time = 100
        for name in SCHEMAS:
            (directory / name).mkdir(parents=True)
            self.publish(name, [])

    def publish(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._files += 1
        table = pa.Table.from_pylist(rows, SCHEMAS[name])
        pq.write_table(table, self._directory / name / f"{self._files:04d}.parquet")

    def frame(self, name: str) -> DataFrame:
        return self._spark.read.parquet(str(self._directory / name))

    def stream(self, name: str) -> DataFrame:
        schema = self.frame(name).schema
        reader = self._spark.readStream.schema(schema)
        reader = reader.option("maxFilesPerTrigger", self.files_at_a_time)
        return reader.parquet(str(self._directory / name))


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """With the state store of production."""
    made = spark.newSession()
    for name, value in ROCKSDB.items():
        made.conf.set(name, value)
    return made


@pytest.fixture
def channels(session: SparkSession, tmp_path: Path) -> Channels:
    return Channels(session, tmp_path / "channels")


def a_monitor(session: SparkSession, channels: Channels, directory: Path) -> MonitoringJob:
    """One process of the job, from where the last one stopped."""

    def sink(alarms: DataFrame) -> Any:
        return alarms.writeStream.format("json").option("path", str(directory / "published"))

    sources = (channels.stream("metrics"), channels.stream("logs"))
    rules = parse_rules(RULES, "r")
    settings = MonitorSettings(directory=directory / "job", rules=rules, trigger_s=0.5)
    return MonitoringJob(session, settings, sources, sink)


def stored(directory: Path) -> list[dict[str, Any]]:
    table = pq.read_table(directory / "job" / "observations")
    return sorted(table.to_pylist(), key=lambda one: (one["channel"], one["position"]))


def published(directory: Path) -> Iterator[dict[str, Any]]:
    """What the sink has committed; what a batch is about to write goes again if it is stopped."""
    batches = (directory / "published" / "_spark_metadata").glob("[0-9]*")
    in_order = sorted(batches, key=lambda path: int(path.name.partition(".")[0]))
    entries = [json.loads(one) for path in in_order for one in path.read_text().split("\n")[1:]]
    for path in dict.fromkeys(unquote(urlparse(entry["path"]).path) for entry in entries):
        yield from map(json.loads, Path(path).read_text().splitlines())


def forget_last_batch(directory: Path) -> None:
    """As if every query had died when its last batch was done and not yet noted as done."""
    for commits in (directory / "job" / "checkpoints").glob("*/commits"):
        max(commits.glob("[0-9]*"), key=lambda path: int(path.name)).unlink()


@pytest.mark.slow
def test_job_stores_and_tells_everything_once_across_restarts_and_replays(
    session: SparkSession, channels: Channels, tmp_path: Path
) -> None:
    second = THEN + timedelta(seconds=1)
    channels.publish("metrics", [cpu(1, 99), cpu(2, 99), cpu(3, 120, second)])
    channels.publish("metrics", [cpu(4, 5, host="db", _dissent=["broker-3"])])
    again = line(2, "published again", origin="f@1")
    channels.publish("logs", [line(1, "published"), again, line(3, "out of memory", host="db")])
    a_monitor(session, channels, tmp_path).once()
    rows = stored(tmp_path)
    assert Counter((one["channel"], one["host"], one["flaw"]) for one in rows) == Counter(
        [
            ("logs", "web-1", None),
            ("logs", "db", None),
            ("metrics", "web-1", None),
            ("metrics", "web-1", "impossible percent"),
            ("metrics", "db", None),
        ]
    )
    told = sorted(
        (one["rule"], one["host"], one["item"], one["state"]) for one in published(tmp_path)
    )
    assert told == [
        ("busy", "web-1", "", "raised"),
        ("liar", "db", "broker-3", "raised"),
        ("oom", "db", "", "raised"),
        ("silent", "db", "", "raised"),
    ]

    forget_last_batch(tmp_path)
    minute = THEN + timedelta(seconds=60)
    channels.publish("metrics", [cpu(5, 1, minute), cpu(1, 99)])
    monitor = a_monitor(session, channels, tmp_path)
    monitor.start()

    def ticked_until_told() -> bool:
        monitor.tick()
        return len(list(published(tmp_path))) == 5

    assert eventually(ticked_until_told, timeout_s=600)
    monitor.stop()
    assert monitor.troubles == {}
    later = stored(tmp_path)
    assert [one for one in later if one["at"] < minute] == rows
    assert [one["position"] for one in later if one["at"] >= minute] == [5]
    told_now = [(one["rule"], one["state"]) for one in published(tmp_path)]
    assert told_now.count(("busy", "cleared")) == 1
    assert {condition.rule for condition in monitor.durable.engine.alarms} == {
        "liar",
        "oom",
        "silent",
    }
    assert {path.name for path in (tmp_path / "job" / "observations").iterdir()} == {
        "channel=logs",
        "channel=metrics",
    }


def test_backlog_is_watched_a_few_files_at_a_time(
    session: SparkSession, channels: Channels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MAX_FILES", 1)
    channels.files_at_a_time = 1
    for position in range(3):
        channels.publish("metrics", [cpu(position, 1, THEN + timedelta(seconds=position))])
    turns: list[int] = []
    monitor = a_monitor(session, channels, tmp_path)
    absorb = monitor.durable.engine.absorb

    def counted(buckets: list[Bucket]) -> list[Alarm]:
        turns.append(len(buckets))
        return absorb(buckets)

    monkeypatch.setattr(monitor.durable.engine, "absorb", counted)
    monitor.once()
    assert len(stored(tmp_path)) == len(turns) == 3


@pytest.mark.parametrize(
    ("error", "attempts"), [(OSError("not now"), 3), (UsageError("no such thing"), MAX_REFUSALS)]
)
def test_query_that_fails_is_begun_again_unless_it_is_refused(
    channels: Channels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    attempts: int,
) -> None:
    monkeypatch.setattr(job, "PAUSE_S", 0.01)
    channels.publish("logs", [line(1, "x")])
    batches: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        batches.append(batch)
        if len(batches) < 3 or isinstance(error, UsageError):
            raise error

    def made() -> Any:
        writer = channels.stream("logs").writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    query = Query("q", 1.0, made)
    if isinstance(error, UsageError):
        with pytest.raises(UsageError, match="'q' does not begin: no such thing"):
            query.run_once()
    else:
        query.run_once()
        assert query.trouble == ""
    assert batches == [0] * attempts


def test_rows_that_cannot_be_true_are_marked(session: SparkSession, channels: Channels) -> None:
    received = THEN
    hour = timedelta(hours=1)
    wrong: dict[str, dict[str, Any]] = {
        "no number": {"value": float("nan")},
        "negative": {"metric": "load.1", "value": -1.0},
        "impossible percent": {"value": 101.0},
        "no metric": {"metric": ""},
        "impossible host": {"host": "../../etc"},
        "no time": {"time": None},
        "impossible time": {"time": received - 1000 * hour},
    }
    rows = [cpu(1, 1) | columns for columns in wrong.values()]
    rows.append(cpu(1, 1, host="web-1\n"))
    channels.publish("metrics", rows)
    channels.publish("logs", [line(1, "x", severity=9), line(2, "ok")])
    frames = [channels.frame(name).withColumn("received", F.lit(received)) for name in SCHEMAS]
    found = clean_metrics(frames[0]).collect()
    assert Counter(one["flaw"] for one in found) == Counter([*wrong, "impossible host"])
    assert {one["host"] for one in found} == {"web-1", "unknown"}
    assert all(one["at"] is not None and one["day"] == received.date() for one in found)
    assert {one["flaw"] for one in clean_logs(frames[1]).collect()} == {"impossible severity", None}


def test_only_what_says_that_it_is_the_same_is_taken_for_a_repetition(
    session: SparkSession, channels: Channels, tmp_path: Path
) -> None:
    second = THEN + timedelta(seconds=1)
    channels.publish(
        "logs",
        [
            line(1, "read"),
            line(2, "read again", second, origin="f@1"),
            line(3, "of another publisher", origin="f@1", _publisher="bob"),
            line(4, "of no file", source=None, origin="app.log|f@1"),
            *(line(5 + i, "without origin", origin=None) for i in range(2)),
            *(line(7, "twice in one publication", origin="", _index=i) for i in range(2)),
        ],
    )
    channels.publish(
        "metrics",
        [
            cpu(11, 1),
            cpu(12, 1),
            cpu(13, 1, second),
            *(cpu(14 + i, 1) | {"time": None} for i in range(2)),
            *(cpu(16 + i, 1, host=f"no host {i}") for i in range(2)),
            *(cpu(18 + i, 1) | {"metric": None} for i in range(2)),
        ],
    )
    streams = [channels.stream(name).withColumn("received", F.lit(THEN)) for name in SCHEMAS]
    observed = clean_metrics(streams[0]).unionByName(clean_logs(streams[1]))
    found: list[tuple[int, int]] = []

    def take(rows: DataFrame, batch: int) -> None:
        found.extend((one["position"], one["row"]) for one in rows.collect())

    writer = without_duplicates(observed, 600).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    # Which of two rows comes first is up to Spark.
    assert len({(1, 0), (2, 0)} & set(found)) == len({(11, 0), (12, 0)} & set(found)) == 1
    single = [*range(3, 8), *range(13, 20)]
    assert sorted(place for place in found if place[0] not in (1, 2, 11, 12)) == sorted(
        [(7, 1), *((position, 0) for position in single)]
    )


def test_clock_that_is_ahead_is_marked_and_set_right(
    session: SparkSession, channels: Channels
) -> None:
    received, hour, minute = THEN, timedelta(hours=1), timedelta(minutes=1)
    channels.publish(
        "metrics",
        [
            cpu(1, 1, received),
            # An hour ahead, and a minute old when it was published.
            cpu(2, 1, received + hour - minute, _published_at=received + hour),
            # A right clock, and a wrong time in the row.
            cpu(3, 1, received + hour, _published_at=received),
            cpu(4, 1, received - hour),
        ],
    )
    frame = channels.frame("metrics").withColumn("received", F.lit(received))
    found = {one["position"]: one for one in clean_metrics(frame).collect()}
    at = {place: one["at"].replace(tzinfo=UTC) for place, one in found.items()}
    assert [found[place]["clock"] for place in (1, 2, 3, 4)] == [None, "ahead", "ahead", "late"]
    assert at == {1: received, 2: received - minute, 3: received, 4: received - hour}


def test_observations_become_the_signals_that_rules_ask_for(
    session: SparkSession, channels: Channels
) -> None:
    channels.publish("metrics", [cpu(1, 7), cpu(2, 1) | {"metric": "other", "_dissent": ["b1"]}])
    channels.publish("logs", [line(3, "out of memory", severity=2), line(4, "fine")])
    frames = [channels.frame(name).withColumn("received", F.lit(THEN)) for name in SCHEMAS]
    observed = clean_metrics(frames[0]).unionByName(clean_logs(frames[1]))
    found = signals(observed, parse_rules(RULES, "r")).collect()
    assert Counter((one["signal"], one["item"], one["value"]) for one in found) == Counter(
        [
            ("cpu.percent", "", 7.0),
            ("heard", "", 1.0),
            ("dissent", "b1", 1.0),
            ("logs", "critical", 1.0),
            ("rule:oom", "", 1.0),
            ("logs", "info", 1.0),
        ]
    )


def test_pattern_that_java_does_not_know_is_refused_with_the_name_of_its_rule(
    session: SparkSession,
) -> None:
    def pattern(name: str, text: str) -> str:
        return f'[[rule]]\nname = "{name}"\nkind = "logs"\npattern = "{text}"\n'

    fine = pattern("fine", "(?i)a|b$") + '[[rule]]\nname = "e"\nkind = "logs"\nlevel = "error"\n'
    check_patterns(session, parse_rules(fine, "r"))
    for text in ("(?P<word>x)", "(x)?(?(1)a|b)"):  # Python knows both
        with pytest.raises(UsageError, match="rule 'odd': Java does not know the pattern"):
            check_patterns(session, parse_rules(fine + pattern("odd", text), "r"))


# ----------------------------------------------------------------------------- the store


def observations(day: date, *positions: int) -> pa.Table:
    rows = [{"channel": "logs", "host": "a", "day": day, "position": p} for p in positions]
    return pa.Table.from_pylist(rows)


def positions(store: ObservationStore) -> list[int]:
    found: list[int] = pq.read_table(store.observations).column("position").to_pylist()
    return sorted(found)


def test_store_makes_one_file_of_a_day_that_is_over(tmp_path: Path) -> None:
    store, today = ObservationStore(tmp_path), date(2026, 11, 15)
    old = today - timedelta(5)
    for batch in range(4):
        store.keep(observations(old, batch), batch)
        store.keep(observations(today, batch), batch)
    assert store.compact(today, before=3) == 1
    folder = tmp_path / "observations" / "channel=logs" / "host=a"
    assert sorted(path.name for path in (folder / f"day={old}").iterdir()) == [
        "batch-000000000003.parquet",  # may be replayed
        "day.parquet",
    ]
    assert len(list((folder / f"day={today}").iterdir())) == 4
    store.keep(observations(old, 3), 3)
    assert positions(store) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_store_finishes_a_day_that_was_under_way(tmp_path: Path) -> None:
    store, today = ObservationStore(tmp_path), date(2026, 11, 15)
    old = today - timedelta(5)
    for batch in range(3):
        store.keep(observations(old, batch), batch)
    folder = tmp_path / "observations" / "channel=logs" / "host=a" / f"day={old}"
    store.compact(today, before=9)
    (folder / "day.parquet").rename(folder / "_day.parquet")  # as if it had died here
    os.utime(folder / "_day.parquet", ns=(5, 5))
    store.keep(observations(old, 0), 0)
    os.utime(folder / "batch-000000000000.parquet", ns=(1, 1))  # it had not removed this one
    store.keep(observations(old, 7), 7)  # and this one has come since
    store.compact(today, before=9)
    assert positions(store) == [0, 1, 2, 7]
