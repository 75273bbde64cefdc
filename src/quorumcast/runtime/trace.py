"""Traces of real processes: notes of what a driver carries out, by the machine's clock.

A driver that is not recorded has no trace of it, so tracing costs nothing when it is off. Times are
of the monotonic clock in nanoseconds, which all processes of one machine share.
"""

from __future__ import annotations

from pathlib import Path

from quorumcast.core.ids import NodeId
from quorumcast.runtime.driver import Driver
from quorumcast.traces.form import run_of
from quorumcast.traces.notes import Notes, Recorder, note_hooks
from quorumcast.traces.recorder import NodeRecorder, TraceWriter


class ParquetRecorder(NodeRecorder):
    """The notes of one process, in files of its own beside the header of its run."""

    def __init__(self, path: Path, role: str, node: NodeId) -> None:
        super().__init__(TraceWriter(path, run_of(path.parent)), role, node)


def record(driver: Driver, recorder: Recorder, notes: Notes, me: NodeId) -> None:
    """Have notes taken of what a driver sends and delivers, as it really does."""
    for kind, hook in note_hooks(recorder, notes, me).items():
        driver.observe(kind, hook)
