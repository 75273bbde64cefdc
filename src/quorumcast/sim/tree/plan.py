"""The plan of one run of a tree: the root is a cell as any other, with branches below it."""

from __future__ import annotations

import msgspec

from quorumcast.core.ids import NodeId
from quorumcast.sim.cell.plan import CellPlan
from quorumcast.sim.tree import TREE_SYSTEM

#: The name of the root: it has no letter.
ROOT = ""
#: Number of readers that every cell below the root knows.
READERS = 2


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A cell below the root.

    Its name is its way: "a" and "b" are children of the root, "ab" is the second child of "a".
    """

    name: str
    brokers: int = 3
    f: int = 1
    #: Number of publications of each publisher that its brokers retain; 0: as many as the root's.
    retained: int = 0
    #: Whether its brokers keep a journal.
    journal: bool = False
    #: The rows that it carries on of channels with columns; "" for all.
    where: str = ""

    @property
    def broker_names(self) -> tuple[NodeId, ...]:
        """Its brokers, in the order of its manifest."""
        return tuple(NodeId(f"{self.name}.broker-{n}") for n in range(1, self.brokers + 1))

    @property
    def readers(self) -> tuple[NodeId, ...]:
        """Its subscribers, of which not all take part in each run."""
        return tuple(NodeId(f"{self.name}.sub-{n}") for n in range(1, READERS + 1))

    @property
    def uplinks(self) -> tuple[NodeId, ...]:
        """The names that its brokers have in the parent cell."""
        return tuple(map(uplink_of, self.broker_names))


def uplink_of(broker: NodeId) -> NodeId:
    """The name of a broker's uplink, which is a client of the parent cell."""
    return NodeId(f"{broker}.up")


def is_uplink(node: NodeId) -> bool:
    """Whether this is the name of a broker in its parent cell."""
    return node.endswith(".up")


def home_of(node: NodeId) -> str:
    """The name of the cell that a node belongs to."""
    home, dot, _ = node.partition(".")
    return home if dot else ROOT


def cell_name_of(node: NodeId) -> str:
    """The name of the cell in which a node serves, publishes or subscribes."""
    home = home_of(node)
    return home[:-1] if is_uplink(node) else home


class TreePlan(CellPlan, frozen=True, kw_only=True):
    """The plan of one run of a tree; the fields of `CellPlan` are about the root."""

    system: str = TREE_SYSTEM
    #: The cells below the root, each behind its parent.
    branches: tuple[Branch, ...] = ()

    @property
    def kind(self) -> str:
        return "relay-total" if self.policy.total else "relay"

    def below(self, name: str) -> tuple[Branch, ...]:
        """The children of a cell."""
        return tuple(branch for branch in self.branches if branch.name[:-1] == name)

    def branch(self, name: str) -> Branch:
        """The cell of that name below the root."""
        return next(branch for branch in self.branches if branch.name == name)

    def parameters(self) -> dict[str, int]:
        levels = 1 + max((len(branch.name) for branch in self.branches), default=0)
        return {**super().parameters(), "cells": 1 + len(self.branches), "levels": levels}
