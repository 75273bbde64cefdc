"""Resumed publishers: each publication is ordered exactly once, over any number of runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from inspect import Signature, signature
from typing import Any

import pyarrow as pa
import pytest
from tests.runtime.world import PATIENCE_S, run

from quorumcast import Node, Resumption, UsageError
from quorumcast.testing import MemoryCell

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)
CHANNELS = {"orders": "total", "crash": "total-crash", "fifo": "ab"}


def epoch(number: int, name: str = "import") -> Resumption:
    return Resumption(name, number, AT)


def in_a_cell(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test with a cell of its own."""

    async def with_cell(**options: Any) -> None:
        async with MemoryCell(channels=CHANNELS) as cell:
            await test(cell, **options)

    @wraps(test)
    def running(**options: Any) -> None:
        run(with_cell(**options))

    _, *others = signature(test).parameters.values()
    running.__signature__ = Signature(others)  # type: ignore[attr-defined]
    return running


async def publish(
    node: Node, resume: Resumption, *payloads: bytes, channel: str = "orders"
) -> None:
    async with node.publisher(channel, resume=resume, timeout_s=PATIENCE_S) as out:
        for payload in payloads:
            out.post(payload)


async def held(cell: MemoryCell, channel: str = "orders") -> list[bytes]:
    """Everything on the channel, in order."""
    found: list[bytes] = []
    node = await cell.connect("bob")
    async with node.subscribe(channel, start="earliest") as events:
        async for item in events.held():
            found += [event.payload for event in item.events()]  # type: ignore[union-attr]
    await node.close()
    return found


@pytest.mark.parametrize("channel", ["orders", "crash"])
@in_a_cell
async def test_stream_published_twice_is_ordered_once(cell: MemoryCell, channel: str) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b", b"c", channel=channel)
    await publish(alice, epoch(1), b"a", b"b", b"c", channel=channel)
    await alice.close()
    again = await cell.connect("alice")
    await publish(again, epoch(1), b"a", b"b", b"c", channel=channel)
    assert await held(cell, channel) == [b"a", b"b", b"c"]


@in_a_cell
async def test_stream_interrupted_half_way_is_resumed(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    out = alice.publisher("orders", resume=epoch(1))
    for payload in (b"a", b"b"):
        await out.publish(payload)
    await alice.close()
    again = await cell.connect("alice")
    await publish(again, epoch(1), b"a", b"b", b"c", b"d")
    assert await held(cell) == [b"a", b"b", b"c", b"d"]


@in_a_cell
async def test_publish_of_ordered_publications_is_acknowledged_one_by_one(cell: MemoryCell) -> None:
    """What was ordered is acknowledged before the brokers' word can be compared."""
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b", b"c")
    async with alice.publisher("orders", resume=epoch(1), timeout_s=PATIENCE_S) as out:
        for payload in (b"a", b"b", b"c", b"d"):
            await out.publish(payload)
    assert await held(cell) == [b"a", b"b", b"c", b"d"]


@in_a_cell
async def test_post_of_many_ordered_publications_is_acknowledged(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    payloads = [b"%d" % number for number in range(200)]
    await publish(alice, epoch(1), *payloads)
    out = alice.publisher("orders", resume=epoch(1), timeout_s=PATIENCE_S)
    await out.publish(payloads[0])  # brokers have said how far they are
    for payload in payloads[1:150]:
        out.post(payload)
    await out.flush()
    assert out.pending == 0
    for payload in payloads[150:]:
        out.post(payload)
    await out.close()
    assert await held(cell) == payloads


@in_a_cell
async def test_names_and_epochs_have_separate_streams(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a")
    await publish(alice, epoch(1, "other"), b"a")
    await publish(alice, epoch(2), b"a")
    assert await held(cell) == [b"a"] * 3


@in_a_cell
async def test_other_contents_are_refused_and_nothing_more_is_published(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b", b"c")
    with pytest.raises(UsageError, match=r"'import', epoch 1, .* other contents"):
        await publish(alice, epoch(1), b"a", b"B", b"c", b"d")
    assert await held(cell) == [b"a", b"b", b"c"]
    assert alice.suspicions == {}


@in_a_cell
async def test_other_contents_at_the_end_raise_in_close(cell: MemoryCell) -> None:
    """Brokers were ahead, so all of it was acknowledged before it could be compared."""
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b")
    out = alice.publisher("orders", resume=epoch(1), timeout_s=PATIENCE_S)
    await out.publish(b"a")
    out.post(b"B")
    await out.flush()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"publication 2 of .* other contents"):
            await out.close()


@in_a_cell
async def test_fewer_publications_than_before_are_refused(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b")
    for fewer in ((b"a",), ()):
        with pytest.raises(UsageError, match="other contents"):
            await publish(alice, epoch(1), *fewer)


@in_a_cell
async def test_earlier_epoch_cannot_be_resumed_after_a_later_one(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a")
    late = alice.publisher("orders", resume=epoch(1), timeout_s=PATIENCE_S)
    await late.publish(b"a")
    await publish(alice, epoch(2), b"b")
    with pytest.raises(UsageError, match="a later epoch has been published than 'import', epoch 1"):
        await late.publish(b"too late")
    with pytest.raises(UsageError, match="a later epoch"):
        await publish(alice, epoch(1), b"a")
    assert await held(cell) == [b"a", b"b"]


@in_a_cell
async def test_brokers_with_wiped_disks_learn_from_others_how_far_a_stream_is(
    cell: MemoryCell,
) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b")
    for broker in cell.manifest.broker_ids:
        cell.restart(broker)
        await publish(alice, epoch(1), b"a", b"b")
    assert await held(cell) == [b"a", b"b"]


@pytest.mark.parametrize("fault", ["lie-acks", "silent", "alter"])
@in_a_cell
async def test_lying_broker_changes_nothing(cell: MemoryCell, fault: str) -> None:
    alice = await cell.connect("alice")
    await publish(alice, epoch(1), b"a", b"b")
    cell.make_lie("broker-2", fault)
    await publish(alice, epoch(1), b"a", b"b", b"c")
    assert await held(cell) == [b"a", b"b", b"c"]


@in_a_cell
async def test_record_batches_have_the_given_time(cell: MemoryCell) -> None:
    alice, bob = await cell.connect("alice"), await cell.connect("bob")
    later = datetime(2026, 11, 15, 13, tzinfo=UTC)
    batch = pa.RecordBatch.from_pydict(
        {"payload": [b"x", b"y"]}, schema=pa.schema([pa.field("payload", pa.binary(), False)])
    )
    async with bob.subscribe("orders") as events:
        async with alice.publisher("orders", resume=epoch(1)) as out:
            out.post_batch(batch)
            out.post_batch(batch, at=later)  # type: ignore[call-arg]
        found = [await anext(events) for _ in range(4)]
    assert [event.published_at for event in found] == [AT, AT, later, later]
    assert [event.publisher for event in found] == ["alice"] * 4


@in_a_cell
async def test_same_stream_twice_at_one_node_is_refused(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    async with alice.publisher("orders", resume=epoch(1)):
        with pytest.raises(UsageError, match="'import', epoch 1, already: close"):
            alice.publisher("orders", resume=epoch(1))


@in_a_cell
async def test_invalid_resumption_is_refused_at_once(cell: MemoryCell) -> None:
    alice = await cell.connect("alice")
    with pytest.raises(UsageError, match="'fifo' cannot be resumed, because it has no total order"):
        alice.publisher("fifo", resume=epoch(1))
    with pytest.raises(UsageError, match="leave out 'urgent'"):
        alice.publisher("orders", resume=epoch(1), urgent=True)
    with pytest.raises(UsageError, match="needs a name"):
        Resumption("", 1, AT)
    with pytest.raises(UsageError, match="epoch is -1"):
        epoch(-1)
    with pytest.raises(UsageError, match="without a time zone"):
        Resumption("import", 1, datetime(2026, 11, 15))
    with pytest.raises(UsageError, match="give a time from 1970 on"):
        Resumption("import", 1, datetime(1969, 12, 31, tzinfo=UTC))
