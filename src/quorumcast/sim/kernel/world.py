"""A world: nodes, network, disks, adversary and those who watch, in one process and virtual time.

The world only assembles and lets time pass; what happens in it is the business of a `Plan`, and
what ought to have happened that of the checkers. Machines are the production ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Machine
from quorumcast.crypto.keyring import Keyring
from quorumcast.crypto.session import Family
from quorumcast.sim.kernel.adversary import Adversary
from quorumcast.sim.kernel.judging import Checker, Known, Monitor
from quorumcast.sim.kernel.network import Network, Weather
from quorumcast.sim.kernel.node import SimulatedNode, Watcher
from quorumcast.sim.kernel.scheduler import Scheduler


class World(Generic[Known]):
    """What every simulated system has: time, links, nodes, an adversary and judges."""

    adversary: Adversary
    facts: Known
    checkers: Sequence[Checker[Known]]

    def __init__(
        self,
        seed: int | str,
        keyrings: Mapping[NodeId, Keyring],
        family: Family,
        weather: Weather,
        *,
        sync_ms: int = 2,
        coalesce_ms: int = 0,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler, keyrings, family, weather)
        self.nodes: dict[NodeId, SimulatedNode] = {}
        self._watchers: list[Watcher] = list(watchers)
        self._sync_ms = sync_ms
        self._coalesce_ms = coalesce_ms

    def judge(
        self,
        facts: Known,
        checkers: Sequence[Checker[Known]],
        monitor: Callable[[Known, Sequence[Checker[Known]]], Watcher] = Monitor,
    ) -> None:
        """Have the run judged by these, before anybody else looks on."""
        self.facts = facts
        self.adversary = facts.adversary
        self.checkers = checkers
        self._watchers.insert(0, monitor(facts, checkers))
        self.network.on_breach = self._on_breach

    def _on_breach(self, receiver: NodeId, sender: NodeId, how: str) -> None:
        """A session has taken what its peer did not seal for it."""
        if self.adversary.is_correct(receiver) and self.adversary.is_correct(sender):
            self.facts.violate("Sealed sessions", f"{receiver} {how} in the name of {sender}")

    def watch(self, watcher: Watcher) -> None:
        """Let somebody else look on as well."""
        self._watchers.append(watcher)

    def add(
        self, name: NodeId, factory: Callable[[], Machine], calls: Collection[NodeId] = ()
    ) -> SimulatedNode:
        """A node, which calls these others."""
        node = SimulatedNode(
            name,
            factory,
            self.scheduler,
            self.network,
            self._watchers,
            sync_ms=self._sync_ms,
            coalesce_ms=self._coalesce_ms,
        )
        self.nodes[name] = node
        self.network.add(node)
        for other in calls:
            self.network.connect(name, other)
        return node
