"""`python -m quorumcast.bench.worker DIRECTORY ROLE INDEX LIFELINE`: one publisher or subscriber.

The directory holds the cell's files, the plan and the board. A worker connects like any program,
says on the board that it is ready, and works from the start signal to the end; what it found is
left as `NAME.result.json`.

A *publisher* keeps at most a window of events un-accepted by the slowest subscriber: brokers never
stall for a subscriber, so a publisher that went as fast as brokers take would measure how fast
subscribers fall behind. With a rate it publishes on a schedule instead and never waits for anybody.
A *subscriber* checks every event (`bench.events`) and samples latencies. A *guest* (`bench.plan`)
is one or the other, commits the plan's fault if it is a client's, and is not counted; a publisher
as guest begins after the warm-up, so that what it does falls into the time that is measured.
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
from pathlib import Path

import msgspec
import pyarrow as pa

from quorumcast.bench import events
from quorumcast.bench.board import Board, Signal
from quorumcast.bench.measured import measured_node
from quorumcast.bench.plan import SKIP, BenchPlan, WorkerResult
from quorumcast.client import run
from quorumcast.client.events import Batch, BufferFull, Gap
from quorumcast.client.node import Node
from quorumcast.client.publishing import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.crypto.identity import Identity
from quorumcast.faults.cell.catalogue import make_fault
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Fault
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.manifest.manifest import Manifest

CONNECT_TIMEOUT_S = 90.0
POLL_S = 0.002
#: How long a publisher whose window is full looks away.
PAUSE_S = 0.002
LONGEST_WAIT_S = 0.05
#: Events posted between two turns of the event loop: singly, packed by the client, and in batches
#: (at least one batch): what a program has ready it posts in one go, and packets fill up.
BURST = 64
NATURAL_BURST = 512
BATCHED_BURST = 8192
#: Publications that a subscriber takes at a time.
TAKE = 512
#: Latencies sampled from each take, and kept in all.
SAMPLES_PER_TAKE = 16
MOST_SAMPLES = 200_000


class Worker:
    """What publishers and subscribers have in common."""

    def __init__(self, directory: Path, role: str, index: int) -> None:
        self.directory = directory
        self.index = index
        self.plan = msgspec.json.decode((directory / "plan.json").read_bytes(), type=BenchPlan)
        self.board = Board(directory / "board", self.plan)
        self.result = WorkerResult(role=role, name=self.plan.name_of(role, index))
        self.guest = self.plan.is_guest(role, index)
        self._place = self.plan.workers().index((role, index))

    async def connect(self) -> Node:
        """This worker's node, connected."""
        manifest_path = self.directory / "manifest.json"
        manifest = read_manifest(manifest_path)
        identity = read_identity(self.directory / f"{self.result.name}.identity")
        node = measured_node(
            manifest,
            identity,
            manifest_path,
            self.result.role,
            trace=self.plan.trace,
            observe=self.plan.observe,
            faults=self._faults(manifest, identity),
        )
        await node.start(CONNECT_TIMEOUT_S)
        # All of them: whoever joins with fewer may choose another source than the plan says.
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while len(node.links.peers()) < len(manifest.brokers):
            if time.monotonic() > deadline:
                raise UsageError(f"{identity.name} could not reach every broker")
            await asyncio.sleep(POLL_S)
        return node

    def _faults(self, manifest: Manifest, identity: Identity) -> tuple[Fault, ...]:
        victims = tuple(self.plan.skipped(list(manifest.broker_ids)))
        name = SKIP if victims and self.result.role == "publisher" else ""
        if self.guest:
            name = self.plan.fault
        if not name:
            return ()
        context = FaultContext(
            identity.name,
            manifest,
            manifest.keyring(identity),
            random.Random(self.index),
            victims=victims,
        )
        return (make_fault(name, context),)

    async def until(self, signal: Signal, pause_s: float = POLL_S) -> int:
        """Wait for the coordinator."""
        while not (when := self.board.signalled(signal)):  # noqa: ASYNC110  (by another process)
            await asyncio.sleep(pause_s)
        return when

    async def work(self) -> None:
        """Connect, work, leave the result."""
        try:
            node = await self.connect()
            await self.prepare(node)
            self.board.set_ready(self._place)
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)  # events are acyclic
            await self.until(Signal.WARM if self.guest else Signal.START)
            await self.measure()
            await self.until(Signal.END, 0.02)
            await self.finish()
            for suspect, reasons in node.suspicions.items():
                self.result.suspicions[suspect] = dict(reasons)
            self.result.evidence = len(node.evidence)
            await node.close()
        except UsageError as error:
            self.result.failure = str(error)
        path = self.directory / f"{self.result.name}.result.json"
        path.write_bytes(msgspec.json.encode(self.result))
        self.board.close()

    async def prepare(self, node: Node) -> None:
        """Before the start."""
        raise NotImplementedError

    async def measure(self) -> None:
        """Between start and stop."""
        raise NotImplementedError

    async def finish(self) -> None:
        """After the end."""


class Publishing(Worker):
    """A publisher process: one publisher on each channel, in turns."""

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
        #: Events posted at once: a publication, or what one turn of the loop is worth.
        self._burst = plan.batch if plan.batch > 1 else BURST if plan.batch else NATURAL_BURST
        self._burst = min(self._burst, max(window, plan.batch))
        self._in_a_turn = max(1, BATCHED_BURST // plan.batch) if plan.batch > 1 else 1

    async def measure(self) -> None:
        """Publish until the stop signal, then say how much it was."""
        start = self.board.signalled(Signal.START)
        while not self.board.signalled(Signal.STOP):
            if self.plan.rate:
                await asyncio.sleep(self._on_schedule(start))
            else:
                busy = self._as_fast_as_accepted()
                await asyncio.sleep(0 if busy else PAUSE_S)
        for channel in range(self.plan.channels):
            self.board.set_finished(self.plan.lane(self.index, channel))

    def _as_fast_as_accepted(self) -> bool:
        window = self.plan.events_under_way()
        busy = False
        for channel in range(self.plan.channels):
            lane = self.plan.lane(self.index, channel)
            under_way = self._posted[channel] - self.board.accepted_by_all(lane)
            for _ in range(min(self._in_a_turn, (window - under_way) // self._burst)):
                if not self._post(channel, self._burst):
                    break
                busy = True
        return busy

    def _on_schedule(self, start: int) -> float:
        """Post what is due; how long until the next is."""
        rate, channels = self.plan.rate, self.plan.channels
        due = int((time.monotonic_ns() - start) / 1e9 * rate) + 1
        for channel in range(channels):
            share = (due + channels - 1 - channel) // channels
            while (count := min(share - self._posted[channel], self._burst)) > 0:
                if not self._post(channel, count):
                    break
        wait = start / 1e9 + due / rate - time.monotonic_ns() / 1e9
        return min(max(wait, 0.0), LONGEST_WAIT_S)

    def _post(self, channel: int, count: int) -> bool:
        """Post a burst; whether the publisher took any of it."""
        plan, publisher = self.plan, self._publishers[channel]
        lane = plan.lane(self.index, channel)
        first = self._posted[channel] + 1
        block = events.make_block(lane, first, count, plan.size, time.monotonic_ns())
        posted = 0
        try:
            if plan.batch > 1:
                publisher.post_batch(events.as_batch(block, plan.size))
                posted = count
            else:
                for payload in events.split(block, plan.size):
                    publisher.post(payload)
                    posted += 1
        except BufferFull:
            pass  # what was not posted is made again with a later time
        self._posted[channel] += posted
        self.board.set_posted(lane, self._posted[channel])
        return posted > 0


class Subscribing(Worker):
    """A subscriber process: one subscription for each channel."""

    async def prepare(self, node: Node) -> None:
        """Subscribe, and wait until all subscriptions stand."""
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

    async def measure(self) -> None:
        """The tasks do it."""

    async def finish(self) -> None:
        """Sum up."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.CancelledError):
                raise UsageError(f"a subscription ended: {outcome!r}")
        for verdict in [c.verdict for c in self._lanes.values() if self._counts(c)]:
            self.result.accepted += verdict.accepted
            self.result.duplicated += verdict.duplicated
            self.result.altered += verdict.altered
            self.result.disordered += verdict.disordered

    def _counts(self, check: events.LaneCheck) -> bool:
        return check.lane < self.plan.counted_lanes

    async def _listen(self, subscription: Subscription) -> None:
        while True:
            items = await subscription.take(TAKE)
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
                    continue  # a guest publishes although its role is to listen
                blocks.setdefault(key, []).append(_contents(item))
                publications[key] = publications.get(key, 0) + 1
                self.result.by_history += item.by_history and self._counts(self._lanes[key])
            for key, block in blocks.items():
                self._take(key, block, publications[key], now)

    def _take(
        self, key: tuple[str, str], blocks: list[bytes | pa.Buffer], publications: int, now: int
    ) -> None:
        check = self._lanes[key]
        before = check.verdict.accepted
        block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        check.check(block)
        if self.guest:
            return
        self.board.add_accepted(
            self.index, check.lane, check.verdict.accepted - before, publications
        )
        warm, samples = self.board.signalled(Signal.WARM), self.result.latencies_ns
        if warm and self._counts(check) and len(samples) < MOST_SAMPLES:
            step = max(len(memoryview(block)) // self.plan.size // SAMPLES_PER_TAKE, 1)
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


def end_with(lifeline: int) -> None:
    """End this process when whoever started it is gone: an orphan measures for nobody.

    The other end of the descriptor is closed then, even if that was before we began.
    """

    def watch() -> None:
        # Not `read`: brokers have the same pipe, and one of them makes it answer at once.
        select.select([lifeline], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run one worker."""
    end_with(int(sys.argv[4]))
    pa.set_cpu_count(1)
    directory, role, index = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    kind = Publishing if role == "publisher" else Subscribing
    run(kind(directory, role, index).work())


if __name__ == "__main__":
    main()
