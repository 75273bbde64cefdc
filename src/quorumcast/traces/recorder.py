"""Takes notes of what a node does, and writes them as Parquet, a piece at a time.

A note is one tuple in a list; rows, one per publication of a run, are made in columns when a piece
is written. A piece is a whole file under its final name or not there at all, so that a process that
is killed spoils nothing and loses the last second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.traces.drafts import replacing
from quorumcast.traces.form import COLUMNS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: A piece is written when it has so many notes (runs, not publications), or is so old: then a
#: process that is killed loses little.
MOST_NOTES = 50_000
OLDEST_NS = 1_000_000_000

KINDS = ("published", "passed_on", "forwarded", "accepted", "sent")
_NONE = Stream(Channel(""), NodeId(""), 0)

Clock = Callable[[], int]
#: Time, kind, role, node, stream, first, count, peer, place, hops, by history, bytes, message.
Note = tuple[int, str, str, NodeId, Stream, int, int, str, int, int, bool, int, str]


class TraceWriter:
    """The notes of any number of nodes of one run, on their way to Parquet files."""

    def __init__(
        self,
        path: Path,
        run: str = "",
        clock: Clock = time.monotonic_ns,
        *,
        oldest_ns: int | None = OLDEST_NS,
    ) -> None:
        # Now, not amid the run; and not at all in a process that writes no trace.
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401

        self._path = path
        self._run = run
        self._clock = clock
        self._oldest_ns = oldest_ns
        self._notes: list[Note] = []
        #: Since when the oldest note waits.
        self._since = 0
        self._pieces = 0
        #: Messages and bytes by role, node, message type and peer.
        self._traffic: dict[tuple[str, NodeId, str, NodeId], list[int]] = {}

    def recorder(self, role: str, node: NodeId) -> NodeRecorder:
        """Takes the notes of one node."""
        return NodeRecorder(self, role, node)

    def add(
        self, kind: str, role: str, node: NodeId, stream: Stream, first: int, count: int, peer: str,
        place: int, hops: int, by_history: bool, size: int,
    ) -> None:  # fmt: skip
        """Keep one note."""
        now = self._clock()
        if not self._notes:
            self._since = now
        self._notes.append(
            (now, kind, role, node, stream, first, count, peer, place, hops, by_history, size, "")
        )
        old = self._oldest_ns is not None and now - self._since >= self._oldest_ns
        if old or len(self._notes) >= MOST_NOTES:
            self._write()

    def count(
        self, role: str, node: NodeId, message: str, to: tuple[NodeId, ...], size: int
    ) -> None:
        """Count messages; the sums become rows of the next piece."""
        traffic = self._traffic
        for peer in to:
            key = (role, node, message, peer)
            counts = traffic.get(key)
            if counts is None:
                counts = traffic[key] = [0, 0]
            counts[0] += 1
            counts[1] += size

    def _write(self) -> None:
        now = self._clock()
        notes, self._notes = self._notes, []
        notes += [
            (now, "sent", role, node, _NONE, count, 1, peer, 0, 0, False, size, message)
            for (role, node, message, peer), (count, size) in self._traffic.items()
        ]
        self._traffic.clear()
        write_rows(self._next_path(), self._run, notes)

    def _next_path(self) -> Path:
        """A name that is free: a process that was killed and started again goes on after it."""
        while True:
            self._pieces += 1
            suffix = f".{self._pieces}" if self._pieces > 1 else ""
            path = self._path.with_name(f"{self._path.stem}{suffix}{self._path.suffix}")
            if not path.exists():
                return path

    def close(self) -> None:
        """Write the rest; a run in which nothing happened leaves an empty file."""
        if self._notes or self._traffic or not self._pieces:
            self._write()


class NodeRecorder:
    """The recorder of one node."""

    __slots__ = ("_node", "_role", "_writer")

    def __init__(self, writer: TraceWriter, role: str, node: NodeId) -> None:
        self._writer = writer
        self._role = role
        self._node = node

    def note(
        self,
        kind: str,
        stream: Stream,
        first: int,
        count: int,
        peer: str,
        *,
        place: int = 0,
        hops: int = 0,
        by_history: bool = False,
        size: int = 0,
    ) -> None:
        """Keep one note."""
        self._writer.add(
            kind, self._role, self._node, stream, first, count, peer, place, hops, by_history, size
        )

    def sent(self, message: str, to: tuple[NodeId, ...], size: int) -> None:
        """Count messages."""
        self._writer.count(self._role, self._node, message, to, size)

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


def write_rows(path: Path, run: str, notes: Sequence[Note]) -> None:
    """A whole file at once, each kind in row groups of its own, so that readers can skip them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(list(COLUMNS.items()))
    with replacing(path) as draft, pq.ParquetWriter(draft, schema) as writer:
        for kind in KINDS:
            if chosen := [note for note in notes if note[1] == kind]:
                writer.write_table(_table(schema, run, chosen))


def _table(schema: pa.Schema, run: str, notes: list[Note]) -> pa.Table:
    """A row for every publication of every note."""
    import numpy as np
    import pyarrow as pa

    (
        times, kinds, roles, nodes, streams, firsts, counts, peers, places, hops, histories, sizes,
        types,
    ) = zip(*notes, strict=True)  # fmt: skip
    lengths = np.array(counts)
    of_note = np.repeat(np.arange(len(notes)), lengths)
    rows = len(of_note)
    nth = np.arange(rows) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    known = list(dict.fromkeys(streams))
    places_of_streams = {stream: index for index, stream in enumerate(known)}
    of_stream = np.array([places_of_streams[stream] for stream in streams])[of_note]

    # `pa.array` would do, but imports pandas first, which takes longer than many a run.
    def integers(values: np.ndarray[Any, Any], type_: pa.DataType) -> pa.Array:
        data = values.astype(type_.to_pandas_dtype())
        return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(data)])

    def strings(values: Sequence[str], of_row: np.ndarray[Any, Any]) -> pa.Array:
        distinct = {value: index for index, value in enumerate(dict.fromkeys(values))}
        encoded = [value.encode() for value in distinct]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
        found = np.array([distinct[value] for value in values])[of_row]
        return pa.Array.from_buffers(pa.string(), len(distinct), buffers).take(
            integers(found, pa.int64())
        )

    flags = np.packbits(np.array(histories, dtype=bool)[of_note], bitorder="little")
    columns: dict[str, pa.Array] = {
        "t_ns": integers(np.array(times)[of_note], pa.int64()),
        "role": strings(roles, of_note),
        "node": strings(nodes, of_note),
        "kind": strings(kinds, of_note),
        "channel": strings([stream.channel for stream in known], of_stream),
        "publisher": strings([stream.publisher for stream in known], of_stream),
        "incarnation": integers(np.array([s.incarnation for s in known])[of_stream], pa.int64()),
        "lane": integers(np.array([int(s.lane) for s in known])[of_stream], pa.int8()),
        "number": integers(np.array(firsts)[of_note] + nth, pa.int64()),
        "peer": strings(peers, of_note),
        "run": strings([run], np.zeros(rows, dtype=np.int64)),
        "place": integers(np.array(places)[of_note], pa.int8()),
        "hops": integers(np.array(hops)[of_note], pa.int16()),
        "by_history": pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(flags)]),
        "bytes": integers(np.array(sizes)[of_note], pa.int64()),
        "message": strings(types, of_note),
    }
    return pa.Table.from_arrays([columns[name] for name in COLUMNS], schema=schema)
