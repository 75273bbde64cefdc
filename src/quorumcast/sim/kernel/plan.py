"""The plan of one run, as plain data: network conditions, timed acts and fault injection.

A plan is drawn from a seed, or written by hand (attacks on known-bad variants, regression tests).
A system extends `Plan` with its own configuration, and `kernel.run` carries the plan out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from quorumcast.core.ids import Channel, NodeId
from quorumcast.faults.contract import Fault
from quorumcast.sim.kernel.judging import Violation
from quorumcast.sim.kernel.network import Weather

#: Steps after which a run is aborted, since nodes seem to exchange messages for ever.
MAX_STEPS = 50_000


class Act(msgspec.Struct, frozen=True):
    """A timed act; `what` names its kind, which determines the meaning of the other fields."""

    at_ms: int
    what: str
    node: NodeId = NodeId("")
    channel: Channel = Channel("")
    #: Number of publications, duration or the like.
    amount: int = 0
    peers: tuple[NodeId, ...] = ()


class Corruption(msgspec.Struct, frozen=True):
    """The injection of a fault into one node at a time."""

    node: NodeId
    fault: str
    at_ms: int = 0
    percent: int = 100
    victims: tuple[str, ...] = ()
    #: Name of a conspiracy: nodes of one plot share their forged versions.
    plot: str = ""
    #: An attack that is not in the catalogue; `fault` is then only a label.
    attack: Callable[[Any], Fault] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one run of some system."""

    #: The name by which `systems.find` finds the system; each system sets it as a default.
    system: str
    seed: int | str
    weather: Weather
    acts: tuple[Act, ...] = ()
    corruptions: tuple[Corruption, ...] = ()
    #: Nodes that count as faulty because of crashes or lost disks, with the kind of fault.
    doomed: tuple[tuple[NodeId, str], ...] = ()
    #: End of the safety phase and start of the liveness phase.
    calm_at_ms: int = 600
    #: Time without progress in the liveness phase after which pending promises are violations.
    patience_ms: int = 6000
    sync_ms: int = 2
    coalesce_ms: int = 0
    adversary: str = ""
    #: Steps after which the run is aborted.
    max_steps: int = MAX_STEPS

    @property
    def kind(self) -> str:
        """The kind of run, as outcomes report it; for a cell, its policy."""
        return self.system

    def parameters(self) -> dict[str, int]:
        """Further parameters that distinguish runs of one kind, by name."""
        return {}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    system: str
    seed: int | str
    policy: str
    adversary: str
    violations: list[Violation]
    trace_hash: str
    simulated_ms: int
    messages: int
    packets: int
    deliveries: int
    #: Subscriptions, and those among them with predicates.
    readers: int = 0
    filtered_readers: int = 0
    faults_injected: int
    false_accusations: int
    #: Suspicions of correct nodes: allowed, but worth watching.
    false_suspicions: int
    suspicions: int
    evidence: int
    steps: int
