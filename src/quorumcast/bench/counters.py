"""Shared memory between the processes of a run: eight-byte counters, each with one writer.

Aligned eight-byte stores are atomic on every machine that runs CPython, and readers need only the
newest value. The first counters are signals of the coordinator: the time of the monotonic clock at
which it gave them, 0 until then.
"""

from __future__ import annotations

import asyncio
import enum
import mmap
import time
from pathlib import Path

from quorumcast.bench.plan import BenchPlan


class Signal(enum.IntEnum):
    """Signals of the coordinator; a replay has only START and END."""

    #: Publish.
    START = 0
    #: The warm-up is over: from now on it counts.
    WARM = 1
    #: Publish no more.
    STOP = 2
    #: Write the result and exit.
    END = 3


class SharedCounters:
    """A file of counters, mapped into the memory of each process."""

    def __init__(self, path: Path, slots: int, *, create: bool) -> None:
        if create:
            path.write_bytes(bytes(slots * 8))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), slots * 8)
        self._view = memoryview(self._memory).cast("Q")

    def signal(self, which: Signal, time_ns: int | None = None) -> None:
        """Give a signal to all processes."""
        self._view[which] = time.monotonic_ns() if time_ns is None else time_ns

    def signalled(self, which: Signal) -> int:
        """When a signal was given; 0 if it was not."""
        return self._view[which]

    async def wait(self, which: Signal, pause_s: float) -> None:
        """Wait for a signal."""
        while not self.signalled(which):  # noqa: ASYNC110  (another process sets it)
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Unmap the file."""
        self._view.release()
        self._memory.close()


class BenchCounters(SharedCounters):
    """The counters of one benchmark run.

    ready       by worker: whether it is connected
    posted      by lane (`BenchPlan.lane`): events that its publisher has posted
    finished    by lane: whether its publisher will post no more
    accepted    by subscriber and lane: events, then publications
    """

    def __init__(self, path: Path, plan: BenchPlan, *, create: bool = False) -> None:
        self.plan = plan
        workers, lanes = len(plan.workers()), plan.lanes
        self._ready = len(Signal)
        self._posted = self._ready + workers
        self._finished = self._posted + lanes
        self._events = self._finished + lanes
        self._publications = self._events + plan.subscribers * lanes
        super().__init__(path, self._publications + plan.subscribers * lanes, create=create)

    def set_ready(self, worker: int) -> None:
        """A worker is connected; its number is its place in `BenchPlan.workers`."""
        self._view[self._ready + worker] = 1

    def ready(self) -> int:
        """How many workers are connected."""
        return sum(self._view[self._ready : self._posted])

    def set_posted(self, lane: int, events: int) -> None:
        """So many events were posted on a lane so far."""
        self._view[self._posted + lane] = events

    def posted(self, lane: int) -> int:
        """How many events were posted on a lane."""
        return self._view[self._posted + lane]

    def total_posted(self) -> int:
        """How many events correct publishers have posted."""
        return sum(self._view[self._posted : self._posted + self.plan.counted_lanes])

    def set_finished(self, lane: int) -> None:
        """No more will be posted on a lane."""
        self._view[self._finished + lane] = 1

    def add_accepted(self, subscriber: int, lane: int, events: int, publications: int) -> None:
        """A subscriber has accepted more events of a lane."""
        place = subscriber * self.plan.lanes + lane
        self._view[self._events + place] += events
        self._view[self._publications + place] += publications

    def accepted_by_all(self, lane: int) -> int:
        """Events of a lane that even the slowest subscriber has accepted."""
        return min(self._view[self._events + lane : self._publications : self.plan.lanes])

    def accepted(self, subscriber: int) -> tuple[int, int]:
        """Events and publications of correct publishers that one subscriber has accepted."""
        start, lanes = subscriber * self.plan.lanes, self.plan.counted_lanes
        events = self._view[self._events + start : self._events + start + lanes]
        publications = self._view[self._publications + start : self._publications + start + lanes]
        return sum(events), sum(publications)

    def complete(self) -> bool:
        """Whether every subscriber has every event of correct publishers, and none will follow."""
        lanes = self.plan.counted_lanes
        return all(self._view[self._finished : self._finished + lanes]) and all(
            self.accepted_by_all(lane) >= self.posted(lane) for lane in range(lanes)
        )


class ReplayCounter(enum.IntEnum):
    """The counters of each process of a replay."""

    READY = 0
    #: Whether it has published all its events.
    FINISHED = 1
    POSTED = 2
    #: Deliveries that its events cause: one for each subscriber of the topic.
    OWED = 3
    ACCEPTED = 4
    #: Events that too few brokers have acknowledged so far.
    PENDING = 5
    #: Links that its nodes should have to brokers, and do not have.
    UNLINKED = 6


class ReplayCounters(SharedCounters):
    """The counters of one replay."""

    def __init__(self, path: Path, processes: int, *, create: bool = False) -> None:
        slots = len(Signal) + len(ReplayCounter) * processes
        super().__init__(path, slots, create=create)

    def put(self, process: int, counter: ReplayCounter, value: int) -> None:
        """Set a counter of one process."""
        self._view[len(Signal) + len(ReplayCounter) * process + counter] = value

    def total(self, counter: ReplayCounter) -> int:
        """The sum of a counter over all processes."""
        return sum(self._view[len(Signal) + counter :: len(ReplayCounter)])
