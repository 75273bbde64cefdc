"""The execution of a plan for a tree of cells: as for one cell, with the promises of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from quorumcast.broadcast.relayed import MAX_HOLES
from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.entry import Role
from quorumcast.manifest.policy import Policy
from quorumcast.sim.cell.cells import Cell
from quorumcast.sim.cell.harm import entry_of
from quorumcast.sim.cell.judges.bounds import bounds_of
from quorumcast.sim.cell.judges.facts import CellFacts
from quorumcast.sim.cell.judges.promises import SharedEvidence, promised
from quorumcast.sim.cell.judges.upkeep import Upkeep
from quorumcast.sim.cell.run import CellRun, promises_validity
from quorumcast.sim.cell.world import CellWorld
from quorumcast.sim.kernel.judging import Checker, Promise
from quorumcast.sim.tree.plan import ROOT, TreePlan, cell_name_of
from quorumcast.sim.tree.world import TreeWorld, make_tree

#: The policy whose promise a relaying cell keeps towards its readers, as far as its own brokers
#: lie: f+1 of 2f+1 tell the truth about what the parent said.
ALIKE = "direct"


def keeps_validity(plan: TreePlan) -> bool:
    """Whether every cell promises validity under all faults of the plan."""
    below = [one for one in plan.corruptions if cell_name_of(one.node) != ROOT]
    for corruption in below:
        entry = entry_of(corruption.fault)
        if entry is None or (entry.role is Role.BROKER and ALIKE not in entry.valid_under):
            return False
    top = [one for one in plan.corruptions if cell_name_of(one.node) == ROOT]
    doomed = [(node, how) for node, how in plan.doomed if cell_name_of(node) == ROOT]
    return promises_validity(replace(plan, corruptions=tuple(top), doomed=tuple(doomed)))


class TreeRun(CellRun):
    """The execution of one plan for a tree of cells."""

    plan: TreePlan
    #: The cells by name, the root first.
    tree: dict[str, Cell]

    def make_pool(self) -> Cell:
        self.tree = make_tree(self.plan)
        return self.tree[ROOT]

    def make_world(self, cell: Cell, checkers: Sequence[Checker[CellFacts]]) -> CellWorld:
        return TreeWorld(self.tree, self.plan, checkers)

    def make_bounds(self) -> Mapping[str, int]:
        """For each container the largest of all cells."""
        found: dict[str, int] = {"holes": MAX_HOLES}
        for cell in self.tree.values():
            for name, bound in bounds_of(cell.manifest).items():
                found[name] = max(bound, found.get(name, 0))
        return found

    def forgets(self, broker: NodeId) -> bool:
        """Not below the root: a broker vouches again for what its parent's brokers vouch for."""
        return cell_name_of(broker) == ROOT and super().forgets(broker)

    def promises(self) -> list[Promise[Any]]:
        valid, lies = keeps_validity(self.plan), self.world.lies
        promises = promised(self.plan.policy, valid=valid, lies=lies, policy_of=self._policy_of)
        promises.append(SharedEvidence(self.world.nodes))
        if valid:
            promises.append(Upkeep(self.world.nodes))
        return promises

    def _policy_of(self, node: NodeId) -> Policy:
        return self.world.cell_of(node).manifest.channels[0].policy
