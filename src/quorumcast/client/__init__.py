"""The client: connect with a manifest and an identity, publish, subscribe.

    async with await connect("cell/manifest.json", "cell/alice.identity") as node:
        async with node.publisher("orders") as orders:
            await orders.publish(b"payload")
        async with node.subscribe("orders") as orders:
            async for event in orders:
                print(event.payload, event.publisher, event.votes)

`quorumcast.client.sync` is the blocking version, for programs without an event loop. The names of
`client.api` are imported when first used, since the command line imports `client.options` alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumcast.client.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'quorumcast.client' has no attribute {name!r}")
    return getattr(importlib.import_module("quorumcast.client.api"), name)
