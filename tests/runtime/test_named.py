"""Named subscriptions with real processes: consumers and brokers are killed, nothing is lost."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.runtime.world import PATIENCE_S, eventually, run, until

from quorumcast.client import DeadLetter, NamedSubscription, Node, connect
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.manifest.build import next_epoch
from quorumcast.manifest.manifest import ChannelEntry, Group
from quorumcast.manifest.policy import Policy
from quorumcast.testing.cluster import LocalCluster

pytestmark = [pytest.mark.runtime]

ROOT = Path(__file__).parents[2]
DURABLE = Policy.named("total", journal=True)
GROUP = Group("billing", ("bob", "carol"), max_attempts=3, ack_timeout_ms=600, dead_letter="dead")


def cluster(directory: Path, policy: Policy = DURABLE, group: Group = GROUP) -> LocalCluster:
    return LocalCluster(
        channels={
            "orders": ChannelEntry(Channel("orders"), policy, groups=(group,)),
            "orders/subscriptions": policy,
            "dead": policy,
        },
        directory=directory,
    )


async def node(cell: LocalCluster, name: str) -> Node:
    return await connect(cell.manifest_path, cell.identity_path(name), timeout_s=PATIENCE_S)


async def publish(cell: LocalCluster, first: int, last: int) -> None:
    async with (
        await node(cell, "alice") as alice,
        alice.publisher("orders", batching=False) as out,
    ):
        for number in range(first, last + 1):
            out.post(b"%d" % number)
        await out.flush()


async def take(mine: NamedSubscription, count: int) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(count):
        delivery = await anext(mine)
        found.append((delivery.position, delivery.attempt, int(delivery.batch.payloads[0])))
        await delivery.ack()
    return found


class Process:
    """A consumer process."""

    def __init__(self, cell: LocalCluster, who: str, name: str, hold: int) -> None:
        arguments = ["-m", "tests.runtime.named_consumer", str(cell.directory), who, "orders", name]
        self._process = subprocess.Popen(
            [sys.executable, *arguments, str(hold)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    def line(self) -> tuple[int, int]:
        assert self._process.stdout is not None
        position, attempt = self._process.stdout.readline().split()
        return int(position), int(attempt)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_killed_consumer_continues_where_it_stopped(tmp_path: Path) -> None:
    with cluster(tmp_path) as cell:
        run(publish(cell, 1, 12))
        consumer = Process(cell, "bob", "mine", hold=4)
        assert [consumer.line() for _ in range(5)] == [(n, 1) for n in range(1, 6)]
        consumer.kill()

        async def go_on() -> list[tuple[int, int, int]]:
            async with await node(cell, "bob") as bob, bob.subscribe_as("orders", "mine") as mine:
                return await take(mine, 9)

        found = run(go_on())
    assert [(position, value) for position, _, value in found] == [(n, n) for n in range(4, 13)]
    assert [attempt for _, attempt, _ in found[:2]] == [2, 2]


def test_positions_of_a_killed_member_go_to_the_other(tmp_path: Path) -> None:
    with cluster(tmp_path) as cell:
        run(publish(cell, 1, 20))
        victim = Process(cell, "bob", "billing", hold=3)
        done = [victim.line() for _ in range(4)]
        victim.kill()
        assert done == [(1, 1), (2, 1), (3, 1), (4, 1)]

        async def go_on() -> list[tuple[int, int, int]]:
            async with (
                await node(cell, "carol") as carol,
                carol.subscribe_as("orders", "billing", prefetch=4) as mine,
            ):
                return await take(mine, 18)

        found = run(go_on())
    assert sorted(value for _, _, value in found) == list(range(3, 21))
    assert {position for position, attempt, _ in found if attempt == 2} >= {3, 4}


@pytest.mark.parametrize("fault", ["lie-to-subscribers", "lie-in-ordering", "silent"])
def test_two_members_share_all_publications_although_a_broker_lies(
    tmp_path: Path, fault: str
) -> None:
    async def share(cell: LocalCluster) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"bob": [], "carol": []}

        async def work(name: str) -> None:
            async with (
                await node(cell, name) as member,
                member.subscribe_as("orders", "billing", start=1, prefetch=4) as mine,
            ):
                async for delivery in mine:
                    found[name].append(int(delivery.batch.payloads[0]))
                    await delivery.ack()

        working = [asyncio.ensure_future(work(name)) for name in found]
        await publish(cell, 1, 40)
        await until(lambda: len({*found["bob"], *found["carol"]}) == 40)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        return found

    patient = replace(GROUP, ack_timeout_ms=30_000)
    with cluster(tmp_path, Policy.named("total"), patient) as cell:
        cell.make_lie("broker-2", fault)
        found = run(share(cell))
    # No work changed hands: each was handed out once.
    assert sorted(found["bob"] + found["carol"]) == list(range(1, 41))


def test_publication_out_of_attempts_is_published_as_a_dead_letter(tmp_path: Path) -> None:
    async def fail(cell: LocalCluster) -> tuple[list[int], DeadLetter]:
        attempts: list[int] = []
        async with (
            await node(cell, "bob") as bob,
            await node(cell, "dave") as dave,
            dave.subscribe("dead") as dead,
            bob.subscribe_as("orders", "billing", start="earliest") as mine,
        ):
            letter = asyncio.ensure_future(anext(dead))
            while len(attempts) < 3:
                delivery = await anext(mine)
                if delivery.position == 2:
                    attempts.append(delivery.attempt)
                    await delivery.nack()
                else:
                    await delivery.ack()
            found = DeadLetter.read((await letter).payload)
            await until(lambda: mine.state().dead == [2])
            return attempts, found

    with cluster(tmp_path) as cell:
        run(publish(cell, 1, 3))
        attempts, letter = run(fail(cell))
    assert attempts == [1, 2, 3]
    assert (letter.channel, letter.position, letter.subscription) == ("orders", 2, "billing")
    assert letter.data().to_pylist() == [{"payload": b"2"}]


def test_subscription_survives_the_death_of_every_broker(tmp_path: Path) -> None:
    async def some(cell: LocalCluster, count: int) -> list[tuple[int, int, int]]:
        async with (
            await node(cell, "bob") as bob,
            bob.subscribe_as("orders", "mine", start="earliest") as mine,
        ):
            found = await take(mine, count)
            await mine.flush()
            return found

    with cluster(tmp_path) as cell:
        run(publish(cell, 1, 10))
        first = run(some(cell, 6))
        for broker in cell.brokers:
            cell.kill(broker)
        for broker in cell.brokers:
            cell.start_broker(broker)
        run(publish(cell, 11, 14))
        rest = run(some(cell, 8))
    assert [value for _, _, value in first + rest] == list(range(1, 15))
    assert {attempt for _, attempt, _ in first + rest} == {1}


def test_consumer_continues_after_all_brokers_restarted(tmp_path: Path) -> None:
    async def outlive(cell: LocalCluster) -> list[int]:
        async with (
            await node(cell, "bob") as bob,
            bob.subscribe_as("orders", "billing", start="earliest") as mine,
        ):
            first = await take(mine, 3)
            for broker in cell.brokers:
                await asyncio.to_thread(cell.kill, broker)
            for broker in cell.brokers:
                await asyncio.to_thread(cell.start_broker, broker)
            await publish(cell, 4, 6)
            return [value for _, _, value in first + await take(mine, 3)]

    with cluster(tmp_path) as cell:
        run(publish(cell, 1, 3))
        assert run(outlive(cell)) == [1, 2, 3, 4, 5, 6]


def test_operator_changes_the_members_while_they_work(tmp_path: Path) -> None:
    def members(cell: LocalCluster, *names: str) -> None:
        orders, *others = cell.manifest.channels
        changed = replace(orders, groups=(replace(GROUP, members=names),))
        cell.write_manifest(next_epoch(cell.manifest, channels=(changed, *others)))
        cell.reload()
        epoch = cell.manifest.epoch
        assert eventually(lambda: all(cell.status(b)["epoch"] == epoch for b in cell.brokers))

    async def change(cell: LocalCluster) -> list[tuple[int, int, int]]:
        async with (
            await node(cell, "bob") as bob,
            bob.subscribe_as("orders", "billing", start="earliest", prefetch=1) as mine,
        ):
            found = await take(mine, 2)
            await mine.flush()
            await asyncio.to_thread(members, cell, "dave")
            async with (
                await node(cell, "dave") as dave,
                dave.subscribe_as("orders", "billing", prefetch=1) as new,
            ):
                found += await take(new, 4)
                with pytest.raises(UsageError, match="no longer a member"):
                    await take(mine, 5)
        return found

    with cluster(tmp_path) as cell:
        run(publish(cell, 1, 6))
        found = run(change(cell))
    assert sorted(value for _, _, value in found) == [1, 2, 3, 4, 5, 6]


def test_seats_of_one_client_share_its_subscription(tmp_path: Path) -> None:
    async def share(cell: LocalCluster) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {1: [], 2: []}

        async def work(seat: int) -> None:
            manifest, identity = cell.manifest_path, cell.identity_path("dave")
            async with (
                await connect(manifest, identity, seat=seat, timeout_s=PATIENCE_S) as member,
                member.subscribe_as("orders", "mine", start=1, prefetch=2) as mine,
            ):
                async for delivery in mine:
                    found[seat].append(int(delivery.batch.payloads[0]))
                    await delivery.ack()

        working = [asyncio.ensure_future(work(seat)) for seat in found]
        await publish(cell, 1, 30)
        await until(lambda: len({*found[1], *found[2]}) == 30)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        return found

    with cluster(tmp_path) as cell:
        found = run(share(cell))
    assert sorted(found[1] + found[2]) == list(range(1, 31))
