"""Polls: some events, all that are there, or at least so many within a time."""

import ast
import asyncio
import inspect
from types import ModuleType

import pytest
from tests.client.test_overflow import publish
from tests.client.test_times import in_a_loop
from tests.runtime.world import PATIENCE_S, eventually, until

from quorumcast.client import Event, GapError, Node, node, subscription, sync
from quorumcast.client.named import subscription as named
from quorumcast.client.publishing import publisher
from quorumcast.core.errors import UsageError
from quorumcast.testing import MemoryCell, SyncMemoryCell

NAMED = {"events": "total", "events/subscriptions": "total"}


def payloads(events: list[Event]) -> list[int]:
    return [int(event.payload) for event in events]


async def publish_batches(alice: Node, *sizes: int) -> None:
    """Publications of so many events each, which count from 1."""
    number = 0
    for size in sizes:
        async with alice.publisher("events") as outbox:
            for _ in range(size):
                number += 1
                outbox.post(b"%d" % number)


@in_a_loop
async def test_poll_counts_events_and_keeps_the_rest_of_a_publication() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox:
            assert await inbox.poll() == []
            await publish_batches(alice, 5, 3)
            await until(lambda: inbox.waiting == 2)
            assert payloads(await inbox.poll(1)) == [1]
            assert payloads(await inbox.poll(3)) == [2, 3, 4]
            assert (await anext(inbox)).payload == b"5"
            assert payloads(await inbox.poll(100)) == [6, 7, 8]
            assert await inbox.poll(1) == []


@in_a_loop
async def test_poll_waits_for_so_many_events_and_no_longer_than_its_time() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events", queue=2) as inbox:
            polled = asyncio.create_task(inbox.poll(at_least=6))
            await publish(alice, 9)
            found = await polled
            found += await inbox.poll(at_least=9 - len(found)) if len(found) < 9 else []
            assert payloads(found) == [*range(1, 10)]
            assert await inbox.poll(timeout_s=0.01) == []
            await publish(alice, 1)
            assert payloads(await inbox.poll(timeout_s=PATIENCE_S)) == [1]
            await publish(alice, 2)
            await until(lambda: inbox.waiting == 2)
            assert payloads(await inbox.poll(at_least=3, timeout_s=0.01)) == [1, 2]


@in_a_loop
async def test_cancelled_poll_loses_nothing() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox:
            await publish_batches(alice, 3)
            await until(lambda: inbox.waiting == 1)
            polled = asyncio.create_task(inbox.poll(at_least=9))
            await until(lambda: inbox.waiting == 0)
            polled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polled
            assert (await anext(inbox)).payload == b"1"
            assert payloads(await inbox.poll()) == [2, 3]


@in_a_loop
async def test_events_after_a_gap_are_left_for_the_next_poll() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events", queue=2, overflow="newest", start="earliest") as inbox:
            await publish(alice, 4)
            await until(lambda: inbox.discarded == 2)
            assert payloads(await inbox.poll(at_least=4)) == [1, 2]
            await publish(alice, 1)
            await until(lambda: inbox.waiting == 2)
            with pytest.raises(GapError, match="publications 3 to 4"):
                await inbox.poll()
            assert payloads(await inbox.poll()) == [1]


@in_a_loop
async def test_poll_returns_what_came_before_the_end_and_then_nothing_or_the_error() -> None:
    async with MemoryCell(channels={"events": "total"}) as cell:
        alice, bob, carol = [await cell.connect(name) for name in ("alice", "bob", "carol")]
        await publish(alice, 4)
        async with bob.subscribe("events", start=2, until=4) as inbox:
            assert payloads(await inbox.poll(at_least=9)) == [2, 3]
            assert await inbox.poll(at_least=1) == []
        async with carol.subscribe("events") as inbox:
            await publish(alice, 1)
            await until(lambda: inbox.waiting == 1)
            polled = asyncio.create_task(inbox.poll(at_least=2))
            await until(lambda: inbox.waiting == 0)
            inbox.fail(UsageError("the cell refuses"))
            assert payloads(await polled) == [1]
            with pytest.raises(UsageError, match="the cell refuses"):
                await inbox.poll(at_least=1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n": 0}, "n is 0"),
        ({"at_least": 1.5}, "at_least is 1.5"),
        ({"at_least": -1}, "at_least is -1"),
        ({"n": 2, "at_least": 3}, "at_least is 3 and n is 2"),
        ({"timeout_s": -1}, "timeout_s is -1"),
    ],
)
@in_a_loop
async def test_bad_arguments_are_refused(arguments: dict[str, float], sentence: str) -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        inbox = (await cell.connect("bob")).subscribe("events")
        with pytest.raises(UsageError, match=sentence):
            await inbox.poll(**arguments)  # type: ignore[arg-type]


@in_a_loop
async def test_named_poll_returns_whole_deliveries_that_are_acknowledged_one_by_one() -> None:
    async with MemoryCell(channels=NAMED) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish_batches(alice, 3, 1, 2)
        async with bob.subscribe_as("events", "billing", start="earliest") as billing:
            first = await billing.poll(2, at_least=2)
            assert [(d.position, len(d.events)) for d in first] == [(1, 3)]
            second = await billing.poll(at_least=3, timeout_s=PATIENCE_S)
            assert [d.position for d in second] == [2, 3]
            assert await billing.poll(timeout_s=0.01) == []
            await first[0].ack()
            await second[1].ack()
        async with bob.subscribe_as("events", "billing") as billing:
            again = await billing.poll(timeout_s=PATIENCE_S)
            assert [(d.position, d.attempt) for d in again] == [(2, 2)]


@in_a_loop
async def test_named_poll_does_not_wait_for_more_than_it_may_claim() -> None:
    async with MemoryCell(channels=NAMED) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, 5)
        options = {"start": "earliest", "prefetch": 2, "ack": "auto"}
        async with bob.subscribe_as("events", "billing", **options) as billing:  # type: ignore[arg-type]
            seen: list[int] = []
            while len(seen) < 5:
                found = await billing.poll(at_least=5 if len(seen) < 4 else 1)
                assert 1 <= len(found) <= 2
                seen += [delivery.position for delivery in found]
            assert seen == [1, 2, 3, 4, 5]


def test_blocking_client_polls_between_the_other_ways_of_reading() -> None:
    with SyncMemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with bob.subscribe("events") as inbox, alice.publisher("events") as outbox:
            for i in range(1, 9):
                outbox.publish(b"%d" % i)
            assert eventually(lambda: inbox.waiting == 8)
            assert next(inbox).payload == b"1"
            assert payloads(inbox.poll(2)) == [2, 3]
            assert next(inbox).payload == b"4"
            assert len(inbox.take(1)) == 1
            assert payloads(inbox.poll(at_least=3, timeout_s=PATIENCE_S)) == [6, 7, 8]
            assert inbox.poll(timeout_s=0.01) == []


def test_blocking_held_begins_where_iteration_stopped() -> None:
    with SyncMemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with alice.publisher("events", batching=False) as outbox:
            for i in range(1, 4):
                outbox.publish(b"%d" % i)
            with bob.subscribe("events", start="earliest") as inbox:
                assert eventually(lambda: inbox.waiting == 3)
                assert next(inbox).payload == b"1"
                outbox.publish(b"later")
                assert eventually(lambda: inbox.waiting == 3)
                found = [item.payloads for item in inbox.held(PATIENCE_S)]  # type: ignore[union-attr]
                assert found == [[b"2"], [b"3"]]
                assert next(inbox).payload == b"later"


#: What the blocking client leaves out: what the machines and links call, and what it does itself.
INTERNAL = {
    "SyncNode": "attach charter describe_brokers links peer_down peer_up read_manifest "
    "receive signed_manifest start unreachable wait_connected",
    "SyncPublisher": "acknowledged admit adopt fail overdue",
    "SyncSubscription": "adopt attach awaits deliver detach established fail filter gap give_back "
    "gone has_failed joined open overdue passed rows schema select since_us start suiting until "
    "wait_joined",
    "SyncNamedSubscription": "open",
}
#: What only the blocking client has: methods of other objects of the asyncio client.
OWN = {
    "SyncSubscription": "next next_batch receipt",
    "SyncNamedSubscription": "ack nack",
}


def members(module: ModuleType, name: str) -> set[str]:
    """The public methods, properties and attributes of a class."""
    tree = ast.parse(inspect.getsource(module))
    (found,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)
    names = {
        one.name for one in found.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    names |= {
        one.attr
        for one in ast.walk(found)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    }
    return {member for member in names if not member.startswith("_")}


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("SyncNode", node),
        ("SyncPublisher", publisher),
        ("SyncPublishers", publisher),
        ("SyncSubscription", subscription),
        ("SyncNamedSubscription", named),
    ],
)
def test_blocking_client_has_the_members_of_the_other(name: str, module: ModuleType) -> None:
    theirs, ours = members(module, name.removeprefix("Sync")), members(sync, name)
    assert theirs - ours == set(INTERNAL.get(name, "").split())
    assert ours - theirs == set(OWN.get(name, "").split())
