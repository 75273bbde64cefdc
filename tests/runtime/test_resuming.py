"""Publishing exactly once, with real processes that are killed in the middle of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.resuming_publisher import PUBLICATIONS
from tests.runtime.world import PATIENCE_S, run

import quorumcast
from quorumcast.client import Batch
from quorumcast.manifest.policy import Policy
from quorumcast.testing import LocalCluster

pytestmark = pytest.mark.runtime

SCRIPT = Path(__file__).with_name("resuming_publisher.py")


def life(cluster: LocalCluster, seat: int, pause_after: int = -1) -> subprocess.Popen[str]:
    command = [SCRIPT, cluster.manifest_path, cluster.identity_path("alice"), seat, pause_after]
    arguments = [sys.executable, *map(str, command)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def held(cluster: LocalCluster) -> list[tuple[str, bytes]]:
    """Everything on the channel: who published it, and what it is."""
    found: list[tuple[str, bytes]] = []
    async with (
        await quorumcast.connect(
            cluster.manifest_path, cluster.identity_path("bob"), timeout_s=PATIENCE_S
        ) as node,
        node.subscribe("orders", start="earliest") as events,
    ):
        async for item in events.held():
            assert isinstance(item, Batch)
            found += [(event.publisher, event.payload) for event in item.events()]
    return found


def test_publisher_that_is_killed_again_and_again_publishes_everything_once() -> None:
    with LocalCluster(channels={"orders": Policy.parse("total+durable")}) as cluster:
        cluster.make_lie("broker-2", "alter")
        for seat, pause_after in ((1, 40), (2, 150), (3, 151)):
            with life(cluster, seat, pause_after) as process:
                assert said(process) == "half way"
                process.kill()
        for broker in cluster.brokers:
            cluster.kill(broker)  # what was acknowledged is on their disks
        for broker in cluster.brokers:
            cluster.restart(broker)
        for seat in (1, 4):
            with life(cluster, seat) as process:
                assert said(process) == "done"
        assert run(held(cluster)) == [("alice", b"%d" % number) for number in range(PUBLICATIONS)]


def test_two_lives_at_the_same_time_publish_everything_once() -> None:
    with LocalCluster(channels={"orders": "total"}) as cluster:
        with life(cluster, 1) as one, life(cluster, 2) as other:
            assert (said(one), said(other)) == ("done", "done")
        assert run(held(cluster)) == [("alice", b"%d" % number) for number in range(PUBLICATIONS)]
