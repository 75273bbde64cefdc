"""Many seeds, on all cores, summed up as `quorumcast sim --json` prints it.

Every violation carries the one command that replays it. Results come back in the order of the
seeds, whatever the number of workers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from quorumcast.sim.kernel.plan import Outcome
from quorumcast.sim.systems import planted, run_scenario

#: Seeds that a worker takes at a time.
CHUNK = 8


class FailingSeed(msgspec.Struct, frozen=True):
    """A seed whose run broke a property."""

    seed: int
    policy: str
    adversary: str
    property: str
    detail: str
    replay: str


class CampaignFindings(msgspec.Struct, kw_only=True):
    """What a campaign found."""

    scenarios: int = 0
    violations: int = 0
    simulated_s: float = 0.0
    messages: int = 0
    packets: int = 0
    deliveries: int = 0
    faults_injected: int = 0
    false_accusations: int = 0
    false_suspicions: int = 0
    suspicions: int = 0
    evidence: int = 0
    policies: dict[str, int] = msgspec.field(default_factory=dict)
    adversaries: dict[str, int] = msgspec.field(default_factory=dict)
    failures: list[FailingSeed] = msgspec.field(default_factory=list)

    def add(self, outcome: Outcome, variant: str = "") -> None:
        """Take in one run."""
        self.scenarios += 1
        self.violations += bool(outcome.violations)
        self.simulated_s = round(self.simulated_s + outcome.simulated_ms / 1000, 3)
        self.messages += outcome.messages
        self.packets += outcome.packets
        self.deliveries += outcome.deliveries
        self.faults_injected += outcome.faults_injected
        self.false_accusations += outcome.false_accusations
        self.false_suspicions += outcome.false_suspicions
        self.suspicions += outcome.suspicions
        self.evidence += outcome.evidence
        self.policies[outcome.policy] = self.policies.get(outcome.policy, 0) + 1
        self.adversaries[outcome.adversary] = self.adversaries.get(outcome.adversary, 0) + 1
        if outcome.violations:
            first = outcome.violations[0]
            seed = int(outcome.seed)
            self.failures.append(
                FailingSeed(
                    seed,
                    outcome.policy,
                    outcome.adversary,
                    first.property,
                    first.detail,
                    replay_command(outcome, variant),
                )
            )

    def by_property(self) -> dict[str, int]:
        """How many failing seeds each property accounts for."""
        return dict(Counter(failure.property for failure in self.failures))


def replay_command(outcome: Outcome, variant: str = "") -> str:
    """The one command that runs this scenario again."""
    return (
        "quorumcast sim"
        + ("" if outcome.system == "cell" else f" --system {outcome.system}")
        + f" --start {outcome.seed} --seeds 1 "
        f"--policy {outcome.policy} --adversary {outcome.adversary}"
        + (f" --variant {variant}" if variant else "")
    )


class SeedTask(msgspec.Struct, frozen=True):
    """Some seeds for one worker."""

    start: int
    count: int
    policy: str | None
    adversary: str | None
    trace: Path | None = None
    #: A known-bad variant to plant.
    variant: str = ""
    system: str = "cell"


def _run_task(task: SeedTask) -> list[Outcome]:
    seeds = range(task.start, task.start + task.count)
    with planted(task.variant, task.system):
        return [
            run_scenario(seed, task.policy, task.adversary, task.trace, system=task.system)
            for seed in seeds
        ]


def _outcomes(tasks: list[SeedTask], workers: int) -> Iterator[Outcome]:
    if workers == 1 or len(tasks) == 1:
        for task in tasks:
            yield from _run_task(task)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for outcomes in pool.map(_run_task, tasks):
            yield from outcomes


def run_campaign(
    seeds: int,
    start: int = 0,
    policy: str | None = None,
    adversary: str | None = None,
    *,
    system: str = "cell",
    variant: str = "",
    workers: int | None = None,
    progress: Callable[[Outcome], None] | None = None,
    trace: Path | None = None,
) -> CampaignFindings:
    """Run that many seeds; `progress` is told of each as it comes in."""
    tasks = [
        SeedTask(
            first, min(CHUNK, start + seeds - first), policy, adversary, trace, variant, system
        )
        for first in range(start, start + seeds, CHUNK)
    ]
    report = CampaignFindings()
    for outcome in _outcomes(tasks, workers or os.cpu_count() or 1):
        report.add(outcome, variant)
        if progress is not None:
            progress(outcome)
    return report
