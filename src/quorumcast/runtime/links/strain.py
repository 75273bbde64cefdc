"""Whether this thread is overloaded: busy, or waiting for a processor, nearly all the time.

An overloaded process hears everything late, so its observations of other nodes are marked.
"""

from __future__ import annotations

import time
from pathlib import Path

#: The share of time from which on a thread counts as overloaded.
STRAINED = 0.8
#: How often to measure.
LOOK_MS = 250

#: Linux: nanoseconds on a processor, and waiting for one.
_SCHEDULED = Path("/proc/thread-self/schedstat")


class Strain:
    """Measures the load of this thread from time to time."""

    def __init__(self) -> None:
        self._looked_ms = 0
        self._wanted_s = 0.0

    def look(self, now_ms: int) -> bool:
        """Whether the thread was overloaded since the last look; False if that was just now."""
        passed_ms = now_ms - self._looked_ms
        if passed_ms < LOOK_MS:
            return False
        before_s, self._wanted_s = self._wanted_s, wanted_s()
        is_first, self._looked_ms = not self._looked_ms, now_ms
        return not is_first and (self._wanted_s - before_s) * 1000 > STRAINED * passed_ms


def wanted_s() -> float:
    """Seconds that this thread has worked, or waited for a processor."""
    return time.thread_time() + waited_s()


def waited_s() -> float:
    """Seconds that this thread has waited for a processor; 0 where the system does not say."""
    try:
        _, waited, _ = _SCHEDULED.read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited) / 1e9
