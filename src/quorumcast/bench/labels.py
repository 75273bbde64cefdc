"""What an audit is to find out about a measured run: its manifest, and who was made to lie."""

from __future__ import annotations

from pathlib import Path

from quorumcast.agents.observation import CELL_COLUMNS
from quorumcast.bench.plan import CRASHES, Plan
from quorumcast.runtime.observations import write_table
from quorumcast.testing.cluster import LocalCluster

#: The columns of labels; one row per node.
COLUMNS = {
    "run": "string",
    "source": "string",
    "policy": "string",
    "adversary": "string",
    "node": "string",
    "fault": "string",
    "status": "string",
    "deeds": "int64",
    "towards": "string",
}


def label(directory: Path, plan: Plan, cluster: LocalCluster) -> None:
    """Write the manifest and the labels of a run beside what its nodes noted."""
    run = directory.name
    cell: dict[str, list[object]] = {"run": [run], "data": [cluster.manifest_path.read_bytes()]}
    write_table(directory / "cells" / "cell.parquet", CELL_COLUMNS, cell)
    brokers = list(map(str, cluster.brokers))
    clients = [plan.name_of(role, index) for role, index in plan.workers()]
    guests = [plan.name_of(r, i) for r, i in plan.workers() if plan.is_guest(r, i)]
    liars = plan.liars(brokers) or (guests if plan.fault else [])
    skipping = clients[: plan.publishers] if plan.skips else []
    rows: list[tuple[object, ...]] = []
    for node in (*brokers, *clients):
        fault, status = "", "correct"
        if node in liars:
            fault, status = plan.fault, "world" if plan.fault in CRASHES else "plain"
        elif node in skipping:
            fault, status = "skip-broker", "word-against-word"
        rows.append((run, "bench", plan.policy, plan.fault, node, fault, status, 0, ""))
    columns = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    write_table(directory / "labels" / "labels.parquet", COLUMNS, columns)
