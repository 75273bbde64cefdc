"""The sink's options, without Spark: refused by name; whence the time of a micro-batch comes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType
from tests.pipeline.numbered import COLUMNS

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.pipeline.streams.sink import sink_options
from quorumcast.testing import LocalCluster

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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eventPerPublication": "5"}, "did you mean 'eventsPerPublication'?"),
        ({"channel": ""}, "option 'channel' is empty"),
        ({"channel": "nowhere"}, "nowhere"),
        ({"channel": "fifo"}, "'fifo' cannot tell what was published before, because it has no"),
        ({"writeId": "today"}, "option 'writeId' needs 'publishedAt' beside it"),
        ({"publishedAt": "soon"}, "option 'publishedAt' is 'soon': give a column with times"),
        ({"publishedAt": "1969-12-31T00:00:00Z"}, "give a time from 1970 on"),
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
