"""Publishers with a wrong clock can publish, or get an error that says why not."""

from __future__ import annotations

import itertools
import logging
import secrets

import pytest
from tests.support.leaping import leap

from quorumcast.client.publishing import outgoing
from quorumcast.client.publishing.outgoing import BITS_AFTER_MS, incarnation_at
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import LAST_INCARNATION, MAX_INCARNATION, Channel, NodeId, Stream
from quorumcast.testing import MemoryCell

NOW_US = 1_790_000_000_000_000
HOUR_US = 3_600 * 1_000_000
CENTURY_US = 100 * 365 * 24 * HOUR_US


class Wall:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.us = NOW_US

    def __call__(self) -> int:
        return self.us


def lives(policy: str, *offsets_us: int, listening: bool = False) -> list[bytes]:
    """Publish once in each of these lives, all of them acknowledged; returns what arrived.

    A publisher that is `listening` subscribes first, through the same node.
    """
    wall = Wall()

    async def main() -> list[bytes]:
        async with MemoryCell(channels={"orders": policy}, now_us=wall) as cell:
            bob = await cell.connect("bob")
            got: list[bytes] = []
            async with bob.subscribe("orders") as sub:
                for number, offset in enumerate(offsets_us):
                    wall.us = NOW_US + offset
                    alice = await cell.connect("alice")
                    if listening:
                        await alice.subscribe("orders").wait_joined()
                    async with alice.publisher("orders", timeout_s=20) as pub:
                        await pub.publish(b"life %d" % number)
                    await alice.close()
                    got.append((await anext(sub)).payload)
            return got

    return leap(main())


POLICIES = ["direct", "ab", "ab+history", "brb", "chain", "chain+history", "total", "total-crash"]


@pytest.mark.parametrize("policy", POLICIES)
def test_publisher_whose_clock_was_set_back_continues_with_a_warning(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Five lives, so that brokers have let go of the first; the sixth is an hour before them."""
    with caplog.at_level(logging.WARNING, logger="quorumcast"):
        got = lives(policy, 0, 1_000_000, 2_000_000, 3_000_000, 4_000_000, -HOUR_US, -HOUR_US)
    assert got == [b"life %d" % number for number in range(7)]
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "set the clock right" in line]) == 2
    assert "3,604.0 s ahead" in said[0]


@pytest.mark.parametrize("policy", ["ab+history", "total"])
def test_node_that_listens_as_well_continues_after_its_clock_was_set_back(policy: str) -> None:
    assert lives(policy, 0, -HOUR_US, listening=True) == [b"life 0", b"life 1"]


@pytest.mark.parametrize("policy", ["ab", "brb", "total"])
def test_publisher_whose_clock_was_a_century_ahead_is_not_locked_out(policy: str) -> None:
    got = lives(policy, 0, CENTURY_US, 1_000_000, 2_000_000, CENTURY_US, 3_000_000)
    assert got == [b"life %d" % number for number in range(6)]


@pytest.mark.parametrize("policy", ["ab", "total"])
def test_publisher_whose_clock_stands_still_has_a_new_stream_after_each_start(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = itertools.count(6_000, -1_000)  # each incarnation seems earlier than the one before
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(draws) % (1 << bits))
    assert lives(policy, *[0] * 6) == [b"life %d" % number for number in range(6)]


@pytest.mark.parametrize("policy", ["ab", "brb", "total"])
def test_publisher_without_later_incarnations_gets_an_error(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = iter([LAST_INCARNATION + 2])
    monkeypatch.setattr(
        outgoing, "incarnation_at", lambda now_us: next(claimed, 0) or incarnation_at(now_us)
    )
    with pytest.raises(UsageError, match="used the last incarnation: publish at another seat"):
        lives(policy, 0, 1_000_000)


def test_incarnation_of_any_clock_leaves_room_for_later_ones() -> None:
    for us in (0, NOW_US, NOW_US + CENTURY_US, 1 << 62):
        found = incarnation_at(us)
        assert 0 <= found <= MAX_INCARNATION < LAST_INCARNATION
        assert found % 2 == 0
        assert Stream(Channel("orders"), NodeId("alice"), found).line is None


def test_incarnation_grows_with_the_clock_and_differs_within_a_millisecond() -> None:
    assert incarnation_at(NOW_US + 1000) > incarnation_at(NOW_US)
    for us in (NOW_US, 1 << 62):
        assert len({incarnation_at(us) for _ in range(64)}) > 32
    assert incarnation_at(NOW_US) >> BITS_AFTER_MS == NOW_US // 1000
