"""The suite `soak`: brokers are killed, paused, cut off and wiped while clients work.

A seed draws up to f brokers at a time and their *harm*: kill -9 and restart, SIGSTOP and SIGCONT,
all links cut, or kill -9 and an emptied disk. Two publishers publish on a durable channel with
total order; two subscribers read it from the beginning. In the end each subscriber must have got
every acknowledged publication once, both in the same order. The report shows whether the brokers'
memory and files grew with the number of publications.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from quorumcast.client import Node, connect, run
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.store.directory import store_files
from quorumcast.runtime.store.full_disk import size_of
from quorumcast.testing.cluster import LocalCluster

CHANNEL = "soak"
PUBLISHERS = ("alice", "bob")
SUBSCRIBERS = ("carol", "dave")
POLICIES = ("total", "total-crash")
HARMS = ("kill", "pause", "cut", "wipe")
#: Small, so that even a run of minutes fills and prunes the retained publications many times.
LIMITS = Limits(retained_publications=2048, retained_bytes=8 * 1024 * 1024)
#: After so long, an acknowledged publication that has not arrived is lost.
TIMEOUT_S = 120.0
#: Least and most seconds that a harm lasts, and that pass until the next one.
HARM_S = (0.5, 6.0)
PAUSE_S = (0.5, 4.0)
SAMPLE_S = 1.0
#: Publications per second and publisher, unless asked for otherwise.
RATE = 50.0

Progress = Callable[[str], None]


class SoakPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One soak run."""

    policy: str = "total"
    brokers: int = 4
    f: int = 1
    seconds: float = 600.0
    rate: float = RATE
    size: int = 253
    seed: int = 1

    def check(self) -> None:
        """Raise UsageError if this cannot be run."""
        if self.policy not in POLICIES:
            raise UsageError(f"a soak needs total order: choose one of {', '.join(POLICIES)}")
        if self.seconds <= 0 or self.rate <= 0:
            raise UsageError("--seconds and --rate must be more than 0")


class SoakReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a soak run found."""

    policy: str
    brokers: int
    f: int
    seconds: float
    seed: int
    harms: dict[str, int]
    published: int
    acknowledged: int
    #: By subscriber: acknowledged publications that never arrived, and ones that arrived again.
    lost: dict[str, int]
    duplicated: dict[str, int]
    disordered: int
    #: The longest time without a delivery to anybody, in seconds.
    longest_silence_s: float
    #: The largest memory and store of any broker after the first and after the last quarter.
    memory_mb: tuple[float, float]
    store_mb: tuple[float, float]

    @property
    def sound(self) -> bool:
        """Whether every promise was kept."""
        return not (any(self.lost.values()) or any(self.duplicated.values()) or self.disordered)


class Soak:
    """One run."""

    def __init__(self, plan: SoakPlan, directory: Path, progress: Progress) -> None:
        plan.check()
        self.plan = plan
        self._progress = progress
        self._rng = random.Random(f"soak {plan.seed}")
        policy = Policy.named(plan.policy, journal=True, limits=LIMITS)
        self.cluster = LocalCluster(
            brokers=plan.brokers,
            f=plan.f,
            channels={CHANNEL: policy},
            directory=directory,
            log_level="warning",
        )
        self._ending = False
        #: Notified of deliveries once `_ending` is set.
        self._delivery = asyncio.Condition()
        self.harms = dict.fromkeys(HARMS, 0)
        self.published = dict.fromkeys(PUBLISHERS, 0)
        self.acknowledged = dict.fromkeys(PUBLISHERS, 0)
        #: What each subscriber got, in order: publisher and number.
        self.seen: dict[str, list[tuple[str, int]]] = {name: [] for name in SUBSCRIBERS}
        self._delivered_at = time.monotonic()
        self.silence_s = 0.0
        self._samples: list[tuple[float, float]] = []

    async def run(self) -> SoakReport:
        """Harm brokers while clients work, then check what arrived."""
        plan = self.plan
        nodes = {name: await self._connect(name) for name in (*PUBLISHERS, *SUBSCRIBERS)}
        listening = [asyncio.ensure_future(self._listen(name, nodes[name])) for name in SUBSCRIBERS]
        publishing = [
            asyncio.ensure_future(self._publish_steadily(name, nodes[name])) for name in PUBLISHERS
        ]
        sampling = asyncio.ensure_future(self._sample())
        harming = [asyncio.ensure_future(self._harm(index)) for index in range(plan.f)]
        await asyncio.sleep(plan.seconds)
        self._ending = True
        await asyncio.gather(*harming, *publishing)
        await self._settle()
        for task in (*listening, sampling):
            task.cancel()
        await asyncio.gather(*listening, sampling, return_exceptions=True)
        for node in nodes.values():
            await node.close()
        return self._report()

    async def _connect(self, name: str) -> Node:
        return await connect(
            self.cluster.manifest_path, self.cluster.identity_path(name), timeout_s=TIMEOUT_S
        )

    # ---------------------------------------------------------------- the clients

    async def _publish_steadily(self, name: str, node: Node) -> None:
        async with node.publisher(CHANNEL, batching=False) as out:
            unacknowledged: set[asyncio.Task[None]] = set()
            while not self._ending:
                self.published[name] += 1
                contents = f"{name} {self.published[name]} ".encode().ljust(self.plan.size, b".")
                task = asyncio.ensure_future(self._count(name, out.publish(contents)))
                unacknowledged.add(task)
                task.add_done_callback(unacknowledged.discard)
                await asyncio.sleep(1 / self.plan.rate)
            await asyncio.wait_for(asyncio.gather(*unacknowledged), TIMEOUT_S)

    async def _count(self, name: str, acknowledgement: object) -> None:
        await acknowledgement  # type: ignore[misc]
        self.acknowledged[name] += 1

    async def _listen(self, name: str, node: Node) -> None:
        seen = self.seen[name]
        async with node.subscribe(CHANNEL, start="earliest") as events:
            async for event in events:
                publisher, number, _ = event.payload.split(b" ", 2)
                seen.append((publisher.decode(), int(number)))
                now = time.monotonic()
                self.silence_s = max(self.silence_s, now - self._delivered_at)
                self._delivered_at = now
                if self._ending:
                    async with self._delivery:
                        self._delivery.notify_all()

    async def _settle(self) -> None:
        """Wait until everything acknowledged has arrived, or TIMEOUT_S."""
        wanted = sum(self.acknowledged.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S), self._delivery:
                await self._delivery.wait_for(
                    lambda: all(len(seen) >= wanted for seen in self.seen.values())
                )

    # ------------------------------------------------------------------ the harm

    async def _harm(self, index: int) -> None:
        """One of f tasks that harm brokers; each has its own, so at most f are harmed at a time."""
        victims = self.cluster.brokers[index :: self.plan.f]
        while not self._ending:
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
            victim, harm = self._rng.choice(victims), self._rng.choice(HARMS)
            self.harms[harm] += 1
            counts = ", ".join(f"{count} {name}" for name, count in self.harms.items())
            self._progress(f"{sum(map(len, self.seen.values())):,} delivered; {counts}")
            await self._inflict(victim, harm, self._rng.uniform(*HARM_S))

    async def _inflict(self, victim: str, harm: str, seconds: float) -> None:
        cluster, loop = self.cluster, asyncio.get_running_loop()
        if harm == "cut":
            await loop.run_in_executor(None, cluster.cut_links, victim)
            return
        if harm == "pause":
            cluster.pause(victim)
            await asyncio.sleep(seconds)
            cluster.resume(victim)
            return
        await loop.run_in_executor(None, cluster.kill, victim)
        if harm == "wipe":
            cluster.wipe(victim)
        await asyncio.sleep(seconds)
        await loop.run_in_executor(None, cluster.start_broker, victim)
        if harm == "wipe":
            # A broker with an emptied disk is one of the f until it has caught up.
            await loop.run_in_executor(None, self._wait_caught_up, victim)

    def _wait_caught_up(self, victim: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        # The furthest counts: another broker may have come back itself just now.
        others = [b for b in self.cluster.brokers if b != victim and self.cluster.running(b)]
        frontier = max(map(self._frontier, others))
        while time.monotonic() < deadline and self._frontier(victim) < frontier:
            time.sleep(0.1)

    def _frontier(self, broker: str) -> int:
        streams = self.cluster.status(broker)["streams"]
        return max((int(stream["next"]) for stream in streams), default=0)

    # ------------------------------------------------------------------- figures

    async def _sample(self) -> None:
        while True:
            memory = store = 0.0
            for broker in self.cluster.brokers:
                files = store_files(self.cluster.directory / "data", broker)
                store = max(store, sum(map(size_of, files)) / 1e6)
                if self.cluster.running(broker):
                    try:
                        process = psutil.Process(self.cluster.pid(broker))
                        memory = max(memory, process.memory_info().rss / 1e6)
                    except psutil.Error:
                        continue  # killed just now
            self._samples.append((memory, store))
            await asyncio.sleep(SAMPLE_S)

    def _report(self) -> SoakReport:
        quarter = max(1, len(self._samples) // 4)
        early = self._samples[quarter : 2 * quarter] or self._samples
        late = self._samples[-quarter:]
        lost, duplicated = {}, {}
        for name, seen in self.seen.items():
            known = set(seen)
            duplicated[name] = len(seen) - len(known)
            lost[name] = sum(
                (publisher, number) not in known
                for publisher, count in self.acknowledged.items()
                for number in range(1, count + 1)
            )
        one, other = (self.seen[name] for name in SUBSCRIBERS)
        common = min(len(one), len(other))
        return SoakReport(
            policy=self.plan.policy,
            brokers=self.plan.brokers,
            f=self.plan.f,
            seconds=self.plan.seconds,
            seed=self.plan.seed,
            harms=self.harms,
            published=sum(self.published.values()),
            acknowledged=sum(self.acknowledged.values()),
            lost=lost,
            duplicated=duplicated,
            disordered=sum(a != b for a, b in zip(one[:common], other[:common], strict=True)),
            longest_silence_s=round(self.silence_s, 2),
            memory_mb=(_most(early, 0), _most(late, 0)),
            store_mb=(_most(early, 1), _most(late, 1)),
        )


def _most(samples: list[tuple[float, float]], index: int) -> float:
    return round(max((sample[index] for sample in samples), default=0.0), 1)


def run_soak(
    plan: SoakPlan, directory: Path, progress: Progress = lambda stage: None
) -> SoakReport:
    """Run a cell and harm it, as planned."""
    soak = Soak(plan, directory, progress)
    with soak.cluster:
        return run(soak.run())
