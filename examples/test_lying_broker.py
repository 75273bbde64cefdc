"""Test your own consumer against a broker that lies, with the fixtures of this package.

Run it:  pytest examples/test_lying_broker.py
"""

import asyncio

from quorumcast.client import Node
from quorumcast.testing import MemoryCell


async def collect(node: Node, count: int) -> list[bytes]:
    """The consumer under test."""
    payloads: list[bytes] = []
    async with node.subscribe("events", start="earliest") as events:
        async for event in events:
            payloads.append(event.payload)
            if len(payloads) == count:
                return payloads
    return payloads


def test_consumer_with_a_lying_broker_gets_what_was_published(
    quorumcast_lying_cell: MemoryCell,
) -> None:
    async def scenario() -> None:
        async with quorumcast_lying_cell as cell:
            alice, bob = await cell.connect("alice"), await cell.connect("bob")
            consumer = asyncio.create_task(collect(bob, 100))
            async with alice.publisher("events", batching=False) as events:
                for number in range(100):
                    await events.publish(b"%d" % number)
            assert await consumer == [b"%d" % number for number in range(100)]
            assert set(bob.suspicions) <= {"broker-1"}

    asyncio.run(scenario())
