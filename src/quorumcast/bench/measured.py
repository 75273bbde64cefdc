"""A client that can misbehave, and takes notes of what it does and sees."""

from __future__ import annotations

from pathlib import Path

from quorumcast.client.instrumentation import Instrumentation
from quorumcast.client.node import Node
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.faults.contract import Fault
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.traces.recorder import Recorder


class Measuring(Instrumentation):
    """A trace of a node, a log of observations, and faults; none of them unless asked for."""

    def __init__(
        self,
        recorder: Recorder | None,
        observe: str | Path | None,
        faults: tuple[Fault, ...],
    ) -> None:
        super().__init__(recorder, observe)
        self._trace = recorder
        self._faults = faults

    def begin(self, driver: Driver, manifest: Manifest, me: NodeId, role: str) -> None:
        """Watch a machine, and tamper with all that it does."""
        super().begin(driver, manifest, me, role)
        driver.faults = self._faults

    def end(self) -> None:
        """Write the last notes."""
        try:
            super().end()
        finally:
            if self._trace is not None:
                self._trace.close()


def measured_node(
    manifest: Manifest,
    identity: Identity,
    manifest_path: Path,
    role: str,
    *,
    trace: str | Path | None = None,
    observe: str | Path | None = None,
    faults: tuple[Fault, ...] = (),
) -> Node:
    """A node that is not connected yet; in its trace it has this role."""
    recorder = None
    if trace:
        path = Path(trace) / f"{identity.name}.parquet"
        recorder = Recorder.to_file(path, role, identity.name)
    return Node(manifest, identity, manifest_path, Measuring(recorder, observe, faults))
