"""`python -m quorumcast.bench.predicates.replayer DIRECTORY INDEX LIFELINE`: a share of the nodes.

Beside its attributes every row has its number in the workload, the time of sending, and a checksum
of both. A reader knows from the workload which rows it must get, and with which attributes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumcast.bench.counters import ReplayCounter, Signal
from quorumcast.bench.events import checksums
from quorumcast.bench.plan import totals
from quorumcast.bench.predicates.replay import (
    CHANNEL,
    EXPECTED,
    OWED,
    ContentShareResult,
    channel_entry,
)
from quorumcast.bench.predicates.workload import (
    EVERYTHING,
    SELECTIVE,
    ContentWorkload,
    PackedFlags,
)
from quorumcast.bench.replayer import DeliveryCheck, ReplayShare, run_share
from quorumcast.client.events import Batch
from quorumcast.client.subscription import Subscription

#: The columns before the attributes.
_HEAD = 3

_Numbers = npt.NDArray[np.int64]


class ContentEvents:
    """The events of a workload as rows of the channel."""

    def __init__(self, workload: ContentWorkload) -> None:
        self._schema = channel_entry(workload).arrow_schema()
        self._attributes = workload.attributes
        names = workload.nodes
        numbers = {name: number for number, name in enumerate(names)}
        self._names = numbers
        #: The number of each event's publisher.
        self._publishers = np.array([numbers[name] for name in workload.publishers], np.int32)

    def rows(self, events: _Numbers, sent_ns: int) -> pa.RecordBatch:
        """The rows of these events."""
        times = np.full(len(events), sent_ns, np.uint64)
        head = (events, times, checksums(events.astype(np.uint64), times))
        columns = [_column(one) for one in head] + self._taken(events).columns
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def read(self, publisher: str, data: pa.RecordBatch) -> tuple[_Numbers, int]:
        """The events that a publisher's rows are, but altered ones; and when it was sent."""
        events, times, sums = (_numbers(data.column(place)) for place in range(_HEAD))
        found = events.astype(np.int64)
        genuine = checksums(events.astype(np.uint64), times) == sums
        genuine &= (found >= 0) & (found < len(self._publishers))
        known = found if genuine.all() else np.where(genuine, found, 0)
        genuine &= self._publishers[known] == self._names.get(publisher, -1)
        expected, attributes = self._taken(known).columns, data.columns[_HEAD:]
        for one, other in zip(expected, attributes, strict=True):
            if not one.equals(other):
                pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
                genuine &= np.array([a == b for a, b in pairs])
        return found[genuine], int(times[-1])

    def _taken(self, events: _Numbers) -> pa.RecordBatch:
        return self._attributes.take(_column(np.ascontiguousarray(events)))


class ContentCheck:
    """Checks what one subscription gets."""

    def __init__(self, wanted: PackedFlags, events: ContentEvents) -> None:
        self._wanted = wanted
        self._events = events
        self._seen = np.zeros_like(wanted)
        #: The last event of each publisher.
        self._last: dict[str, int] = {}
        #: Rows that it must get, each once.
        self.accepted = 0
        self.duplicated = 0
        self.altered = 0
        #: Rows that do not match.
        self.irrelevant = 0
        self.disordered = 0

    def check(self, batch: Batch) -> int:
        """Check and count a publication; when it was sent."""
        return self.take(batch.publisher, batch.data)

    def take(self, publisher: str, data: pa.RecordBatch) -> int:
        """Check and count the rows of a publication; when it was sent."""
        events, sent_ns = self._events.read(publisher, data)
        self.altered += data.num_rows - len(events)
        wanted = _flags(self._wanted, events)
        self.irrelevant += len(events) - int(wanted.sum())
        events = events[wanted]
        new = events[~_flags(self._seen, events)]
        if len(events):
            ahead = np.concatenate([[self._last.get(publisher, -1)], events[:-1]])
            self.disordered += int((events < ahead).sum())
            self._last[publisher] = int(events[-1])
            if not (events > ahead).all():  # else none is there twice
                new = np.unique(new)
        self.duplicated += len(events) - len(new)
        self.accepted += len(new)
        np.bitwise_or.at(self._seen, new >> 3, np.left_shift(1, new & 7).astype(np.uint8))
        return sent_ns


def publications(publishers: Sequence[str], batch: int) -> list[tuple[str, _Numbers]]:
    """The events of each publisher in batches, which follow each other as their last events do."""
    waiting: dict[str, list[int]] = {}
    found: list[tuple[str, list[int]]] = []
    for event, publisher in enumerate(publishers):
        mine = waiting.setdefault(publisher, [])
        mine.append(event)
        if len(mine) == batch:
            found.append((publisher, waiting.pop(publisher)))
    found += waiting.items()
    return [(publisher, np.array(events, np.int64)) for publisher, events in found]


class ContentReplayShare(ReplayShare):
    """The nodes of a workload of predicates."""

    result: ContentShareResult

    def __init__(self, directory: Path, index: int) -> None:
        super().__init__(directory, index)
        plan = self.plan
        self.result = ContentShareResult()
        self._workload = ContentWorkload(Path(plan.workload), plan.events, plan.predicates)
        self._events = ContentEvents(self._workload)
        self._checks: list[ContentCheck] = []
        self._bytes_before: dict[str, int] = {}
        #: How many rows all readers together get of each event.
        self._rows_owed: _Numbers = np.load(directory / OWED)

    def names(self) -> list[str]:
        """The nodes of the workload, and two to compare."""
        return [*self._workload.nodes, SELECTIVE, EVERYTHING]

    def subscriptions(self) -> Iterator[tuple[Subscription, DeliveryCheck]]:
        """Open a subscription for every reader on these nodes."""
        wanted = np.load(self.directory / EXPECTED, mmap_mode="r")
        readers = self._workload.readers(joined=self.plan.joined)
        for number, reader in enumerate(readers):
            if reader.node in self.nodes:
                where = reader.where[0] if len(reader.where) == 1 else reader.where
                self._checks.append(ContentCheck(np.array(wanted[number]), self._events))
                node = self.nodes[reader.node]
                yield node.subscribe(CHANNEL, where=where or None), self._checks[-1]

    async def publish(self) -> None:
        """Publish the events of each node in batches."""
        plan, workload, owed = self.plan, self._workload, self._rows_owed
        start, posted = self.counters.signalled(Signal.START), 0
        self._bytes_before = self._bytes()
        window = max(1, int(plan.window * owed.mean())) if len(owed) else 1
        for node, events in publications(workload.publishers, max(plan.cell.batch, 1)):
            if node not in self.nodes:
                continue
            due = start / 1e9 + int(events[-1]) / plan.rate if plan.rate else 0.0
            await asyncio.sleep(0)
            if not await self.turn(due, window):
                break
            mine = int(owed[events].sum())
            self.owe(mine)
            self.result.owed += mine
            await self._post(node, events)
            posted += len(events)
            self.result.publications += 1
            self.put(ReplayCounter.POSTED, posted)
        self.result.published = posted

    async def _post(self, node: str, events: _Numbers) -> None:
        publisher = self.publisher(node, CHANNEL, batching=False)
        await self.post(
            publisher,
            lambda: publisher.post_batch(self._events.rows(events, time.monotonic_ns())),
        )

    def _bytes(self) -> dict[str, int]:
        """Bytes that the nodes to compare have received."""
        return {
            name: self.nodes[name].telemetry.bytes_in
            for name in (SELECTIVE, EVERYTHING)
            if name in self.nodes
        }

    def count(self) -> None:
        """Add up what all subscriptions got."""
        result = self.result
        counters = ("duplicated", "altered", "irrelevant", "disordered", "accepted")
        for name, total in totals(self._checks, *counters).items():
            setattr(result, name, total)
        after = self._bytes()
        result.bytes_in = {name: after[name] - self._bytes_before[name] for name in after}


def _column(numbers: npt.NDArray[Any]) -> pa.Array:
    """Numbers as Arrow has them; `pa.array` would import pandas."""
    kind = pa.uint64() if numbers.dtype == np.uint64 else pa.int64()
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _numbers(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Numbers of eight bytes; nulls are what is below them."""
    start = column.offset
    return np.frombuffer(column.buffers()[1], np.uint64)[start : start + len(column)]


def _flags(packed: PackedFlags, events: _Numbers) -> npt.NDArray[np.bool_]:
    """The bits of these events."""
    found: npt.NDArray[np.bool_] = (packed[events >> 3] >> (events & 7) & 1).astype(np.bool_)
    return found


def main() -> None:
    """Run one share."""
    run_share(ContentReplayShare)


if __name__ == "__main__":
    main()
