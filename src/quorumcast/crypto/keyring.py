"""A node's keys towards every other node of its directory, for one epoch.

A pairwise secret comes from X25519 between the two identities through HKDF, bound to instance and
epoch: no key files per pair, and nothing sealed under an old epoch verifies under a new one.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumcast.core.ids import NodeId, Stream, holder
from quorumcast.core.statements import Signed
from quorumcast.crypto.directory import Directory
from quorumcast.crypto.identity import Identity, derive, signature_holds
from quorumcast.crypto.mac import Mac, chain_bytes, same


class Keyring:
    """The secrets shared with each peer, derived when first needed."""

    __slots__ = (
        "_keys",
        "_macs",
        "_secrets",
        "directory",
        "epoch",
        "factory",
        "identity",
        "instance",
    )

    def __init__(
        self, identity: Identity, directory: Directory, factory: Callable[[bytes], Mac]
    ) -> None:
        self.identity = identity
        self.directory = directory
        self.instance = directory.instance
        self.epoch = directory.epoch
        self.factory = factory
        self._keys = directory.keys
        #: Pairwise secrets by peer; at most one per node of the directory, seats have no other.
        self._secrets: dict[NodeId, bytes] = {}
        #: Directed chain MACs by (author, reader); at most two per seat of a node.
        self._macs: dict[tuple[NodeId, NodeId], Mac] = {}

    def adopt(self, following: Keyring) -> None:
        """Switch to the keys of a new epoch, for all users of this keyring."""
        self.identity = following.identity
        self.directory = following.directory
        self.epoch = following.epoch
        self.factory = following.factory
        self._keys = following._keys
        self._secrets.clear()
        self._macs.clear()

    def knows(self, peer: NodeId) -> bool:
        """Whether the directory lists this node."""
        return holder(peer) in self._keys

    def secret(self, peer: NodeId) -> bytes:
        """The secret shared with a peer in this epoch."""
        peer = holder(peer)
        found = self._secrets.get(peer)
        if found is None:
            shared = self.identity.shared_secret(self._keys[peer].exchange_key)
            info = b"quorumcast pair\0" + self.instance.encode() + b"\0" + str(self.epoch).encode()
            found = self._secrets[peer] = derive(shared, info)
        return found

    def _directed(self, author: NodeId, reader: NodeId) -> Mac:
        found = self._macs.get((author, reader))
        if found is None:
            peer = reader if author == self.identity.name else author
            info = b"quorumcast mac\0" + author.encode() + b"\0" + reader.encode()
            found = self._macs[author, reader] = self.factory(derive(self.secret(peer), info))
        return found

    def vouch(
        self,
        reader: NodeId,
        stream: Stream,
        first: int,
        digests: bytes,
        order: tuple[NodeId, ...],
    ) -> bytes:
        """Our MAC over a run of a chain, for one node further down the chain."""
        author = self.identity.name
        run = (stream, first, digests, order)
        covered = chain_bytes(self.instance, self.epoch, author, reader, *run)
        return self._directed(author, reader)(covered)

    def vouched(
        self,
        author: NodeId,
        mac: bytes,
        stream: Stream,
        first: int,
        digests: bytes,
        order: tuple[NodeId, ...],
    ) -> bool:
        """Whether that author made this MAC over this run for us."""
        if author == self.identity.name or not self.knows(author):
            return False
        reader = self.identity.name
        run = (stream, first, digests, order)
        covered = chain_bytes(self.instance, self.epoch, author, reader, *run)
        return same(mac, self._directed(author, reader)(covered))

    def signature_holds(self, signed: Signed) -> bool:
        """Whether the node that a statement names has signed it."""
        keys = self._keys.get(holder(signed.signer))
        return keys is not None and signature_holds(signed, keys.verify_key)
