"""The sink's options, without Spark: refused by name; where rows wait and which time they have."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
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
        ({"writeId": "today"}, "option 'writeId' needs 'staging' beside it"),
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


def test_rows_of_a_stream_wait_in_its_checkpoint_or_where_the_user_says(
    files: LocalCluster, tmp_path: Path
) -> None:
    cell = {"manifest": str(files.directory), "identity": "alice", "channel": "three"}

    def staging(**options: str) -> str:
        return sink_options({**cell, **options}, SPARK_SCHEMA, streaming=True).staging

    with pytest.raises(UsageError, match="option 'checkpointLocation' is missing: the rows"):
        staging()
    for path in (str(tmp_path), f"file://{tmp_path}", f"file:{tmp_path}", f"{tmp_path}/"):
        assert staging(checkpointLocation=path) == f"{tmp_path}/quorumcast"
    assert staging(staging="hdfs://one/rows", checkpointLocation="hdfs://two") == "hdfs://one/rows"


def test_time_of_publications_is_one_for_all_or_that_of_their_rows(
    files: LocalCluster, tmp_path: Path
) -> None:
    cell = {"manifest": str(files.directory), "identity": "alice", "channel": "three"}

    def asked(**options: str) -> tuple[datetime | None, int | None]:
        given = {**cell, "staging": str(tmp_path), **options}
        found = sink_options(given, SPARK_SCHEMA, streaming=False)
        return found.at, found.time_column

    assert asked() == asked(publishedAt="batch") == (None, None)
    assert asked(publishedAt="1970-01-01T00:00:01Z") == (
        datetime(1970, 1, 1, 0, 0, 1, 0, UTC),
        None,
    )
    assert asked(publishedAt="made") == (None, 2)
