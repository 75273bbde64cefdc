"""What is to happen in one run, as plain data: the weather, what happens when, the harm.

A plan is drawn from a seed or written by hand (the attacks on known-bad variants, regression
tests). A system extends `Plan` by what it is made of, and `kernel.run` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quorumcast.core.ids import Channel, NodeId
from quorumcast.faults.contract import Fault
from quorumcast.sim.kernel.judging import Violation
from quorumcast.sim.kernel.network import Weather

#: Steps after which a run is cut off: something chatters for ever.
MAX_STEPS = 50_000


class Act(msgspec.Struct, frozen=True):
    """Something that happens at a time; `what` says to whom and how the rest is read."""

    at_ms: int
    what: str
    node: NodeId = NodeId("")
    channel: Channel = Channel("")
    #: How many publications, or for how long.
    amount: int = 0
    peers: tuple[NodeId, ...] = ()


class Corruption(msgspec.Struct, frozen=True):
    """One node that misbehaves from a time on."""

    node: NodeId
    fault: str
    at_ms: int = 0
    percent: int = 100
    victims: tuple[str, ...] = ()
    #: Those of one plot tell one another what they say.
    plot: str = ""
    #: An attack that has no name of its own; `fault` is then only what it is called.
    attack: Callable[[Any], Fault] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run of some system."""

    #: The system that it is a run of, as `systems.find` knows it.
    system: str = "cell"
    seed: int | str
    weather: Weather
    acts: tuple[Act, ...] = ()
    corruptions: tuple[Corruption, ...] = ()
    #: Nodes that the world itself treats badly enough to count as faulty, and how.
    doomed: tuple[tuple[NodeId, str], ...] = ()
    calm_at_ms: int = 600
    #: How long promises may take to come true after that, while there is no progress.
    patience_ms: int = 6000
    sync_ms: int = 2
    coalesce_ms: int = 0
    adversary: str = ""
    #: Steps after which the run is cut off.
    max_steps: int = MAX_STEPS

    @property
    def kind(self) -> str:
        """Which kind of run of its system it is, as outcomes name it; a cell has policies."""
        return self.system

    def parameters(self) -> dict[str, int]:
        """What else tells it from other runs of its kind, by name."""
        return {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

    system: str = "cell"
    seed: int | str
    policy: str
    adversary: str
    violations: list[Violation]
    trace_hash: str
    simulated_ms: int
    messages: int
    packets: int
    deliveries: int
    faults_injected: int
    false_accusations: int
    #: Correct nodes that somebody suspects without a reason: allowed, but worth watching.
    false_suspicions: int
    suspicions: int
    evidence: int
    steps: int
