"""The manifest and the labels of a measured run, against which an audit of it is scored.

A label comes from the faulty deeds that the node's own process counted (`faults.tally`), never from
what others observed. A faulty node's status, as in simulated runs, is `idle` if it did nothing,
`slight` if it did little, `plain` if true reports of its victims would name it, and
`word-against-word` if its victims could be the liars as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from quorumcast.bench.plan import CRASHES, SKIP, BenchPlan
from quorumcast.faults.cell.tally import ABOUT_STREAMS, SLIGHT, TalliedDeed
from quorumcast.faults.diagnosis import Clause, Model, diagnose
from quorumcast.runtime.observations import read_deeds, write_table
from quorumcast.testing.cluster import LocalCluster
from quorumcast.watch.observation import CELL_COLUMNS, LABEL_COLUMNS


def write_labels(directory: Path, plan: BenchPlan, cluster: LocalCluster) -> None:
    """Write the manifest and the labels of a run beside its observations."""
    run = directory.name
    cell: dict[str, list[object]] = {"run": [run], "data": [cluster.manifest_path.read_bytes()]}
    write_table(directory / "cells" / "cell.parquet", CELL_COLUMNS, cell)
    brokers = list(map(str, cluster.brokers))
    clients = [plan.name_of(role, index) for role, index in plan.workers()]
    extra = [plan.name_of(r, i) for r, i in plan.workers() if plan.is_extra(r, i)]
    faulty = plan.faulty_brokers(brokers) or (extra if plan.fault else [])
    faults = dict.fromkeys(clients[: plan.publishers] if plan.skips else [], SKIP)
    faults |= dict.fromkeys(faulty, plan.fault)
    done = read_deeds(directory)
    rows: list[tuple[object, ...]] = []
    for node in (*brokers, *clients):
        fault, status, deeds = faults.get(node, ""), "correct", done.get(node, Counter())
        # Faulty nodes do not report each other.
        deeds = Counter({deed: c for deed, c in deeds.items() if deed.towards not in faults})
        if fault in CRASHES:
            status = "world"
        elif fault:
            splits = plan.channel_policy().may_split
            status = status_of(node, deeds, brokers, cluster.manifest.f, splits=splits)
        towards = ",".join(sorted({deed.towards for deed in deeds}))
        about = (run, "bench", plan.policy, plan.fault, node, fault, status)
        rows.append((*about, deeds.total(), towards))
    columns = {name: [row[place] for row in rows] for place, name in enumerate(LABEL_COLUMNS)}
    write_table(directory / "labels" / "labels.parquet", LABEL_COLUMNS, columns)


def status_of(
    node: str, deeds: Counter[TalliedDeed], brokers: Collection[str], f: int, *, splits: bool
) -> str:
    """The status of a faulty node with these deeds (see above)."""
    if not deeds:
        return "idle"
    reports: list[Clause] = []
    for deed, count in deeds.items():
        if count >= SLIGHT:
            unsettled = splits and not deed.history and deed.message in ABOUT_STREAMS
            publisher = deed.publisher if unsettled else ""
            reports.append(frozenset({node, deed.towards, publisher} - {""}))
    if not reports:
        return "slight"
    named = diagnose(reports, Model(brokers, f)).named
    return "plain" if node in named else "word-against-word"
