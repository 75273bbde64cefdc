"""A publisher with a simulated host: batching, bounds, acknowledgements, schema errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest
from tests.runtime.world import run, until

from quorumcast.client.events import BufferFull
from quorumcast.client.options import PublisherOptions
from quorumcast.client.publishing.packing import Packer
from quorumcast.client.publishing.publisher import (
    MAX_EVENT_BYTES,
    MAX_IN_FLIGHT,
    SMALL_IN_FLIGHT,
    Publisher,
)
from quorumcast.core.envelope import ENVELOPE_BYTES
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.publication import PAYLOAD, batch_of_payloads, decode_batch

CHANNEL = Channel("c")
SCHEMA = pa.schema([("price", pa.float64())])


class Toy:
    """Takes publications; a test decides when they are acknowledged."""

    def __init__(self) -> None:
        self.submits: list[tuple[bytes, ...]] = []
        self.space = 10_000
        self.number = 0

    def room(self, channel: Channel, urgent: bool) -> int:
        return self.space

    def submit(self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool) -> int:
        self.submits.append(bodies)
        self.space -= len(bodies)
        self.number += len(bodies)
        return self.number

    def describe_brokers(self, channel: Channel, urgent: bool) -> str:
        return "acknowledged: no broker"

    def publisher_closed(self, publisher: Publisher) -> None: ...

    def rows(self, schema: pa.Schema = PAYLOAD) -> list[list[Any]]:
        """The events of each publication."""
        batches = [
            decode_batch(body[ENVELOPE_BYTES:], schema)
            for bodies in self.submits
            for body in bodies
        ]
        return [batch.column(0).to_pylist() for batch in batches]  # type: ignore[union-attr]


def with_publisher(
    act: Callable[[Publisher, Toy], Coroutine[Any, Any, None]],
    schema: pa.Schema | None = None,
    **options: Any,
) -> None:
    async def main() -> None:
        toy = Toy()
        await act(Publisher(toy, Packer(schema), PublisherOptions(CHANNEL, **options)), toy)

    run(main())


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def test_post_all_of_one_turn_become_one_publication() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        for i in range(100):
            publisher.post(b"%d" % i)
        assert toy.submits == []
        await turn()
        assert toy.rows() == [[b"%d" % i for i in range(100)]]
        assert publisher.pending == 100
        publisher.acknowledged(1)
        assert publisher.pending == 0

    with_publisher(act)


def test_post_max_batch_splits_and_without_batching_each_is_its_own_in_one_submit() -> None:
    async def split(publisher: Publisher, toy: Toy) -> None:
        for _ in range(25):
            publisher.post(b"x")
        await turn()
        assert [len(rows) for rows in toy.rows()] == [10, 10, 5]
        assert len(toy.submits) == 1

    with_publisher(split, max_batch=10)

    async def single(publisher: Publisher, toy: Toy) -> None:
        for i in range(25):
            publisher.post(b"%d" % i)
        await turn()
        assert toy.rows() == [[b"%d" % i] for i in range(25)]
        assert len(toy.submits) == 1

    with_publisher(single, batching=False)


def test_post_busy_cell_what_waits_grows_into_larger_publications() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        for _ in range(SMALL_IN_FLIGHT + 5):
            publisher.post(b"x")
            await turn()
        assert [len(rows) for rows in toy.rows()] == [1] * SMALL_IN_FLIGHT
        publisher.acknowledged(1)
        await turn()
        assert len(toy.rows()[-1]) == 5

    with_publisher(act)


def test_post_busy_cell_full_publications_do_not_wait_for_acknowledgements() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        for _ in range(10 * MAX_IN_FLIGHT + 5):
            publisher.post(b"x")
        await turn()
        assert [len(rows) for rows in toy.rows()] == [10] * MAX_IN_FLIGHT
        publisher.acknowledged(MAX_IN_FLIGHT - SMALL_IN_FLIGHT)
        await turn()
        assert [len(rows) for rows in toy.rows()] == [10] * MAX_IN_FLIGHT
        publisher.acknowledged(MAX_IN_FLIGHT - SMALL_IN_FLIGHT + 1)
        await turn()
        assert len(toy.rows()[-1]) == 5

    with_publisher(act, max_batch=10)


def test_post_linger_waits_for_more_events_when_idle() -> None:
    async def patient(publisher: Publisher, toy: Toy) -> None:
        publisher.post(b"1")
        await turn()
        publisher.post(b"2")
        await turn()
        assert toy.submits == []
        flush = asyncio.ensure_future(publisher.flush())
        await turn()
        assert toy.rows() == [[b"1", b"2"]]
        publisher.acknowledged(1)
        await flush

    with_publisher(patient, linger_ms=3_600_000)

    async def alone(publisher: Publisher, toy: Toy) -> None:
        publisher.post(b"1")
        await until(lambda: bool(toy.submits))
        assert toy.rows() == [[b"1"]]

    with_publisher(alone, linger_ms=20)


def test_post_full_buffer_raises_and_ready_waits_for_room() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        toy.space = 0
        for _ in range(10):
            publisher.post(b"x")
        with pytest.raises(BufferFull, match="10 events wait"):
            publisher.post(b"x")
        await turn()
        waiting = asyncio.ensure_future(publisher.ready())
        await turn()
        assert not waiting.done()
        toy.space = 5
        publisher.acknowledged(0)
        await waiting
        publisher.post(b"x")

    with_publisher(act, buffer=10)


def test_post_bytes_are_bounded_too() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        toy.space = 0
        publisher.post(bytes(600))
        publisher.post(bytes(600))
        with pytest.raises(BufferFull):
            publisher.post(b"x")
        with pytest.raises(UsageError, match="too long"):
            Publisher(toy, Packer(None), PublisherOptions(CHANNEL)).post(bytes(MAX_EVENT_BYTES + 1))

    with_publisher(act, buffer_bytes=1000)


def test_publish_waits_for_its_own_acknowledgement() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        first = asyncio.ensure_future(publisher.publish(b"1"))
        await turn()
        second = asyncio.ensure_future(publisher.publish(b"2"))
        await turn()
        assert not first.done()
        publisher.acknowledged(1)
        await first
        assert not second.done()
        publisher.acknowledged(2)
        await second

    with_publisher(act)


def test_publish_timeout_is_raised() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        expected = "^1 event on 'c' not acknowledged within 0.01 s; acknowledged: no broker$"
        with pytest.raises(TimeoutError, match=expected):
            await publisher.publish(b"1")

    with_publisher(act, timeout_s=0.01)


def test_post_batch_is_a_publication_of_its_own_in_order() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        publisher.post(b"before")
        publisher.post_batch(batch_of_payloads([b"1", b"2"]))
        publisher.post(b"after")
        await turn()
        await turn()
        assert toy.rows() == [[b"before"], [b"1", b"2"], [b"after"]]
        flush = asyncio.ensure_future(publisher.flush())
        publisher.acknowledged(2)
        await turn()
        assert publisher.pending == 1
        publisher.acknowledged(3)
        await flush
        with pytest.raises(UsageError, match="no rows"):
            publisher.post_batch(batch_of_payloads([]))
        with pytest.raises(UsageError, match="the channel expects"):
            publisher.post_batch(pa.record_batch([[1]], names=["other"]))

    with_publisher(act)


def test_post_event_that_does_not_fit_is_left_out_and_flush_raises() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        for i in range(10):
            publisher.post({"price": "much" if i == 3 else float(i)})
        await turn()
        rows = [row for rows in toy.rows(SCHEMA) for row in rows]
        assert rows == [float(i) for i in range(10) if i != 3]
        flush = asyncio.ensure_future(publisher.flush())
        publisher.acknowledged(toy.number)
        with pytest.raises(UsageError, match="does not fit the channel's schema"):
            await flush
        await publisher.flush()
        with pytest.raises(UsageError, match="column 'cost' is not in the channel's schema"):
            await publisher.publish({"cost": 1.0})
        publisher.post({"price": "alone"})
        with pytest.raises(UsageError):
            await publisher.flush()

    with_publisher(act, schema=SCHEMA)


def test_fail_raises_in_all_waiters() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        publishing = asyncio.ensure_future(publisher.publish(b"1"))
        await turn()
        publisher.fail(UsageError("no right"))
        with pytest.raises(UsageError, match="no right"):
            await publishing
        with pytest.raises(UsageError, match="no right"):
            publisher.post(b"2")
        with pytest.raises(UsageError, match="no right"):
            await publisher.ready()

    with_publisher(act)


def test_post_large_events_are_spread_over_publications() -> None:
    async def act(publisher: Publisher, toy: Toy) -> None:
        for _ in range(8):
            publisher.post(bytes(400_000))
        await turn()
        assert sum(len(rows) for rows in toy.rows()) == 8
        assert all(len(rows) <= 3 for rows in toy.rows())

    with_publisher(act)
