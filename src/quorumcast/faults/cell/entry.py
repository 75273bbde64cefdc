"""An entry of the catalogue of faults, and what a faulty node of a cell knows and can use.

A `CatalogueEntry` also says which nodes can commit the fault, which policies still promise validity
meanwhile, and whether it leaves evidence for a third party or only suspicion. The simulator's
checkers hold the cell to that.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.keyring import Keyring
from quorumcast.faults.contract import Fault, FaultSetting
from quorumcast.manifest.manifest import Manifest

S = TypeVar("S", bound=str)


class Role(enum.Enum):
    """Who can commit a fault."""

    BROKER = "broker"
    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


class Footprint(enum.Enum):
    """What a fault leaves behind, at best, with correct nodes that it touches."""

    #: Signed statements that convince a third party, under the policies named by the entry.
    EVIDENCE = "evidence"
    #: Counted and acted upon, but no proof.
    SUSPICION = "suspicion"
    #: Nothing that could be told from bad luck on the network.
    NOTHING = "nothing"


class FaultContext(FaultSetting):
    """What a fault in a cell may know and use: its own node's keys, and nobody else's."""

    __slots__ = ("keyring", "manifest")

    def __init__(
        self,
        node: NodeId,
        manifest: Manifest,
        keyring: Keyring,
        rng: random.Random,
        **setting: Any,
    ) -> None:
        super().__init__(node, rng, **setting)
        self.manifest = manifest
        self.keyring = keyring

    def brokers(self) -> list[NodeId]:
        """The other brokers, in manifest order."""
        return [broker for broker in self.manifest.broker_ids if broker != self.node]

    def broker_victims(self, count: int) -> list[NodeId]:
        """The brokers it aims at: those named, or `count` that it draws."""
        others = self.brokers()
        named = [broker for broker in others if broker in self.victims]
        return named or sorted(self.rng.sample(others, min(count, len(others))))

    def aims(self, options: Iterable[S]) -> list[S]:
        """Those of the options that `victims` names, or else one that it draws."""
        every = list(options)
        named = [option for option in every if option in self.victims]
        return named or ([self.rng.choice(every)] if every else [])

    def channels(self) -> list[Channel]:
        """Every channel of the cell, in manifest order."""
        return [channel.name for channel in self.manifest.channels]

    def any_channel(self) -> Channel:
        """A channel by chance, or one that does not exist if the cell has none."""
        return self.rng.choice(self.channels() or [Channel("no-such-channel")])


class CatalogueEntry(msgspec.Struct, frozen=True):
    """One fault of the catalogue."""

    name: str
    role: Role
    kind: Callable[[str, FaultContext], Fault]
    #: The best that correct nodes can end up with when it strikes.
    trace: Footprint
    description: str
    #: Policies under which the trace is evidence; under the others it is suspicion.
    provable_under: tuple[str, ...] = ()
    #: Policies that promise validity for correct publishers although f brokers do this.
    valid_under: tuple[str, ...] = ()
    #: Whether it stays within what crash protection covers (stopping, never lying).
    benign: bool = False
    #: Policies under which it means anything; empty: all of them.
    only_under: tuple[str, ...] = ()
    #: Whether it means anything only where subscribers have predicates.
    of_rows: bool = False

    def make(self, context: FaultContext) -> Fault:
        """The fault, ready to be given to a driver."""
        return self.kind(self.name, context)
