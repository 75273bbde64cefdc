"""Precision and recall of the audit: its verdicts compared with labels.

A node is *named* if it is proven or suspected. Precision is the share of faulty nodes among the
named ones. Recall is the share of named nodes among those labelled `plain` (see `labels`). Other
labels, and proven nodes, are counted separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorumcast.pipeline.lazy import sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Labels of faulty nodes.
LIED = ("plain", "word-against-word", "slight", "late", "idle", "false-witness")


def standings(verdicts: DataFrame) -> DataFrame:
    """Return the worst standing of each node of each run, as a rank."""
    rank = (
        sql.when(sql.col("standing") == "proven", 3)
        .when(sql.col("standing") == "suspected", 2)
        .when(sql.col("standing") == "disputed", 1)
        .otherwise(0)  # measured
    )
    return verdicts.groupBy("run", "node").agg(sql.max(rank).alias("rank"))


def compared(verdicts: DataFrame, labels: DataFrame) -> DataFrame:
    """Count nodes by source, fault, label and standing."""
    joined = labels.join(standings(verdicts), ["run", "node"], "left").fillna({"rank": 0})
    return joined.groupBy("source", "fault", "status", "rank").agg(sql.count("*").alias("nodes"))


def wrongly_named(verdicts: DataFrame, labels: DataFrame) -> DataFrame:
    """Return the correct nodes that were named: there must be none."""
    named = standings(verdicts).where("rank >= 2")
    return labels.where("status = 'correct'").join(named, ["run", "node"])


def missed(verdicts: DataFrame, labels: DataFrame) -> DataFrame:
    """Return the nodes labelled `plain` that were not named."""
    named = standings(verdicts).where("rank >= 2")
    return labels.where("status = 'plain'").join(named, ["run", "node"], "left_anti")


def score(rows: list[dict[str, Any]], runs: int) -> dict[str, Any]:
    """Return precision and recall from the rows of `compared`."""

    def count(statuses: tuple[str, ...], least: int, most: int = 3) -> int:
        return sum(
            row["nodes"]
            for row in rows
            if row["status"] in statuses and least <= row["rank"] <= most
        )

    right, wrong = count(LIED, 2), count(("correct",), 2)
    proven, falsely = count((*LIED, "world"), 3), count(("correct",), 3)
    plain, found = count(("plain",), 0), count(("plain",), 2)
    return {
        "runs": runs,
        "nodes": sum(row["nodes"] for row in rows),
        "named": right + wrong,
        "named_wrongly": wrong,
        "precision": _share(right, right + wrong),
        "proven": proven + falsely,
        "proven_wrongly": falsely,
        "proven_precision": _share(proven, proven + falsely),
        "plain": plain,
        "plain_named": found,
        "recall": _share(found, plain),
        "plain_proven": count(("plain",), 3),
        "by_status": {
            status: {
                "nodes": count((status,), 0),
                "proven": count((status,), 3),
                "suspected": count((status,), 2, 2),
                "disputed": count((status,), 1, 1),
                "unmentioned": count((status,), 0, 0),
            }
            for status in (*LIED, "world", "correct")
        },
        "by_fault": _by_fault(rows),
    }


def _by_fault(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in sorted(rows, key=lambda row: str(row["fault"])):
        if row["fault"] and row["status"] != "world":
            entry = found.setdefault(
                row["fault"], {"plain": 0, "named": 0, "proven": 0, "other": 0}
            )
            if row["status"] == "plain":
                entry["plain"] += row["nodes"]
                entry["named"] += row["nodes"] if row["rank"] >= 2 else 0
                entry["proven"] += row["nodes"] if row["rank"] == 3 else 0
            else:
                entry["other"] += row["nodes"]
    return found


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
