"""The suite `retention`: what it costs to keep everything on a durable channel with total order.

    publish → restart all brokers → replay from the earliest on → wipe a broker while publishing
    goes on → keep half → delete the channel

One publisher publishes record batches of `BATCH` events; the first column counts them, so that the
replay shows whether all have come, once and in order. Each figure has a budget. Budgets for times
and rates apply to full runs only: with fewer events, starts and pauses dominate these figures.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pyarrow as pa

from quorumcast.client import Batch, BufferFull, Node, Publisher, connect, run
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.store.directory import store_files
from quorumcast.runtime.store.full_disk import size_of
from quorumcast.testing.cluster import LocalCluster

CHANNEL, OTHER = Channel("kept"), Channel("other")
PUBLISHER, READER = "alice", "bob"
SCHEMA = (("id", "int64"), ("price", "float64"), ("symbol", "string"), ("note", "string"))
#: Events per publication.
BATCH = 1000
#: Events of a full run, the default.
FULL_RUN = 10_000_000
#: Budget for the memory of each broker.
MOST_MEMORY_MB = 300.0
#: Budget for the store of each broker, as a multiple of the bytes of the events, and what even an
#: empty store takes in addition.
MOST_STORE_RATIO = 1.3
EMPTY_STORE_MB = 1.0
#: Budget for the rate of the replay.
LEAST_REPLAYED_PER_S = 500_000.0
#: Budgets for a wiped broker: until it votes again, and the share of their rate that publishers
#: keep meanwhile.
LONGEST_REJOIN_S = 10.0
LEAST_KEPT = 0.8
#: Budget for the time until less retention, or a deletion, has reached the disks.
LONGEST_REMOVAL_S = 60.0
#: Seconds that anything may take before it counts as failed.
TIMEOUT_S = 900.0
POLL_S = 0.2

Progress = Callable[[str], None]


class RetentionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What it cost to keep so many events."""

    events: int
    bytes_per_event: float
    publish_events_per_s: float
    replay_events_per_s: float
    #: Events that the replay lacked, and those out of order or repeated.
    lost: int
    disordered: int
    #: The largest memory of a broker: while publishing, after the restart, after the replay.
    memory_mb: tuple[float, float, float]
    #: The largest store of a broker, and how much that is per byte of events.
    store_mb: float
    store_ratio: float
    restart_s: float
    #: A wiped broker: until it follows the others, until it holds everything, and the rate of
    #: publishers meanwhile as a share of their rate before.
    votes_after_s: float
    complete_after_s: float
    share_meanwhile: float
    #: Until no broker keeps more than half, and until the deleted channel is gone everywhere.
    halved_after_s: float
    deleted_after_s: float

    @property
    def exceeded(self) -> list[str]:
        """The names of the figures that exceed their budgets."""
        stored_mb = self.events * self.bytes_per_event / 1e6
        within = {
            "memory": max(self.memory_mb) <= MOST_MEMORY_MB,
            "store": self.store_mb <= MOST_STORE_RATIO * stored_mb + EMPTY_STORE_MB,
        }
        if self.events >= FULL_RUN:
            within |= {
                "replay": self.replay_events_per_s >= LEAST_REPLAYED_PER_S,
                "votes after": self.votes_after_s <= LONGEST_REJOIN_S,
                "publishers kept": self.share_meanwhile >= LEAST_KEPT,
                "half": self.halved_after_s <= LONGEST_REMOVAL_S,
                "nothing": self.deleted_after_s <= LONGEST_REMOVAL_S,
            }
        return [name for name, kept in within.items() if not kept]

    @property
    def sound(self) -> bool:
        """Whether all came back, once and in order, and every figure is within its budget."""
        return not self.lost and not self.disordered and not self.exceeded


class Rows:
    """Record batches of events with ascending ids."""

    def __init__(self) -> None:
        numbers = range(BATCH)
        self._prices = pa.array([number / 2 for number in numbers])
        self._symbols = pa.array([f"SYM{number % 50}" for number in numbers])
        self._notes = pa.array([f"event {number} " * 8 for number in numbers])

    def batch(self, number: int) -> pa.RecordBatch:
        """The batch of a publication, counted from 0."""
        ids = pa.array(range(number * BATCH, (number + 1) * BATCH), pa.int64())
        columns = [ids, self._prices, self._symbols, self._notes]
        return pa.record_batch(columns, names=[name for name, _ in SCHEMA])


class Retention:
    """One run."""

    def __init__(self, events: int, directory: Path, progress: Progress) -> None:
        if events < BATCH:
            raise UsageError(f"--events is {BATCH:,} or more for the suite 'retention'")
        self._progress = progress
        self._publications = events // BATCH
        self._rows = Rows()
        #: Publications so far.
        self._published = 0
        policy = Policy.parse("total+durable")
        self.cluster = LocalCluster(
            channels={
                CHANNEL: ChannelEntry(CHANNEL, policy, schema=SCHEMA),
                OTHER: ChannelEntry(OTHER, policy),
            },
            directory=directory,
            log_level="warning",
        )

    def run(self) -> RetentionReport:
        """All steps, one after the other."""
        cluster = self.cluster
        took = run(self._publish_all())
        events = self._published * BATCH
        size = events * self._rows.batch(0).nbytes / BATCH
        memory, store = [self._memory()], self._store()
        self._progress(f"published {events:,} events; restarts all brokers")
        began = time.monotonic()
        for broker in cluster.brokers:
            cluster.stop_broker(broker)
        for broker in cluster.brokers:
            cluster.start_broker(broker)
        cluster.wait_for_links()
        cluster.wait_executed()
        restart_s = time.monotonic() - began
        memory.append(self._memory())
        self._progress("replays everything")
        replay_s, lost, disordered = run(self._replay())
        memory.append(self._memory())
        votes_s, complete_s, rate = run(self._wipe())
        halved_s = self._halve()
        deleted_s = self._delete()
        return RetentionReport(
            events=events,
            bytes_per_event=round(size / events, 1),
            publish_events_per_s=round(events / took),
            replay_events_per_s=round(events / replay_s),
            lost=lost,
            disordered=disordered,
            memory_mb=(memory[0], memory[1], memory[2]),
            store_mb=round(store / 1e6, 1),
            store_ratio=round(store / size, 3),
            restart_s=round(restart_s, 1),
            votes_after_s=round(votes_s, 1),
            complete_after_s=round(complete_s, 1),
            share_meanwhile=round(rate * took / events, 2),
            halved_after_s=round(halved_s, 1),
            deleted_after_s=round(deleted_s, 1),
        )

    # ------------------------------------------------------------------- clients

    async def _connect(self, name: str) -> Node:
        return await connect(self.cluster.manifest_path, self.cluster.identity_path(name))

    async def _publish_all(self) -> float:
        async with await self._connect(PUBLISHER) as node, node.publisher(CHANNEL) as out:
            began = time.monotonic()
            while self._published < self._publications:
                await self._publish(out)
            await out.flush()
            return time.monotonic() - began

    async def _publish(self, out: Publisher) -> None:
        while True:
            try:
                out.post_batch(self._rows.batch(self._published))
                break
            except BufferFull:
                await asyncio.sleep(0.002)
        self._published += 1
        if self._published % 100 == 0:
            await asyncio.sleep(0)
        if self._published % 1000 == 0:
            self._progress(f"published {self._published * BATCH:,} events")

    async def _replay(self) -> tuple[float, int, int]:
        """Seconds, events that are lacking, and publications that are not where they belong."""
        found = disordered = 0
        async with await self._connect(READER) as node:
            began = time.monotonic()
            async with node.subscribe(CHANNEL, start="earliest", overflow="wait") as inbox:
                async for item in inbox.held():
                    if not isinstance(item, Batch):
                        continue  # a gap: its events are lacking in the end
                    disordered += item.data.column(0)[0].as_py() != found
                    found += len(item)
            return time.monotonic() - began, self._published * BATCH - found, disordered

    # -------------------------------------------------------------- a wiped broker

    async def _wipe(self) -> tuple[float, float, float]:
        """Wipe a broker under load: until it votes, until it is complete, events/s meanwhile."""
        cluster, loop = self.cluster, asyncio.get_running_loop()
        victim = cluster.brokers[-1]
        async with await self._connect(PUBLISHER) as node, node.publisher(CHANNEL) as out:
            before = self._published
            began = time.monotonic()
            recovering = loop.run_in_executor(None, self._recover, victim)
            while not recovering.done():
                await self._publish(out)
            await out.flush()
            rate = (self._published - before) * BATCH / (time.monotonic() - began)
            return *await recovering, rate

    def _recover(self, victim: str) -> tuple[float, float]:
        cluster = self.cluster
        cluster.kill(victim)
        cluster.wipe(victim)
        began = time.monotonic()
        cluster.start_broker(victim)
        self._progress("wiped a broker while publishing goes on")
        frontier = self._held(cluster.brokers[0])[1]
        self._wait(lambda: self._held(victim)[1] >= frontier)
        votes_s = time.monotonic() - began
        self._wait(lambda: self._held(victim)[0] == 1)
        return votes_s, time.monotonic() - began

    def _held(self, broker: str) -> tuple[int, int]:
        """The first position that a broker holds, and the next one."""
        for stream in self.cluster.status(broker)["streams"]:
            if stream["stream"].startswith(f"{CHANNEL}/"):
                return int(stream["base"]), int(stream["next"])
        return 0, 0

    # ------------------------------------------------------------- less, and nothing

    def _halve(self) -> float:
        half = self._store() // 2

        def keep_half(entry: ChannelEntry) -> ChannelEntry:
            limits = msgspec.structs.replace(entry.policy.limits, retained_bytes=half)
            return msgspec.structs.replace(
                entry, policy=msgspec.structs.replace(entry.policy, limits=limits)
            )

        self._progress("keeps half")
        # Indices and the segment that is being written come on top.
        return self._change(keep_half, lambda: self._store() < 1.2 * half + 128e6)

    def _delete(self) -> float:
        self._progress("deletes the channel")
        return self._change(lambda entry: None, lambda: self._store() < 128e6)

    def _change(
        self, change: Callable[[ChannelEntry], ChannelEntry | None], done: Callable[[], bool]
    ) -> float:
        """Change or delete the channel, and wait; in seconds."""
        cluster = self.cluster
        present: Manifest = cluster.manifest
        channels = [change(c) if c.name == CHANNEL else c for c in present.channels]
        began = time.monotonic()
        cluster.write_manifest(
            next_epoch(present, channels=tuple(entry for entry in channels if entry is not None))
        )
        cluster.reload()
        cluster.wait_for_epoch(*cluster.brokers)
        self._wait(done)
        return time.monotonic() - began

    # ------------------------------------------------------------------- figures

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            if time.monotonic() > deadline:
                raise UsageError(f"the brokers have not got there within {TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)

    def _memory(self) -> float:
        cluster = self.cluster
        used = [psutil.Process(cluster.pid(b)).memory_info().rss for b in cluster.brokers]
        return round(float(max(used)) / 1e6, 1)

    def _store(self) -> int:
        data = self.cluster.directory / "data"
        return max(sum(map(size_of, store_files(data, b))) for b in self.cluster.brokers)


def run_retention(
    events: int, directory: Path, progress: Progress = lambda stage: None
) -> RetentionReport:
    """Keep so many events on a cell of four brokers."""
    retention = Retention(events, directory, progress)
    with retention.cluster:
        return retention.run()
