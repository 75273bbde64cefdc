"""The audit as a Spark job: observations and documents of any number of runs in, verdicts out.

Rows are added up by built-in aggregates and contradicting statements found by windows, both on the
executors. What is left of a run, its features and contested documents, is small and judged in one
place by plain functions (`verdicts`, `proofs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import epoch_path, parse_manifest, read_epoch, read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.pipeline.audit.charges import Case, Feature
from quorumcast.pipeline.audit.diagnosis import Model
from quorumcast.pipeline.audit.proofs import find_proofs, place_of, read_signed
from quorumcast.pipeline.audit.tables import (
    DOCUMENTS,
    FEATURE_KEYS,
    LABELS,
    OBSERVATIONS,
    VERDICT_COLUMNS,
    VERDICTS,
)
from quorumcast.pipeline.audit.verdicts import Verdict, conclude, verdicts

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Kinds of observations whose `number` is a class of lateness.
_CLASSED = ("came", "answered")
#: … and those for which it matters in which of so many parts of the run they fall.
_TIMED = ("came", "missing", "heard")
SLOTS = 8
_STATEMENT = f"{DOCUMENTS}, signer string, about string, segment string, said binary"


def read_tables(
    spark: SparkSession, directories: Sequence[Path | str]
) -> tuple[DataFrame, DataFrame]:
    """The observations and documents in some directories."""
    return (
        _read(spark, directories, "observations", OBSERVATIONS),
        _read(spark, directories, "documents", DOCUMENTS),
    )


def read_labels(spark: SparkSession, directories: Sequence[Path | str]) -> DataFrame:
    """The labels in some directories."""
    return _read(spark, directories, "labels", LABELS)


def _read(
    spark: SparkSession, directories: Sequence[Path | str], table: str, schema: str
) -> DataFrame:
    paths: list[str] = []
    for directory in directories:
        found = _parts(directory, table)
        paths += found
        if not found:
            raise UsageError(
                f"{directory} holds no {table}; make some with 'quorumcast bench --observe DIR', "
                "or with 'quorumcast pipeline audit --label 100 --output DIR'"
            )
    return spark.read.schema(schema).parquet(*paths)


def _parts(directory: Path | str, table: str) -> list[str]:
    """A table of a directory, or of the runs in it."""
    if "://" in str(directory):
        return [f"{directory}/{table}"]
    places = sorted({path.parent for path in Path(directory).glob(f"{table}/*.parquet")})
    return list(
        map(str, places or {path.parent for path in Path(directory).glob(f"*/{table}/*.parquet")})
    )


def features(observations: DataFrame) -> DataFrame:
    """Equal observations of a run, added up."""
    from pyspark.sql import functions as F  # noqa: N812

    classed = F.when(F.col("kind").isin(*_CLASSED), F.col("number")).otherwise(0)
    whole = observations.groupBy("run").agg(
        F.min("t_ms").alias("began"), F.max("until_ms").alias("ended")
    )
    part = F.floor(SLOTS * (F.col("t_ms") - F.col("began")) / (F.col("ended") - F.col("began") + 1))
    return (
        observations.where(F.col("kind") != "link")
        .join(F.broadcast(whole), "run")
        .withColumn("bucket", classed)
        .withColumn("slot", F.when(F.col("kind").isin(*_TIMED), part).otherwise(0))
        .groupBy(*FEATURE_KEYS)
        .agg(
            F.sum("count").alias("count"),
            F.min("number").alias("number"),
            F.min("t_ms").alias("t_ms"),
            F.max("until_ms").alias("until_ms"),
        )
    )


def contested(documents: DataFrame) -> DataFrame:
    """Evidence, manifests, and those statements that something else contradicts."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    placed = documents.where("kind = 'statement'").mapInArrow(_placed, _STATEMENT)
    own = F.size(F.collect_set("said").over(Window.partitionBy("run", "signer", "about")))
    others = F.size(F.collect_set("said").over(Window.partitionBy("run", "segment")))
    statements = (
        placed.withColumn("own", own)
        .withColumn("others", others)
        .where("own > 1 or (others > 1 and segment != '')")
        .select(*documents.columns)
    )
    return documents.where("kind in ('evidence', 'manifest')").unionByName(statements)


def _placed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        found: dict[str, list[Any]] = {"signer": [], "about": [], "segment": [], "said": []}
        kept = []
        for index, data in enumerate(batch.column("data").to_pylist()):
            signed = read_signed(data)
            place = None if signed is None else place_of(signed)
            if place is None:
                continue
            kept.append(index)
            for name in found:
                found[name].append(getattr(place, name))
        rows = pa.table([batch.column(name) for name in batch.schema.names], batch.schema.names)
        rows = rows.take(pa.array(kept, pa.int64()))
        for name, values in found.items():
            kind = pa.binary() if name == "said" else pa.string()
            rows = rows.append_column(name, pa.array(values, kind))
        yield from rows.to_batches()


def audit(
    observations: DataFrame,
    documents: DataFrame,
    *,
    manifests: Sequence[bytes] = (),
    lying_clients: int = 1,
) -> DataFrame:
    """Verdicts on every run; judged by `manifests`, or by those that the tables' maker kept."""

    def judge(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return judge_run(left, right, manifests, lying_clients)

    grouped = features(observations).groupBy("run")
    return grouped.cogroup(contested(documents).groupBy("run")).applyInPandas(judge, VERDICTS)


def judge_run(
    rows: pd.DataFrame, documents: pd.DataFrame, manifests: Sequence[bytes], lying_clients: int
) -> pd.DataFrame:
    """The verdicts on one run."""
    import pandas as pd

    run = (rows if len(rows) else documents)["run"].iloc[0]
    named = [f for f in Feature.__struct_fields__ if f in rows.columns]
    columns = {name: rows[name].tolist() for name in named}
    noted = [
        Feature(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]
    # What a node says is the manifest may be its own invention: only the maker's counts.
    kept = documents[(documents["kind"] == "manifest") & (documents["observer"] == "")]
    known = parse_manifests([*manifests] or [bytes(data) for data in kept["data"]])
    if not known:
        raise UsageError(f"there is no manifest for the run {run!r}; name it with -m")
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
    found = verdicts(conclude(Case(newest, noted), model, proofs))
    return pd.DataFrame([_row(run, verdict) for verdict in found], columns=list(VERDICT_COLUMNS))


def parse_manifests(data: Sequence[bytes]) -> list[Manifest]:
    """Signed manifests of one operator, one per epoch."""
    found: dict[int, Manifest] = {}
    for one in data:
        manifest = parse_manifest(one, source="the manifest of a run")
        found.setdefault(manifest.epoch, manifest)
    return list(found.values())


def given_manifests(path: Path) -> list[bytes]:
    """The manifest in a file, and those of earlier epochs that are kept beside it."""
    present = read_manifest(path)
    found = [path.read_bytes()]
    for epoch in range(present.epoch - 1, 0, -1):
        earlier = epoch_path(path, epoch)
        if read_epoch(path, present, epoch) is not None:
            found.append(earlier.read_bytes())
    return found


def run_manifests(documents: DataFrame) -> dict[str, bytes]:
    """The manifest of each run that its maker kept."""
    kept = documents.where("kind = 'manifest' and observer = ''").select("run", "data")
    return {row["run"]: bytes(row["data"]) for row in kept.toLocalIterator()}


def _row(run: str, verdict: Verdict) -> dict[str, Any]:
    proof = verdict.proof
    return {
        "run": run,
        "node": verdict.node,
        "standing": verdict.standing,
        "score": verdict.score,
        "deed": verdict.deed,
        "towards": ", ".join(verdict.towards),
        "reasons": "; ".join(verdict.reasons),
        "count": verdict.count,
        "t_ms": verdict.t_ms,
        "until_ms": verdict.until_ms,
        "proof": "" if proof is None else msgspec.json.encode(proof.evidence).decode(),
        "explanations": " or ".join(" with ".join(one) for one in verdict.explanations),
    }
