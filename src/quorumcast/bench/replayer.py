"""`python -m quorumcast.bench.replayer DIRECTORY INDEX LIFELINE`: a share of a workload's nodes.

Events are those of `bench.events`; since a workload has events of all sizes, the checksum covers
the length as well. A lane is one node's events on one topic.
"""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from quorumcast.bench.counters import ReplayCounter, ReplayCounters, Signal
from quorumcast.bench.events import HEAD, LANE_SHIFT, SEQUENCE, LaneCheck, checksum, filler
from quorumcast.bench.plan import merge_suspicions
from quorumcast.bench.replay import (
    ReplayPlan,
    ReplayResult,
    ShareResult,
    node_names,
    share_name,
)
from quorumcast.bench.worker import (
    CONNECT_TIMEOUT_S,
    MOST_SAMPLES,
    PAUSE_S,
    POLL_S,
    TAKE,
    cancel_all,
    collect_seldom,
    exit_with_parent,
    instrumented_node,
)
from quorumcast.bench.workload import WorkloadEvent, read_workload
from quorumcast.client import run
from quorumcast.client.events import Batch, BufferFull, Gap
from quorumcast.client.node import Node
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_identity, read_manifest

#: Events posted in one turn of the event loop.
BURST = 32
#: Nodes that connect at the same time.
CONNECTING = 8
_LENGTH_SHIFT = 48
#: Between two looks at what is not acknowledged and which links are down.
WATCH_S = 0.25


def make_event(lane: int, number: int, size: int, sent_ns: int) -> bytes:
    """An event of this size, or of the least size that holds the three words."""
    size = max(size, HEAD.size)
    place = lane << LANE_SHIFT | number
    check = checksum(place, sent_ns ^ size << _LENGTH_SHIFT)
    return HEAD.pack(place, check, sent_ns) + filler(size)


def read_event(payload: bytes) -> tuple[int, int, int] | None:
    """Lane, number and time of sending of an event; None if it was altered."""
    size = len(payload)
    if size < HEAD.size:
        return None
    place, check, sent_ns = HEAD.unpack_from(payload)
    if check != checksum(place, sent_ns ^ size << _LENGTH_SHIFT):
        return None
    if payload[HEAD.size :] != filler(size):
        return None
    return place >> LANE_SHIFT, place & SEQUENCE, sent_ns


class TopicCheck:
    """Checks the events of one topic at one node."""

    def __init__(self, topic: str, lanes: dict[str, int]) -> None:
        self.topic = topic
        #: The lane of each publisher on this topic.
        self._lanes = lanes
        self._checks: dict[int, LaneCheck] = {}
        self.altered = 0

    @property
    def accepted(self) -> int:
        """Events that it had to get, each once."""
        return self.total("accepted")

    def check(self, batch: Batch) -> int | None:
        """Check and count the events of a publication; when the last of them was sent."""
        sent_ns = None
        for payload in batch.payloads:
            sent_ns = self.take(batch.publisher, payload)
        return sent_ns

    def take(self, publisher: str, payload: bytes) -> int | None:
        """Check and count an event; its time of sending, or None if it was altered."""
        found = read_event(payload)
        if found is None or found[0] != self._lanes.get(publisher):
            self.altered += 1
            return None
        lane, number, sent_ns = found
        if lane not in self._checks:
            self._checks[lane] = LaneCheck(lane, HEAD.size)
        self._checks[lane].count(number)
        return sent_ns

    def total(self, counter: str) -> int:
        """The sum of a counter of `EventCounts` over all publishers."""
        return sum(getattr(check.counts, counter) for check in self._checks.values())


class DeliveryCheck(Protocol):
    """Checks what one subscription gets."""

    @property
    def accepted(self) -> int:
        """What it had to get, and got, each once."""

    def check(self, batch: Batch) -> int | None:
        """Check and count a publication; when it was sent, or None if it was altered."""


class ReplayShare(ABC):
    """The nodes of this process."""

    #: What it found.
    result: ReplayResult

    def __init__(self, directory: Path, index: int) -> None:
        self.directory = directory
        self.plan = msgspec.json.decode((directory / "replay.json").read_bytes(), type=ReplayPlan)
        self.counters = ReplayCounters(directory / "counters", self.plan.processes)
        self.nodes: dict[str, Node] = {}
        self._tasks: list[asyncio.Task[None]] = []
        #: Of all nodes, by node and channel.
        self._publishers: dict[tuple[str, str], Publisher] = {}
        self._index = index
        self._owed = self._accepted = 0

    async def work(self) -> None:
        """Connect, replay, write the result."""
        try:
            await self._connect()
            self.put(ReplayCounter.READY, 1)
            collect_seldom()
            self._tasks.append(asyncio.create_task(self._watch()))
            await self.counters.wait(Signal.START, POLL_S)
            await self.publish()
            self.put(ReplayCounter.FINISHED, 1)
            await self.counters.wait(Signal.END, 0.02)
            await self._finish()
        except UsageError as error:
            self.result.failure = str(error)
        path = self.directory / f"{share_name(self._index)}.result.json"
        path.write_bytes(msgspec.json.encode(self.result))
        self.counters.close()

    def put(self, counter: ReplayCounter, value: int) -> None:
        """Set a counter of this process."""
        self.counters.put(self._index, counter, value)

    # ------------------------------------------------------------------ of each kind of workload

    @abstractmethod
    def names(self) -> list[str]:
        """All nodes, in an order that all processes agree on."""

    @abstractmethod
    def subscriptions(self) -> Iterator[tuple[Subscription, DeliveryCheck]]:
        """Open all subscriptions of these nodes."""

    @abstractmethod
    async def publish(self) -> None:
        """Publish the events of these nodes."""

    @abstractmethod
    def count(self) -> None:
        """Complete the result, after the last delivery."""

    # ------------------------------------------------------------------ alike for all

    async def _connect(self) -> None:
        manifest_path = self.directory / "manifest.json"
        manifest = read_manifest(manifest_path)
        turns = asyncio.Semaphore(CONNECTING)

        async def start(name: str) -> None:
            identity = read_identity(self.directory / f"{name}.identity")
            node = instrumented_node(
                manifest, identity, manifest_path, "subscriber", trace=self.plan.cell.trace
            )
            self.nodes[name] = node
            async with turns:
                await node.start(CONNECT_TIMEOUT_S)

        mine = self.plan.share(self.names(), self._index)
        await asyncio.gather(*(start(name) for name in mine))
        opened = list(self.subscriptions())
        self._tasks += [asyncio.create_task(self._listen(*one)) for one in opened]
        for subscription, _ in opened:
            await subscription.wait_joined(CONNECT_TIMEOUT_S)

    async def _listen(self, subscription: Subscription, check: DeliveryCheck) -> None:
        while items := await subscription.take(TAKE):
            now, before, sent_ns = time.monotonic_ns(), check.accepted, None
            for item in items:
                if isinstance(item, Gap):
                    self.result.gaps += 1
                    continue
                self.result.by_history += item.by_history
                sent_ns = check.check(item)
            self._accept(check.accepted - before, sent_ns, now)

    async def turn(self, due_s: float, window: int) -> bool:
        """Wait until an event is due and a delivery has room; False if the replay is over."""
        counters = self.counters
        if due_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        while counters.total(ReplayCounter.OWED) - counters.total(ReplayCounter.ACCEPTED) > window:
            if counters.signalled(Signal.END):
                return False
            await asyncio.sleep(PAUSE_S)
        return True

    def owe(self, deliveries: int) -> None:
        """So many deliveries follow from what is sent next.

        Counted before it is sent: the total accepted must never exceed the total owed.
        """
        self._owed += deliveries
        self.put(ReplayCounter.OWED, self._owed)

    def publisher(self, node: str, channel: str, *, batching: bool) -> Publisher:
        """The publisher of a node on a channel."""
        found = self._publishers.get((node, channel))
        if found is None:
            found = self.nodes[node].publisher(channel, batching=batching)
            self._publishers[node, channel] = found
        return found

    async def post(self, publisher: Publisher, post: Callable[[], object]) -> None:
        """Post once there is room for it."""
        while True:
            try:
                post()
                return
            except BufferFull:
                await publisher.ready()

    def _accept(self, deliveries: int, sent_ns: int | None, now: int) -> None:
        """So many deliveries were accepted; the last of them was sent at that time."""
        if sent_ns is not None and len(self.result.latencies_ns) < MOST_SAMPLES:
            self.result.latencies_ns.append(now - sent_ns)
        self._accepted += deliveries
        self.put(ReplayCounter.ACCEPTED, self._accepted)

    async def _watch(self) -> None:
        """Count now and then what is not acknowledged, and the links that are down."""
        while True:
            self.put(ReplayCounter.PENDING, self._pending())
            self.put(ReplayCounter.UNLINKED, sum(map(len, self._unlinked().values())))
            await asyncio.sleep(WATCH_S)

    def _pending(self) -> int:
        return sum(publisher.pending for publisher in self._publishers.values())

    def _unlinked(self) -> dict[str, dict[str, str]]:
        """The brokers that nodes have no link to, and why."""
        found: dict[str, dict[str, str]] = {}
        for name, node in self.nodes.items():
            troubles = node.links.troubles()
            for broker in node.manifest.broker_ids:
                if broker not in node.connected:
                    trouble = troubles[broker].sentence if broker in troubles else ""
                    found.setdefault(name, {})[broker] = trouble or "no reason is known"
        return found

    async def _finish(self) -> None:
        await cancel_all(self._tasks)
        self.count()
        nodes, result = self.nodes.values(), self.result
        result.unacknowledged = self._pending()
        result.unlinked = self._unlinked()
        result.suspicions = merge_suspicions(node.suspicions for node in nodes)
        result.evidence = sum(len(node.evidence) for node in nodes)
        await asyncio.gather(*(node.close() for node in nodes))


class TopicReplayShare(ReplayShare):
    """The nodes of a workload of topics."""

    result: ShareResult

    def __init__(self, directory: Path, index: int) -> None:
        super().__init__(directory, index)
        self.result = ShareResult()
        self._workload = read_workload(Path(self.plan.workload))
        self._names = node_names(self._workload, self.plan.events)
        self._checks: list[TopicCheck] = []
        topics = self._workload.topics
        self._lanes = {
            topic: {name: at * len(topics) + of for at, name in enumerate(self._names)}
            for of, topic in enumerate(topics)
        }

    def names(self) -> list[str]:
        """Every node that subscribes or publishes."""
        return self._names

    def subscriptions(self) -> Iterator[tuple[Subscription, DeliveryCheck]]:
        """Subscribe every node to its topics."""
        for topic, subscribers in self._workload.subscribers.items():
            for name in subscribers:
                if name in self.nodes:
                    self._checks.append(TopicCheck(topic, self._lanes[topic]))
                    yield self.nodes[name].subscribe(topic), self._checks[-1]

    async def publish(self) -> None:
        """Publish the events of each node in their order."""
        start = self.counters.signalled(Signal.START)
        numbers: Counter[int] = Counter()
        published: Counter[str] = Counter()
        for place, event in enumerate(self._workload.events(self.plan.events)):
            if event.node not in self.nodes:
                continue
            if not self.plan.rate and published.total() % BURST == 0:
                await asyncio.sleep(0)
            due = start / 1e9 + place / self.plan.rate if self.plan.rate else 0.0
            if not await self.turn(due, self.plan.window):
                break
            lane = self._lanes[event.topic][event.node]
            numbers[lane] += 1
            self.owe(len(self._workload.subscribers[event.topic]))
            await self._post(event, lane, numbers[lane])
            published[event.topic] += 1
            self.put(ReplayCounter.POSTED, published.total())
        self.result.published = dict(published)

    async def _post(self, event: WorkloadEvent, lane: int, number: int) -> None:
        batching = self.plan.cell.batch == 0
        publisher = self.publisher(event.node, event.topic, batching=batching)
        await self.post(
            publisher,
            lambda: publisher.post(make_event(lane, number, event.size, time.monotonic_ns())),
        )

    def count(self) -> None:
        """Add up what all subscriptions got."""
        result = self.result
        for check in self._checks:
            accepted = check.total("accepted")
            result.accepted[check.topic] = result.accepted.get(check.topic, 0) + accepted
            result.duplicated += check.total("duplicated")
            result.disordered += check.total("disordered")
            result.altered += check.altered


def run_share(kind: type[ReplayShare]) -> None:
    """Run the share that the arguments of this process name."""
    exit_with_parent(int(sys.argv[3]))
    pa.set_cpu_count(1)
    run(kind(Path(sys.argv[1]), int(sys.argv[2])).work())


def main() -> None:
    """Run one share."""
    run_share(TopicReplayShare)


if __name__ == "__main__":
    main()
