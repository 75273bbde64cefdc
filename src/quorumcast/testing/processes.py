"""Processes of this package that start in milliseconds, handled like a `Popen`.

Imports take half a second, so children are forked from a process that has them (`fork_server`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from io import BufferedWriter
from pathlib import Path

import msgspec

from quorumcast.testing.fork_server import StartRequest

_FORK_SERVER = "from quorumcast.testing.fork_server import main; main()"


class Child:
    """A process that was started here."""

    __slots__ = ("_report", "args", "pid", "returncode")

    def __init__(self, args: Sequence[str], pid: int, report: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        #: The pipe through which its exit code comes.
        self._report = report

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """A signal, if it has not ended."""
        if self.poll() is None:
            # It may have ended just now.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], timeout)[0]:
            # Empty if the fork server has ended: then nobody knows the exit code, and a child that
            # still runs can no longer be signalled.
            self.returncode = int(os.read(self._report, 16) or -signal.SIGKILL)
            os.close(self._report)
        return self.returncode


class Processes:
    """Starts processes from one fork server, which lives until `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: socket.socket | None = None
        self._fork_server: subprocess.Popen[bytes] | None = None

    def start(
        self,
        module: str,
        *arguments: str,
        output: BufferedWriter,
        keep: Sequence[int] = (),
        arrow: bool = False,
    ) -> Child:
        """Run the `main` of a module in a process, and a session, of its own.

        Its output goes to `output`; it inherits the descriptors in `keep` under their numbers.
        With `arrow` it has loaded Arrow already.
        """
        reading, writing = os.pipe()
        request = StartRequest(
            module, arguments, str(Path.cwd()), dict(os.environ), tuple(keep), arrow
        )
        handed = [output.fileno(), writing, *keep]
        with self._lock:
            asking = self._open()
            socket.send_fds(asking, [msgspec.json.encode(request)], handed)
            answer = asking.recv(32)
        os.close(writing)
        if not answer:
            os.close(reading)
            raise RuntimeError(f"the process that {module} is forked from has ended")
        return Child([module, *arguments], int(answer), reading)

    def _open(self) -> socket.socket:
        if self._fork_server is not None and self._fork_server.poll() is not None:
            self.close()
        if self._asking is None:
            self._asking, theirs = socket.socketpair()
            self._fork_server = subprocess.Popen(
                [sys.executable, "-c", _FORK_SERVER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
        return self._asking

    def close(self) -> None:
        """End the fork server; its children go on, but count as ended here."""
        if self._asking is not None and self._fork_server is not None:
            self._asking.close()
            self._fork_server.wait()
            self._asking = self._fork_server = None


#: The fork server that all tests of this process share.
PROCESSES = Processes()
atexit.register(PROCESSES.close)
