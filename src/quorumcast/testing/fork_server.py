"""A fork server: a process that has loaded the imports of a broker and forks children on request.

The imports take half a second of processor time, and tests and benchmarks start many processes.
`testing.processes` sends requests over a socket: a module whose `main` the child runs, its
arguments, and descriptors with the numbers under which the child gets them. Each child leads a
session of its own, and its exit code comes back through a pipe. The fork server runs nothing else,
so children inherit only imports; it ends when the process that started it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec

#: Limits of one request: its bytes, and the descriptors that come with it.
REQUEST_BYTES = 1 << 16
MOST_DESCRIPTORS = 16


class StartRequest(msgspec.Struct, frozen=True):
    """A request for a child process.

    The descriptors for its output and its exit code come along, then one for each number in
    `descriptors`.
    """

    module: str
    arguments: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    #: The child writes Parquet files: load Arrow before the fork, once for all children.
    arrow: bool = False


class ForkServer:
    """Forks children on request and reports how they ended."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        #: The pipe for the exit code of each child.
        self._reports: dict[int, int] = {}
        # A child that ends wakes us up as a request does.
        self._woken, self._waking = os.pipe()
        for end in (self._woken, self._waking):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)

    def next_child(self) -> Callable[[], None] | None:
        """Returns in each new child with the function to run, and here with None at the end."""
        while True:
            ready, _, _ = select.select([self._asked.fileno(), self._woken], [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, REQUEST_BYTES)
                self._report()
            if self._asked.fileno() in ready:
                data, received, _, _ = socket.recv_fds(self._asked, REQUEST_BYTES, MOST_DESCRIPTORS)
                if not data:
                    return None
                request = msgspec.json.decode(data, type=StartRequest)
                # Imported here, so that the next child of its kind has it already.
                if request.arrow:
                    from quorumcast.runtime.observations import load_arrow

                    load_arrow()
                main: Callable[[], None] = importlib.import_module(request.module).main
                if self._fork(received):
                    _become(request, received)
                    return main

    def _fork(self, received: Sequence[int]) -> bool:
        gc.freeze()  # memory that a child's collector does not touch stays shared
        pid = os.fork()
        if not pid:
            self._leave()
            return True
        output, report, *others = received
        self._reports[pid] = report
        for descriptor in (output, *others):
            os.close(descriptor)
        self._asked.send(b"%d\n" % pid)
        return False

    def _leave(self) -> None:
        """Close what belongs to the fork server, in a new child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._asked.close()
        for descriptor in (self._woken, self._waking, *self._reports.values()):
            os.close(descriptor)

    def _report(self) -> None:
        for pid, report in list(self._reports.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._reports[pid]
                with contextlib.suppress(BrokenPipeError):
                    os.write(report, b"%d" % os.waitstatus_to_exitcode(status))
                os.close(report)


def _become(request: StartRequest, received: Sequence[int]) -> None:
    """Turn a new child into the requested process."""
    os.setsid()
    gc.unfreeze()
    # Moved out of the way first: a wanted number may be in use by another descriptor.
    above = max([*received, *request.descriptors]) + 1
    output, report, *others = [_moved(descriptor, above) for descriptor in received]
    wanted = [(output, 1), (output, 2), *zip(others, request.descriptors, strict=True)]
    for descriptor, number in wanted:
        os.dup2(descriptor, number)
    for descriptor in (output, report, *others):
        os.close(descriptor)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    # As a new interpreter would: packages that are found there now, such as plug-ins of a test.
    added = request.environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [path for path in added if path and path not in sys.path]
    sys.argv = [request.module, *request.arguments]


def _moved(descriptor: int, above: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, above)
    os.close(descriptor)
    return moved


def main() -> None:
    """Wait for requests on the socket that the one argument names."""
    child = ForkServer(socket.socket(fileno=int(sys.argv[1]))).next_child()
    if child is not None:
        child()
