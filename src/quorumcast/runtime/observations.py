"""Runs an observer beside the machine of a process and writes its observations as Parquet files.

`DIR/observations/observer=NAME` gets rows, `DIR/documents/observer=NAME` signed documents; the last
part of DIR names the run. `quorumcast pipeline audit DIR` reads the files of any number of nodes,
and attributes each file to the node of its directory. A file is complete or absent: a process that
is killed loses its last seconds. Rows that cannot be written are lost and logged once; the node
runs on. Times are wall-clock milliseconds. `DIR/deeds` counts the deeds of installed faults:
labels that the audit does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec
from urllib.parse import quote

from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Connected, Effect, Event
from quorumcast.faults.cell.tally import DeedTally, TalliedDeed
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.links.strain import Strain
from quorumcast.runtime.logs import log, note
from quorumcast.traces.drafts import directory_at, replacing
from quorumcast.watch.observation import (
    BY_OBSERVER,
    COLUMNS,
    DOCUMENT_COLUMNS,
    Kind,
    Observation,
    columns_of,
)
from quorumcast.watch.observer import Document, Observer

if TYPE_CHECKING:
    import pyarrow as pa

P = ParamSpec("P")

#: The columns of the deeds of installed faults.
DEED_COLUMNS = {
    "node": "string",
    "message": "string",
    "towards": "string",
    "publisher": "string",
    "history": "bool",
    "count": "int64",
}

#: A file is written after so many rows, or so long after the last one.
MOST_ROWS, LONGEST_MS = 10_000, 5_000
#: How often to look for messages that are overdue, also where nothing arrives.
LOOK_S = 0.1
#: Of a longer time between two looks only so much counts as listening.
LONGEST_PAUSE_MS = 250


class ListeningClock:
    """A clock that stands still while this process does not read from its links.

    Messages that arrive while a process is stopped, busy or held by its application are read late,
    which is not their sender's fault: timeouts for other nodes are measured with this clock.
    """

    __slots__ = ("_is_held", "_looked", "missed_ms")

    def __init__(self) -> None:
        self._looked: Millis | None = None
        self._is_held = False
        #: How far it is behind the driver's clock.
        self.missed_ms = 0

    def at(self, now: Millis) -> Millis:
        """The present time; a process that listens asks more often than every LONGEST_PAUSE_MS."""
        passed = now - (now if self._looked is None else self._looked)
        self._looked = now
        self.missed_ms += passed if self._is_held else max(0, passed - LONGEST_PAUSE_MS)
        return Millis(now - self.missed_ms)

    def hold(self, now: Millis) -> Millis:
        """Stand still: nothing is read from now on."""
        at = self.at(now)
        self._is_held = True
        return at

    def release(self, now: Millis) -> Millis:
        """Go on: what has arrived meanwhile is read now."""
        at = self.at(now)
        self._is_held = False
        return at


@contextlib.contextmanager
def observing(
    driver: Driver, directory: Path | None, manifest: Manifest, node: NodeId, role: str
) -> Iterator[None]:
    """Observe the machine of a driver meanwhile, if there is a directory to write to."""
    if directory is None:
        yield
        return
    observed = ObservationLog(directory, manifest, node, role)
    driver.watch(observed)
    driver.tally = observed.tally
    looking = asyncio.get_running_loop().create_task(_look_on(observed, driver))
    try:
        yield
    finally:
        looking.cancel()
        observed.close()


async def _look_on(observed: ObservationLog, driver: Driver) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        observed.look(driver.now())


def _never_fails(
    noting: Callable[Concatenate[ObservationLog, P], None],
) -> Callable[Concatenate[ObservationLog, P], None]:
    """Let an exception in observing end the observations, and not the node."""

    @functools.wraps(noting)
    def guarded(self: ObservationLog, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.is_broken:
            return
        try:
            noting(self, *args, **kwargs)
        except Exception:
            self.is_broken = True
            log.exception("nothing is observed any more: this is a mistake in quorumcast")

    return guarded


class ObservationLog:
    """Feeds one observer by the listening clock and writes its rows with wall-clock times."""

    def __init__(self, directory: Path, manifest: Manifest, node: NodeId, role: str) -> None:
        load_arrow()
        self._directory = directory
        self._node = node
        self._role = role
        self._observer = Observer(manifest, node, role)
        #: Counts the deeds of faults that are installed here.
        self.tally = DeedTally()
        #: How many deeds have been written.
        self._deeds_written = 0
        self._strain = Strain()
        self._listening = ListeningClock()
        self._rows: list[Observation] = []
        self._documents: list[Document] = []
        self._files = 0
        #: Tells the files of this log from those of earlier processes and of other logs.
        self._life = f"{self._role}-{time.time_ns():x}-{os.getpid()}"
        self._now = Millis(0)
        self._written_at = 0
        #: Directories whose last write failed.
        self._failing: set[str] = set()
        #: Whether an exception has ended the observations.
        self.is_broken = False
        #: Wall clock minus the driver's clock.
        self._shift_ms = int(time.time() * 1000) - int(time.monotonic() * 1000)
        for part in ("observations", "documents"):
            directory_at(self._own(part))

    @_never_fails
    def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
        """Observe an event that the machine handled, and its effects."""
        at = self._at(now)
        if self._strain.look(now):
            self._observer.notes.add(at, Kind.STRAINED, self._node)
        self._observer.on_event(event, at)
        for effect in effects:
            self._observer.on_effect(effect, at)
        if not now % 64:
            self._rows += self._observer.notes.take()

    @_never_fails
    def look(self, now: Millis) -> None:
        """Look for overdue messages, and write a file if it is time."""
        self._observer.maybe_sweep(self._at(now))
        if now - self._written_at >= LONGEST_MS or len(self._rows) >= MOST_ROWS:
            self._written_at = now
            self._write()

    def on_held(self, now: Millis) -> None:
        """Stop the listening clock: nothing is read from now on."""
        self._listening.hold(now)

    @_never_fails
    def on_released(self, now: Millis) -> None:
        """Expect losses: senders may have dropped messages that were not read meanwhile."""
        self._listening.release(now)
        at = self._at(now)
        for peer in self._observer.connected:
            self._observer.on_lost(peer, at)

    @_never_fails
    def on_adopted(self, manifest: Manifest, effects: list[Effect], now: Millis) -> None:
        """Start a new observer for the new members and channels."""
        before = self._observer
        self._rows += before.notes.take(all_=True)
        self._documents += before.take_documents()
        self._observer = Observer(manifest, self._node, self._role)
        at = self._at(now)
        for peer in before.connected:
            self._observer.on_event(Connected(peer), at)
            # The new observer knows nothing of earlier messages.
            self._observer.on_lost(peer, at)
        for effect in effects:
            self._observer.on_effect(effect, at)

    def _at(self, now: Millis) -> Millis:
        self._now = self._listening.at(now)
        self._observer.notes.behind_ms = self._listening.missed_ms
        return self._now

    def _write(self, *, all_: bool = False) -> None:
        self._rows += self._observer.notes.take(all_=all_)
        self._documents += self._observer.take_documents()
        rows, self._rows = self._rows, []
        kept, self._documents = self._documents, []
        run, name = self._directory.name, f"{self._life}-{self._files:05}"
        if rows:
            self._file("observations", name, COLUMNS, columns_of(run, rows, self._shift_ms))
        if kept:
            columns = document_columns(run, self._node, kept)
            self._file("documents", name, DOCUMENT_COLUMNS, columns)
        if self.tally.deeds.total() > self._deeds_written:
            self._deeds_written = self.tally.deeds.total()
            self._file("deeds", self._life, DEED_COLUMNS, self._deeds())
        self._files += 1

    def _file(
        self, part: str, name: str, kinds: dict[str, str], columns: dict[str, list[object]]
    ) -> None:
        path = self._own(part) / f"{name}.parquet"
        try:
            write_table(path, kinds, columns)
        except OSError as error:
            if part not in self._failing:
                why = error.strerror or str(error)
                note("observations are lost", level=logging.WARNING, file=str(path), why=why)
            self._failing.add(part)
        else:
            self._failing.discard(part)

    def _own(self, part: str) -> Path:
        return self._directory / part / f"{BY_OBSERVER}{quote(self._node, safe='')}"

    @_never_fails
    def close(self) -> None:
        """Write the rest."""
        self._observer.close(self._now)
        self._write(all_=True)

    def _deeds(self) -> dict[str, list[object]]:
        done = list(self.tally.deeds.items())
        columns: dict[str, list[object]] = {
            name: [getattr(deed, name) for deed, _ in done]
            for name in ("message", "towards", "publisher", "history")
        }
        return {"node": [self._node] * len(done), **columns, "count": [c for _, c in done]}


def document_columns(run: str, node: str, documents: list[Document]) -> dict[str, list[object]]:
    """The columns of a table of documents."""
    return {
        "run": [run] * len(documents),
        "observer": [node] * len(documents),
        "kind": [document.kind for document in documents],
        "subject": [document.subject for document in documents],
        "data": [document.data for document in documents],
    }


def read_deeds(directory: Path) -> dict[str, Counter[TalliedDeed]]:
    """The deeds of faults in a run, by node."""
    import pyarrow.parquet as pq

    found: dict[str, Counter[TalliedDeed]] = {}
    for path in sorted(directory.glob(f"deeds/{BY_OBSERVER}*/*.parquet")):
        for row in pq.ParquetFile(path).read().to_pylist():
            node, count = row.pop("node"), row.pop("count")
            found.setdefault(node, Counter())[TalliedDeed(**row)] += count
    return found


def load_arrow() -> None:
    """Load Arrow, which takes most of a second, before the node is in use."""
    import pyarrow.parquet  # noqa: F401

    table_of(COLUMNS, columns_of("", [], 0))


def table_of(kinds: dict[str, str], columns: dict[str, list[object]]) -> pa.Table:
    """A table with columns of these types."""
    import pyarrow as pa  # not at the top: most nodes observe nothing

    return pa.table(columns, schema=pa.schema(list(kinds.items())))


def write_table(path: Path, kinds: dict[str, str], columns: dict[str, list[object]]) -> None:
    """Write one Parquet file, completely or not at all."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        pq.write_table(table_of(kinds, columns), draft)
