"""A workload replayed by real processes: its topics as channels, its nodes as clients.

    start brokers → start processes, each with a share of the nodes → all joined → START … END

Every node is a client of its own: it publishes its events in their order and subscribes to its
topics. At most a window of deliveries is under way, so that nobody falls behind what brokers
retain. What is to arrive is known beforehand: every event at every subscriber of its topic, once,
unaltered and in its publisher's order. The run is over when all of it has, or when nothing comes
any more.
"""

from __future__ import annotations

import mmap
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from quorumcast.bench.plan import CRASHES, BenchPlan, LatencySample
from quorumcast.bench.run import GRACE_S, TICK_S, Progress, latency
from quorumcast.bench.workload import Workload, read_workload
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import Policy
from quorumcast.testing.bed import Bed
from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.processes import Child

#: A hundred clients with four links each take their time on a small machine.
READY_TIMEOUT_S = 180.0
EXIT_TIMEOUT_S = 90.0
#: Deliveries under way at most.
WINDOW = 20_000
#: Without a delivery for so long, what has not come is lost: one event may mean a hundred votes.
PATIENCE_S = 60.0


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One replay; `cell` says of what policy and with how many brokers."""

    workload: str
    cell: BenchPlan = BenchPlan()
    #: Processes that the nodes are shared out to.
    processes: int = 2
    #: The first so many events; 0 is all.
    events: int = 0
    #: Events per second, of all nodes; 0 is as fast as they are accepted.
    rate: float = 0.0
    window: int = WINDOW
    patience: float = PATIENCE_S

    def check(self) -> None:
        """Refuse what cannot be replayed, in a sentence."""
        self.cell.check()
        if self.processes < 1 or self.events < 0 or self.window < 1:
            raise UsageError("--processes and --window are 1 or more, --events 0 or more")
        entry = CATALOGUE.get(self.cell.fault)
        if self.cell.fault in CRASHES or (entry is not None and entry.role is not Role.BROKER):
            raise UsageError(
                f"{self.cell.fault!r} is not for workloads; choose a fault of brokers from "
                "'quorumcast faults list'"
            )

    def policy(self) -> Policy:
        """The policy of every channel."""
        cell = self.cell
        kept = 2 * self.window
        limits = Limits(retained_publications=kept, vote_window=kept, queue=kept)
        return Policy.named(cell.policy, alpha=cell.alpha, journal=cell.durable, limits=limits)

    def share(self, names: list[str], index: int) -> list[str]:
        """The nodes of one process."""
        return names[index :: self.processes]


class ReplayBoard:
    """Shared memory between the processes of a replay: counters, each with one writer."""

    START, END = 0, 1
    #: Of each process: whether it is ready, has published everything, what is owed for that, and
    #: what its nodes have accepted.
    READY, FINISHED, POSTED, OWED, ACCEPTED = range(5)

    def __init__(self, path: Path, processes: int, *, create: bool = False) -> None:
        self._processes = processes
        size = (2 + 5 * processes) * 8
        if create:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self._view = memoryview(self._memory).cast("Q")

    def signal(self, which: int) -> None:
        """Tell all processes."""
        self._view[which] = time.monotonic_ns()

    def signalled(self, which: int) -> int:
        """When, or 0."""
        return self._view[which]

    def put(self, process: int, what: int, value: int) -> None:
        """One process's counter."""
        self._view[2 + 5 * process + what] = value

    def total(self, what: int) -> int:
        """The sum over all processes."""
        return sum(self._view[2 + what :: 5])

    def close(self) -> None:
        """Unmap."""
        self._view.release()
        self._memory.close()


class ShareResult(msgspec.Struct, kw_only=True):
    """What one process has to say at the end."""

    #: By topic: what its nodes have accepted.
    accepted: dict[str, int] = msgspec.field(default_factory=dict)
    #: By topic: what its nodes have published.
    published: dict[str, int] = msgspec.field(default_factory=dict)
    duplicated: int = 0
    altered: int = 0
    disordered: int = 0
    gaps: int = 0
    by_history: int = 0
    evidence: int = 0
    suspicions: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    latencies_ns: list[int] = msgspec.field(default_factory=list)
    failure: str = ""


class TopicReport(msgspec.Struct, frozen=True):
    """What became of one topic."""

    published: int
    subscribers: int
    expected: int
    delivered: int


class ReplayReport(msgspec.Struct, kw_only=True):
    """What became of a workload."""

    workload: str
    policy: str
    brokers: int
    f: int
    fault: str
    nodes: int
    processes: int
    seconds: float
    published: int
    #: Events times subscribers, topic by topic.
    expected: int
    delivered: int
    lost: int
    duplicated: int
    altered: int
    disordered: int
    gaps: int
    by_history: int
    events_per_s: float
    deliveries_per_s: float
    latency_ms: LatencySample
    suspicions: dict[str, dict[str, int]]
    evidence: int
    topics: dict[str, TopicReport]

    def sound(self, plan: ReplayPlan) -> bool:
        """Whether everything that is promised came, once and unaltered."""
        if self.duplicated or self.altered or self.disordered:
            return False
        return self.lost == 0 or not plan.cell.promises_delivery()


class ReplayRun:
    """One replay."""

    def __init__(self, plan: ReplayPlan, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self._directory = directory
        self._progress = progress
        self._workload = read_workload(Path(plan.workload))
        self._bed = Bed(directory)
        self._processes: list[Child] = []
        trace = plan.cell.trace
        if trace:
            Path(trace).mkdir(parents=True, exist_ok=True)
        self._cluster = LocalCluster(
            brokers=plan.cell.brokers,
            f=plan.cell.tolerated(),
            clients=node_names(self._workload, plan.events),
            channels=dict.fromkeys(self._workload.topics, plan.policy()),
            directory=directory,
            tls=plan.cell.tls,
            trace=Path(trace) if trace else None,
            log_level="warning",
        )
        (directory / "replay.json").write_bytes(msgspec.json.encode(plan))
        self._board = ReplayBoard(directory / "board", plan.processes, create=True)

    def run(self) -> ReplayReport:
        """Start everything, wait for everything, stop everything."""
        try:
            self._progress("starting processes")
            with self._cluster:
                for liar in self._liars():
                    aims = self.plan.cell.aims(list(map(str, self._cluster.brokers)))
                    self._cluster.make_lie(liar, self.plan.cell.fault, victims=aims)
                self._start()
                self._wait_ready()
                seconds = self._replay()
                return self._report(seconds, self._collect())
        finally:
            for index in range(len(self._processes)):
                self._bed.kill(f"share-{index}")
            self._bed.stop()
            self._board.close()

    def _liars(self) -> list[str]:
        count = max(self.plan.cell.tolerated(), 1) if self.plan.cell.fault else 0
        return list(map(str, self._cluster.brokers))[:count]

    def _start(self) -> None:
        for index in range(self.plan.processes):
            arguments = [str(self._directory), str(index), str(self._bed.lifeline)]
            module = "quorumcast.bench.replayer"
            self._processes.append(self._bed.spawn(f"share-{index}", module, *arguments))

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self._board.total(ReplayBoard.READY) < self.plan.processes:
            self._check()
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the nodes were not connected within {READY_TIMEOUT_S:.0f} s; is this machine "
                    "busy with something else?"
                )
            time.sleep(TICK_S)

    def _check(self) -> None:
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                raise UsageError(
                    f"process {index} ended too early: {self._bed.last_words(f'share-{index}')}"
                )

    def _replay(self) -> float:
        """From the first event to the last delivery, in seconds."""
        board = self._board
        expected = self._expected()
        started = seen_at = time.monotonic()
        board.signal(ReplayBoard.START)
        slowest = 2 / self.plan.rate if self.plan.rate else 0.0
        seen = -1
        while True:
            self._check()
            accepted, now = board.total(ReplayBoard.ACCEPTED), time.monotonic()
            if accepted != seen:
                seen, seen_at = accepted, now
                self._progress(
                    f"{board.total(ReplayBoard.POSTED):,} events published, {accepted:,} of "
                    f"{expected:,} deliveries"
                )
            finished = board.total(ReplayBoard.FINISHED) == self.plan.processes
            if finished and accepted >= board.total(ReplayBoard.OWED):
                break
            if now - seen_at > self.plan.patience + slowest:
                break
            time.sleep(TICK_S)
        seconds = seen_at - started
        time.sleep(GRACE_S)
        board.signal(ReplayBoard.END)
        return seconds

    def _expected(self) -> int:
        if not self.plan.events:
            return self._workload.header.deliveries
        subscribers = self._workload.subscribers
        return sum(len(subscribers[e.topic]) for e in self._workload.events(self.plan.events))

    def _collect(self) -> list[ShareResult]:
        results = []
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for index, process in enumerate(self._processes):
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise UsageError(
                    f"process {index} did not end: {self._bed.last_words(f'share-{index}')}"
                ) from None
            path = self._directory / f"share-{index}.json"
            if process.returncode or not path.exists():
                raise UsageError(
                    f"process {index} failed: {self._bed.last_words(f'share-{index}')}"
                )
            result = msgspec.json.decode(path.read_bytes(), type=ShareResult)
            if result.failure:
                raise UsageError(f"process {index} failed: {result.failure}")
            results.append(result)
        return results

    def _report(self, seconds: float, results: list[ShareResult]) -> ReplayReport:
        plan = self.plan
        accepted, published = Counter[str](), Counter[str]()
        suspicions: dict[str, Counter[str]] = {}
        for result in results:
            accepted.update(result.accepted)
            published.update(result.published)
            for suspect, reasons in result.suspicions.items():
                suspicions.setdefault(suspect, Counter()).update(reasons)
        topics = {
            topic: TopicReport(
                published[topic], len(nodes), published[topic] * len(nodes), accepted[topic]
            )
            for topic, nodes in self._workload.subscribers.items()
        }
        expected = sum(topic.expected for topic in topics.values())
        delivered = sum(topic.delivered for topic in topics.values())
        return ReplayReport(
            workload=plan.workload,
            policy=plan.cell.policy,
            brokers=plan.cell.brokers,
            f=plan.cell.tolerated(),
            fault=plan.cell.fault,
            nodes=len(node_names(self._workload, plan.events)),
            processes=plan.processes,
            seconds=round(seconds, 3),
            published=sum(published.values()),
            expected=expected,
            delivered=delivered,
            lost=sum(max(topic.expected - topic.delivered, 0) for topic in topics.values()),
            duplicated=sum(result.duplicated for result in results),
            altered=sum(result.altered for result in results),
            disordered=sum(result.disordered for result in results),
            gaps=sum(result.gaps for result in results),
            by_history=sum(result.by_history for result in results),
            events_per_s=round(sum(published.values()) / seconds, 1) if seconds else 0.0,
            deliveries_per_s=round(delivered / seconds, 1) if seconds else 0.0,
            latency_ms=latency([ns for result in results for ns in result.latencies_ns]),
            suspicions={suspect: dict(reasons) for suspect, reasons in suspicions.items()},
            evidence=sum(result.evidence for result in results),
            topics=topics,
        )


def node_names(workload: Workload, events: int) -> list[str]:
    """Every node that subscribes or publishes, in an order that all processes agree on."""
    names = {node for nodes in workload.subscribers.values() for node in nodes}
    names |= {event.node for event in workload.events(events)}
    return sorted(names, key=lambda name: (len(name), name))


def run_replay(plan: ReplayPlan, progress: Progress = lambda stage: None) -> ReplayReport:
    """Replay a workload on this machine."""
    plan.check()
    with tempfile.TemporaryDirectory(prefix="quorumcast-replay-") as directory:
        return ReplayRun(plan, Path(directory), progress).run()
