"""Overflow rules that discard: a gap replaces discarded publications."""

import pytest
from tests.client.test_times import in_a_loop
from tests.runtime.world import PATIENCE_S, eventually, until

from quorumcast.client import Batch, Gap, GapError, GapReason, Node
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.limits import Limits, Overflow
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell, SyncMemoryCell


async def publish(node: Node, count: int) -> None:
    async with node.publisher("events", batching=False) as outbox:
        for i in range(1, count + 1):
            outbox.post(b"%d" % i)


def shown(items: list[Batch | Gap]) -> list[object]:
    return [
        (item.first, item.upto, item.reason.value)
        if isinstance(item, Gap)
        else int(item.payloads[0])
        for item in items
    ]


@pytest.mark.parametrize("policy", ["ab", "total"])
@pytest.mark.parametrize(
    ("overflow", "expected"),
    [("oldest", [(1, 7, "overflow"), 8, 9, 10]), ("newest", [1, 2, 3, (4, 10, "overflow")])],
)
@in_a_loop
async def test_full_queue_discards_and_announces_a_gap(
    policy: str, overflow: str, expected: list[object]
) -> None:
    async with MemoryCell(channels={"events": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events", queue=3, overflow=overflow) as inbox:
            await publish(alice, 10)
            await until(lambda: inbox.discarded == 7)
            assert shown(await inbox.take()) == expected
            assert bob.telemetry.drops["discarded"] == 7


def test_gap_text_says_what_happened_and_what_to_do() -> None:
    stream = Stream(Channel("events"), NodeId("alice"), 2)
    overflow, retention = (
        str(Gap(stream, 1, 7, reason)) for reason in (GapReason.OVERFLOW, GapReason.RETENTION)
    )
    assert "1 to 7 of events/alice@2 were discarded" in overflow
    assert "or subscribe with a longer queue" in overflow
    assert "1 to 7 of events/alice@2 will never come: too few brokers hold them" in retention
    assert "have the channel retain more" in retention


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@pytest.mark.parametrize("overflow", ["oldest", "newest"])
@in_a_loop
async def test_held_ends_although_publications_were_discarded(policy: str, overflow: str) -> None:
    async with MemoryCell(channels={"events": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, 50)
        async with bob.subscribe("events", start="earliest", queue=4, overflow=overflow) as inbox:
            seen = 0
            async for item in inbox.held():
                assert (item.first if isinstance(item, Gap) else item.number) == seen + 1
                seen = item.upto if isinstance(item, Gap) else item.number
            assert seen == 50
            assert inbox.unread == {}
            assert inbox.discarded > 0


@in_a_loop
async def test_held_ends_although_a_stream_was_evicted() -> None:
    """Its publisher comes back while the reader is in the middle, and brokers keep one stream."""
    limits = Limits(streams_per_publisher=1, replay=8)
    channel = ChannelEntry(Channel("events"), Policy.named("ab", limits=limits))
    async with MemoryCell(channels={"events": channel}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, 50)
        async with bob.subscribe("events", start="earliest", queue=4) as inbox:
            await until(lambda: inbox.full)
            await alice.close()
            await publish(await cell.connect("alice"), 1)
            items = [item async for item in inbox.held()]
            gap = items[-1]
            assert isinstance(gap, Gap)
            read = [item for item in items[:-1] if isinstance(item, Batch)]
            mine = [item.number for item in read if item.stream == gap.stream]
            assert mine == [*range(1, gap.first)]
            assert gap.upto == 50
            # What comes later may come before the gap.
            (later,) = [item for item in read if item.stream != gap.stream] or [
                (await anext(inbox)).batch
            ]
            assert later.stream.incarnation > gap.stream.incarnation


@in_a_loop
async def test_queue_and_overflow_default_to_those_of_the_channel() -> None:
    channel = ChannelEntry(
        Channel("events"),
        Policy.named("ab", limits=Limits(queue=2)),
        overflow=Overflow.NEWEST,
    )
    async with MemoryCell(channels={"events": channel}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        inbox, patient = bob.subscribe("events"), bob.subscribe("events", overflow="wait", queue=99)
        await inbox.wait_joined()
        await publish(alice, 5)
        await until(lambda: patient.waiting == 5)
        assert shown(await inbox.take()) == [1, 2, (3, 5, "overflow")]
        assert shown(await patient.take()) == [1, 2, 3, 4, 5]


@in_a_loop
async def test_unknown_overflow_is_refused_with_the_known_ones() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        bob = await cell.connect("bob")
        sentence = "overflow is 'explode': choose one of 'wait', 'oldest', 'newest'"
        with pytest.raises(UsageError, match=sentence):
            bob.subscribe("events", overflow="explode")


def test_sync_subscription_has_the_same_options_and_counts() -> None:
    with SyncMemoryCell(channels={"plant/1": "ab", "plant/2": "ab"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with bob.subscribe("plant/*", queue=2, overflow="newest", start="earliest") as inbox:
            with alice.publisher("plant/1", batching=False, valid_for_s=3600) as outbox:
                for i in range(1, 6):
                    outbox.publish(b"%d" % i)
            assert eventually(lambda: inbox.discarded == 3)
            assert [inbox.next(PATIENCE_S).payload for _ in range(2)] == [b"1", b"2"]
            with pytest.raises(GapError, match="publications 3 to 5 of plant/1"):
                inbox.next(PATIENCE_S)
            with alice.publisher("plant/2", urgent=True) as alarm:
                alarm.publish(b"fire")
            event = inbox.next(PATIENCE_S)
            assert (event.channel, event.payload, event.batch.urgent) == ("plant/2", b"fire", True)
            assert (inbox.expired, inbox.undecodable) == (0, 0)
