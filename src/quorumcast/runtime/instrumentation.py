"""Optional instrumentation of a client's driver: a trace recorder, and observations of brokers."""

from __future__ import annotations

import contextlib
from pathlib import Path

from quorumcast.cell.tracing import CELL_NOTES
from quorumcast.core.ids import NodeId
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.traces.drafts import directory_at
from quorumcast.traces.recorder import Recorder


class Instrumentation:
    """Records what the node itself does (`recorder`) and what brokers do (`observe`)."""

    def __init__(self, recorder: Recorder | None = None, observe: str | Path | None = None) -> None:
        self._recorder = recorder
        self._observe = directory_at(Path(observe)).resolve() if observe else None
        self._open_files = contextlib.ExitStack()
        if observe:
            from quorumcast.runtime.observations import load_arrow

            load_arrow()

    def begin(self, driver: Driver, manifest: Manifest, me: NodeId, role: str) -> None:
        """Instrument a driver before its machine handles the first event."""
        if self._recorder is not None:
            driver.record(self._recorder, CELL_NOTES, me)
        if self._observe is not None:
            from quorumcast.runtime.observations import observing

            self._open_files.enter_context(observing(driver, self._observe, manifest, me, role))

    def end(self) -> None:
        """Write buffered observations and close the files."""
        self._open_files.close()
