"""A streaming query that is begun again when it fails.

The cell may be away for a while, or a worker of Spark's may not start in time on a busy machine: a
monitor that ended then would be missing when it is needed. A query that has worked before is begun
again for ever, after pauses that grow; one that never has is given up after a few attempts, the
sooner if it is we who refuse: then something is wrong with what it was told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from quorumcast.core.errors import UsageError
from quorumcast.pipeline.session import reason_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Attempts of a query that never worked, and of one that we refuse.
MOST_ATTEMPTS, MOST_REFUSALS = 8, 3
#: The pause after the first failure; each further one is twice as long, up to the longest.
PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0


class Query:
    """One query, whatever happens to it; `make` gives its writer, ready but for the trigger."""

    def __init__(self, name: str, every_s: float, make: Callable[[], DataStreamWriter]) -> None:
        self.name = name
        self._every_s = every_s
        self._make = make
        self._running: StreamingQuery | None = None
        #: Whether it ever got anywhere in this process.
        self._worked = False
        #: Failures since it last did, and when to begin again after the last one.
        self._failures = 0
        self._resume_at: float | None = None
        #: What it failed of, until it gets anywhere again.
        self.trouble = ""

    @property
    def progress(self) -> StreamingQueryProgress | None:
        """What Spark tells of its last batch; None before there is one."""
        return self._running.lastProgress if self._running is not None else None

    def start(self) -> None:
        """Begin."""
        self._running = self._make().trigger(processingTime=f"{self._every_s} seconds").start()

    def tick(self) -> None:
        """Begin again if it failed and the pause is over."""
        if self._running is None:
            return
        error = self._running.exception()
        if error is None:
            if self.progress is not None:
                self._got_on()
        elif self._resume_at is None:
            self._resume_at = time.monotonic() + self._pause(error)
        elif time.monotonic() >= self._resume_at:
            self._resume_at = None
            self.start()

    @property
    def looked_at(self) -> float:
        """When the last look began of which Spark tells; 0 if there was none, or it failed."""
        last = self.progress
        if last is None or self.trouble:
            return 0.0
        return datetime.fromisoformat(last.timestamp).timestamp()

    def run_once(self) -> None:
        """Deal with what is there now, and end."""
        while True:
            self._running = self._make().trigger(availableNow=True).start()
            try:
                self._running.awaitTermination()
            except StreamingQueryException as error:
                time.sleep(self._pause(error))
            else:
                self._got_on()
                return

    def stop(self) -> None:
        """End; what is under way is done again at the next start."""
        if self._running is not None:
            self._running.stop()

    def _got_on(self) -> None:
        self._worked, self._failures, self.trouble = True, 0, ""

    def _pause(self, error: Exception) -> float:
        """How long to wait after a failure; raises if waiting is no use."""
        self._failures += 1
        ours = reason_of(error)
        self.trouble = ours or _first_line(error)
        most = MOST_REFUSALS if ours else MOST_ATTEMPTS
        if self._failures >= most and not self._worked:
            raise UsageError(f"the query {self.name!r} does not begin: {self.trouble}")
        return float(min(PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), "it does not say why")
