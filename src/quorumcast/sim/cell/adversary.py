"""The adversary's handle on the world, which enforces the fault model.

Whoever wants to do harm asks here. At most f brokers may ever be *faulty* in a run: lying, wiped,
restarted without the memory that the channel's protection rests on, or gone for good. Any number of
clients may be. A broker that crashes and comes back with its journal is correct and merely late.
Keys stay with their nodes: a fault gets the keyring of the node that commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect
from quorumcast.faults.catalogue import CATALOGUE
from quorumcast.faults.contract import Entry, Fault, FaultContext, Later, Role
from quorumcast.sim.cell.aimed import AIMED
from quorumcast.sim.cell.cells import Cell
from quorumcast.sim.cell.harm import entry_of
from quorumcast.sim.kernel.network import Network
from quorumcast.sim.kernel.node import Node
from quorumcast.sim.kernel.scheduler import Scheduler


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

    __slots__ = (
        "_cell",
        "_faults",
        "_network",
        "_nodes",
        "_scheduler",
        "faulty",
        "injected",
        "lossy",
        "on_fault",
    )

    def __init__(
        self, cell: Cell, scheduler: Scheduler, network: Network, nodes: dict[NodeId, Node]
    ) -> None:
        self._cell = cell
        self._scheduler = scheduler
        self._network = network
        self._nodes = nodes
        #: Every node that may ever misbehave in this run, and how; at most f brokers among them.
        self.faulty: dict[NodeId, str] = {}
        #: What each of them commits, in the order in which it began.
        self._faults: dict[NodeId, list[Fault]] = {}
        #: How many faults were set going.
        self.injected = 0
        #: Brokers that lost their contents in a crash, though not their word.
        self.lossy: dict[NodeId, None] = {}
        #: Whoever keeps a record of what a fault does puts itself around it here.
        self.on_fault: Callable[[NodeId, Fault], Fault] = lambda node, fault: fault

    def is_correct(self, node: NodeId) -> bool:
        """Whether this node follows the protocol for the whole run."""
        return node not in self.faulty

    def declare(self, node: NodeId, how: str) -> None:
        """Count a node among the faulty ones, before the run starts or as it goes."""
        manifest = self._cell.manifest
        if node not in self.faulty and manifest.broker(node) is not None:
            taken = [broker for broker in manifest.broker_ids if broker in self.faulty]
            if len(taken) >= manifest.f:
                raise UsageError(
                    f"{node} cannot be faulty, too: the model allows f={manifest.f} "
                    f"and {', '.join(taken)} already are"
                )
        self.faulty.setdefault(node, how)

    def corrupt(
        self,
        node: NodeId,
        fault: str,
        *,
        percent: int = 100,
        victims: tuple[str, ...] = (),
        shared: dict[bytes, bytes] | None = None,
        attack: Callable[[FaultContext], Fault] | None = None,
    ) -> None:
        """Make a node misbehave from now on, in this way beside those that it has already."""
        if attack is None:
            self._checked(node, fault)
        self.declare(node, fault)
        context = FaultContext(
            node,
            self._cell.manifest,
            self._cell.keyrings[node],
            self._scheduler.fork(f"fault {node}"),
            percent=percent,
            victims=victims,
            shared=shared,
            heard=self._nodes[node].heard,
        )
        make = attack if attack is not None else self._checked(node, fault).make
        faults = self._faults.setdefault(node, [])
        faults.append(make(context))
        committed = faults[0] if len(faults) == 1 else Combined(faults)
        self._nodes[node].fault = self.on_fault(node, committed)
        self.injected += 1

    def _checked(self, node: NodeId, fault: str) -> Entry:
        entry = entry_of(fault)
        if entry is None:
            known = ", ".join((*CATALOGUE, *AIMED))
            raise UsageError(f"there is no fault {fault!r}; choose one of {known}")
        is_broker = self._cell.manifest.broker(node) is not None
        if is_broker != (entry.role is Role.BROKER):
            raise UsageError(f"{fault!r} is a fault of a {entry.role.value}, not of {node}")
        crash_only = any(c.policy.crash_only for c in self._cell.manifest.channels)
        if is_broker and crash_only and not entry.benign:
            raise UsageError(f"crash protection does not cover {fault!r}")
        return entry

    def twin(self, node: NodeId, second_side: tuple[NodeId, ...]) -> None:
        """Start a second honest copy behind one key, for some of the peers."""
        self.declare(node, "twin")
        self._nodes[node].split(second_side)
        self._network.break_all(node)
        self.injected += 1

    def crash(
        self,
        node: NodeId,
        *,
        wipe: bool = False,
        tear: int = 0,
        corrupt: bool = False,
        remembers: bool = True,
    ) -> None:
        """Stop a node; `remembers` says whether what it vouched for is in its journal.

        A broker that forgets what it vouched for may contradict itself: it counts as faulty,
        whether its disk was wiped or is found damaged. One whose last writes were torn does not:
        nobody was told about them.
        """
        if self._cell.manifest.broker(node) is not None:
            if wipe or corrupt or not remembers:
                self.declare(node, "amnesia")
            self.lossy[node] = None
        self._nodes[node].crash(wipe=wipe, tear=tear, corrupt=corrupt)
        self._network.break_all(node)
        self.injected += 1

    def has_lost_contents(self) -> bool:
        """Whether more brokers are faulty or have lost their contents than the model allows for.

        Journals keep a broker's word, not its contents.
        """
        lost = dict.fromkeys((*self.lossy, *self.faulty))
        brokers = [name for name in lost if self._cell.manifest.broker(name) is not None]
        return len(brokers) > self._cell.manifest.f

    def damage(self, node: NodeId) -> None:
        """Damage a running node's disk: it goes on, and forgets everything when it restarts."""
        self.declare(node, "amnesia")
        self._nodes[node].disk.damaged = True
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
