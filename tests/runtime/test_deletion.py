"""Channels with total order that are deleted: their publications leave the disks of all brokers."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.runtime.world import PATIENCE_S, run

from quorumcast.client import Node, connect
from quorumcast.core.ids import Channel
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing.cluster import LocalCluster

pytestmark = [pytest.mark.runtime]

#: The second begins with the name of the first.
KEPT, GONE = "plant", "plant/log"
POLICY = Policy.parse("total+durable")
#: Publications of the deleted channel and their bytes: more than a segment holds.
COUNT = 120
LARGE = 100_000


async def node(cell: LocalCluster, name: str) -> Node:
    return await connect(cell.manifest_path, cell.identity_path(name), timeout_s=PATIENCE_S)


async def publish(alice: Node, channel: str, prefix: bytes, count: int) -> None:
    async with alice.publisher(channel) as out:
        for number in range(count):
            out.post(prefix + b"%d" % number + bytes(LARGE))
        await out.flush()


async def read(cell: LocalCluster, channel: str, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with await node(cell, "bob") as bob, bob.subscribe(channel, start="earliest") as events:
        while len(found) < count:
            event = await anext(events)
            found.append((event.position or 0, event.payload.rstrip(b"\0")))
    return found


def change(cell: LocalCluster, *channels: str) -> None:
    """Begin an epoch with these channels."""
    entries = tuple(ChannelEntry(Channel(name), POLICY) for name in channels)
    cell.write_manifest(next_epoch(cell.manifest, channels=entries))
    cell.reload()
    cell.wait_for_epoch()


def wait_stored(cell: LocalCluster, fits: Callable[[int], bool], streams: list[str]) -> None:
    """Wait until the segments of every broker have such a size, and it serves these streams."""

    def stored() -> bool:
        found = [cell.status(broker) for broker in cell.brokers]
        return all(fits(status["store"]["archive_bytes"]) for status in found) and all(
            sorted(held["stream"] for held in status["streams"]) == sorted(streams)
            for status in found
        )

    cell.wait_until(stored, f"not every broker has {streams}", PATIENCE_S)


def owners(directory: Path, broker: str) -> set[str]:
    """The owners of all archived records of a broker that has stopped."""
    with closing(sqlite3.connect(directory / "data" / f"{broker}.store")) as store:
        return {owner for (owner,) in store.execute("SELECT DISTINCT owner FROM archive")}


@pytest.mark.parametrize("kept", [(KEPT,), ()], ids=["one of two", "the last of its log"])
def test_deleted_channel_leaves_all_disks_and_its_name_is_used_again(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    channels = dict.fromkeys((*kept, GONE), POLICY)
    with LocalCluster(channels=channels, directory=tmp_path) as cell:

        async def begin() -> None:
            async with await node(cell, "alice") as alice:
                for name in kept:
                    await publish(alice, name, b"kept", 5)
                await publish(alice, GONE, b"gone", COUNT)

        run(begin())
        away = cell.brokers[-1]
        cell.wait_executed()
        last = max(position for position, _ in run(read(cell, GONE, COUNT)))
        stored = COUNT * LARGE
        streams = [f"{name}/*@0" for name in kept]
        wait_stored(cell, lambda size: size > stored, [f"{GONE}/*@0", *streams])
        cell.stop_broker(away)
        change(cell, *kept)
        cell.start_broker(away)
        cell.wait_for_epoch()
        wait_stored(cell, lambda size: size < stored // 2, streams)
        for broker in cell.brokers:
            cell.stop_broker(broker)
            assert not {owner for owner in owners(tmp_path, broker) if owner.startswith(GONE)}
        for broker in cell.brokers:
            cell.start_broker(broker)
        change(cell, *kept, GONE)

        async def go_on() -> None:
            async with await node(cell, "alice") as alice:
                for name in kept:
                    await publish(alice, name, b"more", 5)
                await publish(alice, GONE, b"new", 3)

        run(go_on())
        for name in kept:
            bodies = [b"%s%d" % (b"kept" if n < 5 else b"more", n % 5) for n in range(10)]
            assert [body for _, body in run(read(cell, name, 10))] == bodies
        found = run(read(cell, GONE, 3))
        assert [body for _, body in found] == [b"new0", b"new1", b"new2"]
        # Positions go on after those that were deleted.
        assert min(position for position, _ in found) > last
