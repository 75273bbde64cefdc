"""A test bed: the processes of one run on this machine, of any system, in one directory.

A process runs the `main` of a module and counts as started when it says so (a line through a pipe).
It can be paused, killed and restarted, and it ends when the process that made the bed ends. Used
for the brokers of a cell, the workers of a benchmark, and the nodes of any other system.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from quorumcast.core.errors import UsageError
from quorumcast.testing.processes import PROCESSES, Child

#: The timeout for anything that processes do: on a shared machine a process may have to wait half a
#: minute until it runs.
TIMEOUT_S = 90.0
#: Below the range from which the system takes ports for outgoing connections.
_PORTS = range(15_000, 32_000)
#: Ports that this process has chosen, oldest first; at most all of _PORTS.
_chosen: dict[int, None] = {}


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on right now, preferably ones that were never chosen here.

    Nodes of a cell that has ended may still call its ports for a while.
    """
    found: list[int] = []
    fresh = [port for port in random.sample(_PORTS, len(_PORTS)) if port not in _chosen]
    for port in [*fresh, *_chosen]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        if len(found) == count:
            for chosen in found:
                _chosen.pop(chosen, None)
                _chosen[chosen] = None
            return found
    raise UsageError(f"this machine has no {count} free ports from {_PORTS.start} on")


class Bed:
    """Named processes on this machine."""

    def __init__(self, directory: Path | None = None, *, arrow: bool = False) -> None:
        #: Whether the processes write Parquet files.
        self._arrow = arrow
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="quorumcast-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._processes: dict[str, Child] = {}
        #: A pipe that this process holds open; children stop when it closes, even by a kill.
        self._lifeline = os.pipe()

    @property
    def lifeline(self) -> int:
        """A descriptor for reading, whose other end is closed when this process ends."""
        return self._lifeline[0]

    def log_path(self, name: str) -> Path:
        """The log file of a process."""
        return self.directory / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The last line that a process logged."""
        lines = self.log_path(name).read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it left no message"

    # ------------------------------------------------------------------ processes

    def spawn(self, name: str, module: str, *arguments: str, keep: Sequence[int] = ()) -> Child:
        """Run the `main` of a module; it inherits the lifeline and these descriptors."""
        if self.running(name):
            raise UsageError(f"{name} is running already")
        with self.log_path(name).open("ab") as log:
            process = PROCESSES.start(
                module,
                *arguments,
                output=log,
                keep=[*keep, self.lifeline],
                arrow=self._arrow,
            )
        self._processes[name] = process
        return process

    def spawn_announced(
        self, name: str, module: str, arguments: Callable[[int], Sequence[str]]
    ) -> int:
        """Start a process that announces its start on a descriptor; returns the other end.

        `arguments` makes the command line from the descriptor; `wait_announced` follows.
        """
        reading, writing = os.pipe()
        self.spawn(name, module, *arguments(writing), keep=[writing])
        os.close(writing)
        return reading

    def wait_announced(self, name: str, pipe: int) -> str:
        """The line with which a process announces its start."""
        try:
            readable, _, _ = select.select([pipe], [], [], TIMEOUT_S)
            line = os.read(pipe, 64) if readable else b""
        finally:
            os.close(pipe)
        if not line:
            self.kill(name)
            raise UsageError(f"{name} did not start: {self.last_words(name)}")
        return line.decode()

    def running(self, name: str) -> bool:
        """Whether a process is alive."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> int:
        """The process id."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """kill -9."""
        self._end(name, signal.SIGKILL)

    def end(self, name: str) -> int:
        """SIGTERM, and its exit code; kill -9 if that does not help in time."""
        return self._end(name, signal.SIGTERM)

    def _end(self, name: str, number: signal.Signals) -> int:
        process = self._processes.pop(name, None)
        if process is None:
            return 0
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused process handles no signal
        try:
            return process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def pause(self, name: str) -> None:
        """Stop a process in its tracks (SIGSTOP) until `resume`."""
        os.kill(self.pid(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        os.kill(self.pid(name), signal.SIGCONT)

    def stop(self) -> None:
        """Stop every process; remove the directory if it was ours."""
        for process in self._processes.values():
            process.terminate()
        for name in list(self._processes):
            self._end(name, signal.SIGTERM)
        for descriptor in self._lifeline:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def wait_until(
        self, is_so: Callable[[], bool], otherwise: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Wait for a condition; raises `UsageError` with a sentence if it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                raise UsageError(f"{otherwise} within {timeout_s} s")
            time.sleep(0.02)

    def start(self) -> None:
        """Start the processes of this bed; subclasses say which."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
