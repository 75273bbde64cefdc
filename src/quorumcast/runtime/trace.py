"""Notes for measurements: who published, forwarded and accepted what, and when.

`RecordingDriver` is a `Driver` that notes before it acts; a plain one has no trace of it, so
tracing costs nothing when it is off. Times are of the machine's monotonic clock in nanoseconds,
which all processes of one machine share.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from quorumcast.core.ids import DIGEST_SIZE, NodeId, Stream
from quorumcast.core.machine import Deliver, Effect, Send
from quorumcast.core.messages import ChainRun, Publish, Vote
from quorumcast.runtime.driver import Driver

#: The columns of a trace and their Arrow types.
COLUMNS = {
    "t_ns": "int64",
    "role": "string",
    "node": "string",
    "kind": "string",
    "channel": "string",
    "publisher": "string",
    "incarnation": "int64",
    "lane": "int8",
    "number": "int64",
    "peer": "string",
}


class Recorder(Protocol):
    """Who takes the notes."""

    def note(self, kind: str, stream: Stream, first: int, count: int, peer: str) -> None:
        """Publications first … first+count-1 were published, forwarded or accepted just now."""
        ...


class RecordingDriver(Driver):
    """A driver that notes publications on their way."""

    recorder: Recorder

    def carry_out(self, effects: list[Effect]) -> None:
        """Note, then act."""
        note = self.recorder.note
        for effect in effects:
            if isinstance(effect, Deliver):
                note("accepted", effect.stream, effect.number, 1, ",".join(effect.votes))
            elif isinstance(effect, Send):
                message = effect.message
                if isinstance(message, Publish | ChainRun):
                    kind = "published"
                elif isinstance(message, Vote):
                    kind = "forwarded"
                else:
                    continue
                count = len(message.digests) // DIGEST_SIZE
                for peer in effect.to:
                    note(kind, message.stream, message.first, count, peer)
        super().carry_out(effects)


class ParquetRecorder:
    """Collects notes in memory and writes them as Parquet, a row group at a time."""

    #: Notes (runs, not publications) kept before they are written.
    ROW_GROUP = 100_000

    def __init__(self, path: Path, role: str, node: NodeId) -> None:
        import pyarrow as pa  # a broker that writes no trace starts without Arrow
        import pyarrow.parquet as pq

        self._schema = pa.schema(list(COLUMNS.items()))
        self._writer = pq.ParquetWriter(path, self._schema)
        self._role = role
        self._node = node
        self._notes: list[tuple[int, str, Stream, int, int, str]] = []

    def note(self, kind: str, stream: Stream, first: int, count: int, peer: str) -> None:
        """Keep one note."""
        self._notes.append((time.monotonic_ns(), kind, stream, first, count, peer))
        if len(self._notes) >= self.ROW_GROUP:
            self._write()

    def _write(self) -> None:
        rows = [
            (t, self._role, self._node, kind, s.channel, s.publisher, s.incarnation, int(s.lane),
             number, peer)
            for t, kind, s, first, count, peer in self._notes
            for number in range(first, first + count)
        ]  # fmt: skip
        self._notes.clear()
        columns: Sequence[Sequence[object]] = list(zip(*rows, strict=True)) if rows else []
        if columns:
            table = dict(zip(COLUMNS, columns, strict=True))
            self._writer.write_table(self._schema.empty_table().from_pydict(table, self._schema))

    def close(self) -> None:
        """Write the rest."""
        self._write()
        self._writer.close()
