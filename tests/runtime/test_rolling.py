"""Rolling restarts of real brokers: what was retained is there when the last one is back."""

import asyncio

import pytest
from tests.runtime.world import PATIENCE_S, eventually, run

import quorumcast
from quorumcast.client import Gap
from quorumcast.testing import LocalCluster

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

CHANNELS = ("direct", "ab", "brb", "ab+history", "total")
COUNT = 300


async def connect(cluster: LocalCluster, name: str) -> quorumcast.Node:
    return await quorumcast.connect(
        cluster.manifest_path, cluster.identity_path(name), timeout_s=PATIENCE_S
    )


async def publish(node: quorumcast.Node, channel: str, name: str) -> None:
    async with node.publisher(channel, batching=False) as out:
        for number in range(1, COUNT + 1):
            await out.publish(b"%s %d" % (name.encode(), number))


async def read(node: quorumcast.Node, channel: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with node.subscribe(channel, start="earliest") as events:
        async for event in events:
            assert not isinstance(event, Gap)
            found.append(event.payload)
            if len(found) == count:
                break
    return found


def test_rolling_restart_of_all_brokers_loses_nothing_that_is_retained() -> None:
    """alice is gone before it begins; bob stays connected all the time."""

    async def before(bob: quorumcast.Node) -> None:
        async with await connect(cluster, "alice") as alice:
            jobs = [publish(alice, c, "alice") for c in CHANNELS]
            await asyncio.gather(*jobs, *(publish(bob, c, "bob") for c in CHANNELS))

    def held(broker: str) -> dict[str, int]:
        return {held["stream"]: held["next"] for held in cluster.status(broker)["streams"]}

    def level() -> bool:
        first, *others = (held(broker) for broker in cluster.brokers)
        return all(first == other for other in others)

    def roll() -> None:
        # n-f brokers acknowledged. Before one of them forgets, the others must have it as well.
        assert eventually(level)
        for broker in cluster.brokers:
            cluster.restart(broker)
            cluster.wait_for_links()
            assert eventually(lambda b=broker: not cluster.status(b)["catching_up"])  # type: ignore[misc]
        assert "quorumcast_catching_up 0.0" in cluster.metrics(cluster.brokers[-1])

    async def scenario() -> dict[str, list[bytes]]:
        async with await connect(cluster, "bob") as bob:
            await before(bob)
            await asyncio.to_thread(roll)
            async with await connect(cluster, "carol") as carol:
                return {channel: await read(carol, channel, 2 * COUNT) for channel in CHANNELS}

    with LocalCluster(channels={name: name for name in CHANNELS}) as cluster:
        found = run(scenario())
    for channel in CHANNELS:
        for name in (b"alice", b"bob"):
            mine = [payload for payload in found[channel] if payload.startswith(name)]
            assert mine == [b"%s %d" % (name, n) for n in range(1, COUNT + 1)], channel
