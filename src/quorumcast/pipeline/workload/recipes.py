"""How data sets are read: which columns say who published what, where and when.

A recipe turns a source into rows of `author, topic, time, size, tag`. Times are epoch seconds, as
numbers or text, or timestamps; `tag` tells equal rows apart where the source has an id. The recipe
`reddit` is for comments as Reddit's archives have them (Pulsarcast §5.2.1), one JSON object a line;
`plain` is for everything else and is told the columns. The recipe `pulsarcast` reads the workload
that came of it, with nodes and subscriptions in place (`pipeline.workload.published`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS = ("json", "csv", "parquet")
_SUFFIXES = {
    "json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "tsv": "csv",
    "parquet": "parquet",
}  # fmt: skip
_PACKED = ("gz", "bz2", "zst", "lz4", "snappy")
_UNREADABLE = "_unreadable"
#: Seconds from 1970 on, or before, that are still a time: differences in milliseconds fit a long.
LATEST_S = 1e15


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Where to find what in a data set."""

    name: str
    author: str
    #: Without one, topics are drawn.
    topic: str = ""
    #: Without one, events are spread over time.
    time: str = ""
    body: str = ""
    #: An id, or anything else that tells rows apart.
    tag: str = ""
    #: Authors who are nobody.
    unknown: tuple[str, ...] = ()
    #: The usual sample; 0 takes everything.
    sample: int = 0
    #: Whether the sample is taken before unknown authors are left out.
    sample_first: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [c for c in (self.author, self.topic, self.time, self.body, self.tag) if c]


#: 25,000 comments first, those of deleted accounts dropped afterwards.
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
    """The format of a source, by its name unless it is given."""
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
    """The rows of a source: `author, topic, time, size, tag, readable`."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sql

    try:
        frame = _read(spark, sources, kind, recipe)
        missing = [name for name in recipe.columns if name not in frame.columns]
    except AnalysisException as error:
        raise UsageError(f"{', '.join(sources)} cannot be read: {_first_line(error)}") from None
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
        # The contents as well: without an id they are what tells comments apart.
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
        # A row with more values than there are columns has something in the column behind the last:
        # a comma that nobody quoted, so that its values are not where they belong.
        names = (*reader.csv(sources).columns, _UNREADABLE)
        return reader.csv(sources, StructType([StructField(name, StringType()) for name in names]))

    # As text, whatever they are: archives write a time as a number in one year and quoted in the
    # next.
    fields = [StructField(name, StringType()) for name in (*recipe.columns, _UNREADABLE)]
    return spark.read.json(
        sources, schema=StructType(fields), columnNameOfCorruptRecord=_UNREADABLE
    )


def _seconds(time: Column) -> Column:
    """Seconds since 1970, of a number, a text of one, or a timestamp; null if it is no time."""
    from pyspark.sql import functions as sql

    text = time.cast("string")
    stamp = sql.unix_micros(text.try_cast("timestamp")) / 1e6
    seconds = sql.coalesce(text.try_cast("double"), stamp)
    return sql.when(sql.abs(seconds) <= LATEST_S, seconds)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip().rstrip(".")
