"""A client that can misbehave, and takes notes of what it does and sees."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quorumcast.client.node import Node
from quorumcast.crypto.identity import Identity
from quorumcast.faults.contract import Fault
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.observations import observing
from quorumcast.runtime.trace import ParquetRecorder


class MeasuredNode(Node):
    """A node with a trace, a log of observations, and faults; none of them unless asked for."""

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        manifest_path: Path,
        role: str,
        *,
        trace: str | Path | None = None,
        observe: str | Path | None = None,
        faults: tuple[Fault, ...] = (),
    ) -> None:
        self._notes = contextlib.ExitStack()
        recorder = None
        if trace:
            path = Path(trace) / f"{identity.name}.parquet"
            recorder = ParquetRecorder(path, role, identity.name)
            self._notes.callback(recorder.close)
        super().__init__(manifest, identity, manifest_path, recorder)
        self._role = role
        self._observe = Path(observe) if observe else None
        self._faults = faults

    def _driver(self, machine: Any, application: dict[type, Callable[[Any], None]]) -> Driver:
        driver = super()._driver(machine, application)
        driver.faults = self._faults
        log = observing(driver, self._observe, self.manifest, self.identity.name, self._role)
        self._notes.enter_context(log)
        return driver

    async def close(self) -> None:
        """Leave, and write the last notes."""
        await super().close()
        self._notes.close()
