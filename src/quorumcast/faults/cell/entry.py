"""A line of the catalogue, and what a fault of a node in a cell may know.

A `CatalogueEntry` also says what correct nodes may expect while the fault is about: which nodes can
commit it, which policies still promise validity, and whether it leaves evidence that convinces a
third party, or suspicion only. The checkers of the simulator hold the cell to that.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import Any

import msgspec

from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.keyring import Keyring
from quorumcast.faults.contract import Fault, FaultSetting
from quorumcast.manifest.manifest import Manifest


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
        named = [broker for broker in self.brokers() if broker in self.victims]
        if named:
            return named
        others = self.brokers()
        return sorted(self.rng.sample(others, min(count, len(others))))

    def channels(self) -> list[Channel]:
        """Every channel of the cell, in manifest order."""
        return [channel.name for channel in self.manifest.channels]


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the catalogue."""

    name: str
    role: Role
    description: str
    make: Callable[[FaultContext], Fault]
    #: The best that correct nodes can end up with when it strikes.
    trace: Footprint
    #: Policies under which the trace is evidence; under the others it is suspicion.
    provable_under: tuple[str, ...] = ()
    #: Policies that promise validity for correct publishers although f brokers do this.
    valid_under: tuple[str, ...] = ()
    #: Whether it stays within what crash protection covers (stopping, never lying).
    benign: bool = False
    #: Policies under which it means anything; empty: all of them.
    only_under: tuple[str, ...] = ()
