"""Total order with real processes, sockets and disks: what was acknowledged stays."""

import asyncio
from pathlib import Path

import pytest
from tests.runtime.world import PATIENCE_S, run

from quorumcast.client import Node, connect
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.store.directory import store_files
from quorumcast.testing.cluster import LocalCluster

pytestmark = [pytest.mark.runtime]

POLICIES = ("total", "total-crash")


def cluster(policy: str, directory: Path, *, durable: bool = True) -> LocalCluster:
    brokers = 4 if policy == "total" else 3
    return LocalCluster(
        brokers=brokers,
        f=1,
        channels={"trades": Policy.named(policy, journal=durable)},
        directory=directory,
    )


async def node(cell: LocalCluster, name: str) -> Node:
    return await connect(cell.manifest_path, cell.identity_path(name), timeout_s=PATIENCE_S)


async def publish(cell: LocalCluster, name: str, first: int, last: int) -> None:
    """Every one of them acknowledged."""
    async with await node(cell, name) as publisher, publisher.publisher("trades") as out:
        for number in range(first, last + 1):
            out.post(b"%d" % number)
        await out.flush()


async def read(cell: LocalCluster, name: str, count: int) -> list[tuple[int | None, int]]:
    found: list[tuple[int | None, int]] = []
    async with (
        await node(cell, name) as subscriber,
        subscriber.subscribe("trades", start="earliest") as events,
    ):
        while len(found) < count:
            event = await anext(events)
            found.append((event.position, int(event.payload)))
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_acknowledged_publications_survive_the_death_of_every_broker(
    policy: str, tmp_path: Path
) -> None:
    with cluster(policy, tmp_path) as cell:
        run(publish(cell, "alice", 1, 50))
        for broker in cell.brokers:
            cell.kill(broker)
        for broker in cell.brokers:
            cell.start_broker(broker)
        run(publish(cell, "bob", 51, 80))
        one, other = run(read(cell, "carol", 80)), run(read(cell, "dave", 80))
    assert one == other
    assert [number for _, number in one] == list(range(1, 81))


def test_a_broker_that_lost_its_disk_fetches_everything_from_the_others(tmp_path: Path) -> None:
    with cluster("total", tmp_path) as cell:
        run(publish(cell, "alice", 1, 40))
        victim, *others = cell.brokers
        cell.kill(victim)
        cell.wipe(victim)
        cell.start_broker(victim)
        run(publish(cell, "bob", 41, 60))
        run(_has_executed(cell, victim, others[0]))
        # One of the others may now fail: the wiped one takes its place, old positions included.
        cell.kill(others[-1])
        assert [number for _, number in run(read(cell, "carol", 60))] == list(range(1, 61))


async def _has_executed(cell: LocalCluster, one: str, other: str) -> None:
    """One is as far as the other, and has done something."""
    while True:
        mine, theirs = cell.status(one), cell.status(other)
        if mine["streams"] and mine["streams"] == theirs["streams"]:
            return
        await asyncio.sleep(0.1)


def test_a_damaged_store_is_set_aside_and_does_not_spread(tmp_path: Path) -> None:
    with cluster("total", tmp_path) as cell:
        run(publish(cell, "alice", 1, 30))
        other, victim, *_ = cell.brokers
        run(_has_executed(cell, victim, other))
        cell.kill(victim)
        for path in store_files(tmp_path / "data", victim):
            damaged = bytearray(path.read_bytes())
            if path.suffix != ".mark":
                damaged[len(damaged) // 2 : len(damaged) // 2 + 64] = b"\xa5" * 64
                path.write_bytes(damaged)
        cell.start_broker(victim)
        run(publish(cell, "bob", 31, 40))
        assert [number for _, number in run(read(cell, "carol", 40))] == list(range(1, 41))
        assert list((tmp_path / "data").glob(f"{victim}.store.damaged-*"))
