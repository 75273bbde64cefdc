"""Publications have a time, by the clock of their publisher, and may expire."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta, timezone
from functools import wraps
from typing import Any

import pytest
from tests.runtime.world import until
from tests.support.leaping import leap

from quorumcast.client import Batch, Node, UsageError
from quorumcast.core.envelope import time_of, write_envelope
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.testing import MemoryCell

NOON = 1_793_534_400_000_000


class Clock:
    """A clock that a test sets."""

    def __init__(self, us: int = NOON) -> None:
        self.us = us

    def __call__(self) -> int:
        return self.us

    def pass_s(self, seconds: float) -> None:
        self.us += int(seconds * 1_000_000)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        leap(test(*args, **kwargs))

    return wrapper


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@in_a_loop
async def test_event_has_the_time_of_its_publishers_clock(policy: str) -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": policy}, now_us=clock) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox, alice.publisher("events") as outbox:
            await outbox.publish(b"one")
            clock.pass_s(1.5)
            await outbox.publish(b"two")
            clock.pass_s(3600)
            one, two = await anext(inbox), await anext(inbox)
            assert one.published_at == datetime(2026, 11, 1, 12, tzinfo=UTC) == time_of(NOON)
            assert two.batch.published_us == NOON + 1_500_000
            assert two.published_at > one.published_at


@in_a_loop
async def test_contents_with_a_wrong_envelope_are_undecodable() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox, alice.publisher("events") as outbox:
            await outbox.publish(b"good")
            good = (await anext(inbox)).batch._delivered.body
            outgoing = alice._outgoing
            assert outgoing is not None
            outgoing.submit(Channel("events"), (good[:15] + b"\1" + good[16:], good[:16]))
            await outbox.publish(b"good again")
            assert (await anext(inbox)).payload == b"good again"
            assert inbox.undecodable == 2


async def three(cell: MemoryCell, clock: Clock, **options: Any) -> None:
    """Alice publishes three events, one second apart, which are valid for two seconds."""
    alice = await cell.connect("alice")
    async with alice.publisher("events", valid_for_s=2, batching=False, **options) as outbox:
        for i in range(3):
            await outbox.publish(b"%d" % i)
            clock.pass_s(1)


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@in_a_loop
async def test_publication_that_expires_in_the_queue_is_skipped_and_counted(policy: str) -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": policy}, now_us=clock) as cell:
        bob = await cell.connect("bob")
        async with bob.subscribe("events") as inbox:
            await three(cell, clock)
            await until(lambda: inbox.waiting == 3)
            assert (await anext(inbox)).payload == b"2"  # 0 and 1 are 3 and 2 seconds old
            assert inbox.expired == 2
            assert bob.telemetry.drops["expired"] == 2


@in_a_loop
async def test_expired_publication_is_delivered_only_on_request() -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": "total"}, now_us=clock) as cell:
        await three(cell, clock)
        clock.pass_s(60)
        bob, carol = await cell.connect("bob"), await cell.connect("carol")
        async with bob.subscribe("events", start="earliest") as inbox:
            assert [item async for item in inbox.held()] == []
            assert inbox.expired == 3
        async with carol.subscribe("events", start="earliest", expired=True) as inbox:
            items = [item async for item in inbox.held()]
            assert [batch.payloads for batch in items if isinstance(batch, Batch)] == [
                [b"0"],
                [b"1"],
                [b"2"],
            ]
            assert all(batch.expired for batch in items if isinstance(batch, Batch))
            assert isinstance(items[0], Batch)
            assert items[0].expires_at == time_of(NOON + 2_000_000)
            assert inbox.expired == 0


@in_a_loop
async def test_validity_defaults_to_that_of_the_channel() -> None:
    clock = Clock()
    channel = ChannelEntry(Channel("c"), Policy.named("ab", limits=Limits(validity_ms=5000)))
    async with MemoryCell(channels={"c": channel}, now_us=clock) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("c", expired=True) as inbox:
            for valid_for_s in (None, 0.0004, 0):
                async with alice.publisher("c", valid_for_s=valid_for_s) as outbox:
                    await outbox.publish(b"x")
            ends = [(await anext(inbox)).batch.expires_at for _ in range(3)]
            assert ends == [time_of(NOON + 5_000_000), time_of(NOON + 1000), None]
            for wrong in (-1, float("inf"), "1", 4_294_968):
                with pytest.raises(UsageError, match="valid_for_s is"):
                    alice.publisher("c", valid_for_s=wrong)  # type: ignore[arg-type]


SECONDS = (1, 2, 3, 2, 5)  # after NOON; a clock may step back


async def five(cell: MemoryCell, clock: Clock) -> None:
    """Alice publishes five events at these seconds."""
    alice = await cell.connect("alice")
    async with alice.publisher("events", batching=False) as outbox:
        for number, seconds in enumerate(SECONDS, 1):
            clock.us = NOON + seconds * 1_000_000
            await outbox.publish(b"%d" % number)


async def read_from(node: Node, start: Any) -> list[int]:
    async with node.subscribe("events", start=start) as inbox:
        return [int(i.payloads[0]) async for i in inbox.held() if isinstance(i, Batch)]


@pytest.mark.parametrize("policy", POLICY_NAMES)
@in_a_loop
async def test_subscribe_from_a_time_begins_with_the_first_publication_not_before_it(
    policy: str,
) -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": policy}, now_us=clock) as cell:
        await five(cell, clock)
        bob = await cell.connect("bob")
        for seconds, expected in ((0, 1), (1, 1), (1.5, 2), (3, 3), (3.1, 5), (5, 5), (5.1, 6)):
            start = time_of(NOON + int(seconds * 1_000_000))
            assert await read_from(bob, start) == list(range(expected, 6)), seconds
        zone = timezone(timedelta(hours=-3))
        assert await read_from(bob, time_of(NOON + 3_000_000).astimezone(zone)) == [3, 4, 5]


@pytest.mark.parametrize("policy", POLICY_NAMES)
@in_a_loop
async def test_subscribe_hides_nothing_after_one_from_a_later_time_that_was_closed_early(
    policy: str,
) -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": policy}, now_us=clock) as cell:
        await five(cell, clock)
        bob = await cell.connect("bob")
        for start in (time_of(NOON), "earliest"):
            for begun in (False, True):
                earlier = bob.subscribe("events", start=time_of(NOON + 10**9))
                if begun:
                    await earlier.wait_joined()
                else:
                    await asyncio.sleep(0)  # brokers have read the request
                earlier.close()
                assert await read_from(bob, start) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@in_a_loop
async def test_subscribe_from_a_time_continues_with_new_publications(policy: str) -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": policy}, now_us=clock) as cell:
        await five(cell, clock)
        bob = await cell.connect("bob")
        async with bob.subscribe("events", start=time_of(NOON + 4_000_000)) as inbox:
            assert (await anext(inbox)).payload == b"5"
            alice = await cell.connect("alice")
            async with alice.publisher("events") as outbox:
                clock.pass_s(10)
                await outbox.publish(b"later")
            assert (await anext(inbox)).payload == b"later"


@in_a_loop
async def test_subscribe_from_a_time_skips_earlier_undecodable_contents() -> None:
    clock = Clock()
    async with MemoryCell(channels={"events": "total"}, now_us=clock) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with alice.publisher("events", batching=False) as outbox:
            outgoing = alice._outgoing
            assert outgoing is not None
            odd = write_envelope(NOON + 10**9, flags=128)
            outgoing.submit(Channel("events"), (b"", b"short", odd))
            await outbox.publish(b"good")
        assert await read_from_words(bob, time_of(NOON)) == [b"good"]
        assert await read_from_words(bob, time_of(NOON + 1)) == []


async def read_from_words(node: Node, start: Any) -> list[bytes]:
    async with node.subscribe("events", start=start) as inbox:
        found = [i.payloads[0] async for i in inbox.held() if isinstance(i, Batch)]
        assert inbox.undecodable == 0
        return found


@in_a_loop
async def test_subscribe_from_a_time_without_a_zone_is_refused() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match="without a time zone; say which"):
            bob.subscribe("events", start=datetime(2026, 11, 1, 12))
        with pytest.raises(UsageError, match="give 'latest', 'earliest', a time, or a position"):
            bob.subscribe("events", start=-1)
