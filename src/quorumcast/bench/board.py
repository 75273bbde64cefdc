"""Shared memory between the processes of a run: eight-byte counters, each with one writer.

    signals     start, warm, stop and end, as times of the monotonic clock (0: not yet)
    posted      by lane: events that its publisher has posted; then whether it will post no more
    accepted    by subscriber and lane: events, then publications

A publisher paces itself by the slowest subscriber of its lane. A guest (`bench.plan`) has a lane
for that, too, which counts for nothing else. Aligned eight-byte stores are atomic on every machine
that runs CPython, and nobody needs more than the newest value.
"""

from __future__ import annotations

import enum
import mmap
from pathlib import Path

from quorumcast.bench.plan import BenchPlan


class Signal(enum.IntEnum):
    """Times that the coordinator sets."""

    START = 0
    WARM = 1
    STOP = 2
    END = 3


class Board:
    """The counters of one run."""

    def __init__(self, path: Path, plan: BenchPlan, *, create: bool = False) -> None:
        self.plan = plan
        workers, lanes = len(plan.workers()), plan.lanes
        self._ready = len(Signal)
        self._posted = self._ready + workers
        self._finished = self._posted + lanes
        self._events = self._finished + lanes
        self._publications = self._events + plan.subscribers * lanes
        slots = self._publications + plan.subscribers * lanes
        if create:
            path.write_bytes(bytes(slots * 8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), slots * 8)
        self._view = memoryview(self._memory).cast("Q")

    def signal(self, which: Signal, time_ns: int) -> None:
        """Tell all processes."""
        self._view[which] = time_ns

    def signalled(self, which: Signal) -> int:
        """When, or 0."""
        return self._view[which]

    def set_ready(self, worker: int) -> None:
        """A worker is connected, by its place among `Plan.workers`."""
        self._view[self._ready + worker] = 1

    def ready(self) -> int:
        """How many workers are."""
        return sum(self._view[self._ready : self._posted])

    def set_posted(self, lane: int, events: int) -> None:
        """A publisher's count."""
        self._view[self._posted + lane] = events

    def posted(self, lane: int) -> int:
        """How many events were posted on a lane."""
        return self._view[self._posted + lane]

    def set_finished(self, lane: int) -> None:
        """No more will be posted."""
        self._view[self._finished + lane] = 1

    def finished(self) -> bool:
        """Whether no correct publisher will post any more."""
        return all(self._view[self._finished : self._finished + self.plan.counted_lanes])

    def add_accepted(self, subscriber: int, lane: int, events: int, publications: int) -> None:
        """A subscriber's counts."""
        place = subscriber * self.plan.lanes + lane
        self._view[self._events + place] += events
        self._view[self._publications + place] += publications

    def accepted_by_all(self, lane: int) -> int:
        """Events of a lane that even the slowest subscriber has."""
        return min(self._view[self._events + lane : self._publications : self.plan.lanes])

    def accepted(self, subscriber: int) -> tuple[int, int]:
        """Events and publications of correct publishers at one subscriber."""
        start, lanes = subscriber * self.plan.lanes, self.plan.counted_lanes
        events = self._view[self._events + start : self._events + start + lanes]
        publications = self._view[self._publications + start : self._publications + start + lanes]
        return sum(events), sum(publications)

    def complete(self) -> bool:
        """Whether every subscriber has every event that correct publishers posted."""
        return self.finished() and all(
            self.accepted_by_all(lane) >= self.posted(lane)
            for lane in range(self.plan.counted_lanes)
        )

    def close(self) -> None:
        """Unmap."""
        self._view.release()
        self._memory.close()
