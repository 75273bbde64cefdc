"""A time-out says what was waited for, and which brokers are to blame."""

import time
from datetime import UTC, datetime

import pytest
from tests.client.test_times import in_a_loop
from tests.support.leaping import leap

from quorumcast.client import Resumption
from quorumcast.client.loop_thread import LoopThread
from quorumcast.client.publishing.outgoing import Outgoing
from quorumcast.testing import MemoryCell, SyncMemoryCell

AWAY = r"\(it is not running in this memory cell\)"
MISSING = f"missing: broker-3 {AWAY}, broker-4 {AWAY}; needed: 3 of 4"


@in_a_loop
async def test_publish_time_out_names_the_brokers_that_did_not_acknowledge() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        alice = await cell.connect("alice")
        await alice.publisher("events").publish(b"before")
        publisher = alice.publisher("events", timeout_s=1)
        cell.kill("broker-3")
        cell.kill("broker-4")
        expected = rf"^1 event on 'events' not acknowledged within 1 s; .*{MISSING}"
        with pytest.raises(TimeoutError, match=expected) as caught:
            await publisher.publish(b"one")
        assert "acknowledged: broker-1, broker-2; missing" in str(caught.value)
        publisher.post(b"two")
        with pytest.raises(TimeoutError, match=r"^2 events on 'events' not acknowledged"):
            await publisher.flush()


@in_a_loop
async def test_broker_that_is_connected_and_silent_is_missing_without_a_reason() -> None:
    async with MemoryCell(channels={"events": "brb"}) as cell:
        alice = await cell.connect("alice")
        await alice.publisher("events").publish(b"before")
        cell.make_lie("broker-2", "silent")
        cell.kill("broker-3")
        publisher = alice.publisher("events", timeout_s=1)
        with pytest.raises(TimeoutError, match=rf"missing: broker-2, broker-3 {AWAY}; needed: 3"):
            await publisher.publish(b"one")


def test_resumed_publisher_says_that_the_order_was_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Outgoing, "conclude", lambda self, publisher: None)

    async def main() -> None:
        async with MemoryCell(channels={"events": "total"}) as cell:
            alice = await cell.connect("alice")
            resume = Resumption("import", epoch=1, at=datetime(2026, 11, 15, tzinfo=UTC))
            publisher = alice.publisher("events", resume=resume, timeout_s=0.05)
            with pytest.raises(TimeoutError, match="'import' on 'events' was not confirmed within"):
                await publisher.close()

    leap(main())


@in_a_loop
async def test_subscription_time_out_names_the_brokers_that_did_not_answer() -> None:
    async with MemoryCell(channels={"events": "ab"}) as cell:
        bob = await cell.connect("bob")
        cell.kill("broker-3")
        cell.kill("broker-4")
        subscription = bob.subscribe("events")
        expected = rf"'events' was not established within 0.05 s; .*{MISSING}"
        with pytest.raises(TimeoutError, match=expected):
            await subscription.wait_joined(0.05)


def test_sync_time_outs_say_what_was_waited_for() -> None:
    channels = {"events": "total", "events/subscriptions": "total"}
    with SyncMemoryCell(channels=channels) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        named = bob.subscribe_as("events", "billing")
        with pytest.raises(TimeoutError, match=r"^no delivery within 0.05 s; connected: broker-1"):
            named.next(0.05)
        publisher = alice.publisher("events")
        with alice.subscribe("events") as inbox:
            with pytest.raises(TimeoutError) as caught:
                inbox.next(0.05)
            assert str(caught.value) == (
                "nothing came on 'events' within 0.05 s; connected: broker-1, broker-2, broker-3, "
                "broker-4; missing: none; needed: 3 of 4"
            )
            cell.kill("broker-3")
            cell.kill("broker-4")
            with pytest.raises(TimeoutError, match=f"nothing came .* connected: .*{MISSING}"):
                inbox.next_batch(0.05)
        late = f"1 event on 'events' not acknowledged .* broker-3 {AWAY}, broker-4 {AWAY}"
        with pytest.raises(TimeoutError, match=late):
            publisher.publish(b"x", 0.05)
        with pytest.raises(TimeoutError, match=late):
            publisher.flush(0.05)


def test_blocking_call_that_is_taking_something_when_its_time_is_over_returns_it() -> None:
    waiting = [1]

    def decode(found: int) -> int:
        time.sleep(0.1)
        return found

    async def take() -> int:
        return decode(waiting.pop())

    thread = LoopThread()
    try:
        assert thread.run(take(), timeout_s=0.01) == 1
    finally:
        thread.stop()
