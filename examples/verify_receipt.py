"""Save the receipt of an event, and let somebody who trusts no broker verify it offline.

Run it:  python examples/verify_receipt.py
"""

from pathlib import Path

import msgspec

import quorumcast
from quorumcast.core.quorum import receipt_votes
from quorumcast.core.statements import Receipt
from quorumcast.crypto.evidence import Court
from quorumcast.manifest.files import read_manifest
from quorumcast.testing import LocalCluster


async def receive(cluster: LocalCluster) -> bytes:
    """One event, and its receipt as JSON."""
    alice = await quorumcast.connect(cluster.manifest_path, cluster.identity_path("alice"))
    bob = await quorumcast.connect(cluster.manifest_path, cluster.identity_path("bob"))
    async with (
        alice,
        bob,
        bob.subscribe("orders") as incoming,
        alice.publisher("orders") as orders,
    ):
        await orders.publish(b"ten apples")
        event = await anext(incoming)
        return msgspec.json.encode(await event.receipt())


def verify(data: bytes, manifest_path: Path) -> None:
    """Needs the manifest and nothing else; `quorumcast verify FILE` does the same."""
    manifest = read_manifest(manifest_path)
    receipt = msgspec.json.decode(data, type=Receipt)
    channel = manifest.channel(receipt.stream.channel)
    court = Court(
        manifest.cell, manifest.broker_ids, manifest.quorums, manifest.keys, manifest.hash
    )
    votes = receipt_votes(manifest.quorums, channel.policy.protection)
    print("valid:", court.why_receipt_fails(receipt, votes) is None)
    forged = msgspec.structs.replace(receipt, contents=receipt.contents.replace(b"ten", b"two"))
    print("forged:", court.why_receipt_fails(forged, votes))


if __name__ == "__main__":
    with LocalCluster(channels={"orders": "ab+history"}) as cluster:
        verify(quorumcast.run(receive(cluster)), cluster.manifest_path)
