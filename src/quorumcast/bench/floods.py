"""The suite `floods`: how much a client that floods brokers costs the others.

For every kind of flood there are two successive runs with the same processes; in the first the
flooder is silent. These figures of the second have a budget:

- *share*: the share of the brokers' processor time that was spent on the flooder, as the brokers
  measure it themselves (`runtime.fairness`);
- *kept*: the others' rate, as a share of (1 - share) times the rate without a flood;
- *status page*: the slowest answer of any broker's status page during the flood.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from quorumcast.bench.flooder import KINDS
from quorumcast.bench.plan import BenchPlan, BenchReport
from quorumcast.bench.run import Bench, Progress, Sample
from quorumcast.core.errors import UsageError

#: The budgets of share, kept and status page.
MOST_SHARE = 0.3
LEAST_KEPT = 0.7
LONGEST_ANSWER_S = 1.0
#: Floods that need a channel with total order.
ORDERED = ("offer",)


class FloodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of flood."""

    flood: str
    policy: str
    seats: int
    #: Events per second without the flood, and with it.
    alone_per_s: float
    events_per_s: float
    share: float
    kept: float
    status_page_s: float
    #: How often all brokers together paused and disconnected the flooder.
    paused: int
    disconnected: int
    lost: int

    @property
    def sound(self) -> bool:
        """Whether every figure is within its budget and nothing was lost."""
        return (
            self.share <= MOST_SHARE
            and self.kept >= LEAST_KEPT
            and self.status_page_s <= LONGEST_ANSWER_S
            and self.lost == 0
        )


class FloodMeasurement(msgspec.Struct, frozen=True):
    """A run, and what the brokers' status pages say about the flooder."""

    report: BenchReport
    #: Processor seconds of all brokers, and the part of them that was spent on the flooder.
    broker_s: float
    flooder_s: float
    paused: int
    disconnected: int
    status_page_s: float


class FloodBench(Bench):
    """A run that polls the brokers' status pages."""

    def __init__(self, plan: BenchPlan, directory: Path, progress: Progress) -> None:
        super().__init__(plan, directory, progress)
        self._longest_s = 0.0
        self._samples: list[tuple[Sample, list[dict[str, Any]]]] = []

    def measure_flood(self) -> FloodMeasurement:
        """Run, and read what the flooder cost."""
        report = self.run()
        (before, loads_before), (after, loads) = self._samples[0], self._samples[-1]
        return FloodMeasurement(
            report,
            self._processes.by_role(after.cpu_s)["broker"]
            - self._processes.by_role(before.cpu_s)["broker"],
            _of_flooders(loads, "cpu_s") - _of_flooders(loads_before, "cpu_s"),
            int(_of_flooders(loads, "paused")),
            int(_of_flooders(loads, "disconnected")),
            self._longest_s,
        )

    def _sample(self) -> Sample:
        sample = super()._sample()
        self._samples.append((sample, self._poll_loads()))
        return sample

    def _check_workers(self) -> None:
        super()._check_workers()
        if len(self._samples) == 1:  # between WARM and STOP
            self._poll_loads()

    def _poll_loads(self) -> list[dict[str, Any]]:
        """Each broker's account of its clients."""
        loads = []
        for broker in self._cluster.brokers:
            asked = time.monotonic()
            loads.append(self._cluster.status(broker).get("load", {}))
            self._longest_s = max(self._longest_s, time.monotonic() - asked)
        return loads


def _of_flooders(loads: list[dict[str, Any]], figure: str) -> float:
    return sum(
        float(load[figure])
        for clients in loads
        for client, load in clients.items()
        if client.startswith("flooder")
    )


Run = Callable[[BenchPlan, Progress], FloodMeasurement]


def run_flooded(plan: BenchPlan, progress: Progress) -> FloodMeasurement:
    """One run."""
    plan.check()
    with tempfile.TemporaryDirectory(prefix="quorumcast-floods-") as directory:
        return FloodBench(plan, Path(directory), progress).measure_flood()


def run_floods(
    plan: BenchPlan, progress: Progress = lambda stage: None, run: Run = run_flooded
) -> list[FloodRow]:
    """Every kind of flood, or the one that the plan names."""
    rows: list[FloodRow] = []
    for kind in [plan.flood] if plan.flood else KINDS:
        if kind not in KINDS:
            raise UsageError(f"there is no flood {kind!r}; choose one of {', '.join(KINDS)}")
        policy = "total" if kind in ORDERED else plan.policy
        quiet = msgspec.structs.replace(plan, policy=policy, flooders=1, flood="")
        progress(f"{kind}: without the flood")
        alone = run(quiet, progress)
        progress(f"{kind}: with it")
        flooded = run(msgspec.structs.replace(quiet, flood=kind), progress)
        rows.append(_row(kind, quiet, alone, flooded))
    return rows


def _row(
    kind: str, plan: BenchPlan, alone: FloodMeasurement, flooded: FloodMeasurement
) -> FloodRow:
    share = flooded.flooder_s / flooded.broker_s if flooded.broker_s else 0.0
    allowed = alone.report.events_per_s * (1 - share)
    return FloodRow(
        flood=kind,
        policy=plan.policy,
        seats=plan.flood_seats,
        alone_per_s=alone.report.events_per_s,
        events_per_s=flooded.report.events_per_s,
        share=round(share, 3),
        kept=round(flooded.report.events_per_s / allowed, 3) if allowed else 0.0,
        status_page_s=round(flooded.status_page_s, 3),
        paused=flooded.paused,
        disconnected=flooded.disconnected,
        lost=flooded.report.lost,
    )
