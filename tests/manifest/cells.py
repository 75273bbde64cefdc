"""A small cell that every test of this room starts from."""

from __future__ import annotations

from typing import Any

from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import make_cell, repeatable_seeds
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy

OPERATOR = Identity(NodeId("operator"), b"o" * 32)
ORDERS = ChannelEntry(
    Channel("orders"), Policy.named("ab+history"), publishers=("alice",), subscribers=("*",)
)
NEWS = ChannelEntry(Channel("news"), Policy.named("brb"))


def cell(n: int = 4, f: int = 1, **changes: Any) -> tuple[Manifest, dict[NodeId, Identity]]:
    arguments: dict[str, Any] = {
        "cell": "demo",
        "brokers": [(f"b{i}", "localhost", 7000 + i) for i in range(1, n + 1)],
        "f": f,
        "clients": ["alice", "bob"],
        "channels": [ORDERS, NEWS],
        "operator": OPERATOR,
        "seed_source": repeatable_seeds("tests"),
    }
    return make_cell(**(arguments | changes))


MANIFEST, IDENTITIES = cell()
