"""Publishers wait for a subscriber that does not read, on channels that ask for it (`wait_ms`)."""

import asyncio

import pytest
from tests.client.test_times import in_a_loop

from quorumcast.client import Batch, Gap, Node
from quorumcast.core.ids import Channel
from quorumcast.core.limits import Limits
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.policy import Policy
from quorumcast.testing import MemoryCell, memory

#: The queue of the subscriber and what brokers retain are a fraction of it.
COUNT = 2000
#: Time leaps, so that it costs nothing to wait.
WAIT_S = 60


def channel(policy: str, wait_ms: int = WAIT_S * 1000) -> ChannelEntry:
    limits = Limits(
        retained_publications=512, window=128, publisher_buffer=256, queue=256, wait_ms=wait_ms
    )
    return ChannelEntry(Channel("events"), Policy.named(policy, limits=limits))


@pytest.fixture(autouse=True)
def short_inboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with sockets, little waits for a node that does not read; the rest is dropped."""
    monkeypatch.setattr(memory, "MAX_INBOX", 16)


async def publish(node: Node) -> float:
    """Publish, and return for how long that took."""
    clock = asyncio.get_running_loop().time
    begin = clock()
    async with node.publisher("events", batching=False) as outbox:
        for i in range(1, COUNT + 1):
            await outbox.ready()
            outbox.post(b"%d" % i)
    return clock() - begin


async def read(inbox: object) -> list[int]:
    """Read all numbers up to the last; those in gaps are negative."""
    found: list[int] = []
    while not found or abs(found[-1]) < COUNT:
        for item in await inbox.take():  # type: ignore[attr-defined]
            if isinstance(item, Batch):
                found += [int(payload) for payload in item.payloads]
            else:
                assert isinstance(item, Gap)
                found += [-number for number in range(item.first, item.upto + 1)]
    return found


@pytest.mark.parametrize("policy", ["ab", "brb", "chain+history"])
@in_a_loop
async def test_subscriber_that_reads_in_time_gets_everything(policy: str) -> None:
    async with MemoryCell(channels={"events": channel(policy)}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox:
            publishing = asyncio.create_task(publish(alice))
            await asyncio.sleep(WAIT_S / 2)
            assert not publishing.done()
            assert await read(inbox) == [*range(1, COUNT + 1)]
            assert WAIT_S / 2 < await publishing < WAIT_S


@in_a_loop
async def test_subscriber_that_does_not_read_delays_publishers_only_for_its_time() -> None:
    async with MemoryCell(channels={"events": channel("ab")}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox:
            assert WAIT_S <= await publish(alice) < 1.5 * WAIT_S
            found = await read(inbox)
            assert [*map(abs, found)] == [*range(1, COUNT + 1)]
            gone = [number for number in found if number < 0]
            assert len(gone) > COUNT / 4


@in_a_loop
async def test_nobody_waits_where_the_channel_does_not_ask_for_it() -> None:
    async with MemoryCell(channels={"events": channel("ab", wait_ms=0)}) as cell:
        alice, bob = await cell.connect("alice"), await cell.connect("bob")
        async with bob.subscribe("events") as inbox:
            await publish(alice)
            assert any(number < 0 for number in await read(inbox))
