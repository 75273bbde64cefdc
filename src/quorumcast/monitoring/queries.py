"""A streaming query that is restarted when it fails.

The cell may be unreachable for a while, or a Spark worker may start too slowly on a busy machine. A
query that has worked before is restarted without limit, with exponential backoff. A query that has
never worked is given up after MAX_ATTEMPTS, or after MAX_REFUSALS if the error is a `UsageError`:
then its options are wrong.
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

#: Attempts of a query that never worked, and of one that fails with a `UsageError`.
MAX_ATTEMPTS, MAX_REFUSALS = 8, 3
#: The pause after the first failure; it doubles with each failure up to the maximum.
PAUSE_S, MAX_PAUSE_S = 2.0, 60.0


class Query:
    """A query that is restarted; `make` returns its writer without the trigger."""

    def __init__(self, name: str, every_s: float, make: Callable[[], DataStreamWriter]) -> None:
        self.name = name
        self._every_s = every_s
        self._make = make
        self._running: StreamingQuery | None = None
        #: Whether it has ever made progress in this process.
        self._worked = False
        #: Failures since the last progress, and the time of the next start.
        self._failures = 0
        self._restart_at: float | None = None
        #: The reason of the last failure; "" after progress.
        self.trouble = ""

    @property
    def progress(self) -> StreamingQueryProgress | None:
        """Spark's report of the last micro-batch, or None."""
        return self._running.lastProgress if self._running is not None else None

    def start(self) -> None:
        """Start the query."""
        self._running = self._make().trigger(processingTime=f"{self._every_s} seconds").start()

    def tick(self) -> None:
        """Restart the query if it failed and the pause is over."""
        if self._running is None:
            return
        error = self._running.exception()
        if error is None:
            if self.progress is not None:
                self._on_progress()
        elif self._restart_at is None:
            self._restart_at = time.monotonic() + self._pause(error)
        elif time.monotonic() >= self._restart_at:
            self._restart_at = None
            self.start()

    @property
    def polled_at(self) -> float:
        """The start of the last poll that Spark reported; 0 if there is none, or it failed."""
        last = self.progress
        if last is None or self.trouble:
            return 0.0
        return datetime.fromisoformat(last.timestamp).timestamp()

    def run_once(self) -> None:
        """Process everything that is available now, and stop."""
        while True:
            self._running = self._make().trigger(availableNow=True).start()
            try:
                self._running.awaitTermination()
            except StreamingQueryException as error:
                time.sleep(self._pause(error))
            else:
                self._on_progress()
                return

    def stop(self) -> None:
        """Stop; an unfinished micro-batch is repeated at the next start."""
        if self._running is not None:
            self._running.stop()

    def _on_progress(self) -> None:
        self._worked, self._failures, self.trouble = True, 0, ""

    def _pause(self, error: Exception) -> float:
        """Return the pause after a failure; raise `UsageError` if the query is given up."""
        self._failures += 1
        refusal = reason_of(error)
        self.trouble = refusal or _first_line(error)
        limit = MAX_REFUSALS if refusal else MAX_ATTEMPTS
        if self._failures >= limit and not self._worked:
            raise UsageError(f"the query {self.name!r} does not begin: {self.trouble}")
        return float(min(PAUSE_S * 2 ** (self._failures - 1), MAX_PAUSE_S))


def _first_line(error: Exception) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), "it does not say why")
