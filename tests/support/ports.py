"""Ports that nobody else who tests on this machine chooses at the same time.

A port that was chosen looks free to everybody else until a broker listens there, and again while
that broker is down. So each process that runs tests, of this run and of any other, has a set of
ports of its own: it holds the lock of a file as long as it lives.
"""

import contextlib
import fcntl
import os
import tempfile

#: More than there are processes that run tests.
SETS = 25
#: Brokers of a cell that the command line made, at most: as many ports in a row.
IN_A_ROW = 8


def _own_set() -> int:
    for number in range(SETS):
        # Somebody else's file may not be ours to open.
        with contextlib.suppress(OSError):
            path = os.path.join(tempfile.gettempdir(), f"quorumcast-ports-{number}.lock")
            lock = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise
            return number
    raise RuntimeError(f"{SETS} processes run tests on this machine already")


_SET = _own_set()
SINGLE = range(15_000 + _SET, 24_000, SETS)
#: The first port of each row; a thousand above, where status pages are, rows are ours as well.
ROWS = range(24_000 + IN_A_ROW * _SET, 30_000, IN_A_ROW * SETS)
