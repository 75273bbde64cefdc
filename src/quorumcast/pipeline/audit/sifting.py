"""Validation of the tables that nodes write: rows that cannot be judged are left out and counted.

The files of a faulty node may hold anything: missing values, counts and times that overflow sums,
unknown nodes, invented runs. None of it may stop an audit, change the effect of other nodes' rows,
or count as another node's observation. Each invalid row gets a `flaw`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_SEATS
from quorumcast.core.machine import Suspicion
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.pipeline.lazy import sql
from quorumcast.watch.observation import COLUMNS, DOCUMENT_COLUMNS, Kind
from quorumcast.watch.turnout import OVERDUE_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: Latest valid time; still a printable date.
MAX_TIME_MS = 1 << 47
#: Highest valid count of a row; a sum of 2³¹ such rows fits into 64 bits.
MAX_COUNT = 1 << 32

#: Longest valid text and document.
MAX_TEXT, MAX_BYTES = 1024, 1 << 20
#: Sums and documents of one observer in one run that are judged. Correct observers have fewer, even
#: with a hundred publishers; an observer with more only loses its own.
MAX_SUMS, MAX_DOCUMENTS_JUDGED = 100_000, 10_000

NO_MANIFEST = "of runs without a manifest"
INCOMPLETE = "without all values, or not in a directory of their observer"
STRANGERS = "by or about nodes that the manifest does not name"
BEYOND = "with impossible times, counts or lengths"
UNREADABLE = "files that hold nothing that can be read"

#: Observations that depend on timeouts: overload causes them for correct nodes as well.
TIMEOUT_KINDS = (Kind.CAME, Kind.MISSING, Kind.BACKWARDS, Kind.PASSES_OVER)
TIMEOUT_SUSPICIONS = (Suspicion.WITHOUT_HISTORY,)
#: Seconds before and after an overload that are ignored as well: a timeout fires after its cause.
STRAIN_MARGIN_S = -(-OVERDUE_MS // 1000)

_SEAT = rf"#(?:{'|'.join(map(str, range(1, MAX_SEATS + 1)))})\z"


class Census(msgspec.Struct, frozen=True):
    """How many runs are judged, and how many rows are not."""

    runs: int
    #: Rows (and files) that are left out, by flaw.
    left_out: dict[str, int]
    #: An example of a run without a manifest, or "".
    unknown_run: str = ""


def nodes_by_run(cells: DataFrame) -> DataFrame:
    """Return the nodes in the manifests of each run."""
    nodes = cells.mapInArrow(_read_nodes, "run string, nodes array<string>")
    return nodes.groupBy("run").agg(sql.flatten(sql.collect_list("nodes")).alias("nodes"))


def _read_nodes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema([("run", pa.string()), ("nodes", pa.list_(pa.string()))])
    for batch in batches:
        pairs = zip(*(batch.column(name).to_pylist() for name in ("run", "data")), strict=True)
        rows = [
            {"run": run, "nodes": nodes_of(parse_manifests([data]))}
            for run, data in pairs
            if run is not None and parse_manifests([data])
        ]
        yield pa.RecordBatch.from_pylist(rows, schema)


def parse_manifests(data: Iterable[bytes | None]) -> list[Manifest]:
    """Return the valid manifests, one per epoch."""
    found: dict[int, Manifest] = {}
    for document in data:
        try:
            manifest = parse_manifest(document or b"", source="the manifest of a run")
        except UsageError:
            continue
        found.setdefault(manifest.epoch, manifest)
    return list(found.values())


def nodes_of(manifests: Iterable[Manifest]) -> list[str]:
    """Return all nodes of some manifests."""
    return sorted({node for manifest in manifests for node in manifest.keys})


def with_flaws(rows: DataFrame, cells: DataFrame, manifests: Sequence[bytes]) -> DataFrame:
    """Add the column `flaw` to observations or documents; it is null in valid rows."""
    if manifests:
        rows = rows.withColumn("nodes", sql.lit(nodes_of(parse_manifests(manifests))))
    else:
        rows = rows.join(nodes_by_run(cells), "run", "left")
    is_observations = "accused" in rows.columns
    needed = COLUMNS if is_observations else DOCUMENT_COLUMNS
    flaw = sql.when(_any(sql.col(name).isNull() for name in needed), INCOMPLETE)
    # Python would fail to decode them.
    texts = [name for name, kind in needed.items() if kind == "string"]
    flaw = flaw.when(_any(~sql.is_valid_utf8(name) for name in texts), INCOMPLETE)
    flaw = flaw.when(_any(sql.length(name) > MAX_TEXT for name in texts), BEYOND)
    if "data" in needed:
        flaw = flaw.when(sql.length("data") > MAX_BYTES, BEYOND)
    flaw = flaw.when(sql.col("nodes").isNull(), NO_MANIFEST)
    if is_observations:
        strangers = _any(
            ~sql.array_contains("nodes", _holder(name)) for name in ("observer", "accused")
        )
        times = sql.col("t_ms").between(0, sql.col("until_ms")) & (
            sql.col("until_ms") <= MAX_TIME_MS
        )
        counts = sql.col("count").between(1, MAX_COUNT)
        flaw = flaw.when(strangers, STRANGERS).when(~(times & counts), BEYOND)
    return rows.withColumn("flaw", flaw).drop("nodes")


def without_flaws(rows: DataFrame, cells: DataFrame, manifests: Sequence[bytes]) -> DataFrame:
    """Return the valid observations or documents."""
    return with_flaws(rows, cells, manifests).where("flaw is null").drop("flaw")


def run_spans(observations: DataFrame) -> DataFrame:
    """Return the beginning, the end and the number of observers of each run.

    The times are medians over the observers, so that a few liars cannot move them.
    """
    return (
        observations.groupBy("run", "observer")
        .agg(sql.min("t_ms").alias("first"), sql.max("until_ms").alias("last"))
        .groupBy("run")
        .agg(
            sql.median("first").alias("began"),
            sql.median("last").alias("ended"),
            sql.count("*").alias("observers"),
        )
    )


def without_strain(observations: DataFrame, spans: DataFrame) -> DataFrame:
    """Remove timeout observations around seconds in which half of all observers were overloaded.

    Fewer liars than that cannot remove anything. `spans` is the result of `run_spans`.
    """
    second = sql.floor(sql.col("t_ms") / 1000)
    margin = sql.sequence(second - STRAIN_MARGIN_S, second + STRAIN_MARGIN_S)
    strained = (
        observations.where(sql.col("kind") == Kind.STRAINED.value)
        .select("run", "observer", sql.explode(margin).alias("second"))
        .groupBy("run", "second")
        .agg(sql.count_distinct("observer").alias("strained"))
    )
    overloaded = strained.join(spans, "run").where("2 * strained >= observers")
    by_timeout = sql.col("kind").isin(*(kind.value for kind in TIMEOUT_KINDS)) | (
        (sql.col("kind") == Kind.SUSPECT.value)
        & sql.col("reason").isin(*(reason.value for reason in TIMEOUT_SUSPICIONS))
    )
    rows = observations.withColumn(
        "second", sql.when(by_timeout, sql.floor(sql.col("until_ms") / 1000))
    )
    return rows.join(overloaded.select("run", "second"), ["run", "second"], "left_anti").drop(
        "second"
    )


def limit_per_observer(rows: DataFrame, limit: int) -> DataFrame:
    """Keep at most `limit` rows per observer and run; a hash of the rows selects them."""
    from pyspark.sql import Window

    drawn = Window.partitionBy("run", "observer").orderBy(sql.xxhash64(*rows.columns))
    numbered = rows.withColumn("drawn", sql.row_number().over(drawn))
    return numbered.where(sql.col("drawn") <= limit).drop("drawn")


def census(
    observations: DataFrame, documents: DataFrame, cells: DataFrame, manifests: Sequence[bytes]
) -> Census:
    """Count the runs that are judged and the rows that are not."""
    # A table in memory has no files.
    files = len({*observations.inputFiles(), *documents.inputFiles()})
    parts = [
        with_flaws(rows, cells, manifests).select("run", "flaw", *(["file"] if files else []))
        for rows in (observations, documents)
    ]
    flaws = (NO_MANIFEST, INCOMPLETE, STRANGERS, BEYOND)
    row = (
        parts[0]
        .unionByName(parts[1])
        .agg(
            sql.count_distinct(sql.when(sql.col("flaw").isNull(), sql.col("run"))).alias("runs"),
            sql.count_distinct("file" if files else sql.lit("")).alias("files"),
            sql.min(sql.when(sql.col("flaw") == NO_MANIFEST, sql.col("run"))).alias("unknown"),
            *(sql.count_if(sql.col("flaw") == flaw).alias(flaw) for flaw in flaws),
        )
        .collect()[0]
    )
    counts = {flaw: row[flaw] for flaw in flaws}
    if files:
        counts[UNREADABLE] = files - row["files"]
    left_out = {flaw: count for flaw, count in counts.items() if count}
    return Census(row["runs"], left_out, row["unknown"] or "")


def _holder(column: str) -> Column:
    """As `core.ids.holder`."""
    seated = sql.regexp_replace(column, _SEAT, "")
    return sql.when(sql.col(column).contains("#"), seated).otherwise(sql.col(column))


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(or_, conditions)
