"""The adversary's handle on a world, which enforces the fault model of the system.

All harm to nodes goes through here. The `FaultModel` of a system says how many nodes may be faulty
at once, and which faults a node can commit. Keys stay with their nodes: a fault gets those of the
node that commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect
from quorumcast.faults.contract import Fault, FaultSetting, Later
from quorumcast.sim.kernel.network import Network
from quorumcast.sim.kernel.node import SimulatedNode
from quorumcast.sim.kernel.scheduler import Scheduler


class FaultModel:
    """How many nodes may be faulty, and the faults by name; a system may say more."""

    def __init__(self, most: int, faults: Mapping[str, Callable[[Any], Fault]]) -> None:
        self._most = most
        self._faults = faults

    def refusal(self, node: NodeId, faulty: Mapping[NodeId, str]) -> str:
        """Why this node may not be faulty beside these; empty if it may."""
        full = len(faulty) >= self._most
        return f"{node} cannot be faulty, too: {', '.join(faulty)} already are" if full else ""

    def maker(self, node: NodeId, fault: str) -> Callable[[Any], Fault]:
        """What makes the fault of that name; a `UsageError` if this node cannot commit it."""
        if fault not in self._faults:
            known = ", ".join(self._faults)
            raise UsageError(f"there is no fault {fault!r}; choose one of {known}")
        return self._faults[fault]

    def context(self, setting: FaultSetting) -> Any:
        """What a fault of the system gets."""
        return setting


class Combined:
    """Several faults of one node: each tampers with what the one before it left."""

    __slots__ = ("_faults", "name")

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.name = " and ".join(fault.name for fault in faults)
        self._faults = faults

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        """What comes out of all of them; what one of them puts off, the others leave alone."""
        now_due, put_off = list(effects), list[Effect | Later]()
        for fault in self._faults:
            tampered = fault.tamper(now_due, now)
            put_off += [effect for effect in tampered if isinstance(effect, Later)]
            now_due = [effect for effect in tampered if not isinstance(effect, Later)]
        return [*now_due, *put_off]


class Adversary:
    """Harm within the model; everything it did is on record."""

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
        #: Every node that may ever misbehave in this run, and how; no more than the model allows.
        self.faulty: dict[NodeId, str] = {}
        #: What each of them commits, in the order in which it began.
        self._faults: dict[NodeId, list[Fault]] = {}
        #: How many faults were set going.
        self.injected = 0
        #: Wraps a fault before it is installed, for a record of what it does.
        self.on_fault: Callable[[NodeId, Fault], Fault] = lambda node, fault: fault

    def is_correct(self, node: NodeId) -> bool:
        """Whether this node follows the protocol for the whole run."""
        return node not in self.faulty

    def declare(self, node: NodeId, how: str) -> None:
        """Count a node among the faulty ones, before the run starts or as it goes."""
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
        """Make a node misbehave from now on, in this way beside those that it has already."""
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
        """Start a second honest copy behind one key, for some of the peers."""
        self.declare(node, "twin")
        self._nodes[node].split(second_side)
        self._network.break_all(node)
        self.injected += 1

    def crash(
        self, node: NodeId, *, wipe: bool = False, tear: int = 0, corrupt: bool = False
    ) -> None:
        """Stop a node; of its disk is left what `Disk.crash` says."""
        self._nodes[node].crash(wipe=wipe, tear=tear, corrupt=corrupt)
        self._network.break_all(node)
        self.injected += 1

    def pause(self, node: NodeId) -> None:
        """Let a node stand still: it is slow, and not faulty."""
        self._nodes[node].pause()
        self.injected += 1

    def resume(self, node: NodeId) -> None:
        """Let a node go on."""
        self._nodes[node].resume()

    def restart(self, node: NodeId) -> None:
        """Start a stopped node again."""
        if not self._nodes[node].up:
            self._nodes[node].restart()

    def cut(self, node: NodeId, peer: NodeId) -> None:
        """Break the connection of two nodes, which they notice and make anew."""
        link = self._network.link(node, peer)
        if link is not None and link.sessions:
            self._network.break_link(link)
            self.injected += 1

    def partition(self, group: tuple[NodeId, ...]) -> None:
        """Keep these nodes from all others."""
        self._network.partition(group)
        self.injected += 1
