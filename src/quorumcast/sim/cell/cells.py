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


@cache
def _identities(
    brokers: int, clients: tuple[NodeId, ...]
) -> tuple[Identity, dict[NodeId, Identity]]:
    seeds = repeatable_seeds(CELL_NAME)
    names = [*broker_names(brokers), *clients]
    operator = Identity(NodeId("operator"), seeds("operator"))
    return operator, {name: Identity(name, seeds(name)) for name in names}


@cache
def _keyrings(brokers: int, clients: tuple[NodeId, ...]) -> dict[NodeId, Keyring]:
    manifest = _manifest(brokers, 0, (), clients)
    _, identities = _identities(brokers, clients)
    return {name: manifest.keyring(identity) for name, identity in identities.items()}


def broker_names(count: int) -> tuple[NodeId, ...]:
    """The brokers of a cell of that size, in manifest order."""
    return tuple(NodeId(f"broker-{index}") for index in range(1, count + 1))


def identity_of(brokers: int, node: NodeId) -> Identity:
    """The identity of a node in cells of that size."""
    return _identities(brokers, CLIENTS)[1][node]


def life_of(broker: NodeId, number: int = 1) -> bytes:
    """The identifier of a broker's first, second, … life."""
    return hashlib.sha256(f"life {number} of {broker}".encode()).digest()


def operator_of(brokers: int) -> Identity:
    """The operator of cells of that size."""
    return _identities(brokers, CLIENTS)[0]


@cache
def _manifest(
    brokers: int, f: int, channels: tuple[ChannelEntry, ...], clients: tuple[NodeId, ...]
) -> Manifest:
    operator, identities = _identities(brokers, clients)
    manifest, _ = make_cell(
        CELL_NAME,
        [(name, "127.0.0.1", 7000 + port) for port, name in enumerate(broker_names(brokers))],
        f,
        clients,
        channels,
        operator=operator,
        identities=identities,
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
    return Cell(_manifest(brokers, f, tuple(channels), more), dict(_keyrings(brokers, more)))


def channel_entry(
    name: str,
    policy: Policy,
    publishers: tuple[str, ...] = (EVERYONE,),
    subscribers: tuple[str, ...] = (EVERYONE,),
) -> ChannelEntry:
    """A channel for a simulated cell."""
    return ChannelEntry(Channel(name), policy, publishers, subscribers)
