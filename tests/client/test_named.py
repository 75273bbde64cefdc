"""Named subscriptions through the client: resuming, redelivery, sharing, dead letters."""

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from tests.client.test_total_order import in_a_loop, publish
from tests.runtime.world import PATIENCE_S, until

from quorumcast.client import DeadLetter, Delivery, GapError, NamedSubscription, Node
from quorumcast.client.named.companion import CompanionLog
from quorumcast.client.named.maintenance import IDLE_HEARTBEAT_S
from quorumcast.client.named.overview import subscriptions_of
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry, Group
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell, SyncMemoryCell

TOTAL = Policy.named("total")
GROUP = Group("billing", ("bob", "carol"), max_attempts=2, ack_timeout_ms=300, dead_letter="dead")
ORDERS = ChannelEntry(Channel("orders"), TOTAL, groups=(GROUP,))
CHANNELS: Mapping[str, Any] = {
    "orders": ORDERS,
    "orders/subscriptions": TOTAL,
    "dead": TOTAL,
    "logs": "ab",
    "alone": TOTAL,
}
SMALL = Policy.named(
    "total",
    limits=Limits(
        retained_publications=16, window=4, segment=4, vote_window=8, pipeline=2, checkpoint=4
    ),
)


async def take(subscription: NamedSubscription, count: int, *, ack: bool = True) -> list[Delivery]:
    found = []
    for _ in range(count):
        delivery = await anext(subscription)
        found.append(delivery)
        if ack:
            await delivery.ack()
    return found


def seen(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.position, delivery.attempt) for delivery in deliveries]


async def cell_of(cell: MemoryCell, *names: str) -> list[Node]:
    return [await cell.connect(name) for name in names]


@in_a_loop
async def test_reopened_subscription_continues_where_it_stopped() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 30)
        async with bob.subscribe_as("orders", "mine", start="earliest") as mine:
            first = await take(mine, 12)
            assert [d.batch.payloads for d in first] == [[b"%d" % n] for n in range(1, 13)]
            assert first[0].events[0].payload == b"1"
            assert mine.lag >= 18
        async with bob.subscribe_as("orders", "mine") as mine:
            assert seen(await take(mine, 18)) == [(n, 1) for n in range(13, 31)]
            await mine.flush()
            await publish(alice, "orders", 1)
            assert seen(await take(mine, 1)) == [(31, 1)]


@in_a_loop
async def test_unacknowledged_delivery_is_redelivered_and_undelivered_one_is_new() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 8)
        async with bob.subscribe_as("orders", "mine", start="earliest", prefetch=8) as mine:
            deliveries = await take(mine, 3, ack=False)
            await deliveries[1].ack()
        async with bob.subscribe_as("orders", "mine") as mine:
            again = seen(await take(mine, 7))
        assert again == [(1, 2), (3, 2), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)]


@pytest.mark.parametrize(
    ("start", "expected"), [("latest", 6), ("earliest", 1), (4, 4)], ids=["latest", "earliest", "4"]
)
@in_a_loop
async def test_start_applies_to_the_first_use_only(start: str | int, expected: int) -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 5)
        async with bob.subscribe_as("orders", "mine", start=start):
            await publish(alice, "orders", 1)
        async with bob.subscribe_as("orders", "mine", start="latest") as mine:
            assert (await anext(mine)).position == expected


@in_a_loop
async def test_automatic_acknowledgement_is_sent_with_the_next_delivery() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 3)
        async with bob.subscribe_as("orders", "mine", start="earliest", ack="auto") as mine:
            await take(mine, 3, ack=False)
        async with bob.subscribe_as("orders", "mine") as mine:
            assert seen(await take(mine, 1)) == [(3, 2)]


@in_a_loop
async def test_anew_recreates_the_subscription() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 3)
        async with bob.subscribe_as("orders", "mine", start="earliest") as mine:
            await take(mine, 3)
        async with bob.subscribe_as("orders", "mine", start=2, anew=True) as mine:
            assert seen(await take(mine, 2)) == [(2, 1), (3, 1)]


@in_a_loop
async def test_publication_out_of_attempts_is_published_as_a_dead_letter() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 4)
        async with (
            carol.subscribe("dead") as dead,
            bob.subscribe_as(
                "orders", "mine", start="earliest", max_attempts=2, dead_letter="dead", prefetch=2
            ) as mine,
        ):
            (first,) = await take(mine, 1, ack=False)
            await first.nack()
            others = [(d.position, d.attempt) for d in await take(mine, 1)]
            while (delivery := await anext(mine)).position != 1:
                others.append((delivery.position, delivery.attempt))
                await delivery.ack()
            assert delivery.attempt == 2
            await delivery.nack()
            letter = DeadLetter.read((await anext(dead)).payload)
            assert (letter.channel, letter.subscription, letter.position) == ("orders", "mine", 1)
            assert (letter.publisher, letter.attempts, letter.consumer) == ("alice", 2, "bob")
            assert letter.data().to_pylist() == [{"payload": b"1"}]
            assert letter.contents == delivery.batch.contents
            while len(others) < 3:
                others += [(d.position, d.attempt) for d in await take(mine, 1)]
            assert sorted(others) == [(2, 1), (3, 1), (4, 1)]
            state = mine.state
            await until(lambda: state().dead == [1])
            assert state().cursor >= 2


@in_a_loop
async def test_dead_letter_waits_for_room_on_its_channel_while_deliveries_continue() -> None:
    """A full dead-letter channel must not stop the subscription."""
    few = Policy.named("total", limits=Limits(publishers=1))
    dead_letters = ChannelEntry(Channel("dead"), few)
    async with MemoryCell(channels={**CHANNELS, "dead": dead_letters}) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 3)
        async with bob.subscribe_as(
            "orders", "mine", start="earliest", max_attempts=1, dead_letter="dead"
        ) as mine:
            async with alice.publisher("dead") as taken:
                await taken.publish(b"the only place")
                await (await anext(mine)).nack()
                assert seen(await take(mine, 2)) == [(2, 1), (3, 1)]
                brokers = [cell.broker(name) for name in cell.manifest.broker_ids]
                await until(lambda: all(b.telemetry.drops["over-limit"] for b in brokers))
                assert mine.state().dead == []
            await alice.close()
            await until(lambda: mine.state().dead == [1])
        async with carol.subscribe("dead", start="earliest") as dead:
            assert (await anext(dead)).payload == b"the only place"
            assert DeadLetter.read((await anext(dead)).payload).position == 1


@in_a_loop
async def test_dead_publication_without_a_channel_for_letters_is_only_recorded() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 1)
        async with bob.subscribe_as("orders", "m", start="earliest", max_attempts=1) as mine:
            await (await anext(mine)).nack()
            await until(lambda: mine.state().dead_count == 1)


@in_a_loop
async def test_members_share_all_publications() -> None:
    patient = replace(ORDERS, groups=(replace(GROUP, ack_timeout_ms=3_600_000),))
    async with MemoryCell(channels={**CHANNELS, "orders": patient}) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        found: dict[str, list[int]] = {"bob": [], "carol": []}

        async def work(node: Node) -> None:
            async with node.subscribe_as("orders", "billing", start=1, prefetch=4) as mine:
                async for delivery in mine:
                    found[node.name].append(delivery.position)
                    # Whoever was first holds a few of them and leaves the rest to the other.
                    await until(lambda: bool(found["bob"] and found["carol"]))
                    await delivery.ack()

        async def share() -> None:
            await publish(alice, "orders", 60)
            await until(lambda: len(found["bob"]) + len(found["carol"]) >= 60)

        working = [asyncio.ensure_future(work(node)) for node in (bob, carol)]
        await share()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    assert sorted(found["bob"] + found["carol"]) == list(range(1, 61))


@in_a_loop
async def test_positions_of_a_silent_member_go_to_another() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 6)
        silent = bob.subscribe_as("orders", "billing", start="earliest", prefetch=4)
        await silent.open()
        await take(silent, 2, ack=False)
        await bob.close()  # as a process that dies: it says nothing any more
        async with carol.subscribe_as("orders", "billing", prefetch=8) as mine:
            got = seen(await take(mine, 6))
        assert sorted(got) == [(1, 2), (2, 2), (3, 2), (4, 2), (5, 1), (6, 1)]


@in_a_loop
async def test_slow_member_keeps_its_positions_while_it_is_alive() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 1)
        async with (
            bob.subscribe_as("orders", "billing", start="earliest") as slow,
            carol.subscribe_as("orders", "billing") as other,
            carol.subscribe("orders/subscriptions") as operations,
        ):
            delivery = await anext(slow)
            for _ in range(8):  # beats: more than twice the time-out
                await anext(operations)
            assert slow.state().assigned_to("bob")[0].attempt == 1
            await delivery.ack()
            await until(lambda: other.state().cursor == 2)


@in_a_loop
async def test_idle_group_writes_no_operations() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        async with (
            bob.subscribe_as("orders", "billing") as one,
            carol.subscribe_as("orders", "billing") as other,
            alice.subscribe("orders/subscriptions") as operations,
        ):
            await publish(alice, "orders", 1)
            waiting = [asyncio.ensure_future(anext(s)) for s in (one, other)]
            (done,), (idle,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await done.result().ack()
            await until(lambda: one.state().cursor == other.state().cursor == 2)
            idle.cancel()
            # What was on its way may still come. Then nothing does: there is no event to await.
            ends = [operations.end]
            while len(ends) < 5 and ends[-1:] != ends[-2:-1]:
                await asyncio.sleep(3 * GROUP.ack_timeout_ms / 1000)
                ends.append(operations.end)
            assert ends[-1] == ends[-2]


@in_a_loop
async def test_several_subscriptions_of_one_node_do_not_disturb_each_other() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 5)
        async with (
            bob.subscribe("orders") as plain,
            bob.subscribe_as("orders", "one", start="earliest") as one,
            bob.subscribe_as("orders", "two", start=3) as two,
        ):
            await publish(alice, "orders", 1)
            assert (await anext(plain)).position == 6
            assert seen(await take(one, 6)) == [(n, 1) for n in range(1, 7)]
            assert seen(await take(two, 4)) == [(n, 1) for n in range(3, 7)]


@in_a_loop
async def test_second_session_of_a_client_takes_over() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 2)
        async with bob.subscribe_as("orders", "mine", start="earliest") as old:
            stale = await anext(old)
            async with bob.subscribe_as("orders", "mine") as new:
                assert seen(await take(new, 2)) == [(1, 2), (2, 2)]
                with pytest.raises(UsageError, match="another process of 'bob'"):
                    await take(old, 2)
                await stale.ack()


@pytest.mark.parametrize("fault", ["lie-to-subscribers", "alter", "silent", "false-positions"])
@in_a_loop
async def test_lying_broker_changes_nothing(fault: str) -> None:
    async with MemoryCell(channels=CHANNELS, liars={"broker-2": fault}) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 20)
        async with bob.subscribe_as("orders", "mine", start=1) as mine:
            await take(mine, 10)
        async with bob.subscribe_as("orders", "mine") as mine:
            got = await take(mine, 10)
        assert [d.batch.payloads for d in got] == [[b"%d" % n] for n in range(11, 21)]


@pytest.mark.parametrize("seed", range(3))
@in_a_loop
async def test_members_that_crash_and_return_lose_no_publication(seed: int) -> None:
    rng, count = random.Random(seed), 60
    liars = {"broker-3": rng.choice(["lie-to-subscribers", "false-positions", "alter"])}
    endless = replace(ORDERS, groups=(replace(GROUP, max_attempts=0, dead_letter=""),))
    acknowledged: set[int] = set()
    async with MemoryCell(channels={**CHANNELS, "orders": endless}, liars=liars) as cell:
        alice = await cell.connect("alice")

        async def work(name: str) -> None:
            """Open session after session, each with a few deliveries and a crash or a close."""
            while True:
                node = await cell.connect(name)
                mine = node.subscribe_as("orders", "billing", start=1, prefetch=4)
                await mine.open()
                for _ in range(rng.randint(1, 12)):
                    delivery = await anext(mine)
                    assert delivery.batch.payloads == [b"%d" % delivery.position]
                    if rng.random() < 0.2:
                        await delivery.nack()
                    else:
                        await delivery.ack()
                        acknowledged.add(delivery.position)
                if rng.random() < 0.5:
                    await mine.close()
                await node.close()

        working = [asyncio.ensure_future(work(name)) for name in ("bob", "carol")]
        await publish(alice, "orders", count)
        while True:
            found = await subscriptions_of(alice, "orders")
            if found and found[0].cursor == count + 1:
                break
            assert not any(task.done() for task in working)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    assert acknowledged == set(range(1, count + 1))
    assert found[0].redelivered > 0


@in_a_loop
async def test_consumer_that_dies_is_silent_and_one_that_idles_is_not() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 1)
        mine = bob.subscribe_as("orders", "mine", start="earliest")
        await mine.open()
        await take(mine, 1)
        await mine.flush()
        (found,) = await subscriptions_of(carol, "orders")
        assert (found.members, found.silent) == (("bob",), ())
        await bob.close()  # without closing the subscription
        with pytest.MonkeyPatch.context() as patch:
            later = time.time() + 3 * IDLE_HEARTBEAT_S + 1
            patch.setattr("quorumcast.client.named.overview.time.time", lambda: later)
            (found,) = await subscriptions_of(carol, "orders")
        assert (found.members, found.silent) == ((), ("bob",))


@in_a_loop
async def test_idle_consumer_shows_signs_of_life() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quorumcast.client.named.maintenance.IDLE_HEARTBEAT_S", 0.0)
        async with MemoryCell(channels=CHANNELS) as cell:
            _, bob = await cell_of(cell, "alice", "bob")
            async with bob.subscribe_as("orders", "mine", ack_timeout_s=1.0) as mine:
                first = mine.state().sessions["bob"].last_seen
                await until(lambda: mine.state().sessions["bob"].last_seen >= first + 2)


# ----------------------------------------------------------------- retention


@in_a_loop
async def test_positions_that_are_no_longer_retained_are_announced_as_a_gap() -> None:
    channels = {"orders": SMALL, "orders/subscriptions": TOTAL}
    async with MemoryCell(channels=channels) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        await publish(alice, "orders", 2)
        async with bob.subscribe_as("orders", "mine", start="earliest") as mine:
            await take(mine, 1)
        await publish(alice, "orders", 60)
        async with bob.subscribe_as("orders", "mine") as mine:
            with pytest.raises(GapError) as caught:
                await anext(mine)
            gap = caught.value.gap
            assert gap.first == 2
            told = f"positions 2 to {gap.upto} of orders are gone: channel orders keeps "
            assert str(caught.value).startswith(told)
            assert "quorumcast channel change orders --retain " in str(caught.value)
            rest = await take(mine, 62 - gap.upto)
            assert seen(rest) == [(n, 1) for n in range(gap.upto + 1, 63)]


@pytest.mark.parametrize("liar", [None, "false-positions"])
@in_a_loop
async def test_first_use_from_the_oldest_tells_which_positions_are_gone(liar: str | None) -> None:
    channels = {"orders": SMALL, "orders/subscriptions": TOTAL}
    async with MemoryCell(channels=channels) as cell:
        alice, bob = await cell_of(cell, "alice", "bob")
        async with bob.subscribe_as("orders", "whole", start="earliest") as whole:
            assert whole.dropped == []
        await publish(alice, "orders", 60)
        if liar is not None:
            cell.make_lie("broker-1", liar)
        async with bob.subscribe_as("orders", "mine", start="earliest") as mine:
            (gap,) = mine.dropped
            assert (gap.first, gap.upto) == (1, 44)
            assert str(gap).startswith("positions 1 to 44 of orders are gone: channel orders keeps")
            assert seen(await take(mine, 2)) == [(45, 1), (46, 1)]
            await mine.flush()
        for start in ("latest", 50, "earliest"):
            async with bob.subscribe_as("orders", f"from-{start}", start=start) as other:
                assert len(other.dropped) == (start == "earliest")
        async with bob.subscribe_as("orders", "mine", start="earliest") as mine:
            assert mine.dropped == []  # it goes on, and has been told


@in_a_loop
async def test_active_subscription_survives_the_retention_of_its_companion() -> None:
    channels = {"orders": TOTAL, "orders/subscriptions": SMALL}
    async with MemoryCell(channels=channels) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 60)
        async with (
            carol.subscribe_as("orders", "idle", start=7) as idle,
            bob.subscribe_as("orders", "mine", start="earliest", prefetch=2) as mine,
        ):
            for _ in range(50):
                await take(mine, 1)
                await mine.flush()
            assert idle.state().root < mine.position - 16
        async with bob.subscribe_as("orders", "mine") as mine:
            assert seen(await take(mine, 1)) == [(51, 1)]
        async with carol.subscribe_as("orders", "idle") as idle:
            assert (await anext(idle)).position == 7


@in_a_loop
async def test_subscription_whose_state_is_no_longer_retained_is_refused_without_anew() -> None:
    channels = {"orders": TOTAL, "orders/subscriptions": SMALL}
    async with MemoryCell(channels=channels) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        await publish(alice, "orders", 60)
        async with carol.subscribe_as("orders", "old", start=7):
            pass
        async with bob.subscribe_as("orders", "mine", start="earliest", prefetch=2) as mine:
            for _ in range(40):
                await take(mine, 1)
                await mine.flush()
        with pytest.raises(UsageError, match="begin it anew with anew=True"):
            await carol.subscribe_as("orders", "old").open()
        async with carol.subscribe_as("orders", "old", anew=True, start=9) as old:
            assert (await anext(old)).position == 9
        async with carol.subscribe("orders/subscriptions") as operations:
            log = CompanionLog(operations)
            await log.read_all()
            assert (None, "old") not in log.names()
            assert ("carol", "old") in log.names()


# ----------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("who", "channel", "name", "options", "sentence"),
    [
        ("bob", "nowhere", "m", {}, "no channel 'nowhere'"),
        ("bob", "logs", "m", {}, "no total order"),
        ("bob", "orders*", "m", {}, "is a pattern"),
        ("bob", "orders", "m", {"start": datetime(2026, 11, 1, tzinfo=UTC)}, "or a position"),
        ("bob", "alone", "m", {}, "no companion"),
        ("dave", "orders", "billing", {}, "no member of the group 'billing'"),
        ("bob", "orders", "billing", {"max_attempts": 3}, "in the manifest"),
        ("bob", "orders", "", {}, "is no name"),
        ("bob", "orders", "m" * 200, {}, "is no name"),
        ("bob", "orders", "m", {"start": 0}, "start is 0"),
        ("bob", "orders", "m", {"prefetch": 0}, "prefetch is 0"),
        ("bob", "orders", "m", {"prefetch": 1000}, "at most 256"),
        ("bob", "orders", "m", {"ack": "never"}, "ack is 'never'"),
        ("bob", "orders", "m", {"ack_timeout_s": 0}, "ack_timeout_s is 0"),
        ("bob", "orders", "m", {"ack_timeout_s": float("nan")}, "ack_timeout_s is nan"),
        ("bob", "orders", "m", {"max_attempts": -1}, "max_attempts is -1"),
        ("bob", "orders", "m", {"max_attempts": 1.5}, "max_attempts is 1.5"),
        ("bob", "orders", "m", {"dead_letter": "dead"}, "give max_attempts"),
        ("bob", "orders", "m", {"dead_letter": "x", "max_attempts": 1}, "another channel"),
        ("bob", "orders", "m", {"dead_letter": "orders", "max_attempts": 1}, "another channel"),
    ],
)
@in_a_loop
async def test_bad_input_is_refused_with_a_sentence(
    who: str, channel: str, name: str, options: dict[str, Any], sentence: str
) -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        node = await cell.connect(who)
        with pytest.raises(UsageError, match=sentence):
            node.subscribe_as(channel, name, **options)


@in_a_loop
async def test_position_that_does_not_exist_yet_is_refused() -> None:
    async with MemoryCell(channels=CHANNELS) as cell:
        bob = await cell.connect("bob")
        with pytest.raises(UsageError, match="position 9 of 'orders' does not exist yet"):
            await bob.subscribe_as("orders", "m", start=9).open()
        async with bob.subscribe_as("orders", "m", start=1):
            pass


@in_a_loop
async def test_client_without_rights_gets_an_error() -> None:
    channels = {**CHANNELS, "orders": replace(ORDERS, subscribers=("bob", "carol"))}
    async with MemoryCell(channels=channels) as cell:
        dave = await cell.connect("dave")
        with pytest.raises(UsageError, match="'dave' may not subscribe"):
            dave.subscribe_as("orders", "mine")


def test_event_that_is_no_letter_is_refused() -> None:
    with pytest.raises(UsageError, match="no dead letter"):
        DeadLetter.read(b"hello")


# ------------------------------------------------------ without an event loop


def test_named_subscription_without_an_event_loop() -> None:
    with SyncMemoryCell(channels=CHANNELS) as cell:
        alice, bob = cell.connect("alice"), cell.connect("bob")
        with alice.publisher("orders", batching=False) as out:
            for number in range(3):
                out.publish(b"%d" % number)
        with bob.subscribe_as("orders", "mine", start="earliest") as mine:
            first = mine.next(timeout_s=PATIENCE_S)
            mine.nack(next(mine))
            mine.ack(first)
            mine.flush(timeout_s=PATIENCE_S)
        with bob.subscribe_as("orders", "mine") as mine:
            again = [
                (d.position, d.attempt) for d in (mine.next(PATIENCE_S), mine.next(PATIENCE_S))
            ]
            with pytest.raises(TimeoutError):
                mine.next(timeout_s=0.1)
        assert again == [(2, 2), (3, 1)]


@in_a_loop
async def test_consumers_beyond_the_bound_do_not_displace_each_other_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumcast.named.state.MAX_SESSIONS", 1)
    async with MemoryCell(channels=CHANNELS) as cell:
        alice, bob, carol = await cell_of(cell, "alice", "bob", "carol")
        async with (
            bob.subscribe_as("orders", "billing") as one,
            carol.subscribe_as("orders", "billing") as two,
        ):
            await until(lambda: list(one.state().sessions) == ["carol"])
            stood = two.position
            await publish(alice, "logs", 200)
            assert two.position == stood
            await publish(alice, "orders", 1)
            found = [asyncio.ensure_future(anext(consumer)) for consumer in (one, two)]
            done, waiting = await asyncio.wait(found, return_when=asyncio.FIRST_COMPLETED)
            assert seen([task.result() for task in done]) == [(1, 1)]
            for task in waiting:
                task.cancel()
