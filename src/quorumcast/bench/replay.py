"""Replay of a workload by real processes: its topics are channels, its nodes are clients.

    start brokers → start processes, each with a share of the nodes → all joined → START … END

Every node publishes its events in their order and subscribes to its topics. At most a window of
deliveries is under way, so that no subscriber falls behind what brokers retain. Every event must
arrive at every subscriber of its topic once, unaltered and in its publisher's order.

The run ends when all have arrived, or when for `stall_timeout` none has, nothing was acknowledged
and all nodes had links to all brokers; or when none has for three times as long. If something is
missing then, `lacking` says why.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from quorumcast import __version__
from quorumcast.bench.counters import ReplayCounter, ReplayCounters, Signal
from quorumcast.bench.plan import (
    CRASHES,
    BenchPlan,
    ClientResult,
    LatencySample,
    Suspicions,
    merge_suspicions,
    suspicions_of_correct,
    totals,
)
from quorumcast.bench.run import (
    GRACE_S,
    TICK_S,
    ProcessorTime,
    Progress,
    Sample,
    WorkerBed,
    latency,
    make_cluster,
    write_measured,
)
from quorumcast.bench.workload import Workload, natural_order, read_workload
from quorumcast.cell import CELL_SYSTEM
from quorumcast.cell.tracing import CellParameters
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.digests import choose_digest
from quorumcast.traces.form import (
    BENCH,
    Header,
    Listening,
    ProcessUse,
    place_for,
    write_header,
)

#: Longer than in a benchmark: a hundred clients open four links each.
READY_TIMEOUT_S = 180.0
EXIT_TIMEOUT_S = 90.0
#: Deliveries under way at most.
WINDOW = 20_000
#: Seconds without any progress after which missing events count as lost, unless a link is down that
#: may come back; and so many times as long without a delivery, whatever else happens.
STALL_TIMEOUT_S = 60.0
MOST_STALLS = 3
#: Nodes without links that are named.
NAMED = 3


class ReplayResult(ClientResult, kw_only=True):
    """What a process of any replay found."""

    #: Events that too few brokers have acknowledged.
    unacknowledged: int = 0
    #: Of each node that lacks links at the end: the brokers, and why, in a sentence each.
    unlinked: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


R = TypeVar("R", bound=ReplayResult)


class ReplayPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One replay; of `cell`, only what concerns brokers and channels counts."""

    workload: str
    cell: BenchPlan = BenchPlan()
    #: Processes among which the nodes are divided.
    processes: int = 2
    #: The first so many events; 0 is all.
    events: int = 0
    #: Events per second, of all nodes; 0 is as fast as they are accepted.
    rate: float = 0.0
    window: int = WINDOW
    stall_timeout: float = STALL_TIMEOUT_S
    #: With a workload of predicates: the first so many; 0 is all.
    predicates: int = 0
    #: Whether each node then has one subscription, for the rows that match any of its predicates.
    joined: bool = False

    def check(self) -> None:
        """Raise UsageError if this cannot be replayed."""
        self.cell.check()
        if self.processes < 1 or min(self.events, self.predicates) < 0 or self.window < 1:
            raise UsageError(
                "--processes and --window are 1 or more, --events and --predicates 0 or more"
            )
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
        return Policy.named(
            cell.policy, cell.alpha, cell.alpha_max, journal=cell.durable, limits=limits
        )

    def share(self, names: list[str], index: int) -> list[str]:
        """The nodes of one process."""
        return names[index :: self.processes]


class ShareResult(ReplayResult, kw_only=True):
    """What one process found."""

    #: Events that its nodes accepted and published, by topic.
    accepted: dict[str, int] = msgspec.field(default_factory=dict)
    published: dict[str, int] = msgspec.field(default_factory=dict)


class TopicReport(msgspec.Struct, frozen=True):
    """Events of one topic."""

    published: int
    subscribers: int
    expected: int
    delivered: int


class ReplayFigures(msgspec.Struct, kw_only=True):
    """What every replay measures, whatever the workload."""

    workload: str
    policy: str
    brokers: int
    f: int
    fault: str
    nodes: int
    processes: int
    seconds: float
    published: int
    #: What had to arrive, and did: events, or rows of them.
    expected: int
    delivered: int
    lost: int
    duplicated: int
    altered: int
    disordered: int
    gaps: int
    by_history: int
    #: Events that too few brokers have acknowledged, so that nobody promised them.
    unacknowledged: int
    #: Links to brokers that nodes lack at the end, with the reason.
    unlinked: dict[str, dict[str, str]]
    events_per_s: float
    deliveries_per_s: float
    latency_ms: LatencySample
    suspicions: Suspicions
    #: Suspicions of correct nodes, by reason.
    correct_suspected: dict[str, int]
    evidence: int
    #: Processor time and memory of each process; and microseconds per event, by role.
    process_use: dict[str, ProcessUse]
    processor_us: dict[str, float]
    #: Why something is missing, in sentences; empty if nothing is.
    lacking: str = ""

    def __post_init__(self) -> None:
        self.lacking = explain(self.lost, self.unacknowledged, self.gaps, self.unlinked)

    @property
    def wrong(self) -> int:
        """How much arrived that should not have, or not so."""
        return self.duplicated + self.altered + self.disordered

    def sound(self, plan: ReplayPlan) -> bool:
        """Whether the cell kept what it promises under this plan.

        Without a fault, nobody is to be suspected.
        """
        calm = bool(plan.cell.fault) or not self.correct_suspected
        return not self.wrong and calm and (self.lost == 0 or not plan.cell.promises_delivery())


class ReplayReport(ReplayFigures, kw_only=True):
    """What a replay of topics measured."""

    #: The share of deliveries, counted from the events that were published, and from those that the
    #: workload has (Pulsarcast §5.3).
    coverage: float | None
    coverage_of_injected: float | None
    topics: dict[str, TopicReport]


class Replayed(msgspec.Struct, Generic[R]):
    """What a replay left."""

    #: What each process found.
    results: list[R]
    #: When it began, and the seconds from then to the last delivery.
    from_ns: int
    seconds: float
    #: Events published.
    posted: int
    process_use: dict[str, ProcessUse]
    #: The brokers that misbehaved.
    faulty: list[str]

    def figures(self, plan: ReplayPlan, *, published: int, delivered: int) -> dict[str, Any]:
        """Those of `ReplayFigures` that do not depend on the workload."""
        cell, seconds = plan.cell, self.seconds
        suspicions = merge_suspicions(result.suspicions for result in self.results)
        return {
            "policy": cell.policy,
            "brokers": cell.brokers,
            "f": cell.tolerated(),
            "fault": cell.fault,
            "processes": plan.processes,
            "seconds": round(seconds, 3),
            "published": published,
            "delivered": delivered,
            **totals(self.results, "duplicated", "altered", "disordered"),
            **totals(self.results, "gaps", "by_history", "evidence", "unacknowledged"),
            "unlinked": {n: why for one in self.results for n, why in one.unlinked.items()},
            "events_per_s": round(published / seconds, 1) if seconds else 0.0,
            "deliveries_per_s": round(delivered / seconds, 1) if seconds else 0.0,
            "latency_ms": latency([ns for one in self.results for ns in one.latencies_ns]),
            "suspicions": suspicions,
            "correct_suspected": suspicions_of_correct(suspicions, self.faulty),
            "process_use": self.process_use,
            "processor_us": self._processor_us(published),
        }

    def _processor_us(self, published: int) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for use in self.process_use.values():
            seconds[use.role] = seconds.get(use.role, 0.0) + use.cpu_s
        return {role: round(1e6 * used / max(1, published), 1) for role, used in seconds.items()}


def explain(
    lost: int, unacknowledged: int, gaps: int, unlinked: Mapping[str, Mapping[str, str]]
) -> str:
    """Why deliveries are missing, as far as it is known; empty if none is."""
    if not lost:
        return ""
    said = [f"{lost:,} deliveries are missing"]
    if unacknowledged:
        said.append(
            f"{unacknowledged:,} events were not acknowledged by enough brokers, so nobody has "
            "promised them"
        )
    if gaps:
        said.append(f"Subscribers were told of {gaps:,} gaps: brokers hold these no longer")
    for node, brokers in list(unlinked.items())[:NAMED]:
        why = "; ".join(f"{broker}: {reason}" for broker, reason in brokers.items())
        said.append(f"{node} has no link to {len(brokers)} of the brokers ({why})")
    if len(unlinked) > NAMED:
        said.append(f"{len(unlinked) - NAMED:,} more nodes lack links")
    if len(said) == 1:
        said.append(
            "Everything was acknowledged, no gap was announced and all links are up, so the cell "
            "has broken its promise or is too slow"
        )
    return ". ".join(said) + "."


class ReplayBed:
    """The processes of one replay: a cell, and some that share its clients."""

    def __init__(
        self,
        plan: ReplayPlan,
        directory: Path,
        progress: Progress,
        *,
        clients: Sequence[str],
        channels: Mapping[str, Policy | ChannelEntry],
        arrow: bool = False,
    ) -> None:
        self.plan = plan
        self._directory = directory
        self._progress = progress
        self._workers = WorkerBed(directory, arrow=arrow or bool(plan.cell.trace))
        self._processes = ProcessorTime()
        self._cluster = make_cluster(plan.cell, directory, clients, channels, arrow=arrow)
        (directory / "replay.json").write_bytes(msgspec.json.encode(plan))
        self._counters = ReplayCounters(directory / "counters", plan.processes, create=True)

    @property
    def brokers(self) -> list[str]:
        """The brokers of the cell."""
        return list(map(str, self._cluster.brokers))

    def run(self, module: str, kind: type[R], deliveries: int) -> Replayed[R]:
        """Start everything, wait for so many deliveries, stop everything."""
        try:
            self._progress("starting processes")
            with self._cluster:
                faulty = faulty_brokers(self.plan.cell, self.brokers)
                self._start(module, faulty)
                started = self._sample()
                seconds = self._replay(deliveries)
                used = self._processes.use(started, self._sample())
                results = self._workers.collect(kind, EXIT_TIMEOUT_S)
            posted = self._counters.total(ReplayCounter.POSTED)
            return Replayed(results, started.at_ns, seconds, posted, used, faulty)
        finally:
            self._workers.stop()
            self._counters.close()

    def _start(self, module: str, faulty: list[str]) -> None:
        cell, brokers = self.plan.cell, self.brokers
        for broker in self._cluster.brokers:
            self._processes.watch("broker", broker, self._cluster.pid(broker))
        for liar in faulty:
            targets = cell.fault_targets(brokers)
            self._cluster.make_lie(liar, cell.fault, percent=cell.percent, victims=targets)
        for index in range(self.plan.processes):
            arguments = [str(self._directory), str(index), str(self._workers.lifeline)]
            worker = self._workers.spawn(share_name(index), module, *arguments)
            self._processes.watch("clients", share_name(index), worker.pid)
        self._workers.wait_ready(
            lambda: self._counters.total(ReplayCounter.READY) == self.plan.processes,
            READY_TIMEOUT_S,
        )

    def _sample(self) -> Sample:
        use = self._processes
        return Sample(time.monotonic_ns(), [], use.by_node(), use.memory())

    def _replay(self, expected: int) -> float:
        """Wait until the replay is over; seconds from the first event to the last delivery."""
        counters = self._counters
        started = seen_at = time.monotonic()
        counters.signal(Signal.START)
        slowest = 2 / self.plan.rate if self.plan.rate else 0.0
        stall, accepted, others, moved_at = self.plan.stall_timeout, -1, (0, 0), started
        while True:
            self._workers.check()
            before, now = (accepted, others), time.monotonic()
            accepted = counters.total(ReplayCounter.ACCEPTED)
            pending, unlinked = others = (
                counters.total(ReplayCounter.PENDING),
                counters.total(ReplayCounter.UNLINKED),
            )
            if accepted != before[0]:
                seen_at = now
            if (accepted, others) != before:
                moved_at = now
                posted = counters.total(ReplayCounter.POSTED)
                self._progress(
                    f"{posted:,} events published, {pending:,} not acknowledged, {accepted:,} of "
                    f"{expected:,} deliveries" + (f", {unlinked} links down" if unlinked else "")
                )
            finished = counters.total(ReplayCounter.FINISHED) == self.plan.processes
            if finished and accepted >= counters.total(ReplayCounter.OWED):
                break
            is_still = not unlinked and now - moved_at > stall + slowest
            if is_still or now - seen_at > MOST_STALLS * stall + slowest:
                break
            time.sleep(TICK_S)
        seconds = seen_at - started
        time.sleep(GRACE_S)
        counters.signal(Signal.END)
        return seconds


class TopicReplay:
    """The replay of a workload of topics."""

    def __init__(self, plan: ReplayPlan, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self._workload = read_workload(Path(plan.workload))
        self._bed = ReplayBed(
            plan,
            directory,
            progress,
            clients=node_names(self._workload, plan.events),
            channels=dict.fromkeys(self._workload.topics, plan.policy()),
        )
        #: The header of the trace; None if there is no trace.
        self._header: Header | None = None
        trace = plan.cell.trace
        if trace:
            Path(trace).mkdir(parents=True, exist_ok=True)
            self._header = trace_header(plan, self._workload, self._bed.brokers)
            write_header(Path(trace), self._header)

    def run(self) -> ReplayReport:
        """Replay, and report."""
        done = self._bed.run("quorumcast.bench.replayer", ShareResult, self._expected())
        self._finish_trace(done)
        return self._report(done)

    def _finish_trace(self, done: Replayed[ShareResult]) -> None:
        if self._header is not None:
            upto_ns, used = done.from_ns + int(done.seconds * 1e9), done.process_use
            write_measured(self.plan.cell, self._header, done.from_ns, upto_ns, done.posted, used)

    def _expected(self) -> int:
        if not self.plan.events:
            return self._workload.header.deliveries
        subscribers = self._workload.subscribers
        return sum(len(subscribers[e.topic]) for e in self._workload.events(self.plan.events))

    def _report(self, done: Replayed[ShareResult]) -> ReplayReport:
        plan, injected = self.plan, self._expected()
        accepted, published = Counter[str](), Counter[str]()
        for result in done.results:
            accepted.update(result.accepted)
            published.update(result.published)
        topics = {
            topic: TopicReport(
                published[topic], len(nodes), published[topic] * len(nodes), accepted[topic]
            )
            for topic, nodes in self._workload.subscribers.items()
        }
        expected = sum(topic.expected for topic in topics.values())
        delivered = sum(topic.delivered for topic in topics.values())
        return ReplayReport(
            **done.figures(plan, published=sum(published.values()), delivered=delivered),
            workload=plan.workload,
            nodes=len(node_names(self._workload, plan.events)),
            expected=expected,
            coverage=delivered / expected if expected else None,
            coverage_of_injected=delivered / injected if injected else None,
            lost=sum(max(topic.expected - topic.delivered, 0) for topic in topics.values()),
            topics=topics,
        )


def trace_header(plan: ReplayPlan, workload: Workload, brokers: list[str]) -> Header:
    """The header of a traced replay; everybody subscribes before START."""
    cell, policy = plan.cell, plan.policy()
    names = node_names(workload, plan.events)
    parameters = CellParameters(
        policy=cell.policy,
        alpha=policy.alpha,
        alpha_max=policy.alpha_max,
        brokers=cell.brokers,
        f=cell.tolerated(),
        batch=cell.batch,
        rate=plan.rate,
        durable=cell.durable,
        tls=cell.tls,
        digest=choose_digest(cell.digest),
        weather=cell.weather,
        workload=workload.header.name,
    )
    listening = [
        Listening(node, topic) for topic, nodes in workload.subscribers.items() for node in nodes
    ]
    return Header(
        run=uuid.uuid4().hex,
        source=BENCH,
        version=__version__,
        system=CELL_SYSTEM,
        parameters=msgspec.to_builtins(parameters),
        # No node skips a broker here.
        fault=msgspec.structs.replace(cell, skip=False).fault_label,
        publishers=tuple(names),
        listening=tuple(listening),
        faulty=tuple(faulty_brokers(cell, brokers)),
    )


def faulty_brokers(cell: BenchPlan, brokers: list[str]) -> list[str]:
    """The brokers that misbehave."""
    return brokers[: max(cell.tolerated(), 1)] if cell.fault else []


def share_name(index: int) -> str:
    """The name of a process with a share of the nodes."""
    return f"share-{index}"


def node_names(workload: Workload, events: int) -> list[str]:
    """Every node that subscribes or publishes, in an order that all processes agree on."""
    names = {node for nodes in workload.subscribers.values() for node in nodes}
    names |= {event.node for event in workload.events(events)}
    return sorted(names, key=natural_order)


def run_replay(plan: ReplayPlan, progress: Progress = lambda stage: None) -> ReplayReport:
    """Replay a workload on this machine."""
    plan.check()
    if plan.cell.trace:
        place = str(place_for(Path(plan.cell.trace)))
        plan = msgspec.structs.replace(plan, cell=msgspec.structs.replace(plan.cell, trace=place))
    with tempfile.TemporaryDirectory(prefix="quorumcast-replay-") as directory:
        return TopicReplay(plan, Path(directory), progress).run()
