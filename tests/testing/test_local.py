"""A cell of processes, for those who test against one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.runtime.world import run

import quorumcast
from quorumcast.testing import LocalCluster, bed


@pytest.mark.runtime
def test_brokers_are_waited_for_until_all_have_executed_what_was_acknowledged() -> None:
    async def publish(cluster: LocalCluster) -> None:
        async with (
            await quorumcast.connect(cluster.manifest_path, cluster.identity_path("alice")) as node,
            node.publisher("orders") as out,
        ):
            await out.publish(b"one")

    with (
        LocalCluster(channels={"orders": "total"}) as cluster,
        ThreadPoolExecutor(1) as threads,
    ):
        cluster.wait_for_links()
        cluster.pause("broker-4")
        try:
            run(publish(cluster))
            waiting = threads.submit(cluster.wait_executed)
            assert not waiting.done()
        finally:
            cluster.resume("broker-4")
        waiting.result()
        places = [cluster.status(name)["logs"]["byzantine"]["executed"] for name in cluster.brokers]
    assert len(set(places)) == 1
    assert places[0] > 0


def test_free_ports_that_were_chosen_come_again_only_after_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody may still call there: nodes of a cell that has ended."""
    monkeypatch.setattr(bed, "_PORTS", bed._PORTS[:40])
    monkeypatch.setattr(bed, "_chosen", {})
    rounds = [port for _ in range(8) for port in bed.free_ports(4)]
    assert len(set(rounds)) == len(rounds)
