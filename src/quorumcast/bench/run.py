"""One run of the benchmark: start a cell and its clients, measure, and count what arrived.

    start brokers → start workers → all ready → START … WARM … (fault) … STOP → drain → END

Rates are counted between WARM and STOP, from what the slowest subscriber accepted. A run of a fixed
number of events has no warm-up and stops when all have arrived, or when the last of them has. Every
event that was published since START must arrive by the end, once and unaltered. The run ends when
all have arrived, or when none has for `stall_timeout`: what is missing then is lost.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import msgspec
import numpy as np
import psutil

from quorumcast.bench.counters import BenchCounters, Signal
from quorumcast.bench.labels import write_labels
from quorumcast.bench.plan import (
    CRASH_RECOVER,
    CRASHES,
    BenchPlan,
    BenchReport,
    ClientResult,
    LatencySample,
    Suspicions,
    WorkerResult,
    merge_suspicions,
    suspicions_of_correct,
    totals,
)
from quorumcast.cell import CELL_SYSTEM
from quorumcast.cell.tracing import CellParameters
from quorumcast.core.errors import UsageError
from quorumcast.core.version import __version__
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.digests import choose_digest
from quorumcast.runtime.links.wan import wan_host
from quorumcast.testing.bed import Bed
from quorumcast.testing.cluster import LocalCluster
from quorumcast.traces.drafts import directory_at
from quorumcast.traces.form import BENCH, Header, Listening, ProcessUse, place_for, write_header

READY_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 60.0
#: Wait after the last event has arrived, in which duplicates would arrive.
GRACE_S = 0.15
#: Pause between two looks at the counters.
TICK_S = 0.02
#: Clients that an error names.
SHOWN_CLIENTS = 4
#: Between the kill and the restart of brokers.
DOWN_S = 0.5

R = TypeVar("R", bound=ClientResult)
#: Receives sentences for a progress display.
Progress = Callable[[str], None]
#: Measures a plan.
Run = Callable[[BenchPlan], BenchReport]


class Sample(msgspec.Struct):
    """Counters at one moment."""

    at_ns: int
    #: By subscriber: events and publications accepted.
    accepted: list[tuple[int, int]]
    #: Processor seconds, and bytes of resident memory, by node.
    cpu_s: dict[str, float]
    memory: dict[str, int]


class ProcessorTime:
    """Processor time and memory of all processes; the time of killed ones is kept."""

    def __init__(self) -> None:
        #: By node: its role and its process; None once that was killed.
        self._watched: dict[str, tuple[str, psutil.Process | None]] = {}
        #: Time of processes that ended, by node.
        self._ended: dict[str, float] = {}

    def watch(self, role: str, node: str, pid: int) -> None:
        """Count a node's process from now on."""
        self._watched[node] = (role, psutil.Process(pid))

    def retire(self, node: str) -> None:
        """A process is about to be killed: keep the time that it has used."""
        role, process = self._watched[node]
        self._ended[node] = self._ended.get(node, 0.0) + self._time(process)
        self._watched[node] = (role, None)

    def by_node(self) -> dict[str, float]:
        """Processor seconds so far, by node."""
        return {
            node: self._ended.get(node, 0.0) + self._time(process)
            for node, (_, process) in self._watched.items()
        }

    def by_role(self, by_node: dict[str, float]) -> dict[str, float]:
        """The sums of such seconds by role."""
        total: dict[str, float] = {}
        for node, seconds in by_node.items():
            role = self._watched[node][0]
            total[role] = total.get(role, 0.0) + seconds
        return total

    def use(self, warm: Sample, stop: Sample) -> dict[str, ProcessUse]:
        """What every process used between two samples."""
        seconds = (stop.at_ns - warm.at_ns) / 1e9
        used = {node: at_stop - warm.cpu_s.get(node, 0.0) for node, at_stop in stop.cpu_s.items()}
        return {
            node: ProcessUse(
                self._watched[node][0],
                round(cpu_s, 3),
                round(cpu_s / seconds, 3),
                round(stop.memory.get(node, 0) / 2**20, 1),
            )
            for node, cpu_s in used.items()
        }

    def memory(self) -> dict[str, int]:
        """Bytes of resident memory by node; 0 for one that was killed."""
        return {node: self._memory(process) for node, (_, process) in self._watched.items()}

    @staticmethod
    def _time(process: psutil.Process | None) -> float:
        try:
            times = None if process is None else process.cpu_times()
        except psutil.Error:
            return 0.0
        return 0.0 if times is None else float(times.user + times.system)

    @staticmethod
    def _memory(process: psutil.Process | None) -> int:
        try:
            return 0 if process is None else int(process.memory_info().rss)
        except psutil.Error:
            return 0


class WorkerBed(Bed):
    """Worker processes in the directory of a run; a worker's result is NAME.result.json."""

    @property
    def workers(self) -> list[str]:
        """The names of all workers, in the order of their start."""
        return list(self._processes)

    def check(self) -> None:
        """Raise if a worker has ended already."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise UsageError(f"{name} ended too early: {self._failure(name)}")

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the workers are connected."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the processes were not ready within {timeout_s:.0f} s; "
                    "is this machine busy with something else?"
                )
            time.sleep(TICK_S)

    def collect(self, kind: type[R], timeout_s: float) -> list[R]:
        """Wait until all workers have ended; their results, in the order of their start."""
        deadline = time.monotonic() + timeout_s
        results = []
        for name, process in self._processes.items():
            try:
                code = process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise UsageError(f"{name} did not end: {self._failure(name)}") from None
            if code:
                raise UsageError(f"{name} failed: {self._failure(name)}")
            try:
                result = self._result(name, kind)
            except OSError:
                raise UsageError(f"{name} left no result: {self.last_words(name)}") from None
            if result.failure:
                raise UsageError(f"{name} failed: {result.failure}")
            results.append(result)
        return results

    def stop(self) -> None:
        """Kill the workers: none of them has anything to save."""
        for name in self.workers:
            self.kill(name)
        super().stop()

    def _failure(self, name: str) -> str:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return self._result(name, ClientResult).failure
        return self.last_words(name)

    def _result(self, name: str, kind: type[R]) -> R:
        data = (self.directory / f"{name}.result.json").read_bytes()
        return msgspec.json.decode(data, type=kind)


class Bench:
    """One run."""

    def __init__(self, plan: BenchPlan, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self._directory = directory
        self._progress = progress
        self._processes = ProcessorTime()
        self._workers = WorkerBed(directory, arrow=bool(plan.trace or plan.observe))
        #: The cell of the publishers.
        self._cluster = self._make_cluster()
        self._brokers = list(map(str, self._cluster.brokers))
        #: The header of the trace; None if there is no trace.
        self._header: Header | None = None
        if plan.trace:
            self._header = trace_header(plan, self._brokers)
            write_header(Path(plan.trace), self._header)
        (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
        self._counters = BenchCounters(directory / "counters", plan, create=True)

    def _make_cluster(self) -> LocalCluster:
        clients = [self.plan.name_of(role, index) for role, index in self.plan.workers()]
        return make_cluster(self.plan, self._directory, clients, self.plan.cell_channels())

    def _running(self) -> AbstractContextManager[object]:
        """All brokers, while they run."""
        return self._cluster

    def _wait_linked(self) -> None:
        self._cluster.wait_for_links()

    def _watch_brokers(self) -> None:
        for broker in self._brokers:
            self._processes.watch("broker", broker, self._cluster.pid(broker))

    def run(self) -> BenchReport:
        """Start everything, measure, stop everything."""
        try:
            self._progress("starting processes")
            with self._running():
                self._watch_brokers()
                self._inject_fault()
                self._start_workers()
                self._workers.wait_ready(
                    lambda: self._counters.ready() == len(self.plan.workers()), READY_TIMEOUT_S
                )
                self._wait_linked()
                warm, stop = self._measure()
                self._drain()
                results = self._workers.collect(WorkerResult, EXIT_TIMEOUT_S)
                results = results[: self.plan.publishers + self.plan.subscribers]
                suspicions = self._suspicions(results)
            self._finish_trace(warm, stop)
            if self.plan.observe:
                write_labels(Path(self.plan.observe), self.plan, self._cluster)
            return self._report(warm, stop, results, suspicions)
        finally:
            self._workers.stop()
            self._counters.close()

    # ------------------------------------------------------------------- stages

    def _inject_fault(self) -> None:
        plan, brokers = self.plan, self._brokers
        if plan.fault not in CRASHES:
            for faulty in plan.faulty_brokers(brokers):
                victims = plan.fault_targets(brokers)
                self._cluster.make_lie(faulty, plan.fault, percent=plan.percent, victims=victims)

    def _start_workers(self) -> None:
        for role, index in self.plan.workers():
            arguments = [str(self._directory), role, str(index), str(self._workers.lifeline)]
            module = f"quorumcast.bench.{'flooder' if role == 'flooder' else 'worker'}"
            name = self.plan.name_of(role, index)
            worker = self._workers.spawn(name, module, *arguments)
            self._processes.watch(role, name, worker.pid)

    def _check_workers(self) -> None:
        self._workers.check()

    def _sample(self) -> Sample:
        accepted = [self._counters.accepted(i) for i in range(self.plan.subscribers)]
        use = self._processes
        return Sample(time.monotonic_ns(), accepted, use.by_node(), use.memory())

    def _measure(self) -> tuple[Sample, Sample]:
        plan, counters = self.plan, self._counters
        self._progress("measuring")
        if plan.events:
            return self._measure_all()
        counters.signal(Signal.START)
        time.sleep(plan.warmup)
        self._wait_for_events([0] * len(self._counts()))
        warm, before = self._sample(), self._counts()
        counters.signal(Signal.WARM, warm.at_ns)
        killing = self._kill() if plan.fault in CRASHES else iter(())
        end = time.monotonic() + plan.seconds
        while (left := end - time.monotonic()) > 0:
            self._check_workers()
            next(killing, None)
            time.sleep(min(left, TICK_S * 5))
        for _ in killing:
            time.sleep(TICK_S)
        self._wait_for_events(before)
        stop = self._sample()
        counters.signal(Signal.STOP)
        return warm, stop

    def _measure_all(self) -> tuple[Sample, Sample]:
        """Measure a fixed number of events, from the first to the last."""
        start = self._sample()
        self._counters.signal(Signal.WARM, start.at_ns)
        self._counters.signal(Signal.START, start.at_ns)
        ended = self._wait_complete(self._kill() if self.plan.fault in CRASHES else iter(()))
        stop = self._sample()
        stop.at_ns = int(ended * 1e9)
        self._counters.signal(Signal.STOP)
        return start, stop

    def _wait_for_events(self, before: list[int]) -> None:
        """Wait until every count has grown: on a busy machine the time may be over before."""
        if not self.plan.promises_delivery():
            return
        deadline = time.monotonic() + self.plan.stall_timeout_s
        while not all(new > old for new, old in zip(self._counts(), before, strict=True)):
            self._check_workers()
            if time.monotonic() > deadline:
                return
            time.sleep(TICK_S)

    def _counts(self) -> list[int]:
        """Events so far: posted by each publisher on each channel, accepted by each subscriber."""
        posted = [self._counters.posted(lane) for lane in range(self.plan.counted_lanes)]
        return posted + [self._counters.accepted(i)[0] for i in range(self.plan.subscribers)]

    def _kill(self) -> Iterator[None]:
        """Kill f brokers after a third of the time, or so often, and perhaps restart them.

        A step per tick.
        """
        every = self.plan.crash_every
        end = time.monotonic() + self.plan.seconds
        yield from self._kill_after(every or self.plan.seconds / 3)
        while every and time.monotonic() + every < end:
            yield from self._kill_after(every)

    def _kill_after(self, wait_s: float) -> Iterator[None]:
        victims = self.plan.faulty_brokers(self._brokers)
        kill_at = time.monotonic() + wait_s
        while time.monotonic() < kill_at:
            yield
        for victim in victims:
            self._processes.retire(victim)
            self._cluster.kill(victim)
        if self.plan.fault != CRASH_RECOVER:
            return
        restart_at = time.monotonic() + DOWN_S
        while time.monotonic() < restart_at:
            yield
        for victim in victims:
            self._cluster.restart(victim)
            self._processes.watch("broker", victim, self._cluster.pid(victim))
            yield

    def _drain(self) -> None:
        """Wait until all events have arrived, or none has for `stall_timeout`."""
        self._progress("waiting for the last events")
        self._wait_complete(iter(()))
        time.sleep(GRACE_S)
        self._counters.signal(Signal.END)

    def _wait_complete(self, meanwhile: Iterator[None]) -> float:
        """Wait until all events have arrived, or none has for `stall_timeout`.

        Takes a step per tick; returns when the last event arrived.
        """
        counters = self._counters
        seen, since = -1, time.monotonic()
        while not counters.complete():
            self._check_workers()
            next(meanwhile, None)
            total = sum(counters.accepted(i)[0] for i in range(self.plan.subscribers))
            if total != seen:
                seen, since = total, time.monotonic()
            elif time.monotonic() - since > self.plan.stall_timeout_s:
                break
            time.sleep(TICK_S)
        else:
            since = time.monotonic()
        for _ in meanwhile:
            time.sleep(TICK_S)
        return since

    def _finish_trace(self, warm: Sample, stop: Sample) -> None:
        if self._header is not None:
            posted, used = self._counters.total_posted(), self._processes.use(warm, stop)
            write_measured(self.plan, self._header, warm.at_ns, stop.at_ns, posted, used)

    # ------------------------------------------------------------------- report

    def _suspicions(self, results: list[WorkerResult]) -> Suspicions:
        """What correct clients and brokers suspect others of."""
        faulty = self.plan.faulty_brokers(self._brokers)
        correct = [broker for broker in self._brokers if broker not in faulty]
        statuses = [self._cluster.status(broker)["suspicions"] for broker in correct]
        return merge_suspicions([*(result.suspicions for result in results), *statuses])

    def _faulty(self) -> list[str]:
        """The nodes that misbehave or are killed."""
        plan = self.plan
        extra = [plan.name_of(*worker) for worker in plan.workers() if plan.is_extra(*worker)]
        liars = [plan.name_of("publisher", i) for i in range(plan.publishers) if plan.skips]
        return [*plan.faulty_brokers(self._brokers), *extra, *liars]

    def _report(
        self, warm: Sample, stop: Sample, results: list[WorkerResult], suspicions: Suspicions
    ) -> BenchReport:
        plan, published = self.plan, self._counters.total_posted()
        subscribers = [result for result in results if result.role == "subscriber"]
        accepted = [result.accepted for result in subscribers]
        seconds = (stop.at_ns - warm.at_ns) / 1e9
        rates = [
            ((after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds)
            for before, after in zip(warm.accepted, stop.accepted, strict=True)
        ]
        slowest = min(rates)
        processes = self._processes.use(warm, stop)
        used = self._processes.by_role({node: use.cpu_s for node, use in processes.items()})
        handled = sum(events for events, _ in rates) / len(rates) * seconds
        by_brokers = len(list(self._directory.rglob("*.evidence")))
        return BenchReport(
            **plan.cell_parameters(),
            fault=plan.fault,
            percent=plan.percent,
            weather=plan.weather,
            seconds=round(seconds, 3),
            publications_per_s=round(slowest[1], 1),
            events_per_s=round(slowest[0], 1),
            latency_ms=latency([ns for result in subscribers for ns in result.latencies_ns]),
            cpu_us_per_event=round(sum(used.values()) / handled * 1e6, 2) if handled else None,
            cpu_us_per_event_by_role={
                role: round(time_s / handled * 1e6, 2) for role, time_s in used.items() if handled
            },
            processes=processes,
            published=published,
            delivered=min(accepted),
            coverage=sum(accepted) / len(accepted) / published if published else None,
            lost=sum(published - events for events in accepted),
            **totals(subscribers, "duplicated", "altered", "disordered", "by_history"),
            suspicions=suspicions,
            correct_suspected=suspicions_of_correct(suspicions, self._faulty()),
            evidence=sum(result.evidence for result in results) + by_brokers,
            trace=plan.trace,
            observe=plan.observe,
        )


def make_cluster(
    plan: BenchPlan,
    directory: Path,
    clients: Sequence[str],
    channels: Mapping[str, Policy | ChannelEntry],
    *,
    arrow: bool = False,
) -> LocalCluster:
    """The cell of a plan."""
    cluster = LocalCluster(
        brokers=plan.brokers,
        f=plan.tolerated(),
        clients=clients,
        channels=channels,
        directory=directory,
        tls=plan.tls,
        host=host_for(plan, directory, clients),
        trace=Path(plan.trace) if plan.trace else None,
        observe=Path(plan.observe) if plan.observe else None,
        arrow=arrow,
        log_level="warning",
    )
    cluster.write_manifest(msgspec.structs.replace(cluster.manifest, **plan.algorithms()))
    return cluster


def write_measured(
    plan: BenchPlan,
    header: Header,
    from_ns: int,
    upto_ns: int,
    events: int,
    processes: dict[str, ProcessUse],
) -> None:
    """Complete the header of a trace with what was measured: without it readers skip the trace."""
    header = msgspec.structs.replace(
        header, from_ns=from_ns, upto_ns=upto_ns, events=events, processes=processes
    )
    write_header(Path(plan.trace), header)


def host_for(plan: BenchPlan, directory: Path, clients: Sequence[str]) -> str:
    """The host of all brokers, with the delays of the plan in every link."""
    host, delays = "127.0.0.1", plan.wan()
    if delays is None:
        return host
    brokers = [f"broker-{number}" for number in range(1, plan.brokers + 1)]
    for link in delays.links:
        one, _, other = link.partition(":")
        if one == other or not {one, other} <= {*brokers, *clients} or {one, other} <= {*clients}:
            ends = ", ".join((*brokers, *clients[:SHOWN_CLIENTS]))
            more = ", …" if len(clients) > SHOWN_CLIENTS else ""
            raise UsageError(
                f"--link {link} joins no broker to another node of this run: {ends}{more}"
            )
    (directory / "wan.json").write_bytes(msgspec.json.encode(delays))
    return wan_host(directory / "wan.json", host)


def trace_header(plan: BenchPlan, brokers: list[str]) -> Header:
    """The header of a traced run; everybody subscribes to everything before START."""
    listening = [
        Listening(plan.name_of("subscriber", index), plan.channel_name(channel))
        for index in range(plan.subscribers)
        for channel in range(plan.channels)
    ]
    extra = [plan.name_of(*worker) for worker in plan.workers() if plan.is_extra(*worker)]
    parameters = CellParameters(
        **plan.cell_parameters(),
        rate=plan.rate,
        durable=plan.durable,
        tls=plan.tls,
        weather=plan.weather,
        digest=choose_digest(plan.digest),
    )
    return Header(
        run=uuid.uuid4().hex,
        source=BENCH,
        version=__version__,
        system=CELL_SYSTEM,
        parameters=msgspec.to_builtins(parameters),
        fault=plan.fault_label,
        publishers=tuple(plan.name_of("publisher", index) for index in range(plan.publishers)),
        listening=tuple(listening),
        faulty=(*plan.faulty_brokers(brokers), *extra),
    )


def latency(samples_ns: list[int]) -> LatencySample:
    """Percentiles, mean and deviation of sampled latencies, in milliseconds."""
    if not samples_ns:
        return LatencySample()
    ordered = sorted(samples_ns)
    last = len(ordered) - 1

    def quantile(share: float) -> float:
        return round(ordered[round(last * share)] / 1e6, 3)

    return LatencySample(
        p50=quantile(0.5),
        p99=quantile(0.99),
        mean=round(fmean(ordered) / 1e6, 3),
        deviation=round(float(np.std(ordered)) / 1e6, 3),
        p90=quantile(0.9),
        p999=quantile(0.999),
        most=quantile(1.0),
    )


def run_bench(
    plan: BenchPlan, progress: Progress = lambda stage: None, kind: type[Bench] = Bench
) -> BenchReport:
    """Measure what the plan says, on this machine."""
    plan.check()
    if plan.trace:
        plan = msgspec.structs.replace(plan, trace=str(place_for(Path(plan.trace))))
    if plan.observe:
        name = f"bench-{plan.policy}-{plan.fault or 'none'}-{time.time_ns() // 1_000_000}"
        place = directory_at(Path(plan.observe) / name)
        plan = msgspec.structs.replace(plan, observe=str(place.resolve()))
    with tempfile.TemporaryDirectory(prefix="quorumcast-bench-") as directory:
        return kind(plan, Path(directory), progress).run()
