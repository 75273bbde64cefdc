"""Reads data sets: a recipe names the columns of the author, topic, time and contents of each row.

The result has the columns `author, topic, time, size, tag, readable`. Times are epoch seconds, as
numbers or text, or timestamps; `tag` distinguishes rows that are equal otherwise. The recipe
`reddit` reads comments of Reddit's archives (Pulsarcast §5.2.1), one JSON object per line. With the
recipe `plain` the user names the columns. The recipe `pulsarcast` reads a finished workload
(`pipeline.workload.published`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.lazy import sql
from quorumcast.pipeline.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("json", "csv", "parquet")
_SUFFIXES = {
    "json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "tsv": "csv",
    "parquet": "parquet",
}  # fmt: skip
_PACKED = ("gz", "bz2", "zst", "lz4", "snappy")
_UNREADABLE = "_unreadable"
#: Larger numbers of seconds are no times: their differences in milliseconds would overflow a long.
LATEST_S = 1e15


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a data set, and which of its rows to take."""

    name: str
    author: str
    #: If empty, topics are drawn.
    topic: str = ""
    #: If empty, events are spread evenly.
    time: str = ""
    body: str = ""
    #: An id, or another column that distinguishes rows.
    tag: str = ""
    #: Placeholders for unknown authors.
    unknown: tuple[str, ...] = ()
    #: Default size of the sample; 0 takes all rows.
    sample: int = 0
    #: Whether rows of unknown authors are removed after sampling instead of before.
    sample_first: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [c for c in (self.author, self.topic, self.time, self.body, self.tag) if c]


#: As Pulsarcast: 25,000 comments are sampled, then those of deleted accounts removed.
REDDIT = Recipe(
    name="reddit",
    author="author",
    topic="subreddit",
    time="created_utc",
    body="body",
    tag="id",
    unknown=("[deleted]", "[removed]"),
    sample=25_000,
    sample_first=True,
)


def format_of(sources: list[str], given: str = "") -> str:
    """Return the format of a source: the one given, else that of the file name."""
    if given:
        if given not in FORMATS:
            raise UsageError(f"there is no format {given!r}; choose one of {', '.join(FORMATS)}")
        return given
    found = set()
    for source in sources:
        parts = Path(source).name.lower().split(".")
        if parts[-1] in _PACKED:
            parts.pop()
        found.add(_SUFFIXES.get(parts[-1], ""))
    if len(found) == 1 and (only := found.pop()):
        return only
    raise UsageError(
        f"what is in {', '.join(sources)} cannot be told from the name; say --format "
        f"{', '.join(FORMATS)}"
    )


def read_source(spark: SparkSession, sources: list[str], kind: str, recipe: Recipe) -> DataFrame:
    """Return the rows of a source: `author, topic, time, size, tag, readable`."""
    from pyspark.errors import AnalysisException

    try:
        frame = _read(spark, sources, kind, recipe)
        missing = [name for name in recipe.columns if name not in frame.columns]
    except AnalysisException as error:
        raise UsageError(f"{', '.join(sources)} cannot be read: {first_line(error)}") from None
    if missing:
        raise UsageError(
            f"there is no column {missing[0]!r} in {sources[0]}; it has "
            f"{', '.join(name for name in frame.columns if name != _UNREADABLE)}"
        )

    def column(name: str) -> Column:
        return sql.col(f"`{name}`") if name else sql.lit(None).cast("string")

    readable = sql.lit(True) if kind == "parquet" else sql.col(_UNREADABLE).isNull()
    return frame.select(
        sql.trim(column(recipe.author).cast("string")).alias("author"),
        sql.trim(column(recipe.topic).cast("string")).alias("topic"),
        _seconds(column(recipe.time)).alias("time"),
        sql.coalesce(sql.octet_length(column(recipe.body).cast("string")), sql.lit(0)).alias(
            "size"
        ),
        # Without an id, the contents distinguish comments.
        sql.xxhash64(column(recipe.tag), column(recipe.body)).alias("tag"),
        readable.alias("readable"),
    )


def _read(spark: SparkSession, sources: list[str], kind: str, recipe: Recipe) -> DataFrame:
    if kind == "parquet":
        return spark.read.parquet(*sources)
    from pyspark.sql.types import StringType, StructField, StructType

    if kind == "csv":
        separator = "\t" if all(".tsv" in Path(source).name for source in sources) else ","
        reader = spark.read.options(header=True, sep=separator, escape='"', multiLine=True)
        # A row with too many values fills the extra column: a comma was not quoted, and its values
        # are in the wrong columns.
        names = (*reader.csv(sources).columns, _UNREADABLE)
        return reader.csv(sources, StructType([StructField(name, StringType()) for name in names]))

    # All as text: archives write times as numbers in one year and as strings in the next.
    fields = [StructField(name, StringType()) for name in (*recipe.columns, _UNREADABLE)]
    return spark.read.json(
        sources, schema=StructType(fields), columnNameOfCorruptRecord=_UNREADABLE
    )


def _seconds(time: Column) -> Column:
    """Turn a number, its text, or a timestamp into epoch seconds; null if it is no time."""
    text = time.cast("string")
    stamp = sql.unix_micros(text.try_cast("timestamp")) / 1e6
    seconds = sql.coalesce(text.try_cast("double"), stamp)
    return sql.when(sql.abs(seconds) <= LATEST_S, seconds)
