"""Records what a node does, as Parquet: the messages that it sends, and each publication's path.

A driver calls `note_hooks` with each effect that it carries out, after faults have changed it.
Messages are counted for every system; a system's `Notes` say which effects are about publications.

Notes are kept in memory and become rows, one per publication, when a file is written. A file gets
its final name only when it is complete, so a process that is killed loses at most the last second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.machine import Effect, Send
from quorumcast.crypto.session import encode_parcel
from quorumcast.traces.drafts import replacing
from quorumcast.traces.form import COLUMNS, run_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: A file is written when so many notes are waiting, or when the oldest is this old.
MOST_NOTES = 50_000
OLDEST_NS = 1_000_000_000

KINDS = ("published", "passed_on", "forwarded", "accepted", "passed", "sent")
_NO_CHANNEL, _NOBODY = Channel(""), NodeId("")


class Note(NamedTuple):
    """What happened to the publications `first` … `first + length - 1` of a stream."""

    time_ns: int
    kind: str
    role: str
    node: NodeId
    stream: Stream
    first: int
    length: int
    peer: str
    place: int = 0
    hops: int = 0
    by_history: bool = False
    size: int = 0
    #: The message type, for notes of the kind "sent".
    message: str = ""


class TraceWriter:
    """Collects the notes of any number of nodes of one run and writes them to Parquet files."""

    def __init__(
        self,
        path: Path,
        run: str = "",
        clock: Callable[[], int] = time.monotonic_ns,
        *,
        oldest_ns: int | None = OLDEST_NS,
    ) -> None:
        # Slow to load: before the run starts, and only in processes that write a trace.
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401

        self._path = path
        self._run = run
        self.clock = clock
        self._oldest_ns = oldest_ns
        self._notes: list[Note] = []
        self._files = 0
        #: Messages and bytes by role, node, message type, peer and channel.
        self._traffic: dict[tuple[str, NodeId, str, NodeId, Channel], list[int]] = {}

    def recorder(self, role: str, node: NodeId) -> Recorder:
        """The recorder of one node."""
        return Recorder(self, role, node)

    def add(self, note: Note) -> None:
        """Keep one note."""
        self._notes.append(note)
        waited_ns = note.time_ns - self._notes[0].time_ns
        is_old = self._oldest_ns is not None and waited_ns >= self._oldest_ns
        if is_old or len(self._notes) >= MOST_NOTES:
            self._write()

    def count(
        self,
        role: str,
        node: NodeId,
        message: str,
        to: tuple[NodeId, ...],
        size: int,
        channel: Channel,
    ) -> None:
        """Count messages; the sums become rows of the next file."""
        traffic = self._traffic
        for peer in to:
            key = (role, node, message, peer, channel)
            counts = traffic.get(key)
            if counts is None:
                counts = traffic[key] = [0, 0]
            counts[0] += 1
            counts[1] += size

    def _write(self) -> None:
        now = self.clock()
        notes, self._notes = self._notes, []
        notes += [
            Note(
                now, "sent", role, node, Stream(channel, _NOBODY, 0), count, 1, peer,
                size=size, message=message,
            )
            for (role, node, message, peer, channel), (count, size) in self._traffic.items()
        ]  # fmt: skip
        self._traffic.clear()
        write_rows(self._next_path(), self._run, notes)

    def _next_path(self) -> Path:
        """A free file name: a restarted process must not overwrite what it wrote before."""
        while True:
            self._files += 1
            suffix = f".{self._files}" if self._files > 1 else ""
            path = self._path.with_name(f"{self._path.stem}{suffix}{self._path.suffix}")
            if not path.exists():
                return path

    def close(self) -> None:
        """Write the rest; a run in which nothing happened leaves an empty file."""
        if self._notes or self._traffic or not self._files:
            self._write()


class Recorder:
    """Takes the notes of one node."""

    __slots__ = ("_node", "_role", "_writer")

    def __init__(self, writer: TraceWriter, role: str, node: NodeId) -> None:
        self._writer = writer
        self._role = role
        self._node = node

    @classmethod
    def to_file(cls, path: Path, role: str, node: NodeId) -> Recorder:
        """For a process with files of its own beside the header of its run."""
        return cls(TraceWriter(path, run_of(path.parent)), role, node)

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
        """Something of this kind happened just now to publications first … first+count-1."""
        now, role, node = self._writer.clock(), self._role, self._node
        about = (stream, first, count, peer, place, hops, by_history, size)
        self._writer.add(Note(now, kind, role, node, *about))

    def sent(
        self, message: str, to: tuple[NodeId, ...], size: int, channel: Channel = _NO_CHANNEL
    ) -> None:
        """A message of this type and size, on this channel if it is on one, went to each."""
        self._writer.count(self._role, self._node, message, to, size, channel)

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


#: How effects of a system become notes of publications, by type of effect; for a `Send`, by type of
#: message. Each function takes the recorder, the node and the effect.
Notes = Mapping[type, Callable[[Recorder, NodeId, Any], None]]


def note_hooks(recorder: Recorder, notes: Notes, me: NodeId) -> dict[type, Callable[[Any], None]]:
    """What a driver calls with each effect that this node carries out, by type of effect."""
    hooks: dict[type, Callable[[Any], None]] = {
        kind: partial(note, recorder, me)
        for kind, note in notes.items()
        if issubclass(kind, Effect)
    }
    return {**hooks, Send: partial(_note_send, recorder, notes, me)}


def _note_send(recorder: Recorder, notes: Notes, me: NodeId, send: Send) -> None:
    raw, bodies = encode_parcel(send.message, send.bodies)
    kind = type(send.message)
    size = len(raw) + sum(map(len, bodies))
    recorder.sent(kind.__name__, send.to, size, _channel_of(send.message))
    note = notes.get(kind)
    if note is not None:
        note(recorder, me, send)


def _channel_of(message: object) -> Channel:
    """The channel that a message names; empty for those of a log or of a whole node."""
    stream = getattr(message, "stream", None)
    if isinstance(stream, Stream):
        return stream.channel
    return Channel(getattr(message, "channel", _NO_CHANNEL))


def write_rows(path: Path, run: str, notes: Sequence[Note]) -> None:
    """Write one file, each kind of note in row groups of its own, so that readers can skip them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(list(COLUMNS.items()))
    with replacing(path) as draft, pq.ParquetWriter(draft, schema) as writer:
        for kind in KINDS:
            if chosen := [note for note in notes if note.kind == kind]:
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
