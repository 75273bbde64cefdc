"""An observer beside a machine of a process, and its log: small Parquet files.

`DIR/observations/observer=NAME` gets rows, `DIR/documents/observer=NAME` what was signed; the last
part of DIR is the name of the run. `quorumcast pipeline audit DIR` reads what any number of nodes
have written there, and takes a file for the word of the node that its directory is of. A file is
complete or not there: a process that is killed loses its last seconds and damages nothing. What
cannot be written is lost, and said once; nobody stops for it. Times are of the wall clock in
milliseconds. `DIR/deeds` has what faults did that were installed: labels, which no audit reads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from quorumcast.agents.observation import (
    BY_OBSERVER,
    COLUMNS,
    DOCUMENT_COLUMNS,
    Kind,
    Observation,
    columns_of,
)
from quorumcast.agents.observer import Document, Observer
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Event
from quorumcast.faults.tally import TalliedDeed, Tally
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.logs import note
from quorumcast.runtime.strain import Strain
from quorumcast.traces.drafts import replacing

#: The columns of what faulty nodes did.
DEED_COLUMNS = {
    "node": "string",
    "message": "string",
    "towards": "string",
    "publisher": "string",
    "history": "bool",
    "count": "int64",
}

#: Rows that are kept before they are written, and for how long.
MOST_ROWS, LONGEST_MS = 10_000, 5_000


@contextlib.contextmanager
def observing(
    driver: Driver, directory: Path | None, manifest: Manifest, node: NodeId, role: str
) -> Iterator[None]:
    """Watch a machine as long as this lasts, if there is a directory to write to."""
    if directory is None:
        yield
        return
    log = ObservationLog(directory, manifest, node, role)
    driver.watch(log.on_handled)
    driver.tally = log.tally
    try:
        yield
    finally:
        log.close()


class ObservationLog:
    """What one observer writes."""

    def __init__(self, directory: Path, manifest: Manifest, node: NodeId, role: str) -> None:
        self._directory = directory
        self._node = node
        self._role = role
        self._observer = Observer(manifest, node, role)
        #: What faults that are installed here do: labels, which no audit is judged by.
        self.tally = Tally()
        self._strain = Strain()
        self._rows: list[Observation] = []
        self._documents: list[Document] = []
        self._files = 0
        #: Processes that follow each other may have one number, and a process several logs.
        self._life = f"{time.time_ns():x}-{os.getpid()}"
        self._now = Millis(0)
        self._written_at = 0
        self._is_failing = False
        #: From the driver's clock to the wall's.
        self._shift_ms = int(time.time() * 1000) - int(time.monotonic() * 1000)
        for part in ("observations", "documents"):
            self._own(part).mkdir(parents=True, exist_ok=True)

    def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
        """The machine took an event and asks for these effects."""
        self._now = now
        if self._strain.look(now):
            self._observer.notes.add(now, Kind.STRAINED, self._node)
        self._observer.on_event(event, now)
        for effect in effects:
            self._observer.on_effect(effect, now)
        if now - self._written_at >= LONGEST_MS or len(self._rows) >= MOST_ROWS:
            self._written_at = now
            self._write()
        elif not now % 64:
            self._rows += self._observer.notes.take()

    def _write(self, *, all_: bool = False) -> None:
        self._rows += self._observer.notes.take(all_=all_)
        rows, self._rows = self._rows, []
        kept = self._observer.take_documents()
        run = self._directory.name
        if rows:
            columns = columns_of(run, rows, self._shift_ms)
            self._file("observations", COLUMNS, columns)
        if kept:
            self._file("documents", DOCUMENT_COLUMNS, document_columns(run, self._node, kept))
        self._files += 1

    def _file(self, part: str, kinds: dict[str, str], columns: dict[str, list[object]]) -> None:
        path = self._own(part) / f"{self._role}-{self._life}-{self._files:05}.parquet"
        try:
            write_table(path, kinds, columns)
        except OSError as error:
            if not self._is_failing:
                why = error.strerror or str(error)
                note("observations are lost", level=logging.WARNING, file=str(path), why=why)
            self._is_failing = True
        else:
            self._is_failing = False

    def _own(self, part: str) -> Path:
        return self._directory / part / f"{BY_OBSERVER}{quote(self._node, safe='')}"

    def close(self) -> None:
        """Write the rest."""
        self._observer.close(self._now)
        self._write(all_=True)
        if self.tally.deeds:
            self._file("deeds", DEED_COLUMNS, self._deeds())

    def _deeds(self) -> dict[str, list[object]]:
        done = list(self.tally.deeds.items())
        columns: dict[str, list[object]] = {
            name: [getattr(deed, name) for deed, _ in done]
            for name in ("message", "towards", "publisher", "history")
        }
        return {"node": [self._node] * len(done), **columns, "count": [c for _, c in done]}


def document_columns(run: str, node: str, documents: list[Document]) -> dict[str, list[object]]:
    """Documents as the columns of their table."""
    return {
        "run": [run] * len(documents),
        "observer": [node] * len(documents),
        "kind": [document.kind for document in documents],
        "subject": [document.subject for document in documents],
        "data": [document.data for document in documents],
    }


def read_deeds(directory: Path) -> dict[str, Counter[TalliedDeed]]:
    """What faulty nodes of a run did."""
    import pyarrow.parquet as pq

    found: dict[str, Counter[TalliedDeed]] = {}
    for path in sorted(directory.glob(f"deeds/{BY_OBSERVER}*/*.parquet")):
        for row in pq.ParquetFile(path).read().to_pylist():
            node, count = row.pop("node"), row.pop("count")
            found.setdefault(node, Counter())[TalliedDeed(**row)] += count
    return found


def write_table(path: Path, kinds: dict[str, str], columns: dict[str, list[object]]) -> None:
    """One Parquet file, all of it or none."""
    import pyarrow as pa  # a node that observes nothing starts without Arrow
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        pq.write_table(pa.table(columns, schema=pa.schema(list(kinds.items()))), draft)
