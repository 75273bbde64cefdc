"""What a client that floods leaves to the others.

For every kind of flood there are two runs right after one another, with the same processes: in the
first the flooder says nothing. Of the second these are compared with the budgets:

- *share*: the part of the brokers' processor time that was spent on the flooder, as the brokers
  measure it themselves (`runtime.fairness`);
- *kept*: the others' rate, as a share of what the rest of the processor time allows: of the rate
  without a flood, times one minus that part;
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

#: At most this part of the brokers' time may be spent on a flooder, …
MOST_SHARE = 0.3
#: … at least this part of what the rest allows is to be left to others, …
LEAST_KEPT = 0.7
#: … and the status page answers within this time.
LONGEST_ANSWER_S = 1.0
#: Offers are for channels with total order.
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
    #: How often the flooder was paused and disconnected, by all brokers together.
    paused: int
    disconnected: int
    lost: int

    @property
    def sound(self) -> bool:
        """Whether everything is within its budget."""
        return (
            self.share <= MOST_SHARE
            and self.kept >= LEAST_KEPT
            and self.status_page_s <= LONGEST_ANSWER_S
            and self.lost == 0
        )


class Measured(msgspec.Struct, frozen=True):
    """A run, and what brokers said of the flooder."""

    report: BenchReport
    #: Processor seconds of all brokers, and of these for the flooder.
    broker_s: float
    flooder_s: float
    paused: int
    disconnected: int
    status_page_s: float


class Flooded(Bench):
    """A run that looks at the status pages all the time."""

    def __init__(self, plan: BenchPlan, directory: Path, progress: Progress) -> None:
        super().__init__(plan, directory, progress)
        self._longest_s = 0.0
        self._samples: list[tuple[Sample, list[dict[str, Any]]]] = []

    def measured(self) -> Measured:
        """Run, and say what it cost."""
        report = self.run()
        (before, said_before), (after, said_after) = self._samples[0], self._samples[-1]
        return Measured(
            report,
            after.cpu_s["broker"] - before.cpu_s["broker"],
            _of_flooders(said_after, "cpu_s") - _of_flooders(said_before, "cpu_s"),
            int(_of_flooders(said_after, "paused")),
            int(_of_flooders(said_after, "disconnected")),
            self._longest_s,
        )

    def _sample(self) -> Sample:
        sample = super()._sample()
        self._samples.append((sample, self._ask()))
        return sample

    def _check_workers(self) -> None:
        super()._check_workers()
        if len(self._samples) == 1:  # while it is measured
            self._ask()

    def _ask(self) -> list[dict[str, Any]]:
        said = []
        for broker in self._cluster.brokers:
            asked = time.monotonic()
            said.append(self._cluster.status(broker).get("load", {}))
            self._longest_s = max(self._longest_s, time.monotonic() - asked)
        return said


def _of_flooders(said: list[dict[str, Any]], what: str) -> float:
    return sum(
        float(load[what])
        for loads in said
        for client, load in loads.items()
        if client.startswith("flooder")
    )


Run = Callable[[BenchPlan, Progress], Measured]


def run_flooded(plan: BenchPlan, progress: Progress) -> Measured:
    """One run."""
    plan.check()
    with tempfile.TemporaryDirectory(prefix="quorumcast-floods-") as directory:
        return Flooded(plan, Path(directory), progress).measured()


def run_floods(
    plan: BenchPlan, progress: Progress = lambda stage: None, run: Run = run_flooded
) -> list[FloodRow]:
    """Every kind of flood, or the one that the plan names."""
    kinds = [plan.flood] if plan.flood else list(KINDS)
    lines: list[FloodRow] = []
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"there is no flood {kind!r}; choose one of {', '.join(KINDS)}")
        policy = "total" if kind in ORDERED else plan.policy
        quiet = msgspec.structs.replace(plan, policy=policy, flooders=1, flood="")
        progress(f"{kind}: without the flood")
        alone = run(quiet, progress)
        progress(f"{kind}: with it")
        flooded = run(msgspec.structs.replace(quiet, flood=kind), progress)
        lines.append(_line(kind, quiet, alone, flooded))
    return lines


def _line(kind: str, plan: BenchPlan, alone: Measured, flooded: Measured) -> FloodRow:
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
