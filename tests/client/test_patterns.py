"""One subscription to many channels, by a pattern of their names."""

import asyncio
from typing import Any

import pytest
from tests.client.test_times import in_a_loop
from tests.runtime.world import PATIENCE_S, until

from quorumcast.client import Batch, Gap, Node, UsageError
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.client.sync import SyncPublisher
from quorumcast.core.ids import Channel
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell, SyncMemoryCell

TEMP = (("celsius", "float64"),)
CHANNELS: dict[str, str | ChannelEntry] = {
    "plant/1/temp": ChannelEntry(Channel("plant/1/temp"), Policy.named("ab"), schema=TEMP),
    "plant/2/temp": ChannelEntry(Channel("plant/2/temp"), Policy.named("total"), schema=TEMP),
    "plant/log": "ab+history",
    "plant/secret": ChannelEntry(
        Channel("plant/secret"), Policy.named("ab"), subscribers=("alice",)
    ),
    "orders": "ab",
}


async def publish(node: Node, channel: str, *events: Any) -> None:
    async with node.publisher(channel, batching=False) as outbox:
        for event in events:
            await outbox.publish(event)


@in_a_loop
async def test_pattern_merges_channels_of_different_schemas_and_policies() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("plant/**") as inbox:
            assert inbox.channels == ("plant/1/temp", "plant/2/temp", "plant/log")
            await publish(alice, "plant/1/temp", {"celsius": 20.5}, {"celsius": 21.5})
            await publish(alice, "plant/2/temp", {"celsius": 19.0})
            await publish(alice, "plant/log", b"started")
            await publish(alice, "plant/secret", b"hidden")
            await publish(alice, "orders", b"apples")
            await until(lambda: inbox.waiting == 4)
            events = [await anext(inbox) for _ in range(4)]
            assert [(event.channel, event.row) for event in events] == [
                ("plant/1/temp", {"celsius": 20.5}),
                ("plant/1/temp", {"celsius": 21.5}),
                ("plant/2/temp", {"celsius": 19.0}),
                ("plant/log", {"payload": b"started"}),
            ]
            assert [event.position for event in events] == [None, None, 1, None]


@in_a_loop
async def test_pattern_from_the_beginning_ends_when_all_channels_have_been_read() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        for number in (1, 2):
            await publish(alice, f"plant/{number}/temp", *[{"celsius": float(number)}] * 3)
        async with bob.subscribe("plant/*/temp", start="earliest") as inbox:
            items = [item async for item in inbox.held()]
            found = [(i.channel, i.number) for i in items if isinstance(i, Batch)]
            assert sorted(found) == [(f"plant/{n}/temp", i) for n in (1, 2) for i in (1, 2, 3)]
            assert not [item for item in items if isinstance(item, Gap)]


@in_a_loop
async def test_pattern_beside_a_subscription_to_one_of_its_channels() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        one = bob.subscribe("plant/log")
        async with bob.subscribe("plant/**") as all_, one:
            with pytest.raises(UsageError, match="has subscribed to 'plant/1/temp' already"):
                bob.subscribe("plant/*/temp", start="earliest")
            one.close()
            await publish(alice, "plant/log", b"still here")
            assert (await anext(all_)).payload == b"still here"


@in_a_loop
async def test_pattern_mistakes_are_one_sentence() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match=r"single channel; .* that match are: none; name one"):
            bob.subscribe("plants/*", start=3)
        with pytest.raises(UsageError, match="begin in the past of a single channel"):
            bob.subscribe("plants/*", start="earliest", until=3)
        with pytest.raises(UsageError, match="a level is '\\*'"):
            bob.subscribe("plant/te*")
        with pytest.raises(UsageError, match="a position belongs to a single channel"):
            bob.subscribe("plant/**", start=3)
        with pytest.raises(UsageError, match="is a pattern: publish on one channel"):
            bob.publisher("plant/*")


@in_a_loop
async def test_pattern_of_one_channel_takes_a_position() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = [await cell.connect(name) for name in ("alice", "bob", "carol")]
        await publish(alice, "plant/2/temp", *[{"celsius": float(i)} for i in range(1, 6)])
        async with bob.subscribe("plant/2/*", start=4) as inbox:
            assert [(await anext(inbox)).position for _ in range(2)] == [4, 5]
        with pytest.raises(UsageError, match="position 99 of 'plant/2/temp' does not exist yet"):
            async with carol.subscribe("plant/2/*", start=99) as inbox:
                await anext(inbox)


@in_a_loop
async def test_pattern_without_channels_stands_and_holds_nothing() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        bob = await cell.connect("bob")
        async with bob.subscribe("*/secret", start="earliest") as inbox:
            assert inbox.channels == ()
            assert [item async for item in inbox.held()] == []


@in_a_loop
async def test_publishers_of_a_pattern_are_those_of_channels_with_the_right() -> None:
    closed = ChannelEntry(Channel("plant/closed"), Policy.named("ab"), publishers=("bob",))
    channels: dict[str, str | ChannelEntry] = {**CHANNELS, "orders": "total"}
    channels |= {"orders/subscriptions": "total", "plant/closed": closed}
    async with MemoryCell(channels=channels) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("plant/log") as log, bob.subscribe("orders") as orders:
            async with alice.publishers("**", batching=False) as outboxes:
                assert [*outboxes] == [*CHANNELS]
                assert "plant/closed" not in outboxes
                outboxes["plant/log"].post(b"started")
                outboxes["orders"].post(b"apples")
                assert outboxes["orders"] is outboxes["orders"]
                await outboxes.flush()
                assert [event.payload for event in await log.poll(at_least=1)] == [b"started"]
                outboxes["orders"].post(b"pears")
            events = await orders.poll(at_least=2)
            assert [event.payload for event in events] == [b"apples", b"pears"]
            with pytest.raises(UsageError, match="is closed"):
                outboxes["orders"].post(b"late")
        with pytest.raises(KeyError):
            outboxes["plant/closed"]
        with pytest.raises(UsageError, match="a level is"):
            alice.publishers("plant/t*")


def test_blocking_publishers_of_a_pattern() -> None:
    with SyncMemoryCell(channels={"plant/1": "ab", "plant/2": "ab"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with bob.subscribe("**") as inbox:
            with alice.publishers("plant/*") as outboxes:
                for outbox in outboxes.values():
                    outbox.post(outbox.channel.encode())
                outboxes.flush(PATIENCE_S)
                assert len(outboxes) == 2
            events = inbox.poll(at_least=2, timeout_s=PATIENCE_S)
            assert {event.payload for event in events} == {b"plant/1", b"plant/2"}


def test_blocking_publishers_of_a_pattern_all_close_if_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def close(self: SyncPublisher, *_: object) -> None:
        closed.append(self.channel)
        raise TimeoutError

    monkeypatch.setattr(SyncPublisher, "__exit__", close)
    with SyncMemoryCell(channels={"plant/1": "ab", "plant/2": "ab"}) as cell:
        alice = cell.connect("alice")
        with pytest.raises(TimeoutError), alice.publishers("plant/*") as outboxes:
            assert len([*outboxes.values()]) == 2
        assert sorted(closed) == ["plant/1", "plant/2"]


@in_a_loop
async def test_publishers_of_a_pattern_all_close_if_one_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    async def close(self: Publisher, *_: object) -> None:
        if not closed:
            closed.append(self.channel)
            raise TimeoutError
        await asyncio.sleep(0.1)
        closed.append(self.channel)

    monkeypatch.setattr(Publisher, "__aexit__", close)
    async with MemoryCell(channels={"plant/1": "ab", "plant/2": "ab"}) as cell:
        alice = await cell.connect("alice")
        with pytest.raises(TimeoutError):
            async with alice.publishers("plant/*") as outboxes:
                assert len([*outboxes.values()]) == 2
        assert sorted(closed) == ["plant/1", "plant/2"]
