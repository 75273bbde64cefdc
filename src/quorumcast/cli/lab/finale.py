"""The last part of the demonstration, on Spark.

The published stream is read into a table, and verified on the executors while the liar is active.
The traces are evaluated. An audit of the nodes' observations names the liar.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quorumcast.testing.cluster import LocalCluster

Say = Callable[[str], None]


class Finale:
    """The directories of traces and observations, and the Spark jobs on them."""

    def __init__(self, place: Path, channel: str) -> None:
        self.traces = place / "traces"
        self.observations = place / "observed"
        self._place = place
        self._channel = channel
        for directory in (self.traces, self.observations):
            directory.mkdir(parents=True)

    def open(self, publishers: Iterable[str], subscribers: Iterable[str], liar: str) -> None:
        """Write the header of the traces, before nodes record any."""
        import msgspec

        from quorumcast.cell import CELL_SYSTEM
        from quorumcast.cell.tracing import CellParameters
        from quorumcast.core.version import __version__
        from quorumcast.manifest.policy import Policy
        from quorumcast.traces.form import BENCH, Header, Listening, write_header

        counted = tuple(publishers)
        listening = tuple(Listening(name, self._channel) for name in subscribers)
        parameters = CellParameters(
            policy="total",
            alpha=Policy.named("total").alpha,
            brokers=4,
            f=1,
            publishers=len(counted),
            subscribers=len(listening),
            channels=1,
            size=0,
            batch=0,
        )
        self._header = Header(
            run=uuid.uuid4().hex,
            source=BENCH,
            version=__version__,
            system=CELL_SYSTEM,
            parameters=msgspec.to_builtins(parameters),
            fault="alter",
            publishers=counted,
            listening=listening,
            faulty=(liar,),
        )
        write_header(self.traces, self._header)
        self._from_ns = time.monotonic_ns()

    def close(self, events: int) -> None:
        """Complete the traces: everything is published and accepted."""
        import msgspec

        from quorumcast.traces.form import write_header

        header = msgspec.structs.replace(
            self._header, from_ns=self._from_ns, upto_ns=time.monotonic_ns(), events=events
        )
        write_header(self.traces, header)

    def run(self, cluster: LocalCluster, reader: str, say: Say) -> dict[str, Any]:
        """Run the three jobs; return their results."""
        from quorumcast.pipeline.session import spark_session

        say("starting Spark")
        spark = spark_session("quorumcast demo")
        try:
            say(f"reading {self._channel!r} into a table; executors count the votes")
            table = self._table(spark, cluster, reader)
            say("evaluating the traces")
            evaluation = self._evaluation(spark)
            say("auditing what nodes noted of each other")
            return {"table": table, "evaluation": evaluation, "audit": self._audit(spark, cluster)}
        finally:
            spark.stop()

    def _table(self, spark: SparkSession, cluster: LocalCluster, reader: str) -> dict[str, Any]:
        from pyspark.sql import functions as sql

        path = str(self._place / f"{self._channel}.parquet")
        stream = (
            spark.read.format("quorumcast")
            .option("manifest", str(cluster.manifest_path))
            .option("identity", str(cluster.identity_path(reader)))
            .option("channel", self._channel)
            .option("startingOffsets", "earliest")
            .load()
        )
        stream.write.parquet(path)
        rows = spark.read.parquet(path)
        counted = rows.agg(sql.count("*"), sql.countDistinct("payload"), sql.min("_votes")).first()
        dissent = rows.select(sql.explode("_dissent").alias("broker")).groupBy("broker").count()
        found = tuple(counted or (0, 0, 0))
        return {
            "file": path,
            "rows": found[0],
            "distinct": found[1],
            "fewest_votes": found[2],
            "dissent": {row["broker"]: row["count"] for row in dissent.collect()},
        }

    def _evaluation(self, spark: SparkSession) -> dict[str, Any]:
        from quorumcast.pipeline.evaluation.page import page
        from quorumcast.pipeline.evaluation.runs import find_traces
        from quorumcast.pipeline.evaluation.summary import evaluate

        evaluation = evaluate(spark, find_traces([self.traces]))
        path = self._place / "evaluation.html"
        path.write_text(page(evaluation), encoding="utf-8")
        line = evaluation.lines[0]
        return {
            "file": str(path),
            "coverage": line.coverage,
            "latency_p50_ms": line.latency.p50,
            "messages_per_delivery": line.messages_per_delivery,
        }

    def _audit(self, spark: SparkSession, cluster: LocalCluster) -> dict[str, Any]:
        from quorumcast.pipeline.audit.job import audit, given_manifests, read_tables
        from quorumcast.pipeline.audit.report import page, write_proofs

        manifests = given_manifests(cluster.manifest_path)
        verdicts = audit(*read_tables(spark, [self.observations]), manifests=manifests)
        rows = [row.asDict() for row in verdicts.collect()]
        write_proofs(self._place, rows, {})
        path = self._place / "audit.html"
        manifest = str(cluster.manifest_path)
        text = page(rows, directory=str(self._place), manifest=manifest, runs=1)
        path.write_text(text, encoding="utf-8")
        return {"file": str(path), "named": named(rows)}


def named(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Verdicts by node and deed; one that is proven is not also listed as suspected."""
    deeds: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["standing"] in ("proven", "suspected"):
            of_node = deeds.setdefault(row["node"], {})
            if of_node.get(row["deed"]) != "proven":
                of_node[row["deed"]] = row["standing"]
    return deeds
