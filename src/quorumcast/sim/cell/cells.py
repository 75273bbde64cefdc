"""Simulated cells: manifests, and identities that all scenarios of a process share.

Key pairs are expensive, so identities and pairwise secrets are pure functions of the names and made
once per size of cell. Only the manifest differs between scenarios.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import msgspec

from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.build import make_cell, repeatable_seeds
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy

CELL_NAME = "simulated"
PUBLISHERS = tuple(NodeId(f"pub-{index}") for index in (1, 2, 3))
SUBSCRIBERS = tuple(NodeId(f"sub-{index}") for index in (1, 2, 3, 4))
CLIENTS = (*PUBLISHERS, *SUBSCRIBERS)


class Cell(msgspec.Struct, eq=False):
    """A manifest and the keys of all its nodes."""

    manifest: Manifest
    keyrings: dict[NodeId, Keyring]


Names = tuple[NodeId, ...]


@cache
def _keyrings(cell: str, brokers: Names, clients: Names) -> dict[NodeId, Keyring]:
    manifest = _manifest(cell, brokers, 0, (), clients)
    return {name: manifest.keyring(identity_of(name, cell)) for name in (*brokers, *clients)}


def broker_names(count: int) -> tuple[NodeId, ...]:
    """The brokers of a cell of that size, in manifest order."""
    return tuple(NodeId(f"broker-{index}") for index in range(1, count + 1))


@cache
def identity_of(node: NodeId, cell: str = CELL_NAME) -> Identity:
    """The identity of a node in cells of that name."""
    return Identity(node, repeatable_seeds(cell)(node))


def life_of(broker: NodeId, number: int = 1) -> bytes:
    """The identifier of a broker's first, second, … life."""
    return hashlib.sha256(f"life {number} of {broker}".encode()).digest()


@cache
def operator_of(cell: str = CELL_NAME) -> Identity:
    """The operator of cells of that name."""
    return Identity(NodeId("operator"), repeatable_seeds(cell)("operator"))


@cache
def _manifest(
    cell: str, brokers: Names, f: int, channels: tuple[ChannelEntry, ...], clients: Names
) -> Manifest:
    manifest, _ = make_cell(
        cell,
        [(name, "127.0.0.1", 7000 + port) for port, name in enumerate(brokers)],
        f,
        clients,
        channels,
        operator=operator_of(cell),
        identities={name: identity_of(name, cell) for name in (*brokers, *clients)},
    )
    return manifest


def make_simulated_cell(
    brokers: int,
    f: int,
    channels: Sequence[ChannelEntry],
    clients: Sequence[NodeId] = (),
) -> Cell:
    """A cell of that size with these channels; `clients` are added to the usual ones."""
    more = (*CLIENTS, *(client for client in clients if client not in CLIENTS))
    return make_named_cell(CELL_NAME, broker_names(brokers), f, channels, more)


def make_named_cell(
    cell: str, brokers: Names, f: int, channels: Sequence[ChannelEntry], clients: Names
) -> Cell:
    """A cell with these names and channels."""
    manifest = _manifest(cell, brokers, f, tuple(channels), clients)
    return Cell(manifest, dict(_keyrings(cell, brokers, clients)))


def channel_entry(
    name: str,
    policy: Policy,
    publishers: tuple[str, ...] = (EVERYONE,),
    subscribers: tuple[str, ...] = (EVERYONE,),
) -> ChannelEntry:
    """A channel for a simulated cell."""
    return ChannelEntry(Channel(name), policy, publishers, subscribers)
