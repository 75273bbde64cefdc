"""The worker processes of a run, seen from the coordinator; each writes a result when it ends."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from quorumcast.bench.plan import ClientResult
from quorumcast.core.errors import UsageError
from quorumcast.testing.bed import Bed

#: Pause between two looks at the counters.
TICK_S = 0.02

R = TypeVar("R", bound=ClientResult)


class WorkerBed(Bed):
    """Worker processes in the directory of a run; a worker's result is NAME.result.json."""

    @property
    def workers(self) -> list[str]:
        """The names of all workers, in the order of their start."""
        return list(self._processes)

    def check(self) -> None:
        """Raise if a worker has ended already."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise UsageError(f"{name} ended too early: {self._failure(name)}")

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the workers are connected."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the processes were not ready within {timeout_s:.0f} s; "
                    "is this machine busy with something else?"
                )
            time.sleep(TICK_S)

    def collect(self, kind: type[R], timeout_s: float) -> list[R]:
        """Wait until all workers have ended; their results, in the order of their start."""
        deadline = time.monotonic() + timeout_s
        results = []
        for name, process in self._processes.items():
            try:
                code = process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise UsageError(f"{name} did not end: {self._failure(name)}") from None
            if code:
                raise UsageError(f"{name} failed: {self._failure(name)}")
            result = self._result(name, kind)
            if result.failure:
                raise UsageError(f"{name} failed: {result.failure}")
            results.append(result)
        return results

    def stop(self) -> None:
        """Kill the workers: none of them has anything to save."""
        for name in self.workers:
            self.kill(name)
        super().stop()

    def _failure(self, name: str) -> str:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return self._result(name, ClientResult).failure
        return self.last_words(name)

    def _result(self, name: str, kind: type[R]) -> R:
        data = (self.directory / f"{name}.result.json").read_bytes()
        return msgspec.json.decode(data, type=kind)
