"""What brokers dropped before a subscription that begins in the past is told."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

import pytest
from msgspec.structs import replace
from tests.client.test_total_order import in_a_loop, publish

from quorumcast.client import Batch, Gap, Node
from quorumcast.core.envelope import time_of
from quorumcast.core.ids import Stream, total_order
from quorumcast.core.limits import Limits
from quorumcast.manifest.policy import POLICY_NAMES, Policy
from quorumcast.testing import MemoryCell

LIMITS = Limits(
    retained_publications=8, window=4, segment=4, vote_window=8, pipeline=2, checkpoint=4
)
COUNT = 40
ALL_NUMBERS = [*range(1, COUNT + 1)]
JOURNALED = ("direct+journal", "ab+history+journal", "brb+journal", "chain+journal")


def small(name: str, limits: Limits = LIMITS) -> Policy:
    return replace(Policy.parse(name, alpha=2), limits=limits)


async def read(
    bob: Node, channel: str, start: str | datetime = "earliest"
) -> tuple[list[Gap], dict[Stream, list[int]]]:
    """What is told to be gone, before the first item and as gaps; and all numbers by stream.

    Read until nothing changes: retention drops more when the last history is settled.
    """
    earlier, found = None, await read_once(bob, channel, start)
    while found != earlier:
        earlier, found = found, await read_once(bob, channel, start)
    return found


async def read_once(
    bob: Node, channel: str, start: str | datetime
) -> tuple[list[Gap], dict[Stream, list[int]]]:
    found: dict[Stream, list[int]] = defaultdict(list)
    async with bob.subscribe(channel, start=start) as events:
        items = [*events.dropped, *[item async for item in events.held()]]
    for item in items:
        if isinstance(item, Gap):
            found[item.stream] += range(item.first, item.upto + 1)
        elif item.position is not None:
            found[total_order(item.channel)].append(item.position)
        else:
            found[item.stream].append(item.number)
    return [item for item in items if isinstance(item, Gap)], dict(found)


@pytest.mark.parametrize("policy", [*POLICY_NAMES, *JOURNALED, "total+durable"])
@in_a_loop
async def test_numbers_that_retention_dropped_are_told_of_every_policy(policy: str) -> None:
    async with MemoryCell(channels={"events": small(policy)}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "events", COUNT)
        dropped, found = await read(bob, "events")
        assert list(found.values()) == [ALL_NUMBERS]
        (gap,) = dropped
        assert 1 == gap.first < gap.upto < COUNT
        assert gap.publisher == ("*" if policy.startswith("total") else "alice")
        assert " are gone: channel events keeps 8 publications, 64 MiB" in str(gap)
        more = "everything" if policy.endswith("+durable") else "1GB"
        assert str(gap).endswith(f"quorumcast channel change events --retain {more}")


@pytest.mark.parametrize("policy", POLICY_NAMES)
@in_a_loop
async def test_streams_that_are_held_from_their_beginning_have_lost_nothing(policy: str) -> None:
    async with MemoryCell(channels={"events": policy}) as cell:
        bob = await cell.connect("bob")
        for _ in range(2):  # two lives
            alice = await cell.connect("alice")
            await publish(alice, "events", 3)
            await alice.close()
        assert (await read(bob, "events"))[0] == []
        async with bob.subscribe("events") as events:
            assert events.dropped == []


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if "crash" not in name])
@pytest.mark.parametrize("seed", range(3))
@in_a_loop
async def test_liar_about_positions_neither_hides_nor_invents_what_is_gone(
    policy: str, seed: int
) -> None:
    channels = {"short": small(policy), "whole": Policy.parse(policy)}
    async with MemoryCell(channels=channels, seed=seed) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        for channel in channels:
            await publish(alice, channel, COUNT)
        cell.make_lie("broker-2", "false-positions")
        dropped, found = await read(bob, "short")
        assert list(found.values()) == [ALL_NUMBERS]
        assert dropped[0].first == 1
        dropped, found = await read(bob, "whole")
        assert (dropped, list(found.values())) == ([], [ALL_NUMBERS])


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "chain"])
@in_a_loop
async def test_lives_of_which_nothing_is_left_are_told(policy: str) -> None:
    async with MemoryCell(channels={"events": small(policy)}) as cell:
        bob = await cell.connect("bob")
        for _ in range(3):
            alice = await cell.connect("alice")
            await publish(alice, "events", 12)
            await alice.close()
        dropped, found = await read(bob, "events")
        assert list(found.values()) == [[*range(1, 13)]] * 3
        assert [(gap.first, gap.upto) for gap in dropped[:2]] == [(1, 12)] * 2
        assert [gap.stream for gap in dropped] == sorted(gap.stream for gap in dropped)


DAY_US = 86_400_000_000


class Ticking:
    """A clock that goes on by a second with each look."""

    def __init__(self) -> None:
        self.us = 1_793_534_400_000_000

    def __call__(self) -> int:
        self.us += 1_000_000
        return self.us

    def day_ago(self) -> datetime:
        return time_of(self.us - DAY_US)


@pytest.mark.parametrize("policy", [*POLICY_NAMES, *JOURNALED, "total+durable"])
@in_a_loop
async def test_time_of_which_publications_may_have_been_dropped_is_told_like_the_oldest(
    policy: str,
) -> None:
    clock = Ticking()
    async with MemoryCell(channels={"events": small(policy)}, now_us=clock) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "events", COUNT)
        (gap,), found = await read(bob, "events")
        (told,), of_a_time = await read(bob, "events", clock.day_ago())
        assert of_a_time == found
        assert (told.stream, told.first, told.upto) == (gap.stream, gap.first, gap.upto)
        assert told.retention == f"some of them may be of the time asked for; {gap.retention}"
        async with bob.subscribe("events", start="earliest") as events:
            held = [item async for item in events.held() if isinstance(item, Batch)]
        # Where an older publication is held, nothing of that time was dropped.
        for published_at in (held[1].published_at, held[-1].published_at):
            assert (await read(bob, "events", published_at))[0] == []
        assert (await read(bob, "events", time_of(clock.us + DAY_US))) == ([], {})


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if "crash" not in name])
@pytest.mark.parametrize("seed", range(3))
@in_a_loop
async def test_liar_about_positions_neither_hides_nor_invents_what_is_gone_of_a_time(
    policy: str, seed: int
) -> None:
    clock, channels = Ticking(), {"short": small(policy), "whole": Policy.parse(policy)}
    async with MemoryCell(channels=channels, seed=seed, now_us=clock) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        for channel in channels:
            await publish(alice, channel, COUNT)
        cell.make_lie("broker-2", "false-positions")
        told, found = await read(bob, "short", clock.day_ago())
        assert list(found.values()) == [ALL_NUMBERS]
        assert told[0].first == 1
        told, found = await read(bob, "whole", clock.day_ago())
        assert (told, list(found.values())) == ([], [ALL_NUMBERS])


@pytest.mark.parametrize("policy", ["ab", "ab+history", "brb", "chain"])
@in_a_loop
async def test_lives_of_a_time_of_which_nothing_is_left_are_told(policy: str) -> None:
    clock = Ticking()
    async with MemoryCell(channels={"events": small(policy)}, now_us=clock) as cell:
        bob = await cell.connect("bob")
        for _ in range(3):
            alice = await cell.connect("alice")
            await publish(alice, "events", 12)
            await alice.close()
        told, found = await read(bob, "events", clock.day_ago())
        assert list(found.values()) == [[*range(1, 13)]] * 3
        assert [(gap.first, gap.upto) for gap in told[:2]] == [(1, 12)] * 2
        # The last life goes back beyond its last publication, so the earlier ones are older.
        assert (await read(bob, "events", time_of(clock.us - 1_000_000)))[0] == []
