"""Brokers come, go and change their keys while real processes publish and subscribe."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.runtime.world import PATIENCE_S, eventually, run, until

from quorumcast.client import Node, connect
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.core.limits import Limits
from quorumcast.crypto.identity import Identity
from quorumcast.manifest import build
from quorumcast.manifest.files import read_identity, sign_manifest, write_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.testing.bed import free_ports
from quorumcast.testing.cluster import LocalCluster

pytestmark = [pytest.mark.runtime]

#: What is published when all is done.
LAST = 1_000_000
#: Between two publications. A change takes many times as long, and more would only cost time.
PAUSE_S = 0.01


async def node(cell: LocalCluster, name: str) -> Node:
    return await connect(cell.manifest_path, cell.identity_path(name), timeout_s=PATIENCE_S)


class Load:
    """alice publishes all the time; bob was there from the beginning."""

    def __init__(self, cell: LocalCluster, channel: str) -> None:
        self.cell = cell
        self.channel = channel
        self.published = 0
        self.got: list[int] = []
        self.expected: list[int] = []

    async def run(self, act: Callable[[], None], *, without: int = 0) -> None:
        loop = asyncio.get_running_loop()
        async with (
            await node(self.cell, "alice") as alice,
            await node(self.cell, "bob") as bob,
            bob.subscribe(self.channel) as events,
            alice.publisher(self.channel) as out,
        ):
            acting = loop.run_in_executor(None, act)

            async def publish() -> None:
                # Some of it is under way in each step of a change, and some comes after it.
                while not acting.done() or self.published < 200:
                    self.published += 1
                    await out.publish(b"%d" % self.published)
                    await asyncio.sleep(PAUSE_S)

            async def read() -> None:
                while not self.got or self.got[-1] != LAST:
                    self.got.append(int((await anext(events)).payload))

            reading = asyncio.ensure_future(read())
            await publish()
            await acting
            await out.publish(b"%d" % LAST)
            await reading
            await until(lambda: len(alice.connected) >= len(self.cell.brokers) - without)
        self.expected = [*range(1, self.published + 1), LAST]
        assert self.got == self.expected

    async def read_all(self, name: str) -> list[int]:
        """What one who joins later reads from the earliest on."""
        found: list[int] = []
        async with (
            await node(self.cell, name) as late,
            late.subscribe(self.channel, start="earliest") as events,
        ):
            while not found or found[-1] != LAST:
                found.append(int((await anext(events)).payload))
        return found


#: A fast machine publishes more than is retained by default while the epochs change.
ALL_OF_IT = Limits(retained_publications=1_000_000)
POLICIES = {
    "total": replace(Policy.parse("total+durable"), limits=ALL_OF_IT),
    "fifo": Policy.named("ab+history", limits=ALL_OF_IT),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_brokers_are_added_removed_replaced_and_rotated_under_load(
    kind: str, tmp_path: Path
) -> None:
    with LocalCluster(channels={"events": POLICIES[kind]}, directory=tmp_path) as cell:
        load = Load(cell, "events")

        def act() -> None:
            cell.add_broker("broker-5")
            cell.wait_for_epoch()
            gone = leader(cell) if kind == "total" else "broker-1"
            cell.remove_broker(gone)
            assert cell.wait_left(gone) == 0
            cell.wait_for_epoch()
            cell.rotate_broker(cell.brokers[1])
            cell.wait_for_epoch()

        run(load.run(act))
        assert cell.manifest.epoch == 4
        assert run(load.read_all("carol")) == load.expected


def test_more_than_f_brokers_are_replaced_and_the_order_goes_on(tmp_path: Path) -> None:
    with LocalCluster(channels={"events": POLICIES["total"]}, directory=tmp_path) as cell:
        load = Load(cell, "events")

        def act() -> None:
            for old, new in (("broker-1", "broker-5"), ("broker-2", "broker-6")):
                cell.add_broker(new)
                cell.wait_for_epoch()
                cell.remove_broker(old)
                cell.wait_for_epoch()

        run(load.run(act))
        assert run(load.read_all("carol")) == load.expected


def test_broker_that_restarts_before_its_new_keys_are_decided_has_its_old_ones(
    tmp_path: Path,
) -> None:
    with LocalCluster(channels={"events": POLICIES["total"]}, directory=tmp_path) as cell:
        load = Load(cell, "events")

        def act() -> None:
            cell.stop_broker("broker-3")
            cell.stop_broker("broker-4")
            old = read_identity(cell.identity_path("broker-2"))
            cell.rotate_broker("broker-2")
            cell.kill("broker-2")
            cell.restart("broker-2")  # two of four decide nothing
            assert cell.status("broker-2")["epoch"] == 1
            cell.start_broker("broker-3")
            cell.start_broker("broker-4")
            cell.wait_for_epoch()
            # The file follows, so that the next life needs no other.
            new = read_identity(cell.identity_path("broker-2"))
            assert new.verify_key != old.verify_key
            cell.restart("broker-2")

        run(load.run(act))


def test_epochs_faster_than_brokers_look_are_taken_all_the_same(tmp_path: Path) -> None:
    with LocalCluster(channels={"events": POLICIES["total"]}, directory=tmp_path) as cell:
        for name in ("dora", "emil", "fay"):
            client = Identity.generate(NodeId(name))
            cell.write_manifest(build.add_client(cell.manifest, client.name, client))
        cell.wait_for_epoch()
        assert cell.manifest.epoch == 4
        assert {cell.status(name)["epoch"] for name in cell.brokers} == {4}


def leader(cell: LocalCluster) -> str:
    """Who leads the log, by the word of the first broker."""
    (log,) = cell.status(cell.brokers[0])["logs"].values()
    return str(log["leader"])


def logged(cell: LocalCluster, name: str) -> str:
    return cell.log_path(name).read_text()


@pytest.mark.parametrize("how", ["killed", "paused"])
@pytest.mark.parametrize("kind", POLICIES)
def test_a_broker_that_was_away_for_two_epochs_catches_up(
    kind: str, how: str, tmp_path: Path
) -> None:
    with LocalCluster(channels={"events": POLICIES[kind]}, directory=tmp_path) as cell:
        load = Load(cell, "events")

        def act() -> None:
            # The last one calls nobody, and must ask those that call it.
            late = cell.brokers[-1]
            (cell.kill if how == "killed" else cell.pause)(late)
            cell.add_broker("broker-5")
            others = [name for name in cell.brokers if name != late]
            cell.wait_for_epoch(*others)
            cell.remove_broker("broker-2")
            cell.wait_for_epoch(*[name for name in cell.brokers if name != late])
            (cell.restart if how == "killed" else cell.resume)(late)
            cell.wait_for_epoch()
            # It takes part again: without it there are too few.
            cell.kill("broker-5")

        run(load.run(act, without=1))
        assert run(load.read_all("carol")) == load.expected


@pytest.mark.parametrize("kind", POLICIES)
def test_manifests_that_no_broker_should_follow_are_refused_and_the_cell_goes_on(
    kind: str, tmp_path: Path
) -> None:
    with LocalCluster(channels={"events": POLICIES[kind]}, directory=tmp_path) as cell:
        load = Load(cell, "events")

        def give(manifest: Manifest, operator: Identity, expected: str) -> None:
            write_manifest(cell.manifest_path, sign_manifest(manifest, operator))
            cell.reload()
            for broker in cell.brokers:
                assert eventually(lambda broker=broker: expected in logged(cell, broker))  # type: ignore[misc]

        def act() -> None:
            good, own = cell.manifest, cell.plan.operator
            new = [Identity.generate(NodeId(name)) for name in ("broker-5", "broker-6")]
            ports = free_ports(2)
            five = build.add_broker(good, new[0].name, new[0], "127.0.0.1", ports[0])
            six = build.add_broker(five, new[1].name, new[1], "127.0.0.1", ports[1])
            give(replace(six, epoch=2), own, "adds broker-5 and adds broker-6 at once")
            give(six, own, "epoch 3 adds" if kind == "total" else "does not follow epoch 1")
            thief = Identity.generate(NodeId("operator"))
            give(replace(five, operator=thief.verify_key), thief, "from another operator")
            few = replace(good, epoch=2, brokers=good.brokers[:3])
            with pytest.raises(UsageError, match="needs 4 brokers"):
                sign_manifest(few, own)
            assert {cell.status(broker)["epoch"] for broker in cell.brokers} == {1}
            cell.write_manifest(good)

        run(load.run(act))
