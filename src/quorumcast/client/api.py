"""The names that programs import from `quorumcast` and `quorumcast.client`."""

from __future__ import annotations

from quorumcast.client.events import Batch, BufferFull, Event, Gap, GapError, GapReason
from quorumcast.client.named.letters import DeadLetter
from quorumcast.client.named.subscription import Delivery, NamedSubscription
from quorumcast.client.node import Node, connect
from quorumcast.client.options import Resumption
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.runtime.loop import run

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
    "connect",
    "run",
]
