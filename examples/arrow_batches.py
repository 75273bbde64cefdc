"""A channel with columns: publish Arrow record batches, receive them as they are.

Run it:  python examples/arrow_batches.py
"""

import pyarrow as pa
import pyarrow.compute as pc

import quorumcast
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing import LocalCluster

TRADES = ChannelEntry(
    "trades",
    Policy.named("ab+history"),
    schema=(("symbol", "string"), ("price", "float64"), ("amount", "int64")),
)


async def main(cluster: LocalCluster) -> None:
    alice = await quorumcast.connect(cluster.manifest_path, cluster.identity_path("alice"))
    bob = await quorumcast.connect(cluster.manifest_path, cluster.identity_path("bob"))
    async with alice, bob, bob.subscribe("trades") as incoming:
        async with alice.publisher("trades") as trades:
            batch = pa.record_batch(
                [["CTT", "EDP", "GALP"] * 1000, [7.5, 3.9, 17.2] * 1000, [100, 250, 50] * 1000],
                schema=TRADES.arrow_schema(),
            )
            await trades.publish(batch)  # one publication of 3,000 events
            await trades.publish({"symbol": "CTT", "price": 7.6, "amount": 10})  # one of one
        rows = 0
        async for batch in incoming.batches():
            turnover = pc.sum(pc.multiply(batch.data["price"], batch.data["amount"])).as_py()
            rows += len(batch)
            print(f"publication {batch.number}: {len(batch):,} trades, {turnover:,.0f} in all")
            if rows == 3001:
                break


if __name__ == "__main__":
    with LocalCluster(channels={"trades": TRADES}) as cluster:
        quorumcast.run(main(cluster))
