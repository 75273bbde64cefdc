"""`python -m quorumcast.bench.replayer DIRECTORY INDEX LIFELINE`: a process with its nodes.

Every event says who published it on which topic, its place among those, its length and when it was
sent, with a checksum: `bench.events` with the length under the checksum, since workloads have
events of all sizes. What was found is left as `share-INDEX.json`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa

from quorumcast.bench.events import HEAD, LANE_SHIFT, SEQUENCE, LaneCheck, checksum, filler
from quorumcast.bench.measured import measured_node
from quorumcast.bench.replay import ReplayBoard, ReplayPlan, ShareResult, node_names
from quorumcast.bench.worker import (
    CONNECT_TIMEOUT_S,
    MOST_SAMPLES,
    PAUSE_S,
    POLL_S,
    TAKE,
    end_with,
)
from quorumcast.bench.workload import WorkloadEvent, read_workload
from quorumcast.client import run
from quorumcast.client.events import BufferFull, Gap
from quorumcast.client.node import Node
from quorumcast.client.publishing import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_identity, read_manifest

#: Events posted between two turns of the event loop.
BURST = 32
#: Nodes that connect at the same time.
AT_ONCE = 8
_LENGTH_SHIFT = 48


def make_event(lane: int, number: int, size: int, sent_ns: int) -> bytes:
    """An event of so many bytes, or as few as carry what it must."""
    size = max(size, HEAD.size)
    place = lane << LANE_SHIFT | number
    check = checksum(place, sent_ns ^ size << _LENGTH_SHIFT)
    return HEAD.pack(place, check, sent_ns) + filler(size)


def read_event(payload: bytes) -> tuple[int, int, int] | None:
    """Lane, number and time of an event; None if it is not as it was made."""
    size = len(payload)
    if size < HEAD.size:
        return None
    place, check, sent_ns = HEAD.unpack_from(payload)
    if check != checksum(place, sent_ns ^ size << _LENGTH_SHIFT):
        return None
    if payload[HEAD.size :] != filler(size):
        return None
    return place >> LANE_SHIFT, place & SEQUENCE, sent_ns


class TopicAccount:
    """One node's subscription to one topic, and its account."""

    def __init__(self, topic: str, lanes: dict[str, int]) -> None:
        self.topic = topic
        #: The lane of each publisher on this topic.
        self._lanes = lanes
        self._checks: dict[int, LaneCheck] = {}
        self.altered = 0

    def take(self, publisher: str, payload: bytes) -> int | None:
        """An event has come; when it was sent, if it is genuine."""
        found = read_event(payload)
        if found is None or found[0] != self._lanes.get(publisher):
            self.altered += 1
            return None
        lane, number, sent_ns = found
        if lane not in self._checks:
            self._checks[lane] = LaneCheck(lane, HEAD.size)
        self._checks[lane].count(number)
        return sent_ns

    def total(self, what: str) -> int:
        """Sum of a verdict's counter."""
        return sum(getattr(check.verdict, what) for check in self._checks.values())


class ReplayShare:
    """The nodes of this process."""

    def __init__(self, directory: Path, index: int) -> None:
        self._directory = directory
        self._index = index
        self._plan = msgspec.json.decode((directory / "replay.json").read_bytes(), type=ReplayPlan)
        self._board = ReplayBoard(directory / "board", self._plan.processes)
        self._workload = read_workload(Path(self._plan.workload))
        self._names = node_names(self._workload, self._plan.events)
        self._mine = self._plan.share(self._names, index)
        self._nodes: dict[str, Node] = {}
        self._publishers: dict[tuple[str, str], Publisher] = {}
        self._listeners: list[TopicAccount] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._result = ShareResult()
        self._published: Counter[str] = Counter()
        self._accepted = 0
        topics = self._workload.topics
        #: Every node has a lane of its own on every topic.
        self._lanes = {
            topic: {name: at * len(topics) + of for at, name in enumerate(self._names)}
            for of, topic in enumerate(topics)
        }

    async def work(self) -> None:
        """All of it."""
        try:
            await self._connect()
            self._board.put(self._index, ReplayBoard.READY, 1)
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 50)  # events are acyclic
            await self._until(ReplayBoard.START, POLL_S)
            await self._publish()
            self._board.put(self._index, ReplayBoard.FINISHED, 1)
            await self._until(ReplayBoard.END, 0.02)
            await self._finish()
        except UsageError as error:
            self._result.failure = str(error)
        path = self._directory / f"share-{self._index}.json"
        path.write_bytes(msgspec.json.encode(self._result))
        self._board.close()

    async def _until(self, signal: int, pause_s: float) -> None:
        while not self._board.signalled(signal):  # noqa: ASYNC110  (by another process)
            await asyncio.sleep(pause_s)

    # ------------------------------------------------------------------ before

    async def _connect(self) -> None:
        manifest_path = self._directory / "manifest.json"
        manifest = read_manifest(manifest_path)
        turns = asyncio.Semaphore(AT_ONCE)

        async def start(name: str) -> None:
            identity = read_identity(self._directory / f"{name}.identity")
            node = measured_node(
                manifest, identity, manifest_path, "subscriber", trace=self._plan.cell.trace
            )
            self._nodes[name] = node
            async with turns:
                await node.start(CONNECT_TIMEOUT_S)

        await asyncio.gather(*(start(name) for name in self._mine))
        joining = []
        for topic, subscribers in self._workload.subscribers.items():
            for name in subscribers:
                if name in self._nodes:
                    subscription = self._nodes[name].subscribe(topic)
                    listener = TopicAccount(topic, self._lanes[topic])
                    self._listeners.append(listener)
                    joining.append(subscription)
                    self._tasks.append(asyncio.create_task(self._listen(subscription, listener)))
        for subscription in joining:
            await subscription.wait_joined(CONNECT_TIMEOUT_S)

    # ------------------------------------------------------------------ meanwhile

    async def _publish(self) -> None:
        start, board = self._board.signalled(ReplayBoard.START), self._board
        numbers: Counter[int] = Counter()
        owed = posted = 0
        for place, event in enumerate(self._workload.events(self._plan.events)):
            if event.node not in self._nodes:
                continue
            if self._plan.rate:
                due = start / 1e9 + place / self._plan.rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            elif posted % BURST == 0:
                await asyncio.sleep(0)
            while board.total(ReplayBoard.OWED) - board.total(ReplayBoard.ACCEPTED) > (
                self._plan.window
            ):
                if board.signalled(ReplayBoard.END):
                    return
                await asyncio.sleep(PAUSE_S)
            lane = self._lanes[event.topic][event.node]
            numbers[lane] += 1
            # Owed before it is out: nobody may accept more than is owed.
            owed += len(self._workload.subscribers[event.topic])
            posted += 1
            board.put(self._index, ReplayBoard.OWED, owed)
            await self._post(event, lane, numbers[lane])
            self._published[event.topic] += 1
            board.put(self._index, ReplayBoard.POSTED, posted)

    async def _post(self, event: WorkloadEvent, lane: int, number: int) -> None:
        key = (event.node, event.topic)
        publisher = self._publishers.get(key)
        if publisher is None:
            publisher = self._nodes[event.node].publisher(
                event.topic, batching=self._plan.cell.batch == 0
            )
            self._publishers[key] = publisher
        while True:
            try:
                publisher.post(make_event(lane, number, event.size, time.monotonic_ns()))
                return
            except BufferFull:
                await publisher.ready()

    async def _listen(self, subscription: Subscription, listener: TopicAccount) -> None:
        result, board = self._result, self._board
        while items := await subscription.take(TAKE):
            now = time.monotonic_ns()
            before = listener.total("accepted")
            sent_ns = None
            for item in items:
                if isinstance(item, Gap):
                    result.gaps += 1
                    continue
                result.by_history += item.by_history
                for payload in item.payloads:
                    sent_ns = listener.take(item.publisher, payload)
            if sent_ns is not None and len(result.latencies_ns) < MOST_SAMPLES:
                result.latencies_ns.append(now - sent_ns)
            self._accepted += listener.total("accepted") - before
            board.put(self._index, ReplayBoard.ACCEPTED, self._accepted)

    # ------------------------------------------------------------------ afterwards

    async def _finish(self) -> None:
        result = self._result
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.CancelledError):
                raise UsageError(f"a subscription ended: {outcome!r}")
        result.published = dict(self._published)
        for listener in self._listeners:
            accepted = listener.total("accepted")
            result.accepted[listener.topic] = result.accepted.get(listener.topic, 0) + accepted
            result.duplicated += listener.total("duplicated")
            result.disordered += listener.total("disordered")
            result.altered += listener.altered
        for node in self._nodes.values():
            for suspect, reasons in node.suspicions.items():
                known = result.suspicions.setdefault(suspect, {})
                for reason, count in reasons.items():
                    known[reason] = known.get(reason, 0) + count
            result.evidence += len(node.evidence)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))


def main() -> None:
    """Run one share."""
    end_with(int(sys.argv[3]))
    pa.set_cpu_count(1)
    run(ReplayShare(Path(sys.argv[1]), int(sys.argv[2])).work())


if __name__ == "__main__":
    main()
