"""The adversary: fault injection within the fault model of a system.

All faults of nodes are injected through `Adversary`, which refuses more than the `FaultModel`
allows. The model says how many nodes may be faulty at once, and which faults a node can commit. A
fault holds the keys of its own node only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorumcast.core.errors import UsageError, did_you_mean
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect
from quorumcast.faults.contract import Fault, FaultSetting, Later
from quorumcast.sim.kernel.network import Network
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler


class FaultModel:
    """The number of nodes that may be faulty, and the faults by name; a system may refine it."""

    def __init__(self, most: int, faults: Mapping[str, Callable[[Any], Fault]]) -> None:
        self._most = most
        self._faults = faults

    def refusal(self, node: NodeId, faulty: Mapping[NodeId, str]) -> str:
        """The reason why this node may not be faulty beside these; empty if it may."""
        full = len(faulty) >= self._most
        return f"{node} cannot be faulty, too: {', '.join(faulty)} already are" if full else ""

    def maker(self, node: NodeId, fault: str) -> Callable[[Any], Fault]:
        """The constructor of a named fault; a `UsageError` if this node cannot commit it."""
        if fault not in self._faults:
            raise UsageError(f"there is no fault {fault!r}; {did_you_mean(fault, self._faults)}")
        return self._faults[fault]

    def context(self, setting: FaultSetting) -> Any:
        """The argument of the fault's constructor; a system may add to the setting."""
        return setting


class Combined:
    """Several faults of one node in sequence: each tampers with the effects of the one before."""

    __slots__ = ("_faults", "name")

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.name = " and ".join(fault.name for fault in faults)
        self._faults = faults

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        """The effects after all faults; an effect that one fault delays is final."""
        due, delayed = list(effects), list[Effect | Later]()
        for fault in self._faults:
            tampered = fault.tamper(due, now)
            delayed += [effect for effect in tampered if isinstance(effect, Later)]
            due = [effect for effect in tampered if not isinstance(effect, Later)]
        return [*due, *delayed]


class Adversary:
    """Injects faults within the fault model and records them."""

    def __init__(
        self,
        model: FaultModel,
        scheduler: Scheduler,
        network: Network,
        nodes: Mapping[NodeId, SimulatedNode],
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._network = network
        self._nodes = nodes
        #: Nodes that are faulty at any time of the run, with the name of the first fault of each.
        self.faulty: dict[NodeId, str] = {}
        #: Faults of each node, in order of injection.
        self._faults: dict[NodeId, list[Fault]] = {}
        #: Nodes whose machines run in one process with another node's: they share its fate.
        self.companions: dict[NodeId, tuple[NodeId, ...]] = {}
        #: Number of faults injected so far.
        self.injected = 0
        #: Wraps a fault before it is installed, for example to record its deeds.
        self.on_fault: Callable[[NodeId, Fault], Fault] = lambda node, fault: fault

    def is_correct(self, node: NodeId) -> bool:
        """Whether this node follows the protocol for the whole run."""
        return node not in self.faulty

    def declare(self, node: NodeId, how: str) -> None:
        """Count a node as faulty, before the run starts or during it."""
        refusal = "" if node in self.faulty else self._model.refusal(node, self.faulty)
        if refusal:
            raise UsageError(refusal)
        self.faulty.setdefault(node, how)

    def corrupt(
        self,
        node: NodeId,
        fault: str,
        *,
        percent: int = 100,
        victims: tuple[str, ...] = (),
        shared: dict[bytes, bytes] | None = None,
        attack: Callable[[Any], Fault] | None = None,
    ) -> None:
        """Inject a fault into a node from now on, beside the faults it has already."""
        make = attack if attack is not None else self._model.maker(node, fault)
        self.declare(node, fault)
        setting = FaultSetting(
            node,
            self._scheduler.fork(f"fault {node}"),
            percent=percent,
            victims=victims,
            shared=shared,
            heard=self._nodes[node].heard,
        )
        faults = self._faults.setdefault(node, [])
        faults.append(make(self._model.context(setting)))
        committed = faults[0] if len(faults) == 1 else Combined(faults)
        self._nodes[node].fault = self.on_fault(node, committed)
        self.injected += 1

    def twin(self, node: NodeId, second_side: tuple[NodeId, ...]) -> None:
        """Start a second honest copy of a node with the same keys, which serves these peers."""
        self.declare(node, "twin")
        self._nodes[node].split(second_side)
        self._network.break_all(node)
        self.injected += 1

    def _process(self, node: NodeId) -> tuple[NodeId, ...]:
        return (node, *self.companions.get(node, ()))

    def crash(
        self, node: NodeId, *, wipe: bool = False, tear: int = 0, corrupt: bool = False
    ) -> None:
        """Crash a node; `Disk.crash` explains what is left of its disk."""
        for one in self._process(node):
            self._nodes[one].crash(wipe=wipe, tear=tear, corrupt=corrupt)
            self._network.break_all(one)
        self.injected += 1

    def pause(self, node: NodeId) -> None:
        """Pause a node's process (as SIGSTOP does): the node is slow, not faulty."""
        for one in self._process(node):
            self._nodes[one].pause()
        self.injected += 1

    def resume(self, node: NodeId) -> None:
        """Resume a paused node."""
        for one in self._process(node):
            self._nodes[one].resume()

    def restart(self, node: NodeId) -> None:
        """Restart a crashed node."""
        if not self._nodes[node].up:
            for one in self._process(node):
                self._nodes[one].restart()

    def cut(self, node: NodeId, peer: NodeId) -> None:
        """Break the connection of two nodes; both notice and reconnect."""
        link = self._network.link(node, peer)
        if link is not None and link.sessions:
            self._network.break_link(link)
            self.injected += 1

    def partition(self, group: tuple[NodeId, ...]) -> None:
        """Separate these nodes from all others."""
        self._network.partition(group)
        self.injected += 1
