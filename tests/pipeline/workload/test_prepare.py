"""From data sets to workloads on Spark, whatever the partitions; and the commands that do it."""

import contextlib
import csv
import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from quorumcast.bench.workload import Workload, read_header, read_workload
from quorumcast.cli.main import main
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.workload.files import new_workload
from quorumcast.pipeline.workload.prepare import prepare
from quorumcast.pipeline.workload.recipes import REDDIT, Recipe, format_of
from quorumcast.pipeline.workload.steps import WorkloadSettings, channel_name, sampled

#: A file in the form in which Pulsarcast's author published his, if there is one to try.
PUBLISHED = os.environ.get("QUORUMCAST_PULSARCAST_DATA", "")


def comments(count: int) -> list[dict[str, Any]]:
    """Something like an archive of comments: a few loud users, some deleted, times as text."""
    return [
        {
            "id": f"c{index}",
            "author": "[deleted]" if index % 7 == 0 else f"user {index % (1 + index % 40)}",
            "subreddit": ("reddit.com", "politics", "a b/ç", "science")[(index * index) % 4],
            "body": "x" * (index % 50),
            "created_utc": str(1_190_000_000 + index // 2),
            "parent_id": "t3_1",
        }
        for index in range(count)
    ]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Comments as JSON lines, one of them cut off in the middle."""
    path = tmp_path / "RC_2007-10"
    lines = [json.dumps(comment) for comment in comments(600)]
    path.write_text("\n".join([*lines, '{"author": "half a l']) + "\n")
    return path


def everything(workload: Workload) -> tuple[Any, ...]:
    return list(workload.events()), workload.subscribers, workload.header.deliveries


def test_reddit_recipe_cleans_maps_and_subscribes_authors(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    settings = WorkloadSettings(nodes=8, seed=5)
    header = prepare(spark, [str(archive)], "json", REDDIT, settings, tmp_path / "w")
    deleted = sum(comment["author"] == "[deleted]" for comment in comments(600))
    assert header.dropped == {"unreadable": 1, "unknown author": deleted}
    assert header.events == 600 - deleted
    workload = read_workload(tmp_path / "w")
    events = list(workload.events())
    assert [(e.at_ms, e.id) for e in events] == sorted((e.at_ms, e.id) for e in events)
    assert events[0].at_ms == 0
    assert Counter(e.size for e in events) == Counter(
        len(c["body"]) for c in comments(600) if c["author"] != "[deleted]"
    )
    authored: dict[str, set[str]] = {}
    for event in events:
        authored.setdefault(event.topic, set()).add(event.node)
    assert {topic: set(nodes) for topic, nodes in workload.subscribers.items()} == authored
    assert set(authored) <= {"reddit.com", "politics", "a_b/_", "science"}
    by_topic = Counter(event.topic for event in events)
    assert header.deliveries == sum(by_topic[t] * len(nodes) for t, nodes in authored.items())


def test_workload_is_the_same_however_the_source_is_partitioned(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = pa.Table.from_pylist(comments(500))
    one, many = tmp_path / "one.parquet", tmp_path / "many.parquet"
    pq.write_table(table, one)
    many.mkdir()
    for index in range(5):
        # Other files, and other rows in them.
        rows = table.take(list(range(index, 500, 5))[::-1])
        pq.write_table(rows, many / f"{index}.parquet")
    recipe = Recipe(
        name="plain", author="author", topic="subreddit", time="created_utc", body="body",
        unknown=("[deleted]",),
    )  # fmt: skip
    drawn = {"nodes": 12, "seed": 3, "sample": 200, "subscriptions": "normal"}
    found = []
    for source, partitions in ((one, 1), (many, 5)):
        settings = WorkloadSettings(**drawn, mean=1.5, partitions=partitions)  # type: ignore[arg-type]
        path = tmp_path / f"w{partitions}"
        header = prepare(spark, [str(source)], "parquet", recipe, settings, path)
        assert header.events == 200
        assert len(list((path / "events").glob("*.parquet"))) == partitions
        found.append(everything(read_workload(path)))
    assert found[0] == found[1]


def test_csv_without_topics_or_times_gets_drawn_ones(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "lines.csv"
    with source.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["host", "message"])
        writer.writerows([f"host{i % 9}", f'say "{i}",\nplease'] for i in range(300))
    recipe = Recipe(name="plain", author="host", body="message")
    settings = WorkloadSettings(nodes=5, topics=4, seed=2)
    header = prepare(spark, [str(source)], "csv", recipe, settings, tmp_path / "w")
    assert (header.events, header.topics, header.dropped) == (300, 4, {})
    workload = read_workload(tmp_path / "w")
    counts = Counter(event.topic for event in workload.events())
    assert workload.topics == ["topic-1", "topic-2", "topic-3", "topic-4"]
    assert counts["topic-1"] > counts["topic-4"]
    with pytest.raises(UsageError, match=r"no column 'user' in .*; it has host, message"):
        prepare(
            spark, [str(source)], "csv", Recipe(name="plain", author="user", topic="host"),
            settings, tmp_path / "x",
        )  # fmt: skip


def test_csv_row_with_a_comma_too_many_is_left_out_and_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "hits.csv"
    rows = ["user,page", "ann,start", "Bond, James,start", "bob,end,", '"Bond, James",end']
    source.write_text("\n".join(rows))
    recipe = Recipe(name="plain", author="user", topic="page")
    header = prepare(spark, [str(source)], "csv", recipe, WorkloadSettings(nodes=2), tmp_path / "w")
    assert (header.events, header.topics, header.dropped) == (3, 2, {"unreadable": 1})


def test_times_that_are_none_are_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    times = ["5", "nan", "Infinity", "-Infinity", "1e300", "7", "", "1970-01-01T00:00:06Z", "soon"]
    (tmp_path / "a.csv").write_text("\n".join(["who,what,at", *(f"a,b,{time}" for time in times)]))
    recipe = Recipe(name="plain", author="who", topic="what", time="at")
    path = tmp_path / "w"
    header = prepare(spark, [str(tmp_path / "a.csv")], "csv", recipe, WorkloadSettings(), path)
    assert (header.events, header.dropped) == (3, {"no time": 6})
    assert [event.at_ms for event in read_workload(path).events()] == [0, 1000, 2000]


def test_sampled_takes_exactly_so_many(spark: SparkSession) -> None:
    rows = spark.range(0, 1000, 1, 3)
    some = {row["id"] for row in sampled(rows, 137).collect()}
    assert len(some) == 137
    assert some == {row["id"] for row in sampled(rows.repartition(7), 137).collect()}
    assert sampled(rows, 5000).count() == 1000


def test_topics_become_names_of_channels(spark: SparkSession) -> None:
    names = ["reddit.com", "a b", "-x", "π", "y" * 200, "z" * 199 + "a", "z" * 199 + "b"]
    rows = spark.createDataFrame([(name,) for name in names], "topic string")
    found = [row[0] for row in rows.select(channel_name(rows.topic)).collect()]
    assert found[:4] == ["reddit.com", "a_b", "_-x", "_"]
    assert all(len(name) <= 128 for name in found)
    assert len(set(found)) == len(names)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.jsonl", "json"), ("a.json.gz", "json"), ("a.CSV", "csv"), ("d/a.parquet", "parquet")],
)
def test_format_is_told_by_the_name(name: str, kind: str) -> None:
    assert format_of([name]) == kind


def test_format_that_cannot_be_told_is_asked_for() -> None:
    with pytest.raises(UsageError, match="say --format"):
        format_of(["RC_2007-10.bz2"])
    with pytest.raises(UsageError, match="no format 'xml'"):
        format_of(["a.csv"], "xml")


def test_directory_with_other_things_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    for overwrite in (False, True):
        with (
            pytest.raises(UsageError, match="is there already"),
            new_workload(tmp_path, overwrite=overwrite),
        ):
            pass
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("comes_about", [True, False])
def test_workload_is_replaced_only_if_the_new_one_comes_about(
    comes_about: bool, tmp_path: Path
) -> None:
    place = tmp_path / "w"
    (place / "events").mkdir(parents=True)
    (place / "events" / "part").write_text("old")
    with contextlib.suppress(UsageError), new_workload(place, overwrite=True):
        assert list(place.iterdir()) == []
        (place / "events").mkdir()
        (place / "events" / "part").write_text("new")
        (place / "header.json").touch()
        if not comes_about:
            raise UsageError("the source cannot be read")
    assert (place / "events" / "part").read_text() == ("new" if comes_about else "old")
    assert (place / "header.json").exists() == comes_about
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize("source", ["w", "w/events", "w/../w/events", "file://{}/w/events"])
def test_source_is_not_deleted_to_make_room_for_what_is_made_of_it(
    source: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    events = tmp_path / "w" / "events" / "all.parquet"
    events.parent.mkdir(parents=True)
    events.write_text("precious")
    named = [source.format(tmp_path), "--format", "parquet", "--topic", "topic"]
    assert main(["pipeline", "workload", "prepare", *named, "-o", "w", "--overwrite"]) == 2
    assert "is in w, which is to be written" in capsys.readouterr().err
    assert events.read_text() == "precious"


# ---------------------------------------------------------------------- the commands


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["pipeline", "workload", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_generate_like_reddit_describe_it_and_notice_what_is_missing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture = tmp_path / "w", tmp_path / "w.svg"
    made = run(capsys, "generate", "--like", "reddit", "-o", str(path), "--partitions", "3")
    assert made["deliveries"] == 1_734_851
    found = run(capsys, "describe", str(path), "--picture", str(picture))
    assert found["sound"]
    assert (found["events"], found["subscriptions"]) == (17_611, 762)
    assert found["deliveries"] == 1_734_851
    assert len(found["topics"]) == 23
    assert found["topics"][0]["deliveries"] == 1_055_900
    assert found["subscriptions_per_node"]["deviation"] == pytest.approx(1.3325, rel=0.05)
    assert dict(found["subscriptions_per_node"]["histogram"])[8] == 29
    assert found["exponent"] == pytest.approx(3.166, rel=0.05)
    drawn = picture.read_text()
    assert drawn.startswith("<svg ")
    assert drawn.count("<rect ") == 1 + 23 + 23 + 7
    max((path / "events").glob("*.parquet")).unlink()
    assert main(["pipeline", "workload", "describe", str(path)]) == 1
    assert "NOT SOUND" in capsys.readouterr().out


def test_generate_like_dt1_has_the_density_when_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w"
    made = run(capsys, "generate", "--like", "dt1", "-o", str(path), "--events", "3000")
    assert made["subscriptions"] == 6552
    found = run(capsys, "describe", str(path))
    assert found["density"] == pytest.approx(0.09, rel=0.01)
    assert found["sound"]
    with pytest.raises(UsageError, match="subscribes by predicates"):
        read_workload(path)


def published_rows() -> list[dict[str, Any]]:
    """Three users and two topics in the form of Pulsarcast §5.2."""
    events = [(0, "news"), (2, "cats"), (1, "news"), (3, "news")]
    users = [
        {
            "type": "user",
            "name": f"user-{index}",
            "node": f"node-{index}",
            "events": [{"internalId": n, "topic": t, "ups": 1} for n, t in events[index - 1 :: 3]],
            "subscriptions": {"news": True, "cats": index == 2},
        }
        for index in (1, 2, 3)
    ]
    topics = [
        {
            "type": "topic",
            "node": "node-3",
            "name": name,
            "author": "user-9",
            "totalNumberEvents": n,
        }
        for name, n in (("news", 3), ("cats", 1))
    ]
    return [*topics, *users]


def test_published_form_is_read_as_it_is(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "small.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in published_rows()))
    path = tmp_path / "w"
    made = run(capsys, "prepare", str(source), "--recipe", "pulsarcast", "-o", str(path))
    assert (made["events"], made["subscriptions"], made["deliveries"]) == (4, 4, 3 * 3 + 1)
    workload = read_workload(path)
    assert [(e.id, e.node, e.topic) for e in workload.events()] == [
        (0, "node-1", "news"),
        (1, "node-3", "news"),
        (2, "node-2", "cats"),
        (3, "node-1", "news"),
    ]
    assert workload.subscribers == {"news": ["node-1", "node-2", "node-3"], "cats": ["node-2"]}
    makers = pq.read_table(next((path / "topics").glob("*.parquet")))["node"].to_pylist()
    assert makers == ["node-3", "node-3"]
    assert main(["pipeline", "workload", "prepare", str(source), "-o", str(path)]) == 2
    assert "name the column of topics" in capsys.readouterr().err


@pytest.mark.skipif(not PUBLISHED, reason="QUORUMCAST_PULSARCAST_DATA names no file")
def test_published_workload_has_the_published_figures(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run(capsys, "prepare", PUBLISHED, "--recipe", "pulsarcast", "-o", str(tmp_path / "w"))
    assert (made["events"], made["topics"], made["nodes"]) == (17_611, 23, 100)
    assert (made["subscriptions"], made["deliveries"]) == (762, 1_734_851)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["prepare", "nothing.csv", "-o", "w"], "there is no nothing.csv"),
        (["generate", "--like", "usenet", "-o", "w"], "no 'usenet' to imitate"),
        (["generate", "--topics", "3", "--mean", "4", "-o", "w"], "cannot subscribe to 4 of 3"),
        (["generate", "--rate", "nan", "-o", "w"], "--rate more than 0"),
        (["generate", "--rate", "1e-300", "-o", "w"], "that is too large"),
        (["generate", "--nodes", str(10**12), "-o", "w"], "that is too large"),
        (["generate", "--events", str(10**20), "-o", "w"], "that is too large"),
        (["generate", "--like", "dt2", "--events", str(10**20), "-o", "w"], "that is too large"),
        (["generate", "--topics", str(10**11), "-o", "w"], "too many to draw from"),
        (["generate", "--size", str(10**11), "-o", "w"], "--size is at most 16,777,216"),
        (
            ["prepare", __file__, "--format=csv", "--topics=3", f"--nodes={10**12}", "-o", "w"],
            "too many to draw from",
        ),
        (
            ["prepare", __file__, "--format=csv", "--topics=3", f"--seed={2**63}", "-o", "w"],
            "--seed is a number of at most 63 bits",
        ),
        (
            ["prepare", __file__, "--recipe", "pulsarcast", "--partitions", "-1", "-o", "w"],
            "--partitions is 0 or more",
        ),
        (["generate", "--like", "dt1", "--rate", "inf", "-o", "w"], "--rate more than 0"),
        (
            [
                "prepare",
                __file__,
                "--format",
                "csv",
                "--topics",
                "3",
                "--subscriptions",
                "zipf",
                "--mean",
                "0",
                "-o",
                "w",
            ],
            "--mean is more than 0",
        ),
        (["describe", "w"], "is no workload, or one that was never finished"),
    ],
)
def test_wrong_wish_is_one_sentence_and_nothing_is_written(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "workload", *arguments]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_header_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workload.json").write_text('{"format": 9}')
    with pytest.raises(UsageError, match="cannot be read"):
        read_header(tmp_path)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.jsonl.gz", gzip.compress(b'{"author": "a"}\n' * 9000)[:-60]), ("a.parquet", b"PAR1 PAR1")],
)
def test_source_that_is_spoilt_is_one_sentence(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    data: bytes,
) -> None:
    (tmp_path / name).write_bytes(data)
    workload = ["pipeline", "workload", "prepare", str(tmp_path / name), "--topics", "3"]
    assert main([*workload, "--output", str(tmp_path / "workload")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert name in said
    assert "Traceback" not in said
