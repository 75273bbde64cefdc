"""A simulated tree of cells: one clock, one network, and the brokers of every cell.

A broker below the root is a process with two machines: `Broker` in its own cell, and `Uplink`, a
client of the parent cell. Each is a node of its own with its own keys and links. What one tells the
other does not cross the network, and they crash, pause and restart together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from quorumcast.broadcast.relayed import Attach, Follow, ParentEnds, Relayed, RelayedGap
from quorumcast.cell.subscribing.uplink import Uplink
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.manifest import ChannelEntry, ChannelOrigin, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.adversary import CellAdversary
from quorumcast.sim.cell.cells import CELL_NAME, Cell, make_named_cell, make_simulated_cell
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.judging import Checker
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.tree.facts import TreeFacts
from quorumcast.sim.tree.plan import ROOT, Branch, TreePlan, cell_name_of, uplink_of


def make_tree(plan: TreePlan) -> dict[str, Cell]:
    """The cells of a plan by name, the root first and each other behind its parent."""
    uplinks = _uplinks_below(plan, ROOT)
    clients = (*plan.publishers, *plan.subscribers, *uplinks)
    top = [client for client in clients if cell_name_of(client) == ROOT]
    cells = {ROOT: make_simulated_cell(plan.brokers, plan.f, plan.channels, top)}
    for branch in plan.branches:
        parent = cells[branch.name[:-1]].manifest
        channels = [_relayed(entry, parent, branch) for entry in parent.channels]
        cells[branch.name] = make_named_cell(
            f"{CELL_NAME}-{branch.name}",
            branch.broker_names,
            branch.f,
            channels,
            (*branch.readers, *_uplinks_below(plan, branch.name)),
        )
    return cells


def _uplinks_below(plan: TreePlan, name: str) -> tuple[NodeId, ...]:
    return tuple(uplink for branch in plan.below(name) for uplink in branch.uplinks)


def _relayed(entry: ChannelEntry, parent: Manifest, branch: Branch) -> ChannelEntry:
    """A channel that carries on one of the parent cell."""
    limits = entry.policy.limits
    if branch.retained:
        limits = replace(limits, retained_publications=branch.retained)
    name = "relay-total" if entry.policy.total else "relay"
    policy = Policy.named(name, journal=branch.journal, limits=limits)
    where = branch.where if entry.schema else ""
    origin = ChannelOrigin(parent.cell, parent.operator, entry.name, where)
    return ChannelEntry(entry.name, policy, (), schema=entry.schema, origin=origin)


class TreeWorld(CellWorld):
    """The world of one tree of cells."""

    def __init__(
        self,
        tree: Mapping[str, Cell],
        plan: TreePlan,
        checkers: Sequence[Checker[CellFacts]],
    ) -> None:
        #: The cells by name, the root first.
        self.tree = tree
        super().__init__(
            tree[ROOT],
            plan.seed,
            plan.weather,
            checkers,
            sync_ms=plan.sync_ms,
            coalesce_ms=plan.coalesce_ms,
        )

    def cell_of(self, node: NodeId) -> Cell:
        return self.tree[cell_name_of(node)]

    def keyrings(self) -> Mapping[NodeId, Keyring]:
        return {name: ring for cell in self.tree.values() for name, ring in cell.keyrings.items()}

    def make_facts(self, adversary: CellAdversary) -> CellFacts:
        manifests = {name: cell.manifest for name, cell in self.tree.items()}
        return TreeFacts(manifests, adversary)

    def add_brokers(self) -> None:
        """Add every broker of every cell, and the uplinks of those below the root."""
        super().add_brokers()
        for name, cell in self.tree.items():
            if name != ROOT:
                for broker in cell.manifest.broker_ids:
                    self._add_uplink(broker)

    def _add_uplink(self, broker: NodeId) -> None:
        name = uplink_of(broker)
        child, parent = self.cell_of(broker).manifest, self.cell_of(name)

        def make() -> Uplink:
            self.facts.evidence.pop(name, None)
            return Uplink(child, parent.manifest, parent.keyrings[name])

        uplink = self.add(name, make, parent.manifest.broker_ids)
        self.adversary.companions[broker] = (name,)
        for kind in (Attach, ParentEnds, Relayed, RelayedGap):
            uplink.application[kind] = partial(_hand, self.nodes[broker])
        self.nodes[broker].application[Follow] = partial(_hand, uplink)


def _hand(node: SimulatedNode, effect: Effect) -> None:
    """Hand what one machine of a process says to the other, once the first has said all."""
    node.after(0, lambda: node.feed(effect))  # type: ignore[arg-type]
