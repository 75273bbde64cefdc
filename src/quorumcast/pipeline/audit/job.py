"""The audit as a Spark job: observations and documents of any number of runs in, verdicts out.

Executors validate rows (`sifting`), sum them with built-in aggregates and find contradicting
statements with windows. The sums and contested documents of a run are small. One Python worker
judges them with plain functions (`verdicts`, `proofs`).

The directory of a file names its observer (`observer=broker-1`); the rows do not. Manifests come
from a table that no node writes (`cells`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.faults.diagnosis import Model
from quorumcast.manifest.files import epoch_path, read_epoch, read_manifest
from quorumcast.pipeline.audit.charges import Case, Feature
from quorumcast.pipeline.audit.dissents import find_dissents
from quorumcast.pipeline.audit.proofs import content_of, find_proofs, read_signed
from quorumcast.pipeline.audit.sifting import (
    MAX_DOCUMENTS_JUDGED,
    MAX_SUMS,
    limit_per_observer,
    parse_manifests,
    run_spans,
    without_flaws,
    without_strain,
)
from quorumcast.pipeline.audit.tables import (
    CELLS,
    DOCUMENTS,
    FEATURE_KEYS,
    LABELS,
    OBSERVATIONS,
    VERDICT_COLUMNS,
    VERDICTS,
    empty_verdicts,
)
from quorumcast.pipeline.audit.verdicts import NodeVerdict, judge, verdicts
from quorumcast.pipeline.lazy import sql
from quorumcast.watch.observation import BY_OBSERVER, DOCUMENT_COLUMNS, DOWN, LOST, Kind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Kinds of observations whose `number` is a bucket of lateness.
_BUCKETED = ("came",)
#: Kinds that are summed per part of the run, and the number of parts.
_SLOTTED = ("came", "missing")
SLOTS = 8
#: The kind of manifests among the documents of a run. Documents of nodes have other kinds.
_MANIFEST = "manifest"
_STATEMENT = f"{DOCUMENTS}, signer string, about string, segment string, value binary"


def read_tables(
    spark: SparkSession, directories: Sequence[Path | str]
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return the observations, documents and manifests in some directories."""
    observations = _paths(spark, directories, "observations", f"{BY_OBSERVER}*/")
    # Nodes that sign nothing write no documents, and nodes never write manifests.
    documents = _paths(spark, directories, "documents", f"{BY_OBSERVER}*/", needed=False)
    cells = _paths(spark, directories, "cells", needed=False)
    return (
        _with_observer(_read(spark, observations, OBSERVATIONS)),
        _with_observer(_read(spark, documents, DOCUMENTS)),
        _read(spark, cells, CELLS),
    )


def read_labels(spark: SparkSession, directories: Sequence[Path | str]) -> DataFrame:
    """Return the labels in some directories."""
    return _read(spark, _paths(spark, directories, "labels"), LABELS)


def _with_observer(rows: DataFrame) -> DataFrame:
    """Set `observer` to the node that the directory of the file belongs to.

    It is null in a nested directory: otherwise a node could write in the name of others there.
    """
    # The file must lie directly in the first observer directory of its path. No regular
    # expressions: this runs for every row.
    within = sql.substring_index("file", "/", -2)
    begins = sql.length("file") - sql.length(within)
    name = sql.substring_index(within, "/", 1)
    is_direct = (begins > 0) & (sql.instr("file", f"/{BY_OBSERVER}") == begins)
    name = sql.when(is_direct, sql.substr(name, sql.lit(len(BY_OBSERVER) + 1)))
    # Escaped by the writer of the file, and again by Spark.
    decoded = sql.try_url_decode(sql.try_url_decode(name))
    name = sql.when(name.contains("%"), decoded).otherwise(name)
    return rows.withColumn("observer", sql.nullif(name, sql.lit("")))


def _paths(
    spark: SparkSession,
    directories: Sequence[Path | str],
    table: str,
    within: str = "",
    *,
    needed: bool = True,
) -> list[str]:
    paths: list[str] = []
    for directory in directories:
        found = _parts(spark, directory, table, within)
        paths += found
        if needed and not found:
            raise UsageError(
                f"{directory} holds no {table}; make some with 'quorumcast bench --observe DIR', "
                "or with 'quorumcast pipeline audit --label 100 --output DIR'"
            )
    return paths


def _read(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    """Return a table with the `file` of each row."""
    if not paths:
        return spark.createDataFrame([], f"{schema}, file string")
    # A corrupt file is counted by `sifting.census` and must not stop the audit.
    reader = spark.read.schema(schema).option("ignoreCorruptFiles", True)
    rows = reader.parquet(*paths, recursiveFileLookup=True, pathGlobFilter="*.parquet")
    return rows.select("*", rows["_metadata.file_path"].alias("file"))


def _parts(spark: SparkSession, directory: Path | str, table: str, within: str) -> list[str]:
    """Return the paths of a table in a directory, or in the runs in it."""
    if "://" in str(directory):
        return [f"{directory}/{table}"] if _is_there(spark, f"{directory}/{table}") else []
    for parent in ("", "*/"):
        found = Path(directory).glob(f"{parent}{table}/{within}*.parquet")
        places = {path.parents[1 if within else 0] for path in found}
        if places:
            return sorted(map(str, places))
    return []


def _is_there(spark: SparkSession, url: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        spark.read.schema("run string").parquet(url)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise
    return True


def features(observations: DataFrame) -> DataFrame:
    """Sum equal observations of each run."""
    bucket = sql.when(sql.col("kind").isin(*_BUCKETED), sql.col("number")).otherwise(0)
    # One small row per run that costs a scan of everything: cached, because it is used twice.
    spans = run_spans(observations).cache()
    part = sql.floor(
        SLOTS * (sql.col("t_ms") - sql.col("began")) / (sql.col("ended") - sql.col("began") + 1)
    )
    part = sql.least(sql.greatest(part, sql.lit(0)), sql.lit(SLOTS - 1))
    return (
        without_strain(observations, spans)
        .where(sql.col("kind") != Kind.STRAINED.value)
        .where((sql.col("kind") != Kind.LINK.value) | sql.col("reason").isin(DOWN, LOST))
        .join(sql.broadcast(spans.drop("observers")), "run")
        .withColumn("bucket", bucket)
        .withColumn("slot", sql.when(sql.col("kind").isin(*_SLOTTED), part).otherwise(0))
        .groupBy(*FEATURE_KEYS)
        .agg(
            sql.sum("count").alias("count"),
            sql.min("number").alias("number"),
            sql.min("t_ms").alias("t_ms"),
            sql.max("until_ms").alias("until_ms"),
        )
    )


def contested(documents: DataFrame) -> DataFrame:
    """Return evidence, and the statements that another statement contradicts."""
    from pyspark.sql import Window

    parsed = documents.where("kind = 'statement'").mapInArrow(_parse_statements, _STATEMENT)
    # A statement without a segment is compared only with those of its signer.
    shared = sql.when(sql.col("segment") != "", sql.col("segment"))
    shared = shared.otherwise(sql.concat_ws(" ", "signer", "about"))
    windows = (Window.partitionBy("run", "signer", "about"), Window.partitionBy("run", shared))
    own, others = (sql.min("value").over(w) != sql.max("value").over(w) for w in windows)
    statements = (
        parsed.withColumn("own", own)
        .withColumn("others", others)
        .where("own or others")
        .select(*documents.columns)
    )
    return documents.where("kind = 'evidence'").unionByName(statements)


def _parse_statements(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        found: dict[str, list[Any]] = {"signer": [], "about": [], "segment": [], "value": []}
        kept = []
        for index, data in enumerate(batch.column("data").to_pylist()):
            signed = read_signed(data)
            content = None if signed is None else content_of(signed)
            if content is None:
                continue
            kept.append(index)
            for name in found:
                found[name].append(getattr(content, name))
        rows = pa.table([batch.column(name) for name in batch.schema.names], batch.schema.names)
        rows = rows.take(pa.array(kept, pa.int64()))
        for name, values in found.items():
            kind = pa.binary() if name == "value" else pa.string()
            rows = rows.append_column(name, pa.array(values, kind))
        yield from rows.to_batches()


def audit(
    observations: DataFrame,
    documents: DataFrame,
    cells: DataFrame,
    *,
    manifests: Sequence[bytes] = (),
    lying_clients: int = 1,
) -> DataFrame:
    """Return the verdicts on every run, judged by `manifests`, or by those in `cells`."""

    def judge_group(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return judge_run(left, right, manifests, lying_clients)

    sums = limit_per_observer(features(without_flaws(observations, cells, manifests)), MAX_SUMS)
    shown = contested(without_flaws(documents, cells, manifests).select(*DOCUMENT_COLUMNS))
    shown = limit_per_observer(shown, MAX_DOCUMENTS_JUDGED)
    kept = cells.where("run is not null and data is not null").select(
        "run",
        *(sql.lit(v).alias(c) for c, v in (("observer", ""), ("kind", _MANIFEST), ("subject", ""))),
        "data",
    )
    return (
        sums.groupBy("run")
        .cogroup(shown.unionByName(kept).groupBy("run"))
        .applyInPandas(judge_group, VERDICTS)
    )


def judge_run(
    rows: pd.DataFrame, documents: pd.DataFrame, manifests: Sequence[bytes], lying_clients: int
) -> pd.DataFrame:
    """Return the verdicts on one run; none if it has no valid manifest."""
    import pandas as pd

    run = (rows if len(rows) else documents)["run"].iloc[0]
    named = [f for f in Feature.__struct_fields__ if f in rows.columns]
    columns = {name: rows[name].tolist() for name in named}
    sums = [
        Feature(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]
    kept = documents[documents["kind"] == _MANIFEST]
    known = parse_manifests([*manifests] or [bytes(data) for data in kept["data"]])
    if not known:
        return empty_verdicts()
    shown = {
        kind: [
            (row.observer, bytes(row.data))
            for row in documents[documents["kind"] == kind].itertuples()
        ]
        for kind in ("evidence", "statement")
    }
    newest = max(known, key=lambda manifest: manifest.epoch)
    proofs = find_proofs(known, shown["evidence"], shown["statement"])
    model = Model(newest.broker_ids, newest.f, lying_clients)
    dissents = find_dissents(newest, shown["statement"])
    found = verdicts(judge(Case(newest, sums), model, proofs, dissents))
    return pd.DataFrame([_row(run, verdict) for verdict in found], columns=list(VERDICT_COLUMNS))


def given_manifests(path: Path) -> list[bytes]:
    """Return the manifest in a file, and those of earlier epochs beside it."""
    present = read_manifest(path)
    found = [path.read_bytes()]
    for epoch in range(present.epoch - 1, 0, -1):
        earlier = epoch_path(path, epoch)
        if read_epoch(path, present, epoch) is not None:
            found.append(earlier.read_bytes())
    return found


def run_manifests(cells: DataFrame) -> dict[str, bytes]:
    """Return the manifest of each run in `cells`."""
    kept = cells.where("run is not null and data is not null").select("run", "data")
    return {row["run"]: bytes(row["data"]) for row in kept.toLocalIterator()}


def _row(run: str, verdict: NodeVerdict) -> dict[str, Any]:
    proof = verdict.proof
    return msgspec.structs.asdict(verdict) | {
        "run": run,
        "towards": ", ".join(verdict.towards),
        "reasons": "; ".join(verdict.reasons),
        "proof": "" if proof is None else msgspec.json.encode(proof.evidence).decode(),
        "explanations": " or ".join(" with ".join(nodes) for nodes in verdict.explanations),
    }
