"""An observer beside a machine of a process, and its log: small Parquet files.

`DIR/observations/observer=NAME` gets rows, `DIR/documents/observer=NAME` what was signed; the last
part of DIR is the name of the run. `quorumcast pipeline audit DIR` reads what any number of nodes
have written there, and takes a file for the word of the node that its directory is of. A file is
complete or not there: a process that is killed loses its last seconds and damages nothing. What
cannot be written is lost, and said once; nobody stops for it. Times are of the wall clock in
milliseconds. `DIR/deeds` has what faults did that were installed: labels, which no audit reads.
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
from quorumcast.runtime.attention import Attention
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
#: How often what has not come is looked for where nothing comes at all.
LOOK_S = 0.1


@contextlib.contextmanager
def observing(
    driver: Driver, directory: Path | None, manifest: Manifest, node: NodeId, role: str
) -> Iterator[None]:
    """Watch a machine as long as this lasts, if there is a directory to write to."""
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
    """A mistake in taking notes ends them, and not the node that takes them."""

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
    """What one observer writes.

    Its time is that for which the node has listened (`Attention`), its rows' that of the wall.
    """

    def __init__(self, directory: Path, manifest: Manifest, node: NodeId, role: str) -> None:
        load_arrow()
        self._directory = directory
        self._node = node
        self._role = role
        self._observer = Observer(manifest, node, role)
        #: What faults that are installed here do: labels, which no audit is judged by.
        self.tally = DeedTally()
        #: How many deeds have been written.
        self._told = 0
        self._strain = Strain()
        self._attention = Attention()
        self._rows: list[Observation] = []
        self._documents: list[Document] = []
        self._files = 0
        #: Processes that follow each other may have one number, and a process several logs.
        self._life = f"{self._role}-{time.time_ns():x}-{os.getpid()}"
        self._now = Millis(0)
        self._written_at = 0
        #: Parts that cannot be written.
        self._failing: set[str] = set()
        #: Whether a mistake has ended it.
        self.is_broken = False
        #: From the driver's clock to the wall's.
        self._shift_ms = int(time.time() * 1000) - int(time.monotonic() * 1000)
        for part in ("observations", "documents"):
            directory_at(self._own(part))

    @_never_fails
    def on_handled(self, event: Event, effects: list[Effect], now: Millis) -> None:
        """The machine took an event and asks for these effects."""
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
        """Some time has passed."""
        self._observer.maybe_sweep(self._at(now))
        if now - self._written_at >= LONGEST_MS or len(self._rows) >= MOST_ROWS:
            self._written_at = now
            self._write()

    def on_held(self, now: Millis) -> None:
        """Nothing is heard from now on, and nobody is late meanwhile."""
        self._attention.hold(now)

    @_never_fails
    def on_released(self, now: Millis) -> None:
        """What was said meanwhile may have been too much for whoever had to keep it."""
        self._attention.release(now)
        at = self._at(now)
        for peer in self._observer.connected:
            self._observer.on_lost(peer, at)

    @_never_fails
    def on_adopted(self, manifest: Manifest, effects: list[Effect], now: Millis) -> None:
        """Members and channels are others: begin anew."""
        before = self._observer
        self._rows += before.notes.take(all_=True)
        self._documents += before.take_documents()
        self._observer = Observer(manifest, self._node, self._role)
        at = self._at(now)
        for peer in before.connected:
            self._observer.on_event(Connected(peer), at)
            # What came before has been forgotten.
            self._observer.on_lost(peer, at)
        for effect in effects:
            self._observer.on_effect(effect, at)

    def _at(self, now: Millis) -> Millis:
        self._now = self._attention.at(now)
        self._observer.notes.behind_ms = self._attention.missed_ms
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
        if self.tally.deeds.total() > self._told:
            self._told = self.tally.deeds.total()
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


def load_arrow() -> None:
    """It takes most of a second: before anybody waits for this node, and not amid the run."""
    import pyarrow.parquet  # noqa: F401

    table_of(COLUMNS, columns_of("", [], 0))


def table_of(kinds: dict[str, str], columns: dict[str, list[object]]) -> pa.Table:
    """Columns of these kinds."""
    import pyarrow as pa  # a node that observes nothing starts without Arrow

    return pa.table(columns, schema=pa.schema(list(kinds.items())))


def write_table(path: Path, kinds: dict[str, str], columns: dict[str, list[object]]) -> None:
    """One Parquet file, all of it or none."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        pq.write_table(table_of(kinds, columns), draft)
