"""Real trees of cells: a root of four brokers, a child of three, and uplinks of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.runtime.world import PATIENCE_S, eventually, run, until

import quorumcast
from quorumcast.broadcast.relayed import Attach, Follow, Relayed, RelayEvent
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.build import add_client, next_epoch, remove_client, rotate
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.manifest import Manifest
from quorumcast.runtime.broker.uplinks import ParentUplink, UplinkHost, Uplinks
from quorumcast.runtime.links.limits import TransportLimits
from quorumcast.testing.cluster import LocalCluster
from quorumcast.testing.tree import LocalTree

pytestmark = [pytest.mark.runtime]

CHANNELS = {"events": "ab+history", "trades": "total"}
SHAPE = {"root": "", "cell-1": "root", "cell-2": "root"}
LIARS = {"root": "broker-2", "cell-1": "broker-3"}


@pytest.fixture(scope="module")
def tree() -> Iterator[LocalTree]:
    """The brokers of `cell-2` do not run: tests of uplinks take their places."""
    with LocalTree(shape=SHAPE, channels=CHANNELS, idle=["cell-2"]) as tree:
        yield tree


async def connect(cell: LocalCluster, name: str) -> quorumcast.Node:
    return await quorumcast.connect(
        cell.manifest_path, cell.identity_path(name), timeout_s=PATIENCE_S
    )


@asynccontextmanager
async def readers(tree: LocalTree) -> AsyncIterator[dict[str, asyncio.Queue[Any]]]:
    """What bob reads in the child from now on, by channel."""
    queues: dict[str, asyncio.Queue[Any]] = {name: asyncio.Queue() for name in CHANNELS}

    async def read(inbox: quorumcast.Subscription, queue: asyncio.Queue[Any]) -> None:
        async for event in inbox:
            queue.put_nowait(event)

    async with await connect(tree["cell-1"], "bob") as bob:
        tasks = []
        for name, queue in queues.items():
            inbox = bob.subscribe(name)
            await inbox.wait_joined(PATIENCE_S)
            tasks.append(asyncio.create_task(read(inbox, queue)))
        yield queues
        for task in tasks:
            task.cancel()


async def publish(tree: LocalTree, *payloads: bytes, name: str = "alice") -> None:
    async with await connect(tree["root"], name) as node:
        for channel in CHANNELS:
            async with node.publisher(channel, batching=False) as outbox:
                for payload in payloads:
                    await outbox.publish(payload)


async def expect(queues: dict[str, asyncio.Queue[Any]], *payloads: bytes) -> None:
    for queue in queues.values():
        got = [await queue.get() for _ in payloads]
        assert [event.payload for event in got] == list(payloads)
        assert not any(isinstance(event, quorumcast.Gap) for event in got)


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def uplinks_of(cell: LocalCluster) -> list[dict[str, Any]]:
    return [cell.status(name)["uplinks"][0] for name in cell.brokers]


def wait_caught_up(cell: LocalCluster, broker: str) -> None:
    """Until then it counts as faulty, so no other may fail."""

    def caught_up() -> bool:
        status = cell.status(broker)
        return not status["catching_up"] and all(status["uplinks"][0]["joined"].values())

    assert eventually(caught_up)


def test_reader_of_the_child_gets_everything_while_a_broker_of_each_cell_lies(
    tree: LocalTree,
) -> None:
    async def main() -> None:
        async with readers(tree) as queues:
            for cell, liar in LIARS.items():
                tree[cell].make_lie(liar, "alter")
            await publish(tree, *numbers(1, 30))
            await expect(queues, *numbers(1, 30))

    try:
        run(main())
    finally:
        for cell, liar in LIARS.items():
            tree[cell].make_honest(liar)
    # The child's brokers say which broker of the parent lied to them.
    assert any("broker-2" in uplink["suspicions"] for uplink in uplinks_of(tree["cell-1"]))
    assert {uplink["client"] for uplink in uplinks_of(tree["cell-1"])} == {
        f"cell-1-broker-{number}" for number in (1, 2, 3)
    }
    shown = tree["cell-1"].metrics("broker-1")
    assert 'quorumcast_uplink_up{parent="root",peer="broker-4"} 1.0' in shown
    assert 'quorumcast_uplink_publications_total{parent="root"} 60.0' in shown


def test_nothing_is_lost_while_a_broker_of_each_cell_is_killed_and_comes_back(
    tree: LocalTree,
) -> None:
    async def main() -> None:
        async with readers(tree) as queues:
            await publish(tree, *numbers(1, 5))
            for cell in ("root", "cell-1"):
                tree[cell].kill("broker-1")
            await publish(tree, *numbers(6, 10))
            for cell in ("root", "cell-1"):
                await asyncio.to_thread(tree[cell].start_broker, "broker-1")
            await expect(queues, *numbers(1, 15))
            await asyncio.to_thread(wait_caught_up, tree["cell-1"], "broker-1")
            # Readers now need the one that came back.
            tree["cell-1"].kill("broker-2")
            await publish(tree, *numbers(16, 5))
            await expect(queues, *numbers(16, 5))
            await asyncio.to_thread(tree["cell-1"].start_broker, "broker-2")
            await asyncio.to_thread(wait_caught_up, tree["cell-1"], "broker-2")

    run(main())


def test_uplinks_that_were_cut_off_bring_what_they_missed(tree: LocalTree) -> None:
    async def main() -> None:
        async with readers(tree) as queues:
            for number in range(1, 13, 3):
                for broker in tree["cell-1"].brokers:
                    tree["cell-1"].cut_links(broker)
                await publish(tree, *numbers(number, 3))
            await expect(queues, *numbers(1, 12))

    run(main())


def test_child_follows_its_parent_into_a_new_epoch_without_its_file(tree: LocalTree) -> None:
    root, child = tree["root"], tree["cell-1"]

    async def main() -> None:
        async with readers(tree) as queues:
            await publish(tree, *numbers(1, 3))
            guest = Identity.generate(NodeId("guest"))
            root.write_manifest(add_client(root.manifest, guest.name, guest))
            await asyncio.to_thread(root.wait_for_epoch)
            await asyncio.to_thread(
                child.wait_until,
                lambda: all(one["epoch"] == root.manifest.epoch for one in uplinks_of(child)),
                "the parent's epoch was not taken",
            )
            await publish(tree, *numbers(4, 3))
            await expect(queues, *numbers(1, 6))

    run(main())
    kept = child.directory / "parents" / "root" / "manifest.json"
    # A restarted broker begins there, and no broker of the child was given that file.
    assert read_manifest(kept).epoch == root.manifest.epoch
    assert {one["trouble"] for one in uplinks_of(child)} == {""}


def test_child_goes_on_where_it_was_after_its_own_new_epoch(tree: LocalTree) -> None:
    child = tree["cell-1"]

    async def main() -> None:
        async with readers(tree) as queues:
            await publish(tree, *numbers(1, 3))
            child.write_manifest(next_epoch(child.manifest))
            await asyncio.to_thread(child.wait_for_epoch)
            await publish(tree, *numbers(4, 3))
            await expect(queues, *numbers(1, 6))

    run(main())


# ------------------------------------------------------------ one uplink alone


class Host:
    """Takes the place of a broker of `cell-2`."""

    def __init__(self, tree: LocalTree, broker: str) -> None:
        self.relayed: list[bytes] = []
        self.clogged = False
        self.failures: list[BaseException] = []
        self.child = tree["cell-2"]
        host = UplinkHost(
            NodeId(broker),
            self._feed,
            lambda: self.clogged,
            self.failures.append,
            None,
            TransportLimits(),
        )
        parents, key = self.child.directory / "parents", tree["root"].manifest.key
        self.uplink = ParentUplink(host, parents, self.child.manifest, key)

    def _feed(self, event: RelayEvent) -> None:
        match event:
            case Attach(channel=channel):
                self.uplink.feed(Follow(channel))
            case Relayed(stream=stream, bodies=bodies) if stream.channel == "events":
                self.relayed += map(bytes, bodies)

    def identity_path(self) -> Path:
        files = self.child.directory / "parents" / "root"
        return files / "broker-1.identity"


@asynccontextmanager
async def hosted(tree: LocalTree, broker: str = "broker-1") -> AsyncIterator[Host]:
    host = Host(tree, broker)
    host.uplink.begin()
    yield host
    await host.uplink.close()
    assert host.failures == []


def test_uplink_reads_nothing_while_the_store_lies_behind(tree: LocalTree) -> None:
    async def main() -> None:
        async with hosted(tree) as host:
            await until(lambda: all(host.uplink.status().joined.values()))
            host.clogged = True
            await publish(tree, b"first")
            await until(lambda: host.uplink.status().paused)
            before = len(host.relayed)
            # Three brokers acknowledged these, and none of it was taken here.
            await publish(tree, *(b"%d" % n + bytes(60_000) for n in range(40)))
            assert len(host.relayed) - before < 40
            host.clogged = False
            await until(lambda: len(host.relayed) >= before + 40)
            status = host.uplink.status()
            assert (status.paused, status.trouble, status.gaps) == (False, "", 0)
            assert status.suspicions == {}

    run(main())


def retaining(child: Manifest, publications: int) -> Manifest:
    """The next epoch of a child, whose channels retain so many publications."""
    channels = []
    for entry in child.channels:
        limits = replace(entry.policy.limits, retained_publications=publications)
        channels.append(replace(entry, policy=replace(entry.policy, limits=limits)))
    return replace(next_epoch(child), channels=tuple(channels))


def test_uplink_begins_anew_when_a_limit_of_its_channels_changes(tree: LocalTree) -> None:
    relayed: list[bytes] = []
    attached: list[str] = []
    child = tree["cell-2"]

    def feed(event: RelayEvent) -> None:
        match event:
            case Attach(channel=channel):
                attached.append(channel)
                uplinks.follow(Follow(channel))
            case Relayed(stream=stream, bodies=bodies) if stream.channel == "trades":
                relayed.extend(one for body in bodies for one in payloads if one in bytes(body))

    failures: list[BaseException] = []
    host = UplinkHost(
        NodeId("broker-2"), feed, lambda: False, failures.append, None, TransportLimits()
    )
    uplinks = Uplinks(host, child.directory / "parents", child.manifest)
    payloads = [b"trade%d" % number for number in range(5)]

    async def main() -> None:
        await publish(tree, *payloads)
        uplinks.start()
        await until(lambda: set(payloads) <= set(relayed))
        assert len(attached) == 2
        uplinks.adopt(next_epoch(child.manifest))  # changes nothing
        relayed.clear()
        uplinks.adopt(retaining(child.manifest, 2))
        await until(lambda: payloads[4] in relayed)
        assert relayed == payloads[3:]
        assert len(attached) == 4
        await uplinks.close()
        assert failures == []

    run(main())


def test_uplink_without_its_right_says_so_and_goes_on_with_a_new_identity(tree: LocalTree) -> None:
    root, client = tree["root"], NodeId("cell-2-broker-1")
    fresh = Identity.generate(client)

    async def main() -> None:
        async with hosted(tree) as host:
            await until(lambda: all(host.uplink.status().joined.values()))
            root.write_manifest(rotate(root.manifest, client, fresh))
            await asyncio.to_thread(root.wait_for_epoch)
            await until(lambda: "other keys" in host.uplink.status().trouble)
            path = host.identity_path()
            path.write_bytes(msgspec.json.encode({"name": fresh.name, "seed": fresh.seed.hex()}))
            # Others of the child have written the parent's manifest already, or its operator has.
            copy = path.with_name("manifest.json")
            copy.write_bytes(root.manifest_path.read_bytes())
            host.uplink.look()
            await until(lambda: not host.uplink.status().trouble)
            count = len(host.relayed)
            await publish(tree, b"again")
            await until(lambda: len(host.relayed) > count)

    run(main())
    root.write_manifest(remove_client(root.manifest, client))
    root.wait_for_epoch()

    async def refused() -> None:
        async with hosted(tree) as host:
            await until(lambda: "is not in epoch" in host.uplink.status().trouble)

    run(refused())
