"""One run of the benchmark: a cell, its clients, a stop-watch and an account.

    start brokers → start workers → all ready → START … WARM … (fault) … STOP → drain → END

Rates are counted between WARM and STOP from what subscribers had accepted, by the one that accepted
least; whatever was published from the first event on must arrive by the end, once and unaltered.
The run is over when all of it has, or when nothing more has come for a while: that is lost.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from quorumcast.bench.board import Board, Signal
from quorumcast.bench.labels import label
from quorumcast.bench.plan import (
    CRASH_RECOVER,
    CRASHES,
    BenchPlan,
    BenchReport,
    LatencySample,
    WorkerResult,
)
from quorumcast.bench.tracing import header_of
from quorumcast.core.errors import UsageError
from quorumcast.runtime.digests import choose_digest
from quorumcast.testing.bed import Bed
from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.processes import Child
from quorumcast.traces.drafts import directory_at
from quorumcast.traces.form import Header, place_for, write_header

READY_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 60.0
#: After everything has come: time for what would come twice.
GRACE_S = 0.15
TICK_S = 0.02
#: Between the kill and the restart of brokers.
DOWN_S = 0.5

Progress = Callable[[str], None]


class Sample(msgspec.Struct):
    """Counters at one moment."""

    at_ns: int
    #: By subscriber: events and publications.
    accepted: list[tuple[int, int]]
    #: Processor seconds by role.
    cpu_s: dict[str, float]


class ProcessorTime:
    """The processes whose time counts."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, psutil.Process]] = []
        #: Time of processes that ended.
        self._ended: dict[str, float] = {}

    def watch(self, role: str, pid: int) -> None:
        """Count this one."""
        self._watched.append((role, psutil.Process(pid)))

    def retire(self, pid: int) -> None:
        """This one is about to be killed."""
        for entry in [entry for entry in self._watched if entry[1].pid == pid]:
            role, process = entry
            self._ended[role] = self._ended.get(role, 0.0) + self._time(process)
            self._watched.remove(entry)

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds so far, by role."""
        total = dict(self._ended)
        for role, process in self._watched:
            total[role] = total.get(role, 0.0) + self._time(process)
        return total

    @staticmethod
    def _time(process: psutil.Process) -> float:
        try:
            times = process.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


class Bench:
    """One run."""

    def __init__(self, plan: BenchPlan, directory: Path, progress: Progress) -> None:
        self.plan = plan
        self._directory = directory
        self._progress = progress
        self._processes = ProcessorTime()
        self._bed = Bed(directory)
        self._workers: list[tuple[str, Child]] = []
        policy = plan.channel_policy()
        self._cluster = LocalCluster(
            brokers=plan.brokers,
            f=plan.tolerated(),
            clients=[plan.name_of(role, index) for role, index in plan.workers()],
            channels={plan.channel_name(i): policy for i in range(plan.channels)},
            directory=directory,
            tls=plan.tls,
            trace=Path(plan.trace) if plan.trace else None,
            observe=Path(plan.observe) if plan.observe else None,
            log_level="warning",
        )
        digest = choose_digest(plan.digest)
        if digest != self._cluster.manifest.digest:
            manifest = msgspec.structs.replace(self._cluster.manifest, digest=digest)
            self._cluster.write_manifest(manifest)
        #: Of the trace, if there is to be one.
        self._header: Header | None = None
        if plan.trace:
            self._header = header_of(plan, list(map(str, self._cluster.brokers)))
            write_header(Path(plan.trace), self._header)
        (directory / "plan.json").write_bytes(msgspec.json.encode(plan))
        self._board = Board(directory / "board", plan, create=True)

    def run(self) -> BenchReport:
        """Start everything, measure, stop everything."""
        try:
            self._progress("starting processes")
            with self._cluster:
                for broker in self._cluster.brokers:
                    self._processes.watch("broker", self._cluster.pid(broker))
                self._misbehave()
                self._start_workers()
                self._wait_ready()
                warm, stop = self._measure()
                self._drain()
                results = self._collect()
                suspicions = self._suspicions(results)
            self._end_trace(warm, stop)
            if plan_observes := self.plan.observe:
                label(Path(plan_observes), self.plan, self._cluster)
            return self._report(warm, stop, results, suspicions)
        finally:
            for name, _ in self._workers:
                self._bed.kill(name)
            self._bed.stop()
            self._board.close()

    # ------------------------------------------------------------------- stages

    def _misbehave(self) -> None:
        plan, brokers = self.plan, list(map(str, self._cluster.brokers))
        if plan.fault not in CRASHES:
            for liar in plan.liars(brokers):
                self._cluster.make_lie(liar, plan.fault, victims=plan.aims(brokers))

    def _start_workers(self) -> None:
        for role, index in self.plan.workers():
            name = self.plan.name_of(role, index)
            arguments = [str(self._directory), role, str(index), str(self._bed.lifeline)]
            module = f"quorumcast.bench.{'flooder' if role == 'flooder' else 'worker'}"
            worker = self._bed.spawn(name, module, *arguments)
            self._workers.append((name, worker))
            self._processes.watch(role, worker.pid)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while self._board.ready() < len(self._workers):
            self._check_workers()
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the processes were not ready within {READY_TIMEOUT_S:.0f} s; "
                    "is this machine busy with something else?"
                )
            time.sleep(TICK_S)
        self._cluster.wait_for_links()

    def _check_workers(self) -> None:
        for name, worker in self._workers:
            if worker.poll() is not None:
                raise UsageError(f"{name} ended too early: {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return self._result(name).failure
        return self._bed.last_words(name)

    def _sample(self) -> Sample:
        accepted = [self._board.accepted(i) for i in range(self.plan.subscribers)]
        return Sample(time.monotonic_ns(), accepted, self._processes.cpu_s())

    def _measure(self) -> tuple[Sample, Sample]:
        plan, board = self.plan, self._board
        self._progress("measuring")
        board.signal(Signal.START, time.monotonic_ns())
        time.sleep(plan.warmup)
        self._wait_for_events([0] * len(self._counts()))
        warm, before = self._sample(), self._counts()
        board.signal(Signal.WARM, warm.at_ns)
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
        board.signal(Signal.STOP, time.monotonic_ns())
        return warm, stop

    def _wait_for_events(self, before: list[int]) -> None:
        """Where the machine is busy with others, the time may be over before anything moves."""
        if not self.plan.promises_delivery():
            return
        deadline = time.monotonic() + self.plan.patience_s
        while not all(new > old for new, old in zip(self._counts(), before, strict=True)):
            self._check_workers()
            if time.monotonic() > deadline:
                return
            time.sleep(TICK_S)

    def _counts(self) -> list[int]:
        """Events so far: what each publisher posted on each channel, what each subscriber took."""
        posted = [self._board.posted(lane) for lane in range(self.plan.counted_lanes)]
        return posted + [self._board.accepted(i)[0] for i in range(self.plan.subscribers)]

    def _kill(self) -> Iterator[None]:
        """Kill f brokers after a third of the time, and start them again; a step per tick."""
        victims = self.plan.liars(list(map(str, self._cluster.brokers)))
        kill_at = time.monotonic() + self.plan.seconds / 3
        while time.monotonic() < kill_at:
            yield
        for victim in victims:
            self._processes.retire(self._cluster.pid(victim))
            self._cluster.kill(victim)
        if self.plan.fault != CRASH_RECOVER:
            return
        restart_at = time.monotonic() + DOWN_S
        while time.monotonic() < restart_at:
            yield
        for victim in victims:
            self._cluster.restart(victim)
            self._processes.watch("broker", self._cluster.pid(victim))
            yield

    def _drain(self) -> None:
        """Until everything has come, or nothing comes any more."""
        self._progress("waiting for the last events")
        board = self._board
        seen, since = -1, time.monotonic()
        while not board.complete():
            self._check_workers()
            total = sum(board.accepted(i)[0] for i in range(self.plan.subscribers))
            if total != seen:
                seen, since = total, time.monotonic()
            elif time.monotonic() - since > self.plan.patience_s:
                break
            time.sleep(TICK_S)
        time.sleep(GRACE_S)
        board.signal(Signal.END, time.monotonic_ns())

    def _collect(self) -> list[WorkerResult]:
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        results = []
        for name, worker in self._workers:
            try:
                worker.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise UsageError(f"{name} did not end: {self._last_words(name)}") from None
            if worker.returncode:
                raise UsageError(f"{name} failed: {self._last_words(name)}")
            result = self._result(name)
            if result.failure:
                raise UsageError(f"{name} failed: {result.failure}")
            results.append(result)
        guests = len(self._workers) - self.plan.publishers - self.plan.subscribers
        return results[: len(results) - guests]

    def _result(self, name: str) -> WorkerResult:
        data = (self._directory / f"{name}.result.json").read_bytes()
        return msgspec.json.decode(data, type=WorkerResult)

    def _end_trace(self, warm: Sample, stop: Sample) -> None:
        """Say in the header what was measured; without that the trace is of a broken run."""
        if self._header is not None:
            lanes = range(self.plan.counted_lanes)
            header = msgspec.structs.replace(
                self._header,
                from_ns=warm.at_ns,
                upto_ns=stop.at_ns,
                events=sum(self._board.posted(lane) for lane in lanes),
            )
            write_header(Path(self.plan.trace), header)

    # ------------------------------------------------------------------- account

    def _suspicions(self, results: list[WorkerResult]) -> dict[str, dict[str, int]]:
        """What correct clients and brokers hold against others."""
        brokers = list(map(str, self._cluster.brokers))
        liars = self.plan.liars(brokers)
        voiced = [result.suspicions for result in results]
        voiced += [self._cluster.status(b)["suspicions"] for b in brokers if b not in liars]
        total: dict[str, Counter[str]] = {}
        for suspicions in voiced:
            for suspect, reasons in suspicions.items():
                total.setdefault(suspect, Counter()).update(reasons)
        return {suspect: dict(reasons) for suspect, reasons in total.items()}

    def _report(
        self,
        warm: Sample,
        stop: Sample,
        results: list[WorkerResult],
        suspicions: dict[str, dict[str, int]],
    ) -> BenchReport:
        plan, board = self.plan, self._board
        subscribers = [result for result in results if result.role == "subscriber"]
        published = sum(board.posted(lane) for lane in range(plan.counted_lanes))
        seconds = (stop.at_ns - warm.at_ns) / 1e9
        rates = [
            ((after[0] - before[0]) / seconds, (after[1] - before[1]) / seconds)
            for before, after in zip(warm.accepted, stop.accepted, strict=True)
        ]
        slowest = min(rates)
        used = {role: stop.cpu_s[role] - warm.cpu_s.get(role, 0.0) for role in stop.cpu_s}
        handled = sum(events for events, _ in rates) / len(rates) * seconds
        by_brokers = len(list((self._directory / "evidence").glob("*.evidence")))
        return BenchReport(
            policy=plan.policy,
            alpha=plan.channel_policy().alpha,
            brokers=plan.brokers,
            f=plan.tolerated(),
            publishers=plan.publishers,
            subscribers=plan.subscribers,
            channels=plan.channels,
            size=plan.size,
            batch=plan.batch,
            fault=plan.fault,
            seconds=round(seconds, 3),
            publications_per_s=round(slowest[1], 1),
            events_per_s=round(slowest[0], 1),
            latency_ms=latency([ns for result in subscribers for ns in result.latencies_ns]),
            cpu_us_per_event=round(sum(used.values()) / handled * 1e6, 2) if handled else None,
            cpu_us_per_event_by_role={
                role: round(time_s / handled * 1e6, 2) for role, time_s in used.items() if handled
            },
            published=published,
            delivered=min(result.accepted for result in subscribers),
            lost=sum(published - result.accepted for result in subscribers),
            duplicated=sum(result.duplicated for result in subscribers),
            altered=sum(result.altered for result in subscribers),
            disordered=sum(result.disordered for result in subscribers),
            by_history=sum(result.by_history for result in subscribers),
            suspicions=suspicions,
            evidence=sum(result.evidence for result in results) + by_brokers,
            trace=plan.trace,
            observe=plan.observe,
        )


def latency(samples_ns: list[int]) -> LatencySample:
    """Median, 99th percentile and mean of sampled latencies, in milliseconds."""
    if not samples_ns:
        return LatencySample()
    ordered = sorted(samples_ns)
    last = len(ordered) - 1

    def quantile(share: float) -> float:
        return round(ordered[round(last * share)] / 1e6, 3)

    return LatencySample(quantile(0.5), quantile(0.99), round(sum(ordered) / len(ordered) / 1e6, 3))


def run_bench(plan: BenchPlan, progress: Progress = lambda stage: None) -> BenchReport:
    """Measure what the plan says, on this machine."""
    plan.check()
    if plan.trace:
        plan = msgspec.structs.replace(plan, trace=str(place_for(Path(plan.trace))))
    if plan.observe:
        # Every run has a name of its own, and a directory of that name.
        name = f"bench-{plan.policy}-{plan.fault or 'none'}-{time.time_ns() // 1_000_000}"
        place = directory_at(Path(plan.observe) / name)
        plan = msgspec.structs.replace(plan, observe=str(place.resolve()))
    with tempfile.TemporaryDirectory(prefix="quorumcast-bench-") as directory:
        return Bench(plan, Path(directory), progress).run()
