"""The audit as a Spark job: observations and documents of any number of runs in, verdicts out.

Rows are added up by built-in aggregates and contradicting statements found by windows, both on the
executors. What is left of a run, its features and contested documents, is small and judged in one
place by plain functions (`verdicts`, `proofs`). What cannot be judged is left out before
(`sifting`).

Who speaks is said by the directory that a file lies in (`observer=broker-1`), never by its rows;
and manifests are taken from a table that no node writes to (`cells`).
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
from quorumcast.pipeline.audit.proofs import find_proofs, place_of, read_signed
from quorumcast.pipeline.audit.sifting import (
    MOST_DOCUMENTS,
    MOST_SUMS,
    bounded,
    calm,
    readable,
    sound,
    spans,
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
from quorumcast.pipeline.audit.verdicts import Verdict, conclude, verdicts
from quorumcast.watch.observation import BY_OBSERVER, DOCUMENT_COLUMNS, DOWN, LOST, Kind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Kinds of observations whose `number` is a class of lateness.
_CLASSED = ("came",)
#: … and those for which it matters in which of so many parts of the run they fall.
_TIMED = ("came", "missing")
SLOTS = 8
#: Manifests on their way to the judge; whatever nodes call so does not get there.
_KEPT = "manifest"
_STATEMENT = f"{DOCUMENTS}, signer string, about string, segment string, said binary"


def read_tables(
    spark: SparkSession, directories: Sequence[Path | str]
) -> tuple[DataFrame, DataFrame, DataFrame]:
    """The observations and documents in some directories, and the manifests kept with them."""
    observations = _paths(spark, directories, "observations", f"{BY_OBSERVER}*/")
    # Where nothing is signed there are no documents, and nodes keep no manifests.
    documents = _paths(spark, directories, "documents", f"{BY_OBSERVER}*/", needed=False)
    cells = _paths(spark, directories, "cells", needed=False)
    return (
        _spoken(_read(spark, observations, OBSERVATIONS)),
        _spoken(_read(spark, documents, DOCUMENTS)),
        _read(spark, cells, CELLS),
    )


def read_labels(spark: SparkSession, directories: Sequence[Path | str]) -> DataFrame:
    """The labels in some directories."""
    return _read(spark, _paths(spark, directories, "labels"), LABELS)


def _spoken(rows: DataFrame) -> DataFrame:
    """Rows as those of whoever the directory is of.

    A directory within that of a node is nobody's: otherwise a node could name others there.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # The last two parts, and the first place where a directory of a node begins: no expressions,
    # since this is asked of every row.
    within = F.substring_index("file", "/", -2)
    begins = F.length("file") - F.length(within)
    name = F.substring_index(within, "/", 1)
    spoken = (begins > 0) & (F.instr("file", f"/{BY_OBSERVER}") == begins)
    name = F.when(spoken, F.substr(name, F.lit(len(BY_OBSERVER) + 1)))
    # Escaped by whoever wrote the file, and again by Spark.
    decoded = F.try_url_decode(F.try_url_decode(name))
    name = F.when(name.contains("%"), decoded).otherwise(name)
    return rows.withColumn("observer", F.nullif(name, F.lit("")))


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
    """A table, and the `file` that each row is in."""
    if not paths:
        return spark.createDataFrame([], f"{schema}, file string")
    # A file that a liar spoilt is counted by `sifting.census`, and ends nothing.
    reader = spark.read.schema(schema).option("ignoreCorruptFiles", True)
    rows = reader.parquet(*paths, recursiveFileLookup=True, pathGlobFilter="*.parquet")
    return rows.select("*", rows["_metadata.file_path"].alias("file"))


def _parts(spark: SparkSession, directory: Path | str, table: str, within: str) -> list[str]:
    """A table of a directory, or of the runs in it."""
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
    """Equal observations of a run, added up."""
    from pyspark.sql import functions as F  # noqa: N812

    classed = F.when(F.col("kind").isin(*_CLASSED), F.col("number")).otherwise(0)
    # A row for each run, for which all is read: once, although it is asked for twice.
    whole = spans(observations).cache()
    part = F.floor(SLOTS * (F.col("t_ms") - F.col("began")) / (F.col("ended") - F.col("began") + 1))
    part = F.least(F.greatest(part, F.lit(0)), F.lit(SLOTS - 1))
    return (
        calm(observations, whole)
        .where(F.col("kind") != Kind.STRAINED.value)
        .where((F.col("kind") != Kind.LINK.value) | F.col("reason").isin(DOWN, LOST))
        .join(F.broadcast(whole.drop("observers")), "run")
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
    """Evidence, and those statements that something else contradicts."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    placed = documents.where("kind = 'statement'").mapInArrow(_placed, _STATEMENT)
    # Where nobody but the signer can speak of a place, there are no others to compare with.
    shared = F.when(F.col("segment") != "", F.col("segment"))
    shared = shared.otherwise(F.concat_ws(" ", "signer", "about"))
    windows = (Window.partitionBy("run", "signer", "about"), Window.partitionBy("run", shared))
    own, others = (F.min("said").over(w) != F.max("said").over(w) for w in windows)
    statements = (
        placed.withColumn("own", own)
        .withColumn("others", others)
        .where("own or others")
        .select(*documents.columns)
    )
    return documents.where("kind = 'evidence'").unionByName(statements)


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
    cells: DataFrame,
    *,
    manifests: Sequence[bytes] = (),
    lying_clients: int = 1,
) -> DataFrame:
    """Verdicts on every run; judged by `manifests`, or by those in `cells`."""
    from pyspark.sql import functions as F  # noqa: N812

    def judge(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return judge_run(left, right, manifests, lying_clients)

    sums = bounded(features(sound(observations, cells, manifests)), MOST_SUMS)
    shown = contested(sound(documents, cells, manifests).select(*DOCUMENT_COLUMNS))
    shown = bounded(shown, MOST_DOCUMENTS)
    kept = cells.where("run is not null and data is not null").select(
        "run",
        *(F.lit(v).alias(c) for c, v in (("observer", ""), ("kind", _KEPT), ("subject", ""))),
        "data",
    )
    return (
        sums.groupBy("run")
        .cogroup(shown.unionByName(kept).groupBy("run"))
        .applyInPandas(judge, VERDICTS)
    )


def judge_run(
    rows: pd.DataFrame, documents: pd.DataFrame, manifests: Sequence[bytes], lying_clients: int
) -> pd.DataFrame:
    """The verdicts on one run; none where nothing says who its nodes are."""
    import pandas as pd

    run = (rows if len(rows) else documents)["run"].iloc[0]
    named = [f for f in Feature.__struct_fields__ if f in rows.columns]
    columns = {name: rows[name].tolist() for name in named}
    noted = [
        Feature(**dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    ]
    kept = documents[documents["kind"] == _KEPT]
    known = readable([*manifests] or [bytes(data) for data in kept["data"]])
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
    found = verdicts(conclude(Case(newest, noted), model, proofs, dissents))
    return pd.DataFrame([_row(run, verdict) for verdict in found], columns=list(VERDICT_COLUMNS))


def given_manifests(path: Path) -> list[bytes]:
    """The manifest in a file, and those of earlier epochs that are kept beside it."""
    present = read_manifest(path)
    found = [path.read_bytes()]
    for epoch in range(present.epoch - 1, 0, -1):
        earlier = epoch_path(path, epoch)
        if read_epoch(path, present, epoch) is not None:
            found.append(earlier.read_bytes())
    return found


def run_manifests(cells: DataFrame) -> dict[str, bytes]:
    """The manifest of each run that its maker kept."""
    kept = cells.where("run is not null and data is not null").select("run", "data")
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
