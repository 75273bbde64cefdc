"""An observer beside a machine of a process, and its log: two Parquet files per node.

`DIR/observations/RUN-NODE.parquet` holds rows, `DIR/documents/RUN-NODE.parquet` what was signed,
and the manifest by which it is to be judged. `quorumcast pipeline audit DIR` reads them, those of
any number of nodes and runs at once. Times are of the wall clock in milliseconds.
"""

from __future__ import annotations

import time
from pathlib import Path

from quorumcast.agents.observation import COLUMNS, DOCUMENT_COLUMNS, Observation, columns_of
from quorumcast.agents.observer import Document, Observer
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Event
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver

#: Rows that are kept before they are written.
ROW_GROUP = 10_000


class ObservationLog:
    """Where the observers of one node write."""

    def __init__(self, directory: Path, run: str, manifest: Manifest, data: bytes) -> None:
        self._directory = directory
        self._run = run
        self._manifest = manifest
        #: The signed manifest, by which documents are judged.
        self._data = data
        self._written: list[_Written] = []

    def beside(self, driver: Driver, node: NodeId, role: str) -> None:
        """Watch a machine from now on."""
        written = _Written(self._directory, self._run, node, role, self._manifest, self._data)
        self._written.append(written)
        driver.watch(written.on_handled)

    def close(self) -> None:
        """Write the rest."""
        for written in self._written:
            written.close()


class _Written:
    """One observer and its files."""

    def __init__(
        self, directory: Path, run: str, node: NodeId, role: str, manifest: Manifest, data: bytes
    ) -> None:
        import pyarrow as pa  # a node that observes nothing starts without Arrow
        import pyarrow.parquet as pq

        self._run = run
        self._node = node
        self._observer = Observer(manifest, node, role)
        self._rows: list[Observation] = []
        self._now = Millis(0)
        self._table = pa.Table.from_pydict
        self._schema = pa.schema(list(COLUMNS.items()))
        self._document_schema = pa.schema(list(DOCUMENT_COLUMNS.items()))
        name = f"{run}-{node}-{role}.parquet"
        for part in ("observations", "documents"):
            (directory / part).mkdir(parents=True, exist_ok=True)
        self._writer = pq.ParquetWriter(directory / "observations" / name, self._schema)
        self._documents = pq.ParquetWriter(directory / "documents" / name, self._document_schema)
        self._kept = [Document("manifest", manifest.cell, data)]
        #: From the driver's clock to the wall's.
        self._shift_ms = int(time.time() * 1000) - int(time.monotonic() * 1000)

    def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
        """The machine took an event and asks for these effects."""
        self._now = now
        self._observer.on_event(event, now)
        for effect in effects:
            self._observer.on_effect(effect, now)
        self._rows += self._observer.notes.take()
        if len(self._rows) >= ROW_GROUP:
            self._write()

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            columns = columns_of(self._run, rows, self._shift_ms)
            self._writer.write_table(self._table(columns, schema=self._schema))
        kept, self._kept = [*self._kept, *self._observer.take_documents()], []
        if kept:
            documents = {
                "run": [self._run] * len(kept),
                "observer": [self._node] * len(kept),
                "kind": [document.kind for document in kept],
                "subject": [document.subject for document in kept],
                "data": [document.data for document in kept],
            }
            self._documents.write_table(self._table(documents, schema=self._document_schema))

    def close(self) -> None:
        """Write the rest."""
        self._observer.close(self._now)
        self._rows += self._observer.notes.take(all_=True)
        self._write()
        self._writer.close()
        self._documents.close()
