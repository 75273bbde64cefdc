"""`python -m quorumcast.bench.worker DIRECTORY ROLE INDEX LIFELINE`: one publisher or subscriber.

The directory holds the cell's files, the plan and the counters. A worker connects like any client,
sets its counter `ready`, works from START to END and writes `NAME.result.json`.

A *publisher* keeps at most a window of events that the slowest subscriber has not accepted: brokers
never wait for subscribers, so an unlimited publisher would only measure how fast subscribers fall
behind. With a rate it publishes on a schedule instead, whoever falls behind. It stops at STOP, or
after the plan's number of events. A *subscriber* checks
every event (`bench.events`) and samples latencies. The *extra client* (`bench.plan`) is one of both
and commits the plan's fault if it is a client's; it starts at WARM, so that its fault is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import select
import sys
import threading
import time
from math import inf
from pathlib import Path

import msgspec
import pyarrow as pa

from quorumcast.bench import events
from quorumcast.bench.counters import BenchCounters, Signal
from quorumcast.bench.plan import SKIP, BenchPlan, WorkerResult, totals
from quorumcast.client import run
from quorumcast.client.events import Batch, BufferFull, Gap
from quorumcast.client.node import Node
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.faults.cell.catalogue import make_fault
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Fault
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.driver import Driver
from quorumcast.runtime.instrumentation import Instrumentation
from quorumcast.traces.recorder import Recorder

CONNECT_TIMEOUT_S = 90.0
POLL_S = 0.002
#: How long a publisher with a full window waits before it looks again.
PAUSE_S = 0.002
LONGEST_WAIT_S = 0.05
#: Events posted in one turn of the event loop, so that packets fill up: one per publication, packed
#: by the client, and in batches (at least one batch).
BURST = 64
NATURAL_BURST = 512
BATCHED_BURST = 8192
#: Batches that are made as one block, at most: most of the cost of making a small block is fixed.
BATCHES_PER_BLOCK = 8
#: Publications that a subscriber takes at a time.
TAKE = 512
#: Latencies sampled from each take, and kept in total; of a fixed number of events, all are kept.
SAMPLES_PER_TAKE = 16
MOST_SAMPLES = 200_000


class FaultyInstrumentation(Instrumentation):
    """Records a trace and observations of a client that commits faults; each is optional."""

    def __init__(
        self, trace: Recorder | None, observe: str | Path | None, faults: tuple[Fault, ...]
    ) -> None:
        super().__init__(trace, observe)
        self._trace = trace
        self._faults = faults

    def begin(self, driver: Driver, manifest: Manifest, me: NodeId, role: str) -> None:
        """Instrument a driver before its machine handles the first event."""
        super().begin(driver, manifest, me, role)
        driver.faults = self._faults

    def end(self) -> None:
        """Write what is buffered and close the files."""
        try:
            super().end()
        finally:
            if self._trace is not None:
                self._trace.close()


def instrumented_node(
    manifest: Manifest,
    identity: Identity,
    manifest_path: Path,
    role: str,
    *,
    trace: str | Path | None = None,
    observe: str | Path | None = None,
    faults: tuple[Fault, ...] = (),
) -> Node:
    """A client that is not connected yet; `role` is its role in the trace."""
    recorder = None
    if trace:
        path = Path(trace) / f"{identity.name}.parquet"
        recorder = Recorder.to_file(path, role, identity.name)
    return Node(manifest, identity, manifest_path, FaultyInstrumentation(recorder, observe, faults))


def collect_seldom() -> None:
    """Keep garbage collection out of the measurement: events have no reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks that read subscriptions; raise if one has failed."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.CancelledError):
            raise UsageError(f"a subscription ended: {outcome!r}")


class Worker:
    """What publishers and subscribers have in common."""

    def __init__(self, directory: Path, role: str, index: int) -> None:
        self.directory = directory
        self.index = index
        self.plan = msgspec.json.decode((directory / "plan.json").read_bytes(), type=BenchPlan)
        self.counters = BenchCounters(directory / "counters", self.plan)
        self.result = WorkerResult(role=role, name=self.plan.name_of(role, index))
        self.extra = self.plan.is_extra(role, index)
        self._place = self.plan.workers().index((role, index))

    async def connect(self) -> Node:
        """Connect this worker's client to all brokers."""
        cell = self.directory / self.plan.cell_of(self.result.role)
        manifest_path = cell / "manifest.json"
        manifest = read_manifest(manifest_path)
        identity = read_identity(cell / f"{self.result.name}.identity")
        node = instrumented_node(
            manifest,
            identity,
            manifest_path,
            self.result.role,
            trace=self.plan.trace,
            observe=self.plan.observe,
            faults=self._faults(manifest, identity),
        )
        await node.start(CONNECT_TIMEOUT_S)
        # A subscriber that joins with fewer links may choose another source than the plan assumes.
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while len(node.links.peers()) < len(manifest.brokers):
            if time.monotonic() > deadline:
                raise UsageError(f"{identity.name} could not reach every broker")
            await asyncio.sleep(POLL_S)
        return node

    def _faults(self, manifest: Manifest, identity: Identity) -> tuple[Fault, ...]:
        victims = tuple(self.plan.skipped_brokers(list(manifest.broker_ids)))
        name = SKIP if victims and self.result.role == "publisher" else ""
        percent = 100
        if self.extra:
            name, percent = self.plan.fault, self.plan.percent
        if not name:
            return ()
        context = FaultContext(
            identity.name,
            manifest,
            manifest.keyring(identity),
            random.Random(self.index),
            percent=percent,
            victims=victims,
        )
        return (make_fault(name, context),)

    async def work(self) -> None:
        """Connect, work, write the result."""
        try:
            node = await self.connect()
            await self.prepare(node)
            self.counters.set_ready(self._place)
            collect_seldom()
            await self.counters.wait(Signal.WARM if self.extra else Signal.START, POLL_S)
            await self.measure()
            await self.counters.wait(Signal.END, 0.02)
            await self.finish()
            for suspect, reasons in node.suspicions.items():
                self.result.suspicions[suspect] = dict(reasons)
            self.result.evidence = len(node.evidence)
            await node.close()
        except UsageError as error:
            self.result.failure = str(error)
        path = self.directory / f"{self.result.name}.result.json"
        path.write_bytes(msgspec.json.encode(self.result))
        self.counters.close()

    async def prepare(self, node: Node) -> None:
        """Work before START."""

    async def measure(self) -> None:
        """Work from START to STOP."""

    async def finish(self) -> None:
        """Work after END."""


class PublisherWorker(Worker):
    """A publisher process: publishes on every channel in turn."""

    async def prepare(self, node: Node) -> None:
        """Open every channel."""
        plan = self.plan
        window = plan.events_under_way()
        self._publishers: list[Publisher] = [
            node.publisher(
                plan.channel_name(channel), batching=plan.batch == 0, buffer=max(window, 65_536)
            )
            for channel in range(plan.channels)
        ]
        self._posted = [0] * plan.channels
        #: Events posted together: a publication, or as many as fit into a turn of the loop.
        self._burst = plan.batch if plan.batch > 1 else BURST if plan.batch else NATURAL_BURST
        self._burst = min(self._burst, max(window, plan.batch))
        self._bursts_per_turn = max(1, BATCHED_BURST // plan.batch) if plan.batch > 1 else 1

    async def measure(self) -> None:
        """Publish until STOP, or all of a fixed number of events."""
        start = self.counters.signalled(Signal.START)
        while not (self.counters.signalled(Signal.STOP) or self._all_posted()):
            if self.plan.rate:
                await asyncio.sleep(self._on_schedule(start))
            else:
                busy = self._as_fast_as_accepted()
                await asyncio.sleep(0 if busy else PAUSE_S)
        for channel in range(self.plan.channels):
            self.counters.set_finished(self.plan.lane(self.index, channel))

    def _all_posted(self) -> bool:
        return all(self._left(channel) <= 0 for channel in range(self.plan.channels))

    def _left(self, channel: int) -> float:
        """How many events are still to be posted on a channel."""
        if self.plan.events and not self.extra:
            return self.plan.events_on(channel) - self._posted[channel]
        return inf

    def _as_fast_as_accepted(self) -> bool:
        window = self.plan.events_under_way()
        busy = False
        for channel in range(self.plan.channels):
            lane = self.plan.lane(self.index, channel)
            under_way = self._posted[channel] - self.counters.accepted_by_all(lane)
            room = min(self._bursts_per_turn, (window - under_way) // self._burst)
            while room > 0:
                bursts = min(room, BATCHES_PER_BLOCK) if self.plan.batch > 1 else 1
                count = int(min(bursts * self._burst, self._left(channel)))
                if not count or not self._post(channel, count):
                    break
                room -= bursts
                busy = True
        return busy

    def _on_schedule(self, start: int) -> float:
        """Post the events that are due; seconds until the next one is."""
        rate, channels = self.plan.rate, self.plan.channels
        due = int((time.monotonic_ns() - start) / 1e9 * rate) + 1
        for channel in range(channels):
            share = (due + channels - 1 - channel) // channels
            while (count := self._due(channel, share)) > 0:
                if not self._post(channel, count):
                    break
        wait = start / 1e9 + due / rate - time.monotonic_ns() / 1e9
        return min(max(wait, 0.0), LONGEST_WAIT_S)

    def _due(self, channel: int, share: int) -> int:
        return int(min(share - self._posted[channel], self._burst, self._left(channel)))

    def _post(self, channel: int, count: int) -> bool:
        """Post a burst; whether the publisher took at least one event."""
        plan, publisher = self.plan, self._publishers[channel]
        lane = plan.lane(self.index, channel)
        first = self._posted[channel] + 1
        block = events.make_block(lane, first, count, plan.size, time.monotonic_ns())
        posted = 0
        try:
            if plan.batch > 1:
                whole = memoryview(block)
                while posted < count:
                    upto = min(posted + plan.batch, count)
                    part = whole[posted * plan.size : upto * plan.size]
                    publisher.post_batch(events.as_batch(part, plan.size))
                    posted = upto
            else:
                for payload in events.split(block, plan.size):
                    publisher.post(payload)
                    posted += 1
        except BufferFull:
            pass  # the rest is posted later, with a later time of sending
        self._posted[channel] += posted
        self.counters.set_posted(lane, self._posted[channel])
        return posted > 0


class SubscriberWorker(Worker):
    """A subscriber process: one subscription for each channel."""

    async def prepare(self, node: Node) -> None:
        """Subscribe, and wait until all subscriptions have joined."""
        plan = self.plan
        self._lanes: dict[tuple[str, str], events.LaneCheck] = {
            (plan.name_of(role, index), plan.channel_name(channel)): events.LaneCheck(
                plan.lane(index, channel), plan.size
            )
            for role, index in plan.workers()
            if role == "publisher"
            for channel in range(plan.channels)
        }
        subscriptions = [node.subscribe(plan.channel_name(i)) for i in range(plan.channels)]
        for subscription in subscriptions:
            await subscription.wait_joined(CONNECT_TIMEOUT_S)
        self._tasks = [asyncio.create_task(self._listen(s)) for s in subscriptions]

    async def finish(self) -> None:
        """Add up the counts of all lanes."""
        await cancel_all(self._tasks)
        counts = [check.counts for check in self._lanes.values() if self._is_counted(check)]
        found = totals(counts, "accepted", "duplicated", "altered", "disordered")
        self.result = msgspec.structs.replace(self.result, **found)

    def _is_counted(self, check: events.LaneCheck) -> bool:
        return check.lane < self.plan.counted_lanes

    async def _listen(self, subscription: Subscription) -> None:
        every = self.plan.poll_every
        while True:
            if every:
                await asyncio.sleep(every)
            items = await subscription.take(max(TAKE, subscription.waiting) if every else TAKE)
            if not items:
                return
            now = time.monotonic_ns()
            blocks: dict[tuple[str, str], list[bytes | pa.Buffer]] = {}
            publications: dict[tuple[str, str], int] = {}
            for item in items:
                if isinstance(item, Gap):
                    self.result.gaps += 1
                    continue
                key: tuple[str, str] = (item.publisher, item.channel)
                if key not in self._lanes:
                    continue  # published by a faulty subscriber
                blocks.setdefault(key, []).append(_contents(item))
                publications[key] = publications.get(key, 0) + 1
                self.result.by_history += item.by_history and self._is_counted(self._lanes[key])
            for key, block in blocks.items():
                self._take(key, block, publications[key], now)

    def _take(
        self, key: tuple[str, str], blocks: list[bytes | pa.Buffer], publications: int, now: int
    ) -> None:
        check = self._lanes[key]
        before = check.counts.accepted
        block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        check.check(block)
        if self.extra:
            return
        self.counters.add_accepted(
            self.index, check.lane, check.counts.accepted - before, publications
        )
        warm, samples = self.counters.signalled(Signal.WARM), self.result.latencies_ns
        if warm and self._is_counted(check) and (self.plan.events or len(samples) < MOST_SAMPLES):
            taken = len(memoryview(block)) // self.plan.size
            step = 1 if self.plan.events else max(taken // SAMPLES_PER_TAKE, 1)
            times = events.sent_times(block, self.plan.size, step)
            samples.extend([now - sent for sent in times if sent >= warm])


def _contents(batch: Batch) -> bytes | pa.Buffer:
    """The payloads of a publication, end to end."""
    if len(batch) == 1:
        return batch.payloads[0]
    column = batch.data.column(0)
    _, offsets, values = column.buffers()
    ends = memoryview(offsets).cast("i")
    start, stop = ends[column.offset], ends[column.offset + len(column)]
    return values.slice(start, stop - start)


def exit_with_parent(lifeline: int) -> None:
    """Exit when the process that started this one is gone: it holds the other end of the pipe."""

    def watch() -> None:
        # Not `read`: a broker that shares this pipe may have made it non-blocking.
        select.select([lifeline], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run one worker."""
    exit_with_parent(int(sys.argv[4]))
    pa.set_cpu_count(1)
    directory, role, index = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    kind = PublisherWorker if role == "publisher" else SubscriberWorker
    run(kind(directory, role, index).work())


if __name__ == "__main__":
    main()
