"""The directory of a system: which nodes may talk to each other, with which keys and addresses.

Transport, greeting and keyring use it; each epoch of a system has one. The signed manifest of a
cell is a directory; the neighbours of a node in an overlay or a tree are another.

A peer-to-peer system whose names are keys needs no list: its directory reads `keys` out of the name
and `address` from the records that its machine found before it asked to `Dial`. It brings its own
`Handshake` (`runtime.links.contract`), with keys in the greeting and encrypted sessions.
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


class PublicKeys(msgspec.Struct, frozen=True):
    """The public keys of a node: Ed25519 and X25519."""

    verify_key: bytes
    exchange_key: bytes


class Directory(Protocol):
    """The nodes of one system instance, in one epoch."""

    @property
    def title(self) -> str:
        """What users of this kind of system call it, such as "manifest"."""

    @property
    def instance(self) -> str:
        """The name of this cell, tree, overlay or network, on which two nodes must agree."""

    @property
    def epoch(self) -> int:
        """The epoch, on which two nodes must agree; no key of one epoch is valid in another."""

    @property
    def keys(self) -> Mapping[NodeId, PublicKeys]:
        """The public keys of every known node.

        A cell's seats, further processes of an identity, are not listed (`holder`).
        """

    def address(self, node: NodeId) -> Address | None:
        """The address of a node; None if it cannot be called."""

    def calls(self, node: NodeId) -> Sequence[NodeId]:
        """The nodes that a node calls, and calls again whenever the link ends."""

    def is_broker(self, node: NodeId) -> bool:
        """Whether a node serves others; it is a client otherwise.

        Brokers have their own shares of processor time and of connections that are not proven yet.
        Where all nodes are peers, all are brokers.
        """


def is_kept(directory: Directory, one: NodeId, other: NodeId) -> bool:
    """Whether one of two nodes keeps a link to the other."""
    return other in directory.calls(one) or one in directory.calls(other)
