"""Several processes with one identity, each at its own seat."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.runtime.world import PATIENCE_S, run, until

import quorumcast
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, at_seat, holder
from quorumcast.core.limits import MAX_NAME, MAX_SEATS
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.files import write_identity
from quorumcast.testing import LocalCluster

POLICIES = ("ab+history", "brb", "chain", "direct", "total")


def test_holder_of_a_seat_is_the_client_and_of_anything_else_itself() -> None:
    spark = NodeId("spark")
    assert at_seat(spark, 0) == spark
    assert at_seat(spark, 3) == "spark#3"
    assert holder("spark#3") == holder(f"spark#{MAX_SEATS}") == holder("spark") == "spark"
    for odd in ("spark#0", "spark#", f"spark#{MAX_SEATS + 1}", "spark#03", "spark#3#3", "spark#x"):
        assert holder(odd) == odd


@pytest.mark.parametrize("seat", [-1, MAX_SEATS + 1, 1.5, True, "1"])
def test_connect_with_no_seat_of_a_cell_is_refused(seat: int) -> None:
    with pytest.raises(UsageError, match="give 0"):
        run(quorumcast.connect("manifest.json", "bob.identity", seat=seat))


def test_seat_of_a_client_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    identity = Identity.generate(NodeId("x" * (MAX_NAME - 2)))
    write_identity(tmp_path / "x.identity", identity)
    with pytest.raises(UsageError, match="at seat 10 would be longer than 128 characters: connect"):
        run(quorumcast.connect("manifest.json", tmp_path / "x.identity", seat=10))
    with pytest.raises(UsageError, match="there is no manifest"):  # "#9" fits
        run(quorumcast.connect("manifest.json", tmp_path / "x.identity", seat=9))


@pytest.mark.runtime
def test_seats_of_one_identity_publish_and_listen_side_by_side() -> None:
    async def main(cluster: LocalCluster) -> None:
        async with AsyncExitStack() as stack:

            async def sit(name: str, seat: int) -> quorumcast.Node:
                connecting = quorumcast.connect(
                    cluster.manifest_path,
                    cluster.identity_path(name),
                    seat=seat,
                    timeout_s=PATIENCE_S,
                )
                return await stack.enter_async_context(await connecting)

            alices = [await sit("alice", seat) for seat in range(3)]
            bobs = [await sit("bob", seat) for seat in range(3)]
            for channel in POLICIES:
                listening = [
                    await stack.enter_async_context(bob.subscribe(channel)) for bob in bobs
                ]
                for alice in alices:
                    publisher = await stack.enter_async_context(alice.publisher(channel))
                    await publisher.publish(alice.name.encode())
                for subscription in listening:
                    events = [await anext(subscription) for _ in alices]
                    assert {event.publisher for event in events} == {"alice", "alice#1", "alice#2"}
                    assert all(event.publisher.encode() == event.payload for event in events)
            nodes = (*alices, *bobs)
            await until(lambda: all(len(node.connected) == 4 for node in nodes))

    with LocalCluster(channels={policy: policy for policy in POLICIES}) as cluster:
        run(main(cluster))
