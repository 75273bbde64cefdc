"""What brokers dropped before a subscription that begins with the oldest publication is told."""

from __future__ import annotations

from collections import defaultdict

import pytest
from msgspec.structs import replace
from tests.client.test_total_order import in_a_loop, publish

from quorumcast.client import Gap, Node
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


async def read(bob: Node, channel: str) -> tuple[list[Gap], dict[Stream, list[int]]]:
    """What is told to be gone, before the first item and as gaps; and all numbers by stream."""
    found: dict[Stream, list[int]] = defaultdict(list)
    async with bob.subscribe(channel, start="earliest") as events:
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


@in_a_loop
async def test_time_before_which_publications_were_dropped_is_not_asked_for() -> None:
    async with MemoryCell(channels={"events": small("ab")}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        await publish(alice, "events", COUNT)
        async with bob.subscribe("events", start="earliest") as events:
            held = [item async for item in events.held() if not isinstance(item, Gap)]
        async with bob.subscribe("events", start=held[-1].published_at) as events:
            assert events.dropped == []
