"""A campaign: many seeds on all cores, summed up as `quorumcast sim --json` prints it.

Each failure has the command that replays it. Results come in the order of the seeds, whatever the
number of workers. Workers end with the process that started them, even if that is killed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path

import msgspec

from quorumcast.cell import CELL_SYSTEM
from quorumcast.sim.kernel.plan import Outcome
from quorumcast.sim.systems import planted, run_scenario, system_of

#: Seeds that a worker takes at a time.
CHUNK = 8
#: Fields of `Outcome` of which a campaign reports the sum.
SUMMED = (
    "messages", "packets", "deliveries", "readers", "filtered_readers", "faults_injected",
    "false_accusations", "false_suspicions", "suspicions", "evidence",
)  # fmt: skip


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
    readers: int = 0
    filtered_readers: int = 0
    faults_injected: int = 0
    false_accusations: int = 0
    false_suspicions: int = 0
    suspicions: int = 0
    evidence: int = 0
    policies: dict[str, int] = msgspec.field(default_factory=dict)
    adversaries: dict[str, int] = msgspec.field(default_factory=dict)
    failures: list[FailingSeed] = msgspec.field(default_factory=list)

    def add(self, outcome: Outcome, variant: str = "") -> None:
        """Add the outcome of one run."""
        self.scenarios += 1
        self.violations += bool(outcome.violations)
        self.simulated_s = round(self.simulated_s + outcome.simulated_ms / 1000, 3)
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.policies[outcome.policy] = self.policies.get(outcome.policy, 0) + 1
        self.adversaries[outcome.adversary] = self.adversaries.get(outcome.adversary, 0) + 1
        for first in outcome.violations[:1]:
            self.failures.append(
                FailingSeed(
                    int(outcome.seed),
                    outcome.policy,
                    outcome.adversary,
                    first.property,
                    first.detail,
                    replay_of(outcome, variant),
                )
            )

    def by_property(self) -> dict[str, int]:
        """How many failing seeds each property accounts for."""
        return dict(Counter(failure.property for failure in self.failures))


def replay_command(
    system: str, seed: int | str, policy: str, adversary: str, variant: str = ""
) -> str:
    """The one command that runs a scenario again."""
    return (
        "quorumcast sim"
        + ("" if system == system_of(CELL_SYSTEM, policy) else f" --system {system}")
        + f" --start {seed} --seeds 1"
        # A system without policies names itself as the kind of its runs.
        + ("" if policy == system else f" --policy {policy}")
        + f" --adversary {adversary}"
        + (f" --variant {variant}" if variant else "")
    )


def replay_of(outcome: Outcome, variant: str = "") -> str:
    """The one command that runs the scenario of an outcome again."""
    return replay_command(outcome.system, outcome.seed, outcome.policy, outcome.adversary, variant)


def _run_seeds(
    seeds: range,
    policy: str | None,
    adversary: str | None,
    trace: Path | None,
    variant: str,
    system: str,
) -> list[Outcome]:
    with planted(variant, system):
        return [run_scenario(seed, policy, adversary, trace, system=system) for seed in seeds]


def _exit_with_parent() -> None:
    """Make this worker exit when the process of its campaign is gone."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _outcomes(
    run: Callable[[range], list[Outcome]], chunks: Sequence[range], workers: int
) -> Iterator[Outcome]:
    if workers == 1 or len(chunks) == 1:
        for seeds in chunks:
            yield from run(seeds)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _exit_with_parent) as pool:
        for outcomes in pool.map(run, chunks):
            yield from outcomes


def run_campaign(
    seeds: int,
    start: int = 0,
    policy: str | None = None,
    adversary: str | None = None,
    *,
    system: str = CELL_SYSTEM,
    variant: str = "",
    workers: int | None = None,
    progress: Callable[[Outcome], None] = lambda outcome: None,
    trace: Path | None = None,
) -> CampaignFindings:
    """Run that many seeds, with a known-bad variant planted if one is named."""
    end = start + seeds
    chunks = [range(first, min(first + CHUNK, end)) for first in range(start, end, CHUNK)]
    run = partial(
        _run_seeds,
        policy=policy,
        adversary=adversary,
        trace=trace,
        variant=variant,
        system=system,
    )
    findings = CampaignFindings()
    for outcome in _outcomes(run, chunks, workers or os.cpu_count() or 1):
        findings.add(outcome, variant)
        progress(outcome)
    return findings
