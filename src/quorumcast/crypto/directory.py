"""Who may talk to whom: what transport, greeting and keyring ask of the system that uses them.

A directory is one epoch of that knowledge. The signed manifest of a cell is one; the neighbours of
a node in an overlay or a tree are another, with `calls` naming those to which links are kept.

Peers that nobody lists, whose name is their key, fit in without a change of the transport. Their
directory answers `keys` by reading the key out of the name, and `address` from the records that
their machine has found, which the system puts there before it asks to `Dial`. How two such peers
greet (keys in the greeting, ephemeral X25519) and seal (an encrypted session) is a `Handshake`
(`runtime.links.contract`) of their own instead of the one that is made from a keyring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from quorumcast.core.ids import NodeId


class Address(msgspec.Struct, frozen=True):
    """Where a node listens."""

    host: str
    port: int
    #: The TLS certificate (PEM) that it must show; empty for a link without TLS.
    certificate: str = ""

    def __str__(self) -> str:
        """Host and port, as people write them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PublicKeys:
    """The public half of a node."""

    __slots__ = ("exchange_key", "verify_key")

    def __init__(self, verify_key: bytes, exchange_key: bytes) -> None:
        self.verify_key = verify_key
        self.exchange_key = exchange_key


class Directory(Protocol):
    """The nodes of one system instance, in one epoch."""

    @property
    def instance(self) -> str:
        """The name of this cell, tree, overlay or network: two nodes that meet must agree on it."""

    @property
    def epoch(self) -> int:
        """Two nodes that meet must agree on it; no key of one epoch is good in another."""

    @property
    def keys(self) -> Mapping[NodeId, PublicKeys]:
        """The public keys of every node that is known; seats are not listed (`holder`)."""

    def address(self, node: NodeId) -> Address | None:
        """Where to call a node; None if it cannot be called."""

    def calls(self, node: NodeId) -> Sequence[NodeId]:
        """Nodes to which a node keeps links by calling them, again and again."""

    def is_broker(self, node: NodeId) -> bool:
        """Whether a node serves others, so that they suffer if it is not heard; else a client."""


def is_kept(directory: Directory, one: NodeId, other: NodeId) -> bool:
    """Whether one of two nodes keeps a link to the other."""
    return other in directory.calls(one) or one in directory.calls(other)
