"""Total order through the client: one sequence for everybody, positions, replays and receipts."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from tests.runtime.world import PATIENCE_S, until
from tests.support.leaping import leap

from quorumcast.client import Batch, Gap, GapError, Node
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import total_order
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell, SyncMemoryCell

TOTAL = ("total", "total-crash")


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @wraps(test)
    def running(*args: Any, **options: Any) -> None:
        leap(test(*args, **options))

    return running


async def publish(node: Node, channel: str, count: int, name: str = "") -> None:
    async with node.publisher(channel, batching=False) as out:
        for number in range(1, count + 1):
            await out.publish(f"{name}{number}".encode())


async def take(node: Node, channel: str, count: int, start: str | int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with node.subscribe(channel, start=start) as events:
        async for event in events:
            assert event.position is not None
            found.append((event.position, event.payload))
            if len(found) == count:
                return found
    raise AssertionError


@pytest.mark.parametrize("policy", TOTAL)
@in_a_loop
async def test_all_subscribers_see_one_order(policy: str) -> None:
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob, carol, dave = [
            await cell.connect(name) for name in ("alice", "bob", "carol", "dave")
        ]
        listening = [
            asyncio.ensure_future(take(node, "trades", 40, "earliest")) for node in (carol, dave)
        ]
        await asyncio.gather(publish(alice, "trades", 20, "a"), publish(bob, "trades", 20, "b"))
        one, other = await asyncio.gather(*listening)
    assert one == other
    assert [position for position, _ in one] == list(range(1, 41))
    for name in ("a", "b"):
        mine = [payload.decode() for _, payload in one if payload.startswith(name.encode())]
        assert mine == [f"{name}{number}" for number in range(1, 21)]


@pytest.mark.parametrize("policy", TOTAL)
@in_a_loop
async def test_reading_from_a_position(policy: str) -> None:
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 12)
        assert await take(bob, "trades", 12, "earliest") == [
            (number, str(number).encode()) for number in range(1, 13)
        ]
        assert await take(bob, "trades", 4, 9) == [
            (number, str(number).encode()) for number in range(9, 13)
        ]


@in_a_loop
async def test_fifo_channel_can_be_read_from_its_beginning() -> None:
    async with MemoryCell(channels={"logs": "ab+history"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "logs", 12)
        async with bob.subscribe("logs", start="earliest") as events:
            assert [(await anext(events)).payload for _ in range(12)] == [
                str(number).encode() for number in range(1, 13)
            ]


@in_a_loop
async def test_data_that_is_no_longer_retained_is_announced_as_a_gap() -> None:
    limits = Limits(
        retained_publications=8, window=4, segment=4, vote_window=8, pipeline=2, checkpoint=4
    )
    policy = Policy.named("total", limits=limits)
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 40)
        async with bob.subscribe("trades", start=3) as events:
            with pytest.raises(GapError) as caught:
                await anext(events)
            assert caught.value.gap.first == 3
            assert caught.value.gap.stream == total_order(events.channel)
            event = await anext(events)
            assert event.position == caught.value.gap.upto + 1
            assert event.payload == str(event.position).encode()


@in_a_loop
async def test_positions_out_of_range_are_refused_with_a_sentence() -> None:
    async with MemoryCell(channels={"trades": "total", "logs": "ab"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 3)
        with pytest.raises(UsageError, match="position 9 of 'trades' does not exist yet"):
            async with bob.subscribe("trades", start=9):
                pass
        with pytest.raises(UsageError, match="no positions"):
            bob.subscribe("logs", start=5)
        for start in (0, -1, True, "first", 1.5):
            with pytest.raises(UsageError, match="'earliest', a time, or a position"):
                bob.subscribe("trades", start=start)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", TOTAL)
@in_a_loop
async def test_a_receipt_proves_a_position(policy: str) -> None:
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("trades") as events, alice.publisher("trades") as out:
            await out.publish(b"sold")
            event = await anext(events)
            receipt = await event.batch.receipt()
    assert (receipt.stream, receipt.number) == (total_order(events.channel), 1)
    assert receipt.contents.endswith(event.payload) or event.payload in receipt.contents


async def held(node: Node, channel: str, start: str | int) -> list[bytes | str]:
    """What `held` gives before it ends; a gap in words."""
    found: list[bytes | str] = []
    async with node.subscribe(channel, start=start) as events:
        async for item in events.held():
            if isinstance(item, Gap):
                found.append(f"gap {item.first}-{item.upto}")
            else:
                found += item.payloads
        assert events.unread == {}
    return found


@pytest.mark.parametrize("policy", ["total", "brb", "ab+history"])
@in_a_loop
async def test_held_ends_although_more_is_published(policy: str) -> None:
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        assert await held(bob, "trades", "earliest") == []
        await publish(alice, "trades", 12)
        expected = [str(number).encode() for number in range(1, 13)]
        assert await held(bob, "trades", "earliest") == expected
        assert await held(bob, "trades", "latest") == []
        async with (
            bob.subscribe("trades", start="earliest") as events,
            alice.publisher("trades", batching=False) as out,
        ):
            found: list[bytes] = []
            async for item in events.held():
                await out.publish(b"more")
                found += [] if isinstance(item, Gap) else item.payloads
            assert found[:12] == expected
            assert set(found[12:]) <= {b"more"}
            assert (await anext(events)).payload == b"more"


@in_a_loop
async def test_held_begins_with_a_gap_for_expired_retention() -> None:
    limits = Limits(
        retained_publications=8, window=4, segment=4, vote_window=8, pipeline=2, checkpoint=4
    )
    policy = Policy.named("total", limits=limits)
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 40)
        found = await held(bob, "trades", 3)
        assert found == ["gap 3-32", *(str(number).encode() for number in range(33, 41))]
        assert await held(bob, "trades", 41) == []


@in_a_loop
async def test_held_ends_although_the_last_contents_are_undecodable() -> None:
    async with MemoryCell(channels={"trades": "total"}) as cell:
        alice, bob, carol = [await cell.connect(name) for name in ("alice", "bob", "carol")]
        async with carol.subscribe("trades") as others:
            await publish(alice, "trades", 2)
            outgoing = alice._outgoing
            assert outgoing is not None
            outgoing.submit(others.channel, (b"nonsense",))
            assert [(await anext(others)).payload for _ in range(2)] == [b"1", b"2"]
            reading = asyncio.ensure_future(anext(others))
            await until(lambda: others.undecodable == 1)
            assert not reading.done()
            reading.cancel()
        async with bob.subscribe("trades", start="earliest") as events:
            assert len([item async for item in events.held()]) == 2
            assert events.undecodable == 1


@pytest.mark.parametrize("policy", TOTAL)
@in_a_loop
async def test_subscription_until_a_position_ends_there_with_the_votes_of_all(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "quorumcast.cell.subscribing.subscriber.ALL_VOTES_MS", 3_600_000
    )  # all can be reached
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 12)
        for start, upto in ((4, 9), (9, 13), (12, 12)):
            async with bob.subscribe("trades", start=start, until=upto) as part:
                found = [batch async for batch in part.batches()]
                assert (part.oldest, part.end) == (1, 13)
            assert [batch.position for batch in found] == list(range(start, upto))
            assert {len(batch.votes) for batch in found} <= {4}


@in_a_loop
async def test_subscription_until_a_position_needs_an_order_and_a_beginning() -> None:
    async with MemoryCell(channels={"trades": "total", "loose": "ab"}) as cell:
        bob = await cell.connect("bob")
        for channel, start, upto in (("trades", "latest", 3), ("loose", "earliest", 3)):
            with pytest.raises(UsageError, match="begin in the past of a single channel"):
                bob.subscribe(channel, start=start, until=upto)
        with pytest.raises(UsageError, match="until is 0"):
            bob.subscribe("trades", start=1, until=0)
        async with bob.subscribe("trades", start=1, until=1):
            with pytest.raises(UsageError, match="has subscribed to 'trades' already"):
                bob.subscribe("trades")


@in_a_loop
async def test_position_of_an_empty_channel_is_refused() -> None:
    async with MemoryCell(channels={"trades": "total"}) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match="position 5 of 'trades' does not exist yet; the next"):
            async with bob.subscribe("trades", start=5):
                pass


def test_held_of_a_sync_subscription() -> None:
    with SyncMemoryCell(channels={"trades": "total"}) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with alice.publisher("trades", batching=False) as out:
            for number in range(3):
                out.publish(b"%d" % number)
        with bob.subscribe("trades", start="earliest") as events:
            items = list(events.held(timeout_s=PATIENCE_S))
        assert [item.position for item in items if not isinstance(item, Gap)] == [1, 2, 3]


@pytest.mark.parametrize("policy", ["total", "ab+history", "brb"])
@in_a_loop
async def test_subscriber_that_joined_inside_a_segment_gets_a_receipt(policy: str) -> None:
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with alice.publisher("trades", batching=False) as out:
            for number in range(5):
                await out.publish(b"%d" % number)
            async with bob.subscribe("trades") as events:
                await out.publish(b"late")
                event = await anext(events)
                receipt = await event.batch.receipt()
    assert event.payload == b"late"
    assert receipt.first == receipt.number == 6


@pytest.mark.parametrize("policy", TOTAL)
@in_a_loop
async def test_single_positions_are_recalled_from_anywhere(policy: str) -> None:
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 12)
        async with bob.subscribe("trades") as events:
            assert (events.oldest, events.end) == (1, 13)
            found = await events.recall([2, 3, 12, 3])
            assert {p: b.payloads for p, b in found.items() if isinstance(b, Batch)} == {
                2: [b"2"],
                3: [b"3"],
                12: [b"12"],
            }
            batch = found[12]
            assert isinstance(batch, Batch)
            assert (batch.publisher, batch.position, batch.number) == ("alice", 12, 12)
            with pytest.raises(UsageError, match="it has positions from 1 to 12"):
                await events.recall([13])
            with pytest.raises(UsageError, match="cannot be recalled"):
                await events.recall([0])


@pytest.mark.parametrize("fault", ["alter", "silent", "lie-to-subscribers", "false-positions"])
@in_a_loop
async def test_recalled_positions_are_true_although_a_broker_lies(fault: str) -> None:
    async with MemoryCell(channels={"trades": "total"}) as cell:
        cell.make_lie("broker-1", fault)
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 12)
        async with bob.subscribe("trades") as events:
            await until(lambda: events.end == 13)
            found = await events.recall(range(1, 13))
            assert [b.payloads for b in found.values() if isinstance(b, Batch)] == [
                [str(number).encode()] for number in range(1, 13)
            ]


@in_a_loop
async def test_recalled_position_that_is_no_longer_retained_is_a_gap() -> None:
    limits = Limits(
        retained_publications=8, window=4, segment=4, vote_window=8, pipeline=2, checkpoint=4
    )
    policy = Policy.named("total", limits=limits)
    async with MemoryCell(channels={"trades": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 40)
        async with bob.subscribe("trades") as events:
            found = await events.recall([3, 40])
            assert str(found[3]) == (
                "positions 3 to 32 of trades are gone: channel trades keeps 8 publications, 64 "
                "MiB, and may have kept less before; to keep more from now on: quorumcast channel "
                "change trades --retain 1GB"
            )
            assert (events.oldest, events.dropped) == (33, [])
            assert isinstance(found[40], Batch)


@in_a_loop
async def test_abandoned_recall_leaves_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.cell.subscribing.recalling.MAX_RECALLED", 8)
    async with MemoryCell(channels={"trades": "total"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 12)
        async with bob.subscribe("trades") as events:
            cell.cut("bob")
            given_up = asyncio.ensure_future(events.recall(range(1, 9)))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait([given_up])
            again = asyncio.ensure_future(events.recall([12]))
            await asyncio.sleep(0)
            cell.heal("bob")
            batch = (await again)[12]
            assert isinstance(batch, Batch)
            assert batch.payloads == [b"12"]


@in_a_loop
async def test_recall_of_a_subscription_that_is_closed_ends() -> None:
    async with MemoryCell(channels={"trades": "total"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 12)
        async with bob.subscribe("trades") as events:
            cell.cut("bob")
            waiting = asyncio.ensure_future(events.recall([3]))
            await asyncio.sleep(0)
        with pytest.raises(UsageError, match="has left 'trades'"):
            await waiting


@in_a_loop
async def test_second_subscription_does_not_wait_for_what_the_first_has_read() -> None:
    async with MemoryCell(channels={"trades": "total"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 3)
        async with bob.subscribe("trades", start="earliest") as first:
            assert len([item async for item in first.held()]) == 3
            async with bob.subscribe("trades") as second:
                assert second.unread == {}
                assert [item async for item in second.held()] == []


@pytest.mark.parametrize("fault", ["", "silent"])
@in_a_loop
async def test_recalls_and_receipts_are_answered_while_the_queue_is_full(fault: str) -> None:
    """Whoever takes one publication and asks about it waits with a full queue behind it."""
    async with MemoryCell(channels={"trades": "total"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "trades", 40)
        async with bob.subscribe("trades", start="earliest", queue=8) as events:
            await until(lambda: events.full)
            if fault:
                cell.make_lie("broker-1", fault)
            batch = (await events.recall([3]))[3]
            assert isinstance(batch, Batch)
            assert batch.payloads == [b"3"]
            receipt = await batch.events()[0].receipt()
            assert receipt.number == 3
            assert events.full
            payloads = [item.payloads[0] async for item in events.held() if isinstance(item, Batch)]
            assert payloads == [b"%d" % number for number in range(1, 41)]
            assert bob.suspicions == {} or set(bob.suspicions) == {"broker-1"}
