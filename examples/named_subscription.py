"""Work that is shared, acknowledged and done again: named subscriptions.

bob and carol share the subscription "billing". bob dies in the middle; carol gets what he had not
acknowledged. An order that fails again and again ends on the dead-letter channel.

Run it:  python examples/named_subscription.py
"""

import asyncio

import quorumcast
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry, Group
from quorumcast.manifest.policy import Policy
from quorumcast.testing import LocalCluster

DURABLE = Policy.parse("total+durable")
BILLING = Group(
    "billing", ("bob", "carol"), max_attempts=3, ack_timeout_ms=1000, dead_letter="failed"
)
CHANNELS = {
    "orders": ChannelEntry(Channel("orders"), DURABLE, groups=(BILLING,)),
    "orders/subscriptions": DURABLE,
    "failed": DURABLE,
}


async def main(cluster: LocalCluster) -> None:
    async def node(name: str) -> quorumcast.Node:
        return await quorumcast.connect(cluster.manifest_path, cluster.identity_path(name))

    async with (
        await node("alice") as alice,
        alice.publisher("orders", batching=False) as orders,
    ):
        for number in range(1, 9):
            await orders.publish(f"order {number}".encode())

    bob = await node("bob")
    mine = bob.subscribe_as("orders", "billing", start="earliest", prefetch=4)
    await mine.open()
    for _ in range(2):
        delivery = await anext(mine)
        await delivery.ack()
        print(f"bob:   {delivery.events[0].payload.decode()}")
    await mine.flush()
    await bob.close()  # without a word to the others, as if his machine had stopped

    async with (
        await node("carol") as carol,
        carol.subscribe("failed") as failed,
        carol.subscribe_as("orders", "billing") as billing,
    ):
        done = asyncio.Event()
        working = asyncio.ensure_future(work(billing, done))
        letter = quorumcast.DeadLetter.read((await anext(failed)).payload)
        await done.wait()
        working.cancel()
        order = letter.data().to_pylist()[0]["payload"].decode()
        print(f"failed: {order}, after {letter.attempts} attempts")


async def work(billing: quorumcast.NamedSubscription, done: asyncio.Event) -> None:
    """All is done that can be done; order 5 fails, however often it is tried."""
    left = {3, 4, 6, 7, 8}
    async for delivery in billing:
        order = delivery.events[0].payload.decode()
        print(f"carol: {order}, attempt {delivery.attempt}")
        if order == "order 5":
            await delivery.nack()
            continue
        await delivery.ack()
        left.discard(delivery.position)
        if not left:
            done.set()


if __name__ == "__main__":
    with LocalCluster(channels=CHANNELS) as cluster:
        quorumcast.run(main(cluster))
