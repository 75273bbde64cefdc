"""Building blocks of known-bad variants: names of nodes, attacks, and the plans that mount them.

A variant's attack is a function from a seed to a plan, since one run may not expose the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from quorumcast.core.ids import Channel, Millis, NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.faults.cell.base import Tampering
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.contract import Fault, Later
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import PUBLISHERS, SUBSCRIBERS, broker_names, channel_entry
from quorumcast.sim.cell.plan import CellPlan, small_limits
from quorumcast.sim.cell.scenario import ORDERS, QUOTES
from quorumcast.sim.kernel.network import Weather
from quorumcast.sim.kernel.plan import Act, Corruption

B1, B2, B3, B4, B5, B6 = broker_names(6)
PUB1, PUB2 = PUBLISHERS[:2]
SUB1, SUB2 = SUBSCRIBERS[:2]
#: The conspiracy that all attackers of a plan share.
PLOT = "plot"

Rewritten = Sequence[Effect | Later]
#: An attack without state of its own: a fault's node, and what it sends instead of a `Send`.
Rewrite = Callable[[Tampering, Send, Millis], Rewritten]
SeededPlan = Callable[[int], CellPlan]


class Rewriting(Tampering):
    """A fault that rewrites each `Send` by a function."""

    def __init__(self, name: str, context: FaultContext, function: Rewrite) -> None:
        super().__init__(name, context)
        self._function = function

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        return self._function(self, send, now)


def attack(kind: type[Tampering] | Rewrite) -> Callable[[FaultContext], Fault]:
    """The constructor of an attack that is not in the catalogue of faults."""
    if isinstance(kind, type):
        return lambda context: kind(kind.__name__, context)
    return lambda context: Rewriting(kind.__name__, context, kind)


def mount(node: NodeId, kind: type[Tampering] | Rewrite, *victims: str) -> Corruption:
    """The corruption of a node by such an attack."""
    return Corruption(node, kind.__name__, 0, 100, victims, PLOT, attack(kind))


def seeded_plan(
    name: str,
    policy: Policy,
    acts: Iterable[Act],
    corruptions: Sequence[Corruption] = (),
    *,
    channels: Sequence[Channel] = (ORDERS,),
    **others: Any,
) -> SeededPlan:
    """Plans that differ in their seeds only; `others` are further fields of the plan."""
    fields = {
        "brokers": 4,
        "f": 1,
        "weather": Weather(latency_ms=1, jitter_ms=3),
        "publishers": (PUB1,),
        "subscribers": (SUB1, SUB2),
        "patience_ms": 8000,
        "adversary": "siege",
        "channels": tuple(channel_entry(channel, policy) for channel in channels),
        "acts": tuple(sorted(acts, key=lambda act: act.at_ms)),
        "corruptions": tuple(corruptions),
        **others,
    }
    return lambda seed: CellPlan(seed=f"{name} {seed}", policy=policy, **fields)


def joins(*channels: Channel) -> list[Act]:
    """Both subscribers join these channels at the start."""
    return [Act(5, "join", sub, channel) for sub in (SUB1, SUB2) for channel in channels]


def fifo_plan(
    policy: str,
    *corruptions: Corruption,
    acts: Sequence[Act] = (),
    publications: int = 12,
    journal: bool = False,
    **others: Any,
) -> SeededPlan:
    """A busy publisher and two channels without total order."""
    rules = Policy.named(policy, alpha=4, journal=journal, limits=small_limits())
    work = [Act(60 + 6 * n, "submit", PUB1, ORDERS, 1) for n in range(publications)]
    fields = {"calm_at_ms": 350, "patience_ms": 2500, **others}
    both = (ORDERS, QUOTES)
    return seeded_plan(
        "siege", rules, [*joins(*both), *work, *acts], corruptions, channels=both, **fields
    )


def order_plan(
    policy: str,
    *corruptions: Corruption,
    acts: Sequence[Act] = (),
    journal: bool = False,
    **others: Any,
) -> SeededPlan:
    """Two publishers and one totally ordered channel, where every message takes 10 ms."""
    rules = Policy.named(policy, journal=journal, limits=small_limits())
    exact = Weather(latency_ms=10, jitter_ms=0)
    fields = {"weather": exact, "publishers": (PUB1, PUB2), "calm_at_ms": 1800, **others}
    return seeded_plan("order", rules, [*joins(ORDERS), *acts], corruptions, **fields)
