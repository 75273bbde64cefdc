"""The client: connect with a manifest and an identity, publish, subscribe.

    async with await connect("cell/manifest.json", "cell/alice.identity") as node:
        async with node.publisher("orders") as orders:
            await orders.publish(b"payload")
        async with node.subscribe("orders") as orders:
            async for event in orders:
                print(event.payload, event.publisher, event.votes)

`quorumcast.client.sync` is the blocking version, for programs without an event loop.
"""

from __future__ import annotations

from pathlib import Path

from quorumcast.client.arguments import check_seat, check_seated, check_times
from quorumcast.client.events import Batch, BufferFull, Event, Gap, GapError, GapReason
from quorumcast.client.instrumentation import Instrumentation
from quorumcast.client.named.letters import DeadLetter
from quorumcast.client.named.subscription import Delivery, NamedSubscription
from quorumcast.client.node import Node
from quorumcast.client.publishing import Publisher
from quorumcast.client.resuming import Resumption
from quorumcast.client.subscription import Subscription
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_identity, read_manifest
from quorumcast.runtime.loop import run
from quorumcast.traces.recorder import Recorder


async def connect(
    manifest: str | Path,
    identity: str | Path,
    *,
    timeout_s: float = 30.0,
    seat: int = 0,
    recorder: Recorder | None = None,
    observe: str | Path | None = None,
) -> Node:
    """Connect to every broker of a cell; returns as soon as n-f of them answer.

    Processes that share an identity each take a `seat` of their own, 1 to 64; otherwise the
    newest would displace the others.

    `recorder` records everything published and accepted (for measurements). Observations of brokers
    are written below the directory `observe`, for 'quorumcast pipeline audit'. Raises `UsageError`
    if the files are wrong or too few brokers answer.
    """
    check_times(timeout_s=timeout_s)
    check_seat(seat)
    path = Path(manifest)
    who = read_identity(identity)
    check_seated(who.name, seat)
    node = Node(read_manifest(path), who.at_seat(seat), path, Instrumentation(recorder, observe))
    await node.start(timeout_s)
    return node


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
