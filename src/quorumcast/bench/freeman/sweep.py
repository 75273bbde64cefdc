"""Runs points and keeps their rows.

Publications that a history delivers count in latencies, as in his. Rounds go through all points in
turn, so that a busy minute does not affect all runs of one point. Each row of a sweep is written as
soon as it is measured, and a sweep that was interrupted goes on with what is missing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from quorumcast.bench.freeman.points import EVENTS, PARTS, SHORT, Line, Point
from quorumcast.bench.plan import BenchPlan, BenchReport, totals
from quorumcast.bench.run import Progress, Run, run_bench
from quorumcast.core.errors import UsageError


class FreemanRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of a point gave, and his figures."""

    part: str
    name: str
    policy: str
    alpha: int
    alpha_max: int
    brokers: int
    topics: int
    publishers: int
    fault: str
    percent: int
    rate: float
    #: From 1; of several rounds, the run with the median rate is shown.
    round: int
    publications_per_s: float
    mean_ms: float | None
    deviation_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    most_ms: float | None
    #: The share of what the subscribers accepted that came by history.
    by_history: float | None
    cpu_us_per_event: float | None
    broker_us_per_event: float | None
    published: int
    delivered: int
    lost: int
    duplicated: int
    altered: int
    #: Whether the cell kept what the policy promises.
    sound: bool
    freeman_pps: int | None
    freeman_mean_ms: float | None
    freeman_deviation_ms: float | None
    freeman_p99_ms: float | None
    #: The rate as a multiple of his.
    ratio: float | None

    @property
    def point(self) -> Point:
        """What was measured."""
        return Point(
            part=self.part,
            line=Line(self.name, self.policy, self.alpha),
            brokers=self.brokers,
            topics=self.topics,
            publishers=self.publishers,
            alpha_max=self.alpha_max,
            fault=self.fault,
            percent=self.percent,
            rate=self.rate,
        )


def measure(point: Point, round_: int, base: BenchPlan, run: Run = run_bench) -> FreemanRow:
    """Run a point once."""
    plan = point.plan(base)
    return _row(point, round_, plan, run(plan))


def _row(point: Point, round_: int, plan: BenchPlan, report: BenchReport) -> FreemanRow:
    latency, figures, rate = report.latency_ms, point.figures, report.publications_per_s
    accepted = report.delivered * plan.subscribers
    return FreemanRow(
        part=point.part,
        name=point.line.name,
        policy=point.line.policy,
        alpha=point.line.alpha,
        alpha_max=point.alpha_max,
        brokers=point.brokers,
        topics=point.topics,
        publishers=point.publishers,
        fault=point.fault,
        percent=point.percent,
        rate=point.rate,
        round=round_,
        publications_per_s=rate,
        mean_ms=latency.mean,
        deviation_ms=latency.deviation,
        p50_ms=latency.p50,
        p90_ms=latency.p90,
        p99_ms=latency.p99,
        p999_ms=latency.p999,
        most_ms=latency.most,
        by_history=round(report.by_history / accepted, 4) if accepted else None,
        cpu_us_per_event=report.cpu_us_per_event,
        broker_us_per_event=report.cpu_us_per_event_by_role.get("broker"),
        **totals([report], "published", "delivered", "lost", "duplicated", "altered"),
        sound=report.sound(plan),
        freeman_pps=figures.publications_per_s,
        freeman_mean_ms=figures.mean_ms,
        freeman_deviation_ms=figures.deviation_ms,
        freeman_p99_ms=figures.p99_ms,
        ratio=round(rate / figures.publications_per_s, 2) if figures.publications_per_s else None,
    )


def summary(rows: Iterable[FreemanRow]) -> list[FreemanRow]:
    """For each point the run with the median rate, with what was wrong in all of its runs."""
    found: dict[Point, list[FreemanRow]] = {}
    for row in rows:
        found.setdefault(row.point, []).append(row)
    result = []
    for runs in found.values():
        runs.sort(key=lambda row: row.publications_per_s)
        result.append(
            msgspec.structs.replace(
                runs[(len(runs) - 1) // 2],
                **totals(runs, "lost", "duplicated", "altered"),
                sound=all(row.sound for row in runs),
            )
        )
    return result


def run_freeman(
    plan: BenchPlan, runs: int, progress: Progress = lambda stage: None, run: Run = run_bench
) -> list[FreemanRow]:
    """The short suite."""
    rows = []
    for round_ in range(1, runs + 1):
        for point in SHORT:
            progress(f"{point}, run {round_} of {runs}")
            rows.append(measure(point, round_, plan, run))
    return summary(rows)


# ------------------------------------------------------------------ the sweep

ROWS, SETTINGS = "rows.jsonl", "settings.json"


class FreemanSweep:
    """A sweep in a directory: rows.jsonl has a row per run, settings.json what all have alike."""

    def __init__(self, directory: Path, plan: BenchPlan, parts: Sequence[str] = ()) -> None:
        unknown = [part for part in parts if part not in PARTS]
        if unknown:
            raise UsageError(f"there is no part {unknown[0]!r}; choose of {', '.join(PARTS)}")
        self.directory = directory
        self._plan = msgspec.structs.replace(plan, events=plan.events or EVENTS, warmup=0.0)
        self._points = [point for part in parts or PARTS for point in PARTS[part]]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._check_settings()
            self.rows = self._read()
        except OSError as error:
            raise UsageError(
                f"{directory} cannot be used ({error.strerror}); choose another directory"
            ) from None

    def _check_settings(self) -> None:
        file, settings = self.directory / SETTINGS, msgspec.json.encode(self._plan)
        if not file.exists():
            file.write_bytes(settings + b"\n")
        elif file.read_bytes().strip() != settings:
            raise UsageError(
                f"{self.directory} has rows that were measured with other options ({SETTINGS}); "
                "repeat those, or choose another directory"
            )

    def _read(self) -> list[FreemanRow]:
        file = self.directory / ROWS
        text = file.read_bytes() if file.exists() else b""
        # A row that was cut short by a crash is measured again.
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            file.write_bytes(whole)
        return [msgspec.json.decode(line, type=FreemanRow) for line in whole.splitlines()]

    def missing(self, runs: int) -> list[tuple[Point, int]]:
        """What is still to be measured: points and rounds, from 1."""
        done = {(row.point, row.round) for row in self.rows}
        rounds = range(1, runs + 1)
        todo = [(point, round_) for round_ in rounds for point in self._points]
        return [one for one in todo if one not in done]

    def run(
        self,
        runs: int,
        progress: Progress = lambda stage: None,
        run: Run = run_bench,
        written: Callable[[list[FreemanRow]], None] = lambda rows: None,
    ) -> list[FreemanRow]:
        """Measure what is missing; `written` gets all rows after each."""
        todo = self.missing(runs)
        with (self.directory / ROWS).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another sweep is writing to {self.directory}; wait for it, or choose another "
                    "directory"
                ) from None
            for index, (point, round_) in enumerate(todo, 1):
                progress(f"{index} of {len(todo)}: {point}, round {round_} of {runs}")
                row = measure(point, round_, self._plan, run)
                file.write(msgspec.json.encode(row) + b"\n")
                file.flush()
                self.rows.append(row)
                written(self.rows)
        return self.rows
