"""Strain: whether this thread has had more to do than it could.

A process that works, or waits for a processor, nearly all the time is late with everything, and so
is what it hears of others. Whoever reads its notes should know.
"""

from __future__ import annotations

import time
from pathlib import Path

#: This share of the time.
STRAINED = 0.8
#: How often to look.
LOOK_MS = 250

#: Linux: nanoseconds on a processor, and waiting for one.
_SCHEDULED = Path("/proc/thread-self/schedstat")


class Strain:
    """Looks now and then."""

    def __init__(self) -> None:
        self._looked_ms = 0
        self._wanted_s = 0.0

    def look(self, now_ms: int) -> bool:
        """Whether the time since the last look was full; False as long as it is too short."""
        passed_ms = now_ms - self._looked_ms
        if passed_ms < LOOK_MS:
            return False
        before_s, self._wanted_s = self._wanted_s, wanted_s()
        is_first, self._looked_ms = not self._looked_ms, now_ms
        return not is_first and (self._wanted_s - before_s) * 1000 > STRAINED * passed_ms


def wanted_s() -> float:
    """For how long this thread has worked, or could have if there had been a processor for it."""
    return time.thread_time() + waited_s()


def waited_s() -> float:
    """For how long this thread has waited for a processor; 0 where nobody counts it."""
    try:
        _, waited, _ = _SCHEDULED.read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(waited) / 1e9
