"""The client: connect to a cell under a name, publish, subscribe.

    async with await connect("cell", "alice") as node:
        async with node.publisher("orders") as orders:
            await orders.publish(b"payload")
        async with node.subscribe("orders") as orders:
            async for event in orders:
                print(event.payload, event.publisher, event.votes)

`quorumcast.client.sync` is the blocking version, for programs without an event loop. The names of
`client.api` are imported when first used, since the command line imports `client.options` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumcast.client.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        # Modules of this package and the interpreter's own names are not the API's.
        if not name.startswith("__") or name == "__all__":
            api = import_module("quorumcast.client.api")
            if name in (*api.__all__, "__all__"):
                return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted((*globals(), *import_module("quorumcast.client.api").__all__))
