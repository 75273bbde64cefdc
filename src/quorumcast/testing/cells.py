"""The names, keys and channels of cells for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import make_cell, repeatable_seeds
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy

CLIENTS = ("alice", "bob", "carol", "dave")
#: The channels of a cell for which a test names none.
CHANNELS: Mapping[str, str] = {"events": "ab+history"}


class CellSetup:
    """A manifest and the identities of all its nodes."""

    def __init__(
        self,
        *,
        brokers: int = 4,
        f: int | None = None,
        clients: Sequence[str] = CLIENTS,
        channels: Mapping[str, str | Policy | ChannelEntry] = CHANNELS,
        ports: Sequence[int] | None = None,
        host: str = "127.0.0.1",
        cell: str = "test",
        repeatable: bool = True,
    ) -> None:
        seeds = repeatable_seeds(cell) if repeatable else None
        self.operator = (
            Identity(NodeId("operator"), seeds("operator"))
            if seeds
            else Identity.generate(NodeId("operator"))
        )
        self.manifest: Manifest
        self.manifest, self.identities = make_cell(
            cell,
            [(f"broker-{i}", host, ports[i - 1] if ports else i) for i in range(1, brokers + 1)],
            (brokers - 1) // 3 if f is None else f,
            list(clients),
            [channel_entry(name, policy) for name, policy in channels.items()],
            operator=self.operator,
            seed_source=seeds,
        )


def channel_entry(name: str, policy: str | Policy | ChannelEntry) -> ChannelEntry:
    """The channel with this policy; an entry stands for itself."""
    if isinstance(policy, ChannelEntry):
        return policy
    chosen = Policy.named(policy) if isinstance(policy, str) else policy
    return ChannelEntry(Channel(name), chosen)
