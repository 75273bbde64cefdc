"""Channels of numbered rows, for tests of the sink."""

import pyarrow as pa

import quorumcast
from quorumcast.client import Batch, run
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing import LocalCluster

#: For brokers and clients on a machine that has much else to do.
PATIENCE_S = 120.0
COLUMNS = (("n", "int64"), ("name", "string"))
SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string())])


def entry(name: str, policy: str = "total") -> ChannelEntry:
    return ChannelEntry(name=Channel(name), policy=Policy.parse(policy), schema=COLUMNS)


def held(cluster: LocalCluster, channel: str) -> list[tuple[int, str]]:
    """Every row of a channel, in order."""
    cluster.wait_executed()
    return run(_held(cluster, channel))


async def _held(cluster: LocalCluster, channel: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    async with (
        await quorumcast.connect(
            cluster.manifest_path, cluster.identity_path("bob"), timeout_s=PATIENCE_S
        ) as node,
        node.subscribe(channel, start="earliest") as events,
    ):
        async for item in events.held():
            assert isinstance(item, Batch)
            found += [(row["n"], row["name"]) for row in item.data.to_pylist()]
    return found
