"""Who watches a node's machines from outside: a recorder of its own deeds, observers of others'."""

from __future__ import annotations

import contextlib
from pathlib import Path

from quorumcast.cell.tracing import CELL_NOTES
from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.observations import load_arrow, observing
from quorumcast.runtime.trace import record
from quorumcast.traces.drafts import directory_at
from quorumcast.traces.notes import Recorder


class Watching:
    """What is noted of a node, and where; nothing unless asked for."""

    def __init__(self, recorder: Recorder | None = None, observe: str | Path | None = None) -> None:
        self._recorder = recorder
        self._observe = directory_at(Path(observe)).resolve() if observe else None
        self._logs = contextlib.ExitStack()
        if observe:
            load_arrow()

    def begin(self, driver: Driver, manifest: Manifest, me: NodeId, role: str) -> None:
        """Watch a machine that has had no event yet: links that are up are the first."""
        if self._recorder is not None:
            record(driver, self._recorder, CELL_NOTES, me)
        self._logs.enter_context(observing(driver, self._observe, manifest, me, role))

    def end(self) -> None:
        """Write the last notes."""
        self._logs.close()
