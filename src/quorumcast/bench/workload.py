"""The file format of workloads: nodes that publish events on topics and subscribe to topics.

    DIR/workload.json     a `WorkloadHeader`, written last: without it a directory is unfinished
    DIR/topics/           Parquet: topic, node that created it, events, subscribers
    DIR/subscriptions/    Parquet: topic, node
    DIR/events/           Parquet, ordered by (at_ms, id) across files: at_ms, id, node, topic, size

Every subscriber of a topic gets every event on it once, its own events too. A workload whose
subscriptions are predicates (`kind` is "content") has other columns (`bench.predicates.workload`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quorumcast.core.errors import UsageError

HEADER = "workload.json"
TOPICS, SUBSCRIPTIONS, EVENTS = "topics", "subscriptions", "events"
FORMAT = 1
#: Values of `kind`.
BY_TOPIC, BY_CONTENT = "topics", "content"

TOPIC_COLUMNS = pa.schema(
    [("topic", "string"), ("node", "string"), ("events", "int64"), ("subscribers", "int64")]
)
SUBSCRIPTION_COLUMNS = pa.schema([("topic", "string"), ("node", "string")])
EVENT_COLUMNS = pa.schema(
    [
        ("at_ms", "int64"),
        ("id", "int64"),
        ("node", "string"),
        ("topic", "string"),
        ("size", "int32"),
    ]
)
#: Rows read at a time.
BATCH = 16_384


class WorkloadHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Kind, origin and size of a workload."""

    format: int = FORMAT
    kind: str = BY_TOPIC
    name: str
    seed: int
    nodes: int
    topics: int
    events: int
    subscriptions: int
    #: The sum over topics of events times subscribers; with predicates, the number of matches.
    deliveries: int
    #: Rows of the source that were left out, by reason.
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    #: The recipe and its settings.
    made: dict[str, Any] = msgspec.field(default_factory=dict)


class WorkloadEvent(NamedTuple):
    """One publication of a workload."""

    at_ms: int
    id: int
    node: str
    topic: str
    size: int


class Workload:
    """A workload on disk; events are read as they are needed."""

    def __init__(self, path: Path, header: WorkloadHeader) -> None:
        self.path = path
        self.header = header
        rows = self._table(SUBSCRIPTIONS, SUBSCRIPTION_COLUMNS).to_pylist()
        #: The subscribers of each topic, sorted by name.
        self.subscribers: dict[str, list[str]] = {
            row["topic"]: [] for row in self._table(TOPICS, TOPIC_COLUMNS).to_pylist()
        }
        for row in sorted(rows, key=lambda row: (row["topic"], natural_order(row["node"]))):
            self.subscribers.setdefault(row["topic"], []).append(row["node"])

    @property
    def topics(self) -> list[str]:
        """Every topic, sorted by name."""
        return sorted(self.subscribers)

    def events(self, most: int = 0) -> Iterator[WorkloadEvent]:
        """The first `most` events in their order; 0 is all."""
        left = most or self.header.events
        for file in _files(self.path, EVENTS):
            with pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(BATCH, columns=EVENT_COLUMNS.names):
                    columns = (batch.column(name).to_pylist() for name in EVENT_COLUMNS.names)
                    for row in zip(*columns, strict=True):
                        if left <= 0:
                            return
                        left -= 1
                        yield WorkloadEvent(*row)

    def _table(self, part: str, schema: pa.Schema) -> pa.Table:
        return read_part(self.path, part, schema.names).cast(schema)


def read_part(path: Path, part: str, columns: list[str] | None = None) -> pa.Table:
    """One part of a workload; all columns if none are named."""
    tables = [pq.read_table(file, columns=columns) for file in _files(path, part)]
    if not tables:
        raise UsageError(f"{path} has no {part}; prepare or generate it again")
    return pa.concat_tables(tables)


def _files(path: Path, part: str) -> list[Path]:
    return sorted((path / part).glob("*.parquet"))


def natural_order(name: str) -> tuple[int, str]:
    """A sort key that puts node-2 before node-10."""
    return len(name), name


def read_header(path: Path) -> WorkloadHeader:
    """Read the header of the workload in a directory."""
    try:
        header = msgspec.json.decode((path / HEADER).read_bytes(), type=WorkloadHeader)
    except FileNotFoundError:
        raise UsageError(
            f"{path} is no workload, or one that was never finished: it has no {HEADER}; make one "
            "with 'quorumcast pipeline workload prepare' or 'generate'"
        ) from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path / HEADER} cannot be read ({error}); make it again") from None
    if header.format != FORMAT:
        raise UsageError(
            f"{path} has format {header.format} and this version reads {FORMAT}; make it again"
        )
    return header


def read_workload(path: Path) -> Workload:
    """Open a workload of topics."""
    header = read_header(path)
    if header.kind != BY_TOPIC:
        raise UsageError(
            f"{path} subscribes by predicates and not to topics: replay it with 'quorumcast bench'"
        )
    return Workload(path, header)


def write_header(path: Path, header: WorkloadHeader) -> None:
    """Mark a workload as complete."""
    (path / HEADER).write_bytes(msgspec.json.format(msgspec.json.encode(header), indent=2) + b"\n")


def write_workload(
    path: Path, header: WorkloadHeader, parts: Mapping[str, Sequence[pa.Table]]
) -> None:
    """Write a small workload without Spark; each table of a part becomes a file."""
    for part, tables in parts.items():
        (path / part).mkdir(parents=True, exist_ok=True)
        for index, table in enumerate(tables):
            pq.write_table(table, path / part / f"part-{index:05}.parquet")
    write_header(path, header)
