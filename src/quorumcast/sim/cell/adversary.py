"""The fault model of cells: in one run at most f brokers of each may be faulty, and any client.

A broker is *faulty* if it lies, loses its disk, restarts without the journal that the channel's
protection rests on, or stops for good. A broker that crashes and restarts with its journal is
correct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.core.ids import NodeId
from quorumcast.faults.cell.catalogue import CATALOGUE
from quorumcast.faults.cell.entry import FaultContext, Role
from quorumcast.faults.contract import Fault, FaultSetting
from quorumcast.sim.cell.aimed import AIMED
from quorumcast.sim.cell.cells import Cell
from quorumcast.sim.cell.harm import entry_of
from quorumcast.sim.kernel.adversary import Adversary, FaultModel
from quorumcast.sim.kernel.network import Network
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler


class CellFaults(FaultModel):
    """The nodes of cells that may be faulty together, and the faults that each can commit."""

    def __init__(self, cell_of: Callable[[NodeId], Cell], most_faulty: int | None) -> None:
        super().__init__(0, {})
        self._cell_of = cell_of
        self._most_faulty = most_faulty

    def refusal(self, node: NodeId, faulty: Mapping[NodeId, str]) -> str:
        manifest = self._cell_of(node).manifest
        most = manifest.f if self._most_faulty is None else self._most_faulty
        taken = [broker for broker in manifest.broker_ids if broker in faulty]
        if manifest.broker(node) is None or len(taken) < most:
            return ""
        return (
            f"{node} cannot be faulty, too: the model allows f={most} "
            f"and {', '.join(taken)} already are"
        )

    def maker(self, node: NodeId, fault: str) -> Callable[[FaultContext], Fault]:
        entry = entry_of(fault)
        if entry is None:
            known = (*CATALOGUE, *AIMED)
            raise UsageError(f"there is no fault {fault!r}; {did_you_mean(fault, known)}")
        manifest = self._cell_of(node).manifest
        is_broker = manifest.broker(node) is not None
        if is_broker != (entry.role is Role.BROKER):
            raise UsageError(f"{fault!r} is a fault of a {entry.role.value}, not of {node}")
        crash_only = any(channel.policy.crash_only for channel in manifest.channels)
        if is_broker and crash_only and not entry.benign:
            raise UsageError(f"crash protection does not cover {fault!r}")
        return entry.make

    def context(self, setting: FaultSetting) -> FaultContext:
        cell = self._cell_of(setting.node)
        return FaultContext(
            setting.node,
            cell.manifest,
            cell.keyrings[setting.node],
            setting.rng,
            percent=setting.percent,
            victims=setting.victims,
            shared=setting.shared,
            heard=setting.heard,
        )


class CellAdversary(Adversary):
    """Injects faults into the nodes of one or several cells."""

    def __init__(
        self,
        cell_of: Callable[[NodeId], Cell],
        scheduler: Scheduler,
        network: Network,
        nodes: dict[NodeId, SimulatedNode],
        *,
        most_faulty: int | None = None,
    ) -> None:
        # f may change during a run: `most_faulty` is the largest.
        super().__init__(CellFaults(cell_of, most_faulty), scheduler, network, nodes)
        self._cell_of = cell_of
        #: Brokers that have crashed: journals keep votes, not contents.
        self.lossy: dict[NodeId, None] = {}

    def crash(
        self, node: NodeId, *, wipe: bool = False, tear: int = 0, corrupt: bool = False
    ) -> None:
        """Crash a node; a broker whose disk is wiped or damaged counts as faulty.

        It may contradict what it vouched for. A broker whose last writes were torn cannot: it has
        sent nothing that depends on them.
        """
        if self._cell_of(node).manifest.broker(node) is not None:
            if wipe or corrupt:
                self.declare(node, "amnesia")
            self.lossy[node] = None
        super().crash(node, wipe=wipe, tear=tear, corrupt=corrupt)

    def has_lost_contents(self, node: NodeId) -> bool:
        """Whether more than f brokers of a node's cell are faulty or have lost their contents."""
        manifest = self._cell_of(node).manifest
        lost = dict.fromkeys((*self.lossy, *self.faulty))
        return sum(manifest.broker(name) is not None for name in lost) > manifest.f

    def damage(self, node: NodeId) -> None:
        """Damage a running node's disk: the node forgets everything at its next restart."""
        self.declare(node, "amnesia")
        self._nodes[node].disk.damaged = True
        self.injected += 1
