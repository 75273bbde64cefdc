"""A simulated world: nodes, network, disks, adversary and watchers, in one process.

The world only assembles these parts. Time is virtual, and the machines are the production ones. A
`Plan` says what happens in the world, and checkers judge it.
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
    """The parts that every simulated system has: scheduler, network, nodes, adversary, checkers."""

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
    ) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler, keyrings, family, weather)
        self.nodes: dict[NodeId, SimulatedNode] = {}
        self._watchers: list[Watcher] = []
        self._sync_ms = sync_ms
        self._coalesce_ms = coalesce_ms

    def judge(
        self,
        facts: Known,
        checkers: Sequence[Checker[Known]],
        monitor: Callable[[Known, Sequence[Checker[Known]]], Watcher] = Monitor,
    ) -> None:
        """Install facts and checkers, ahead of all other watchers."""
        self.facts = facts
        self.adversary = facts.adversary
        self.checkers = checkers
        self._watchers.insert(0, monitor(facts, checkers))
        self.network.on_breach = self._on_breach

    def _on_breach(self, receiver: NodeId, sender: NodeId, how: str) -> None:
        """Report a session that accepted a packet its peer did not seal for it."""
        if self.adversary.is_correct(receiver) and self.adversary.is_correct(sender):
            self.facts.violate("Sealed sessions", f"{receiver} {how} in the name of {sender}")

    def watch(self, watcher: Watcher) -> None:
        """Add a watcher."""
        self._watchers.append(watcher)

    def add(
        self, name: NodeId, factory: Callable[[], Machine], calls: Collection[NodeId] = ()
    ) -> SimulatedNode:
        """Add a node that keeps a link to each of `calls`."""
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
