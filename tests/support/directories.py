"""A directory without a manifest: listed peers that are all alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quorumcast.core.ids import NodeId
from quorumcast.crypto.directory import Address, PublicKeys
from quorumcast.crypto.identity import Identity


class Peers:
    """One epoch of a network of peers."""

    title = "list of peers"

    def __init__(
        self,
        identities: Iterable[Identity],
        addresses: Mapping[NodeId, Address] | None = None,
        calls: Mapping[NodeId, Sequence[NodeId]] | None = None,
        *,
        instance: str = "demo",
        epoch: int = 1,
    ) -> None:
        self.instance = instance
        self.epoch = epoch
        self.keys = {one.name: PublicKeys(one.verify_key, one.exchange_key) for one in identities}
        self._addresses = addresses or {}
        self._calls = calls or {}

    def address(self, node: NodeId) -> Address | None:
        return self._addresses.get(node)

    def calls(self, node: NodeId) -> Sequence[NodeId]:
        return self._calls.get(node, ())

    def is_broker(self, node: NodeId) -> bool:
        return node in self.keys
