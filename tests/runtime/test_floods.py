"""One valid client that floods brokers: others go on, and it is paused, disconnected and named."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.runtime.world import alice_and_bob, run

from quorumcast.bench.flooder import KINDS, FloodLink, FloodMessages, flood
from quorumcast.bench.plan import BenchPlan
from quorumcast.cli.cell.checks import Finding
from quorumcast.cli.cell.live_checks import check_brokers
from quorumcast.core.ids import Channel, NodeId
from quorumcast.crypto.digest import hasher
from quorumcast.testing import LocalCluster

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

MALLORY = "carol"


@contextmanager
def flooding(cluster: LocalCluster, kind: str, channel: str, seats: int = 1) -> Iterator[None]:
    """A client that floods every broker until the end of the block."""
    identity = cluster.plan.identities[NodeId(MALLORY)]
    manifest, over = cluster.manifest, threading.Event()
    targets = [
        FloodLink(entry, manifest, identity.at_seat(seat))
        for entry in manifest.brokers
        for seat in range(seats)
    ]
    for target in targets:
        held = target.positions(Channel(channel))
        words = FloodMessages(identity.name, Channel(channel), hasher(manifest.digest), held)
        target.begin(KINDS[kind](words))
    thread = threading.Thread(target=flood, args=(targets, over.is_set))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for target in targets:
            target.close()


def disconnected(cluster: LocalCluster) -> bool:
    """Whether every broker has done with the client that floods."""
    loads = [cluster.status(broker)["load"].get(MALLORY) for broker in cluster.brokers]
    return all(load is not None and load["disconnected"] for load in loads)


@pytest.mark.parametrize("kind", KINDS)
def test_flood_of_one_client_others_go_on_and_it_is_disconnected_with_a_reason(
    kind: str,
) -> None:
    seats = 8 if kind == "mix" else 1
    channel = "orders" if kind == "offer" else "events"

    async def main(cluster: LocalCluster) -> None:
        async with (
            alice_and_bob(cluster) as (alice, bob),
            alice.publisher(channel) as out,
            bob.subscribe(channel) as subscription,
        ):
            for number in range(300):
                await out.publish(b"before %d" % number)
                assert (await anext(subscription)).payload == b"before %d" % number
            with flooding(cluster, kind, channel, seats):
                number, is_over = 0, False
                while not is_over:
                    await out.publish(b"during %d" % number)
                    assert (await anext(subscription)).payload == b"during %d" % number
                    number += 1
                    is_over = number % 50 == 0 and await asyncio.to_thread(disconnected, cluster)
                assert number
        check(cluster)

    channels = {**BenchPlan(flooders=1).cell_channels(), "events": "ab+history", "orders": "total"}
    with LocalCluster(channels=channels) as cluster:
        cluster.wait_for_links()
        run(main(cluster))


def check(cluster: LocalCluster) -> None:
    """The operator sees who it was: log, status page, metrics, doctor."""
    rows = {}
    for broker in cluster.brokers:
        status = cluster.status(broker)
        load = status["load"][MALLORY]
        assert load["paused"] or load["disconnected"]
        assert status["drops"]["over-budget"]
        assert {"alice", "bob"} <= set(status["load"])
        assert not any(status["load"][name]["disconnected"] for name in ("alice", "bob"))
        assert not any(status["load"][name]["paused"] for name in cluster.brokers if name != broker)
        assert "disconnected a client" in cluster.log_path(broker).read_text()
        assert f'quorumcast_peer_disconnections_total{{peer="{MALLORY}"}}' in cluster.metrics(
            broker
        )
        rows[str(broker)] = {**status, "up": True}
    findings: list[Finding] = check_brokers(
        cluster.manifest, cluster.directory, dict.fromkeys(rows, ""), rows
    )
    named = [finding.about for finding in findings if f"disconnected {MALLORY}" in finding.says]
    assert named == [str(broker) for broker in cluster.brokers]
