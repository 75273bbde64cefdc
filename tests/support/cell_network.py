"""A network whose nodes may lie, die, and go from one epoch of the manifest to the next.

What drivers and links do around the machines of a cell, in the fewest words: `sim.members` and
`runtime.epochs` are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from tests.support.cells import Cell, identity_of, life_of
from tests.support.network import HOP_MS, Disk, Network

from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.serving.membership import Adopt, EpochProof, NewManifest
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import Effect, Machine
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import Signed
from quorumcast.faults.contract import Fault, Later
from quorumcast.manifest.files import parse_manifest, sign_manifest
from quorumcast.manifest.manifest import Manifest


class KeptEpoch(msgspec.Struct, frozen=True):
    """What a node keeps of its epoch."""

    manifest: Manifest
    older: tuple[Protection, ...] = ()
    words: tuple[Signed, ...] = ()


class CellNetwork(Network):
    """The nodes of one cell."""

    def __init__(
        self,
        cell: Cell,
        watch: Callable[[int, NodeId, Effect], None],
        note: Callable[..., None],
    ) -> None:
        super().__init__(watch)
        #: Called with what drivers and links do: the node, the words, and to whom they are said.
        self._note = note
        self.faults: dict[NodeId, Fault] = {}
        #: Links that are cut, and that nobody makes again.
        self.severed: set[frozenset[NodeId]] = set()
        #: The operator's newest manifest, and each one as it was signed.
        self.file = cell.manifest
        self._signed: dict[int, bytes] = {}
        self._kept: dict[NodeId, KeptEpoch] = {}
        self._lives: dict[NodeId, int] = {}

    # ----------------------------------------------------------------- nodes

    def manifest_of(self, node: NodeId) -> Manifest:
        """The manifest that a node goes by."""
        return self._kept[node].manifest if node in self._kept else self.file

    def enter(self, node: NodeId, machine: Machine) -> None:
        """A node starts, with what its disk holds, and is linked to all whom it may talk to."""
        self._kept.setdefault(node, KeptEpoch(self.file))
        self.machines[node] = machine
        if isinstance(machine, Broker):
            machine.read_from(self.disks[node])
        self.restore(node)
        self.greet_all(node)

    def start_broker(self, node: NodeId, *, wiped: bool = False) -> None:
        """A broker's next life."""
        if wiped:
            self.disks[node] = Disk()
            self._kept.pop(node, None)
        self._lives[node] = self._lives.get(node, 0) + 1
        kept = self._kept.get(node, KeptEpoch(self.file))
        keyring = kept.manifest.keyring(identity_of(node))
        life = life_of(node, self._lives[node])
        self.enter(node, Broker(kept.manifest, keyring, kept.older, kept.words, life=life))

    def carry_out(self, node: NodeId, effects: list[Effect]) -> None:
        fault = self.faults.get(node)
        doing = effects if fault is None else fault.tamper(effects, Millis(self.now))
        for effect in doing:
            if isinstance(effect, Later):
                self.later(effect.after_ms, node, partial(super().carry_out, node, [effect.effect]))
            else:
                super().carry_out(node, [effect])
            if isinstance(effect, Adopt):
                self.later(0, node, partial(self._adopt, node, effect))

    # ---------------------------------------------------------------- epochs

    def publish_epoch(self, manifest: Manifest) -> None:
        """The operator signs a manifest."""
        self.file = manifest
        signed = sign_manifest(manifest, identity_of("operator"))
        self._signed[manifest.epoch] = msgspec.json.encode(signed)

    def show_file(self, broker: NodeId) -> None:
        """A broker looks at the operator's file."""
        self.happen(broker, NewManifest(self._signed[self.file.epoch]))

    def _adopt(self, node: NodeId, effect: Adopt) -> None:
        """A broker goes by another manifest, or ends if that does not name it."""
        machine, manifest = self.machines[node], parse_manifest(effect.data)
        if manifest.broker(node) is None:
            self.stop(node)
        elif isinstance(machine, Broker):
            self._take(
                node, KeptEpoch(manifest, machine.membership.older_logs(), effect.statements)
            )

    def _take(self, node: NodeId, kept: KeptEpoch) -> None:
        """All links are made anew: a session belongs to one epoch."""
        machine = self.machines[node]
        if isinstance(machine, Broker | Publisher | Subscriber):
            self._kept[node] = kept
            keyring = kept.manifest.keyring(identity_of(node))
            self.carry_out(node, machine.adopt(kept.manifest, keyring))
            self.cut_off(node)
            self.later(HOP_MS, node, partial(self.greet_all, node))

    # ------------------------------------------------------------- greetings

    def greet_all(self, node: NodeId) -> None:
        """Greet everybody; clients greet brokers alone."""
        for other in list(self.machines):
            brokers = [n for n in (node, other) if isinstance(self.machines[n], Broker)]
            there = self.links | self.severed
            if other != node and brokers and frozenset((node, other)) not in there:
                self.greet(node, other)

    def greet(self, one: NodeId, other: NodeId) -> None:
        """Two nodes of one epoch are linked; of two epochs, the one behind is shown the way."""
        behind, ahead = sorted((one, other), key=lambda node: self.manifest_of(node).epoch)
        epoch = self.manifest_of(ahead).epoch
        if self.manifest_of(behind).epoch == epoch:
            self.connect(one, other)
        elif not isinstance(self.machines[behind], Broker):
            self._note(behind, f"READS THE FILE of epoch {self.file.epoch}")
            self._take(behind, KeptEpoch(self.file))
        elif isinstance(guide := self.machines[ahead], Broker):
            words = guide.membership.statements
            shown = " ".join(sorted(signed.signer for signed in words)) or "nobody"
            self._note(ahead, f"Farewell epoch {epoch} on the words of {shown}", behind)
            self.happen(behind, EpochProof(self._signed[epoch], words))
