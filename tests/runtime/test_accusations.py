"""A liar that a subscriber can prove is shown by every broker of a real cell, until it has left."""

import json

import pytest
from tests.runtime.world import alice_and_bob, eventually, run, until

from quorumcast.cli.main import main as command
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import add_client
from quorumcast.testing import LocalCluster

pytestmark = pytest.mark.runtime

LIAR = NodeId("broker-2")


def catch_the_liar(cluster: LocalCluster) -> None:
    """Let bob ask for receipts until he has evidence."""

    async def main() -> None:
        async with (
            alice_and_bob(cluster) as (alice, bob),
            bob.subscribe("events") as sub,
            alice.publisher("events") as pub,
        ):
            while not bob.evidence:
                await pub.publish(b"x")
                await (await anext(sub)).receipt()
            assert {one.accused for one in bob.evidence} == {LIAR}
            await until(lambda: "broker-1" in accusers(cluster))

    run(main())


def accusers(cluster: LocalCluster, *brokers: str) -> list[str]:
    """The brokers, of these or of all, that show the liar, and nobody else, as proven."""
    pages = {name: cluster.status(name)["accusations"] for name in brokers or cluster.brokers}
    assert all(set(page) <= {LIAR} for page in pages.values())
    return [str(name) for name, page in pages.items() if page]


def test_liar_that_a_subscriber_proves_is_shown_by_every_broker(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LocalCluster(channels={"events": "brb"}) as cluster:
        cluster.wait_for_links()
        cluster.make_lie(LIAR, "false-checkpoints", percent=100)
        catch_the_liar(cluster)
        honest = [name for name in cluster.brokers if name != LIAR]
        assert eventually(lambda: set(honest) <= set(accusers(cluster)))
        for name in honest:
            assert f'quorumcast_accusations_total{{node="{LIAR}"}}' in cluster.metrics(name)
            assert "has proof of a lie" in cluster.log_path(name).read_text()
        # Every broker has saved the proof, and anybody can check it.
        saved = cluster.directory / "evidence" / f"broker-4-{LIAR}.evidence"
        assert command(["verify", str(saved), "-m", str(cluster.manifest_path)]) == 0
        urls = [f"--url={name}={cluster.status_url(name)}" for name in cluster.brokers]
        capsys.readouterr()
        for words in (["status", "-m"], ["doctor"]):
            command([*words, str(cluster.manifest_path), *urls, "--json"])
            shown = json.loads(capsys.readouterr().out)
            problems = shown.get("findings") or shown["verdict"]["problems"]
            (says,) = [one["says"] for one in problems if "proven to have lied" in one["says"]]
            assert "broker-1, " in says
        # An epoch that has nothing to do with the liar; then all brokers are down together.
        erin = Identity.generate(NodeId("erin"))
        cluster.write_manifest(add_client(cluster.manifest, erin.name, erin))
        cluster.wait_for_epoch()
        for name in cluster.brokers:
            cluster.stop_broker(name)
        cluster.start_broker("broker-1")
        assert accusers(cluster, "broker-1") == ["broker-1"]  # it has nobody to ask
        # A broker that has lost its files learns of it from others, in the later epoch.
        lost = cluster.directory / "evidence" / f"broker-3-{LIAR}.evidence"
        lost.unlink()
        for name in cluster.brokers[1:]:
            cluster.start_broker(name)
        assert eventually(lambda: set(honest) <= set(accusers(cluster)))
        # New keys end the alarm: no statement was signed with them.
        cluster.rotate_broker(LIAR)
        cluster.wait_for_epoch()
        assert accusers(cluster) == []
        cluster.restart("broker-1")
        assert accusers(cluster) == []
