"""Workloads whose subscriptions are predicates, and which rows each reader of a replay must get.

    DIR/workload.json     a `WorkloadHeader` whose `kind` is "content", written last
    DIR/subscriptions/    Parquet: id, node, predicates
    DIR/events/           Parquet: at_ms, id, node, attributes of any names, matches

A subscription is a conjunction of comparisons of attributes with constants. What it matches is
computed here by comparing columns in NumPy, without anything of `matching`: a replay is judged by
that. It must agree with the column `matches`, which its generator counted.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumcast.bench.workload import (
    BY_CONTENT,
    EVENTS,
    SUBSCRIPTIONS,
    WorkloadHeader,
    natural_order,
    read_header,
    read_part,
    write_workload,
)
from quorumcast.core.errors import UsageError

CONTENT_SUBSCRIPTION_COLUMNS = pa.schema(
    [("id", pa.int64()), ("node", pa.string()), ("predicates", pa.string())]
)
#: Columns of events beside their attributes.
_BEFORE, _AFTER = ("at_ms", "id", "node"), "matches"
#: The nodes that show what a predicate saves: one wants this share of the rows, one all of them.
SELECTIVE, EVERYTHING = "selective", "everything"
SHARE = 0.09

Flags: TypeAlias = npt.NDArray[np.bool_]
#: A bit per event.
PackedFlags: TypeAlias = npt.NDArray[np.uint8]

_TEST = re.compile(r"\s*(\w+)\s*(<=|>=|=|<|>)\s*('[^']*'|[-+.\w]+)\s*")
_AND = re.compile(r"\sand\s", re.IGNORECASE)
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


class ContentReader(msgspec.Struct, frozen=True):
    """One subscription of a replay: the rows that match any of its predicates, or all rows."""

    node: str
    where: tuple[str, ...]


class ContentWorkload:
    """A workload of predicates on disk, with its first events in memory."""

    def __init__(self, path: Path, events: int = 0, predicates: int = 0) -> None:
        self.path = path
        self.header: WorkloadHeader = read_header(path)
        if self.header.kind != BY_CONTENT:
            raise UsageError(f"{path} subscribes to topics and not by predicates")
        table = read_part(path, EVENTS).sort_by([("id", "ascending")])
        self._events = table.slice(0, events or table.num_rows).combine_chunks()
        subscriptions = read_part(path, SUBSCRIPTIONS).sort_by([("id", "ascending")])
        #: Whether these are all subscriptions, which the column `matches` is about.
        self._complete = not 0 < predicates < subscriptions.num_rows
        subscriptions = subscriptions.slice(0, predicates or subscriptions.num_rows)
        #: Node and predicate of each subscription.
        self.subscriptions: list[tuple[str, str]] = list(
            zip(*(subscriptions.column(n).to_pylist() for n in ("node", "predicates")), strict=True)
        )
        #: The publisher of each event.
        self.publishers: list[str] = self._events.column("node").to_pylist()
        self.names = [name for name in self._events.column_names if name not in (*_BEFORE, _AFTER)]
        #: The attributes of all events.
        self.attributes: pa.RecordBatch = _one_batch(self._events.select(self.names))

    def __len__(self) -> int:
        return len(self.publishers)

    @property
    def counted(self) -> int | None:
        """The matches that the generator counted; None if that is not known."""
        if not self._complete or _AFTER not in self._events.column_names:
            return None
        return int(pc.sum(self._events.column(_AFTER)).as_py() or 0)

    @property
    def nodes(self) -> list[str]:
        """Nodes that subscribe or publish."""
        found = {node for node, _ in self.subscriptions} | set(self.publishers)
        return sorted(found, key=natural_order)

    def readers(self, *, joined: bool) -> list[ContentReader]:
        """A reader per subscription, or, if `joined`, per node; and the two that are compared."""
        by_node: dict[str, list[str]] = {}
        for node, predicate in self.subscriptions:
            by_node.setdefault(node, []).append(predicate)
        found = [
            ContentReader(node, where)
            for node in sorted(by_node, key=natural_order)
            for where in ([tuple(by_node[node])] if joined else zip(by_node[node]))
        ]
        compared = [ContentReader(SELECTIVE, (self._selective(),)), ContentReader(EVERYTHING, ())]
        return found + compared

    def _selective(self) -> str:
        """The predicate `attribute >= constant` that matches the share nearest to `SHARE`."""
        found: list[tuple[float, str]] = []
        for name, values in self.columns().items():
            if values.dtype.kind in "if" and len(values):
                least = np.sort(values)[int(len(values) * (1 - SHARE))]
                for constant in {least, *values[values > least][:1]}:
                    distance = abs(float((values >= constant).mean()) - SHARE)
                    found.append((distance, f"{name} >= {constant}"))
        if not found:
            raise UsageError(f"{self.path} has no events with numbers; make it again")
        return min(found)[1]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The attributes as NumPy has them."""
        return {
            name: np.array(self.attributes.column(place).to_pylist())
            for place, name in enumerate(self.names)
        }

    def expected(self, readers: Sequence[ContentReader]) -> Iterator[Flags]:
        """Of each reader, which events it must get."""
        columns = self.columns()
        for reader in readers:
            wanted = np.full(len(self), not reader.where)
            for predicate in reader.where:
                wanted |= matches(predicate, columns)
            yield wanted


def matches(predicate: str, columns: Mapping[str, npt.NDArray[Any]]) -> Flags:
    """Which events match a conjunction of comparisons."""
    found: Flags | None = None
    for term in _AND.split(predicate):
        test = _TEST.fullmatch(term)
        if test is None or test[1] not in columns:
            raise UsageError(
                f"{predicate!r} cannot be replayed: a predicate of a workload joins comparisons "
                "such as a1 <= 3 by 'and', on columns of its events"
            )
        values, text = columns[test[1]], test[3]
        constant = text[1:-1] if text.startswith("'") else _number(text)
        one: Flags = _COMPARISONS[test[2]](values, constant)
        found = one if found is None else found & one
    if found is None:
        raise UsageError("a predicate of a workload is empty; make the workload again")
    return found


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def write_rows(
    path: Path, name: str, rows: pa.RecordBatch, where: Sequence[str], nodes: int
) -> None:
    """Write rows and predicates as a workload of so many nodes, which take turns."""
    names = [f"node-{number + 1}" for number in range(nodes)]
    taking = [names[number % nodes] for number in range(max(rows.num_rows, len(where)))]
    numbers = pa.array(range(rows.num_rows), pa.int64())
    events = pa.Table.from_batches([rows])
    for place, (column, values) in enumerate(
        {"at_ms": numbers, "id": numbers, "node": pa.array(taking[: rows.num_rows])}.items()
    ):
        events = events.add_column(place, column, values)
    subscriptions = pa.table(
        [pa.array(range(len(where)), pa.int64()), taking[: len(where)], list(where)],
        schema=CONTENT_SUBSCRIPTION_COLUMNS,
    )
    header = WorkloadHeader(
        kind=BY_CONTENT,
        name=name,
        seed=1,
        nodes=nodes,
        topics=0,
        events=rows.num_rows,
        subscriptions=len(where),
        deliveries=0,
    )
    write_workload(path, header, {SUBSCRIPTIONS: [subscriptions], EVENTS: [events]})


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], table.schema)
