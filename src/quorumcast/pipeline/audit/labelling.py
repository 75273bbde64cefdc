"""Simulates labelled runs in Spark tasks and writes them as the tables of an audit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quorumcast.cell import CELL_SYSTEM
from quorumcast.core.errors import UsageError
from quorumcast.pipeline.audit.tables import ddl
from quorumcast.sim.systems import AuditTables, find
from quorumcast.watch.observation import CELL_COLUMNS, COLUMNS, DOCUMENT_COLUMNS, LABEL_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: Runs per task.
RUNS_PER_TASK = 4
#: Temporary directory of the runs; Spark ignores names that begin with an underscore.
_UNSORTED = "_runs"

_TABLES = {
    "observations": COLUMNS,
    "documents": DOCUMENT_COLUMNS,
    "cells": CELL_COLUMNS,
    "labels": LABEL_COLUMNS,
}


def labeller(system: str) -> Callable[[int], AuditTables]:
    """Return the simulation of labelled runs of a system; raise `UsageError` without one."""
    labelled = find(system).labelled
    if labelled is None:
        raise UsageError(f"the system {system!r} has no observers, so its runs have no labels")
    return labelled


def label_runs(
    spark: SparkSession,
    count: int,
    output: Path | str,
    *,
    start: int = 0,
    system: str = CELL_SYSTEM,
) -> None:
    """Simulate runs and write their observations, documents, manifests and labels."""
    labeller(system)
    if count < 1 or start < 0:
        raise UsageError("--label is 1 or more, --start 0 or more")
    for table in _TABLES:
        if "://" not in str(output) and any(Path(output, table).rglob("*.parquet")):
            raise UsageError(f"{output} holds {table} already; choose another directory")
    unsorted = f"{output}/{_UNSORTED}"
    labelled(spark, count, start, system).write.mode("overwrite").parquet(unsorted)
    runs = spark.read.parquet(unsorted)
    for table, kinds in _TABLES.items():
        # Few files: many small ones are slow to read.
        rows = runs.selectExpr(f"inline({table})").coalesce(4).write.mode("append")
        if "observer" in kinds:
            rows = rows.partitionBy("observer")
        rows.parquet(f"{output}/{table}")
    if "://" not in str(output):
        shutil.rmtree(unsorted, ignore_errors=True)


def labelled(
    spark: SparkSession, count: int, start: int = 0, system: str = CELL_SYSTEM
) -> DataFrame:
    """Return one row per run with its tables as arrays; seeds count from `start`."""
    tasks = -(-count // RUNS_PER_TASK)

    def simulate(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        run = labeller(system)
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield _as_batch(run(start + index))

    structs = {name: ddl(kinds).replace("` ", "`:") for name, kinds in _TABLES.items()}
    schema = ", ".join(f"{name} array<struct<{struct}>>" for name, struct in structs.items())
    return spark.range(0, count, 1, tasks).mapInArrow(simulate, schema)


def _as_batch(tables: AuditTables) -> pa.RecordBatch:
    import pyarrow as pa

    columns = []
    for name, kinds in _TABLES.items():
        schema = pa.schema(list(kinds.items()))
        rows = pa.table(tables[name], schema=schema).to_struct_array()
        rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
        columns.append(pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows))
    return pa.RecordBatch.from_arrays(columns, names=list(_TABLES))
