"""The same without an event loop: the synchronous client.

Run it:  python examples/sync_client.py
"""

import quorumcast
from quorumcast.testing import LocalCluster


def main(cluster: LocalCluster) -> None:
    manifest, identity = cluster.manifest_path, cluster.identity_path
    with (
        quorumcast.sync.connect(manifest, identity("alice")) as alice,
        quorumcast.sync.connect(manifest, identity("bob")) as bob,
        bob.subscribe("orders") as incoming,
    ):
        with alice.publisher("orders") as orders:
            for number in range(1, 4):
                orders.publish(f"order {number}".encode())
        for _ in range(3):
            print(incoming.next(timeout_s=30).payload.decode())


if __name__ == "__main__":
    with LocalCluster(channels={"orders": "brb"}) as cluster:
        main(cluster)
