"""Publish and subscribe with asyncio, through four broker processes on this machine.

Run it:  python examples/publish_subscribe.py
"""

import quorumcast
from quorumcast.testing import LocalCluster


async def main(cluster: LocalCluster) -> None:
    alice = await quorumcast.connect(cluster.manifest_path, cluster.identity_path("alice"))
    bob = await quorumcast.connect(cluster.manifest_path, cluster.identity_path("bob"))
    async with alice, bob, bob.subscribe("orders") as incoming:
        async with alice.publisher("orders") as orders:
            await orders.publish(b"ten apples")  # returns when enough brokers hold it
            for number in range(1, 5):
                orders.post(f"{number} pears".encode())  # does not wait; packed with its neighbours
        received = 0
        async for event in incoming:
            print(f"{event.publisher}: {event.payload.decode()} (votes of {len(event.votes)})")
            received += 1
            if received == 5:
                break


if __name__ == "__main__":
    with LocalCluster(channels={"orders": "ab+history"}) as cluster:
        quorumcast.run(main(cluster))
