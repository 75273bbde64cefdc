"""What is to happen in one run, as plain data: the cell, the weather, the workload, the harm.

A `Plan` is drawn from a seed (`scenario.draw`) or written by hand (the attacks on known-bad
variants, regression tests). `run.perform` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.limits import Limits
from quorumcast.faults.contract import Fault, FaultContext
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.judges.facts import Violation
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
    attack: Callable[[FaultContext], Fault] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    seed: int | str
    policy: Policy
    brokers: int
    f: int
    weather: Weather
    publishers: tuple[NodeId, ...]
    subscribers: tuple[NodeId, ...]
    channels: tuple[ChannelEntry, ...]
    acts: tuple[Act, ...]
    corruptions: tuple[Corruption, ...] = ()
    #: Nodes that the world itself treats badly enough to count as faulty, and how.
    doomed: tuple[tuple[NodeId, str], ...] = ()
    calm_at_ms: int = 600
    #: How long promises may take to come true after that, while nothing is accepted.
    patience_ms: int = 6000
    sync_ms: int = 2
    coalesce_ms: int = 0
    #: Publications of each publisher on each of its channels once all is calm; 0 asks for no
    #: receipts either.
    finale: int = 3
    adversary: str = ""
    gaps_allowed: bool = False
    #: Brokers that may come later.
    newcomers: int = 0
    #: Publishers that go on with their streams when they have crashed.
    resuming: tuple[NodeId, ...] = ()
    #: Whether documents and thresholds of the cell are examined before the run.
    documents: bool = False
    #: Steps after which the run is cut off.
    max_steps: int = MAX_STEPS


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run."""

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


def small_limits() -> Limits:
    """Limits small enough for a short run to reach them."""
    return Limits(
        retained_publications=512,
        window=64,
        streams_per_publisher=32,
        publisher_buffer=512,
        vote_window=256,
        segment=8,
        kept_segments=8,
        replay=64,
        pipeline=3,
        checkpoint=6,
    )
