"""Urgent publications overtake others, except on channels with total order."""

import pytest
from tests.client.test_times import in_a_loop
from tests.runtime.world import until

from quorumcast.manifest.policy import POLICY_NAMES
from quorumcast.testing import MemoryCell

FIFO = [name for name in POLICY_NAMES if not name.startswith("total")]


@pytest.mark.parametrize("policy", FIFO)
@in_a_loop
async def test_urgent_publications_overtake_and_both_streams_stay_in_order(policy: str) -> None:
    async with MemoryCell(channels={"events": policy}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with (
            bob.subscribe("events") as inbox,
            alice.publisher("events", batching=False) as outbox,
            alice.publisher("events", urgent=True) as alarm,
        ):
            for i in range(1, 21):
                outbox.post(b"%d" % i)
            await outbox.flush()
            await alarm.publish(b"fire")
            await alarm.publish(b"out again")
            await until(lambda: inbox.waiting == 22)
            events = [await anext(inbox) for _ in range(22)]
            assert [event.payload for event in events[:2]] == [b"fire", b"out again"]
            assert [event.batch.urgent for event in events] == [True] * 2 + [False] * 20
            assert [event.payload for event in events[2:]] == [b"%d" % i for i in range(1, 21)]
            assert [event.number for event in events] == [1, 2, *range(1, 21)]


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@in_a_loop
async def test_urgent_does_not_wait_for_its_publishers_backlog(policy: str) -> None:
    async with MemoryCell(channels={"events": policy}) as cell:
        alice = await cell.connect("alice")
        async with (
            alice.publisher("events", batching=False) as outbox,
            alice.publisher("events", urgent=True) as alarm,
        ):
            for i in range(10_000):
                outbox.post(b"%d" % i)
            await alarm.publish(b"fire")
            assert outbox.pending > 0
            assert alarm.pending == 0


@in_a_loop
async def test_urgent_with_total_order_keeps_its_position() -> None:
    async with MemoryCell(channels={"events": "total"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with (
            bob.subscribe("events") as inbox,
            alice.publisher("events", batching=False) as outbox,
            alice.publisher("events", urgent=True) as alarm,
        ):
            for i in range(1, 6):
                await outbox.publish(b"%d" % i)
            await alarm.publish(b"fire")
            await until(lambda: inbox.waiting == 6)
            events = [await anext(inbox) for _ in range(6)]
            assert [event.position for event in events] == [1, 2, 3, 4, 5, 6]
            assert (events[5].payload, events[5].batch.urgent) == (b"fire", True)


@in_a_loop
async def test_urgent_event_has_a_receipt_of_its_own() -> None:
    async with MemoryCell(channels={"events": "brb"}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with (
            bob.subscribe("events") as inbox,
            alice.publisher("events", urgent=True) as alarm,
        ):
            await alarm.publish(b"fire")
            event = await anext(inbox)
            assert event.batch.stream.urgent
            assert (await event.receipt()).stream == event.batch.stream
