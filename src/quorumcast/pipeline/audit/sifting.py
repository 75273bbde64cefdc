"""What can be judged of what nodes wrote, and how much is left out.

Whatever is in a node's files may be a lie: rows without values, counts and times that overflow
sums, names of nodes that do not exist, runs that never were. None of it may end an audit, move what
others say, or count as the word of somebody else. Each such row gets a `flaw`, is left out, and is
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_SEATS
from quorumcast.core.machine import Suspicion
from quorumcast.manifest.files import parse_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.watch.observation import COLUMNS, DOCUMENT_COLUMNS, Kind
from quorumcast.watch.turnout import PATIENCE_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

#: Later than any clock of ours, and still a date that people can read.
LATEST_MS = 1 << 47
#: More than anything happens within a span; two thousand million such rows are still a sum.
MOST_COUNTED = 1 << 32

#: Longer than any name, reason or document.
MOST_TEXT, MOST_BYTES = 1024, 1 << 20
#: Different sums of one observer in one run that are judged, and documents. Correct ones have fewer
#: in cells of a hundred publishers; who makes up more only keeps the judge from its own word.
MOST_SUMS, MOST_DOCUMENTS = 100_000, 10_000

NO_MANIFEST = "of runs without a manifest"
INCOMPLETE = "without all values, or not in a directory of their observer"
STRANGERS = "by or about nodes that the manifest does not name"
BEYOND = "with impossible times, counts or lengths"
UNREADABLE = "files that hold nothing that can be read"

#: What correct nodes are noted for, too, while everybody has more to do than can be done.
PATIENT = (
    Kind.CAME,
    Kind.MISSING,
    Kind.BACKWARDS,
    Kind.PASSES_OVER,
)
PATIENT_SUSPICIONS = (Suspicion.WITHOUT_HISTORY,)
#: So many seconds before and after count as well: patience is lost later than there was cause.
STRAIN_REACHES_S = -(-PATIENCE_MS // 1000)

_SEAT = rf"#(?:{'|'.join(map(str, range(1, MAX_SEATS + 1)))})\z"


class Census(msgspec.Struct, frozen=True):
    """How much is judged, and how much is not."""

    runs: int
    #: Rows by flaw, and files; flaws that there are.
    left_out: dict[str, int]
    #: A run without a manifest, if there is one.
    unknown_run: str = ""


def members(cells: DataFrame) -> DataFrame:
    """Runs and who their manifests name."""
    from pyspark.sql import functions as F  # noqa: N812

    nodes = cells.mapInArrow(_named, "run string, nodes array<string>")
    return nodes.groupBy("run").agg(F.flatten(F.collect_list("nodes")).alias("nodes"))


def _named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema([("run", pa.string()), ("nodes", pa.list_(pa.string()))])
    for batch in batches:
        pairs = zip(*(batch.column(name).to_pylist() for name in ("run", "data")), strict=True)
        rows = [
            {"run": run, "nodes": nodes_of(readable([data]))}
            for run, data in pairs
            if run is not None and readable([data])
        ]
        yield pa.RecordBatch.from_pylist(rows, schema)


def readable(data: Iterable[bytes | None]) -> list[Manifest]:
    """Those manifests that are some, one per epoch."""
    found: dict[int, Manifest] = {}
    for one in data:
        try:
            manifest = parse_manifest(one or b"", source="the manifest of a run")
        except UsageError:
            continue
        found.setdefault(manifest.epoch, manifest)
    return list(found.values())


def nodes_of(manifests: Iterable[Manifest]) -> list[str]:
    """Everybody whom some manifests name."""
    return sorted({node for manifest in manifests for node in manifest.keys})


def marked(rows: DataFrame, cells: DataFrame, manifests: Sequence[bytes]) -> DataFrame:
    """Observations or documents with their `flaw`, which is null where they can be judged."""
    from pyspark.sql import functions as F  # noqa: N812

    if manifests:
        rows = rows.withColumn("nodes", F.lit(nodes_of(readable(manifests))))
    else:
        rows = rows.join(members(cells), "run", "left")
    told = "accused" in rows.columns
    needed = COLUMNS if told else DOCUMENT_COLUMNS
    flaw = F.when(_any(F.col(name).isNull() for name in needed), INCOMPLETE)
    # Python, to which rows go from here, would refuse them.
    texts = [name for name, kind in needed.items() if kind == "string"]
    flaw = flaw.when(_any(~F.is_valid_utf8(name) for name in texts), INCOMPLETE)
    flaw = flaw.when(_any(F.length(name) > MOST_TEXT for name in texts), BEYOND)
    if "data" in needed:
        flaw = flaw.when(F.length("data") > MOST_BYTES, BEYOND)
    flaw = flaw.when(F.col("nodes").isNull(), NO_MANIFEST)
    if told:
        strangers = _any(
            ~F.array_contains("nodes", _holder(who)) for who in ("observer", "accused")
        )
        times = F.col("t_ms").between(0, F.col("until_ms")) & (F.col("until_ms") <= LATEST_MS)
        counts = F.col("count").between(1, MOST_COUNTED)
        flaw = flaw.when(strangers, STRANGERS).when(~(times & counts), BEYOND)
    return rows.withColumn("flaw", flaw).drop("nodes")


def sound(rows: DataFrame, cells: DataFrame, manifests: Sequence[bytes]) -> DataFrame:
    """Those observations or documents that can be judged."""
    return marked(rows, cells, manifests).where("flaw is null").drop("flaw")


def spans(observations: DataFrame) -> DataFrame:
    """When each run began and ended, and how many observers it had.

    It is the median of what its observers show, which no single one moves.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return (
        observations.groupBy("run", "observer")
        .agg(F.min("t_ms").alias("first"), F.max("until_ms").alias("last"))
        .groupBy("run")
        .agg(
            F.median("first").alias("began"),
            F.median("last").alias("ended"),
            F.count("*").alias("observers"),
        )
    )


def calm(observations: DataFrame, whole: DataFrame) -> DataFrame:
    """Observations without what is due to strain: when half of all observers had too much to do.

    A few liars cannot say so for the others. `whole` are the spans of the runs.
    """
    from pyspark.sql import functions as F  # noqa: N812

    second = F.floor(F.col("t_ms") / 1000)
    reach = F.sequence(second - STRAIN_REACHES_S, second + STRAIN_REACHES_S)
    strained = (
        observations.where(F.col("kind") == Kind.STRAINED.value)
        .select("run", "observer", F.explode(reach).alias("second"))
        .groupBy("run", "second")
        .agg(F.count_distinct("observer").alias("strained"))
    )
    full = strained.join(whole, "run").where("2 * strained >= observers")
    patient = F.col("kind").isin(*(kind.value for kind in PATIENT)) | (
        (F.col("kind") == Kind.SUSPECT.value)
        & F.col("reason").isin(*(reason.value for reason in PATIENT_SUSPICIONS))
    )
    rows = observations.withColumn("second", F.when(patient, F.floor(F.col("until_ms") / 1000)))
    return rows.join(full.select("run", "second"), ["run", "second"], "left_anti").drop("second")


def bounded(rows: DataFrame, most: int) -> DataFrame:
    """So many rows of each observer of a run at most; which ones says their contents alone."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    drawn = Window.partitionBy("run", "observer").orderBy(F.xxhash64(*rows.columns))
    numbered = rows.withColumn("drawn", F.row_number().over(drawn))
    return numbered.where(F.col("drawn") <= most).drop("drawn")


def census(
    observations: DataFrame, documents: DataFrame, cells: DataFrame, manifests: Sequence[bytes]
) -> Census:
    """How much of the tables is judged."""
    from pyspark.sql import functions as F  # noqa: N812

    # A table in memory has none.
    files = len({*observations.inputFiles(), *documents.inputFiles()})
    parts = [
        marked(rows, cells, manifests).select("run", "flaw", *(["file"] if files else []))
        for rows in (observations, documents)
    ]
    flaws = (NO_MANIFEST, INCOMPLETE, STRANGERS, BEYOND)
    row = (
        parts[0]
        .unionByName(parts[1])
        .agg(
            F.count_distinct(F.when(F.col("flaw").isNull(), F.col("run"))).alias("runs"),
            F.count_distinct("file" if files else F.lit("")).alias("files"),
            F.min(F.when(F.col("flaw") == NO_MANIFEST, F.col("run"))).alias("unknown"),
            *(F.count_if(F.col("flaw") == flaw).alias(flaw) for flaw in flaws),
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
    from pyspark.sql import functions as F  # noqa: N812

    seated = F.regexp_replace(column, _SEAT, "")
    return F.when(F.col(column).contains("#"), seated).otherwise(F.col(column))


def _any(conditions: Iterable[Column]) -> Column:
    from functools import reduce
    from operator import or_

    return reduce(or_, conditions)
