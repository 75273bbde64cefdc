"""Publications have a time, by the clock of their publisher, and may expire."""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import pytest
from tests.runtime.world import run

from quorumcast.core.envelope import time_of
from quorumcast.core.ids import Channel
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
        run(test(*args, **kwargs))

    return wrapper


@pytest.mark.parametrize("policy", ["ab+history", "total"])
@in_a_loop
async def test_event_says_when_it_was_published_by_its_publishers_clock(policy: str) -> None:
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
async def test_contents_with_a_wrong_envelope_are_nonsense() -> None:
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
