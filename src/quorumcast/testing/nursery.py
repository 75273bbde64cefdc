"""The process that others are forked from: it has loaded what they need, so they start at once.

Half a second of processor time goes into the imports of a broker, and a test or a benchmark starts
many. `quorumcast.testing.processes` asks this one for children, over a socket: a module whose
`main` the child runs, its arguments, and the descriptors that it is to have under which numbers.
Each child is a process of its own, leads a session of its own, and ends as any other does; its exit
code comes back through a pipe. The nursery itself runs nothing, so there is nothing to inherit but
what was imported, and it ends when whoever started it does.
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

#: A request fits into this, and so many descriptors come with it at most.
REQUEST_BYTES = 1 << 16
MOST_DESCRIPTORS = 16


class StartRequest(msgspec.Struct, frozen=True):
    """A child that is wanted; its output, its pipe for the exit code and `descriptors` come along.

    `descriptors` are the numbers that it knows the rest of them by.
    """

    module: str
    arguments: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    descriptors: tuple[int, ...]


class Nursery:
    """Forks children on request and reports how they ended."""

    def __init__(self, asked: socket.socket) -> None:
        self._asked = asked
        #: Where the exit code of each child goes.
        self._reports: dict[int, int] = {}
        # A child that ends wakes us up as a request does.
        self._woken, self._waking = os.pipe()
        for end in (self._woken, self._waking):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)

    def next_child(self) -> Callable[[], None] | None:
        """What to run in a new process, in that process; None in this one when all is over."""
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
                # Here, so that the next one of its kind has it.
                main: Callable[[], None] = importlib.import_module(request.module).main
                if self._fork(received):
                    _become(request, received)
                    return main

    def _fork(self, received: Sequence[int]) -> bool:
        gc.freeze()  # what a child's collector does not touch stays shared
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
        """This is a child by now, and nothing of the nursery is its business."""
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
    """Be what was asked for, in every respect but the imports."""
    os.setsid()
    gc.unfreeze()
    # Out of the way first: the number that one is to have may be that of another.
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
    sys.argv = [request.module, *request.arguments]


def _moved(descriptor: int, above: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, above)
    os.close(descriptor)
    return moved


def main() -> None:
    """Wait for requests on the socket that the one argument names."""
    child = Nursery(socket.socket(fileno=int(sys.argv[1]))).next_child()
    if child is not None:
        child()
