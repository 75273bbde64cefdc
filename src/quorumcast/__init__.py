"""Quorumcast: publish/subscribe for people who cannot trust every broker.

Brokers may crash, lie, drop, alter, reorder or delay; subscribers still get exactly what
publishers sent, can prove it, and can name the liar.

    async with await quorumcast.connect("cell", "alice") as node:
        …

`quorumcast.sync` has the same for programs without an event loop. The names below are imported
when first used, so that `import quorumcast` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quorumcast.core.version import __version__

if TYPE_CHECKING:
    from quorumcast.client import (
        Batch,
        BufferFull,
        DeadLetter,
        Delivery,
        Event,
        Gap,
        GapError,
        GapReason,
        NamedSubscription,
        Node,
        Publisher,
        Resumption,
        Subscription,
        UsageError,
        connect,
        run,
        sync,
    )


__all__ = [
    "Batch",
    "BufferFull",
    "DeadLetter",
    "Delivery",
    "Event",
    "Gap",
    "GapError",
    "GapReason",
    "NamedSubscription",
    "Node",
    "Publisher",
    "Resumption",
    "Subscription",
    "UsageError",
    "__version__",
    "connect",
    "run",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name == "sync":
        return importlib.import_module("quorumcast.client.sync")
    if name in __all__:
        return getattr(importlib.import_module("quorumcast.client"), name)
    raise AttributeError(f"module 'quorumcast' has no attribute {name!r}")
