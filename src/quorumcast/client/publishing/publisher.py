"""Publishing with natural batching: events that wait together become one publication.

`post` appends to a list and schedules `_drain` for the end of this turn of the event loop. `_drain`
packs all waiting events into publications of up to `max_batch` events and submits them. An idle
publisher therefore sends an event at once. If the program posts faster than the cell acknowledges,
publications grow: while SMALL_IN_FLIGHT are in flight only full ones follow, and never more than
MAX_IN_FLIGHT. With `linger_ms` an idle publisher waits that long for more events. With
`batching=False` every event is its own publication; those that wait together are sent as one run.

Bounds: at most `buffer` events and about `buffer_bytes` bytes wait here; beyond that `post` raises
`BufferFull`. The machine accepts only what its window allows: while brokers do not acknowledge,
nothing is packed.

An acknowledgement covers all publications up to a number. Each publication in flight is stored with
the count of events up to its end, and waiters are woken by that count. No object is made per event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from quorumcast.client.arguments import check_validity
from quorumcast.client.events import BufferFull
from quorumcast.client.options import PublisherOptions
from quorumcast.client.publishing.packing import Packer, too_long
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_BODY_BYTES, MAX_RUN
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    import pyarrow as pa

#: Types that `publish` takes: bytes, a mapping of columns, or a whole record batch.
Publishable: TypeAlias = "bytes | bytearray | memoryview | Mapping[str, object] | pa.RecordBatch"

#: Approximate size at which a batch of events stops growing.
BATCH_BYTES = 1024 * 1024
#: The longest event; the rest of a publication is for Arrow's metadata.
MAX_EVENT_BYTES = MAX_BODY_BYTES - 1024
#: Batches in flight from which on only full ones follow: a publication costs brokers about the same
#: however many events it holds, so a few large ones arrive sooner than many small ones.
SMALL_IN_FLIGHT = 4
#: Batches in flight at most: far away brokers need more than a few to be kept busy.
MAX_IN_FLIGHT = 32


class PublisherHost(Protocol):
    """The part of the publishing role that a publisher needs."""

    def room(self, channel: Channel, urgent: bool) -> int:
        """The number of publications that the machine accepts now."""

    def submit(self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool) -> int:
        """Publish these contents; return the number of the last publication."""

    def describe_brokers(self, channel: Channel, urgent: bool) -> str:
        """Which brokers have acknowledged everything, and which have not."""

    def publisher_closed(self, publisher: Publisher) -> None:
        """Remove a publisher that is closed."""


class Publisher:
    """Publishes on one channel.

    >>> async with node.publisher("orders") as orders:        # doctest: +SKIP
    ...     await orders.publish(b"one")        # waits until enough brokers hold it
    ...     orders.post(b"two")                 # does not wait; BufferFull if there is no room
    ...     await orders.flush()                # waits for everything posted so far
    """

    def __init__(self, host: PublisherHost, packer: Packer, options: PublisherOptions) -> None:
        #: Validity of publications; None for the channel's default.
        self._valid_ms = check_validity(options.valid_for_s)
        if self._valid_ms is not None:
            packer.valid_ms = self._valid_ms
        self.channel = Channel(options.channel)
        #: Whether its publications overtake those of the node's other publishers.
        self.urgent = options.urgent
        self._host = host
        self._packer = packer
        self._kind = packer.kind
        self._opaque = packer.opaque
        self._batching = options.batching
        self._max_batch = options.max_batch if options.batching else 1
        self._linger_s = options.linger_ms / 1000
        self._buffer = options.buffer
        self._buffer_bytes = options.buffer_bytes
        self._timeout_s = options.timeout_s
        self._loop = asyncio.get_running_loop()
        #: Events that are posted and not packed.
        self._waiting: list[object] = []
        #: Contents that are packed and not submitted, with the count of events up to their end.
        self._packed: deque[tuple[bytes, int]] = deque()
        #: Bytes in both; rows of a channel with a schema count once they are packed.
        self._bytes = 0
        #: Counts of events so far: posted ≥ packed ≥ submitted ≥ acknowledged.
        self._posted = 0
        self._packed_upto = 0
        self._submitted = 0
        self._acknowledged = 0
        #: Publications in flight: (number, count of events up to its end).
        self._in_flight: deque[tuple[int, int]] = deque()
        #: The highest acknowledged number.
        self._acknowledged_number = 0
        #: Whether `_submit` is running, and its publications have no numbers yet.
        self._submitting = False
        #: Waiters for the acknowledgement of an event, in order of events.
        self._ack_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: Waiters for room in the buffer.
        self._room_waiters: list[asyncio.Future[None]] = []
        #: Whether a call of `_drain` is scheduled.
        self._scheduled = False
        self._closed: Exception | None = None
        #: The error of the first posted event that did not fit the schema; `flush` raises it.
        self._schema_error: UsageError | None = None

    # ----------------------------------------------------------------- posting

    def post(self, event: bytes | bytearray | memoryview | Mapping[str, object]) -> None:
        """Publish without waiting. Raises `BufferFull` if there is no room.

        On a channel with a schema, values are checked when the batch is packed. An event that does
        not fit is left out, and the next `flush` raises the error.
        """
        if self._posted - self._submitted >= self._buffer or self._bytes >= self._buffer_bytes:
            raise self._full()
        if type(event) is not self._kind:
            event = self._packer.admit(event)
        if self._opaque:
            size = len(event)
            if size > MAX_EVENT_BYTES:
                raise too_long(size)
            self._bytes += size
        if not self._scheduled:
            self._schedule()
        self._waiting.append(event)
        self._posted += 1

    def post_batch(self, batch: pa.RecordBatch) -> None:
        """Publish a record batch as one publication, without waiting."""
        if self._posted - self._submitted >= self._buffer or self._bytes >= self._buffer_bytes:
            raise self._full()
        if batch.num_rows == 0:
            raise UsageError("this record batch has no rows: there is nothing to publish")
        body = self._packer.pack_batch(batch)
        if not self._scheduled:
            self._schedule()
        if self._waiting:  # earlier events come first
            self._pack_events(len(self._waiting))
        self._posted += batch.num_rows
        self._packed_upto = self._posted
        self._packed.append((body, self._posted))
        self._bytes += len(body)

    async def publish(self, event: Publishable) -> None:
        """Publish and wait until enough brokers hold it; waits for room if there is none."""
        if not self._opaque and isinstance(event, Mapping):
            self._packer.pack([event])  # raises a schema error here, not in a later flush
        post: Callable[[Any], None] = self.post
        if type(event) is not self._kind and _is_batch(event):
            post = self.post_batch
        while True:
            try:
                post(event)
                break
            except BufferFull:
                await self.ready()
        await self._acknowledgement(self._posted)

    async def ready(self) -> None:
        """Wait until `post` has room again."""
        while self._closed is None and (
            self._posted - self._submitted >= self._buffer or self._bytes >= self._buffer_bytes
        ):
            future = self._loop.create_future()
            self._room_waiters.append(future)
            await future
        self._check_open()

    async def flush(self) -> None:
        """Wait until everything posted so far is acknowledged."""
        if self._posted > self._acknowledged:
            self._drain()
            await self._acknowledgement(self._posted)
        error, self._schema_error = self._schema_error, None
        if error is not None:
            raise error

    def admit(self, event: object) -> bytes | Mapping[str, object]:
        """The event in the form that the channel takes; `UsageError` if its type does not fit."""
        return self._packer.admit(event)

    @property
    def pending(self) -> int:
        """Events posted and not yet acknowledged."""
        return self._posted - self._acknowledged

    def _full(self) -> Exception:
        if self._closed is not None:
            return self._closed
        return BufferFull(
            f"{self._posted - self._submitted:,} events wait on {self.channel!r}: "
            "'await ready()' before posting more"
        )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    async def _acknowledgement(self, event: int) -> None:
        if self._acknowledged >= event:
            return
        self._check_open()
        future = self._loop.create_future()
        self._ack_waiters.append((event, future))
        try:
            async with asyncio.timeout(self._timeout_s):
                await future
        except TimeoutError:
            raise TimeoutError(self.overdue(self._timeout_s or 0)) from None

    def overdue(self, timeout_s: float) -> str:
        """The text of a time-out: what is not acknowledged, and by whom."""
        events = "1 event" if self.pending == 1 else f"{self.pending:,} events"
        return (
            f"{events} on {self.channel!r} not acknowledged within {timeout_s:g} s; "
            f"{self._host.describe_brokers(self.channel, self.urgent)}"
        )

    # ----------------------------------------------------------------- packing

    def _schedule(self) -> None:
        self._check_open()
        self._scheduled = True
        if self._linger_s and not self._in_flight:
            self._loop.call_later(self._linger_s, self._drain)
        else:
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Submit waiting events as far as there is room; an acknowledgement triggers the rest."""
        self._scheduled = False
        if self._closed is not None:
            return
        room = min(self._host.room(self.channel, self.urgent), MAX_RUN)
        if self._batching:
            room = min(room, MAX_IN_FLIGHT - len(self._in_flight))
        if room <= 0:
            return
        if len(self._packed) < room:
            self._pack_events(room - len(self._packed))
        ready = [self._packed.popleft() for _ in range(min(room, len(self._packed)))]
        if ready:
            self._submit(ready)
            if (self._waiting or self._packed) and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._drain)
        elif not self._in_flight:
            self._set_acknowledged(self._packed_upto)
        if self._room_waiters:
            self._wake_room_waiters()

    def _submit(self, ready: list[tuple[bytes, int]]) -> None:
        bodies = tuple([body for body, _ in ready])
        self._bytes -= sum(map(len, bodies))
        self._submitted = ready[-1][1]
        self._submitting = True
        last = self._host.submit(self.channel, bodies, self.urgent)
        self._submitting = False
        for number, (_, upto) in enumerate(ready, last - len(ready) + 1):
            self._in_flight.append((number, upto))
        if self._in_flight[0][0] <= self._acknowledged_number:
            self.acknowledged(self._acknowledged_number)

    def _pack_events(self, publications: int) -> None:
        """Pack waiting events into that many publications (more if a schema error splits one)."""
        waiting, taken = self._waiting, 0
        for _ in range(publications):
            if taken >= len(waiting):
                break
            events = waiting[taken : taken + self._max_batch]
            size = sum(map(len, events)) if self._opaque else 0  # type: ignore[arg-type]
            full = len(events) == self._max_batch or size >= BATCH_BYTES
            if not full and len(self._in_flight) + len(self._packed) >= SMALL_IN_FLIGHT:
                break
            if size > BATCH_BYTES and len(events) > 1:
                events = events[: _within(events, BATCH_BYTES)]
                size = sum(map(len, events))  # type: ignore[arg-type]
            self._bytes -= size
            taken += len(events)
            self._pack(events)
        del waiting[:taken]

    def _pack(self, events: list[object]) -> None:
        try:
            body = self._packer.pack(events)
        except UsageError as error:
            # An event does not fit the schema, or the batch is too long: split it until it fits.
            if len(events) == 1:
                self._schema_error = self._schema_error or error
                self._packed_upto += 1
                return
            half = len(events) // 2
            self._pack(events[:half])
            self._pack(events[half:])
            return
        self._packed_upto += len(events)
        self._packed.append((body, self._packed_upto))
        self._bytes += len(body)

    # ----------------------------------------------------------- called by the node

    def adopt(self, entry: ChannelEntry | None) -> None:
        """Adopt the channel of a new epoch."""
        if entry is not None:
            if entry.schema:
                self._packer.adopt(entry.arrow_schema())
            if self._valid_ms is None:
                self._packer.valid_ms = entry.policy.limits.validity_ms

    def acknowledged(self, upto: int) -> None:
        """Handle an acknowledgement of all publications up to a number."""
        self._acknowledged_number = upto
        if self._submitting:
            return  # brokers have this already (a resumed stream); `_submit` calls again
        in_flight = self._in_flight
        events = self._acknowledged
        while in_flight and in_flight[0][0] <= upto:
            events = in_flight.popleft()[1]
        if not in_flight and not self._packed:
            events = self._packed_upto  # includes events at the end that did not fit
        self._set_acknowledged(events)
        if (self._waiting or self._packed) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _set_acknowledged(self, events: int) -> None:
        self._acknowledged = events
        self._submitted = max(self._submitted, events)
        while self._ack_waiters and self._ack_waiters[0][0] <= events:
            future = self._ack_waiters.popleft()[1]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Close the publisher with an error, which all waiters get."""
        if self._closed is None:
            self._closed = error
        for _, future in self._ack_waiters:
            if not future.done():
                future.set_exception(error)
        self._ack_waiters.clear()
        self._wake_room_waiters()
        self._scheduled = False

    def _wake_room_waiters(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # -------------------------------------------------------------------- ending

    async def close(self) -> None:
        """Wait until everything posted is acknowledged, then close."""
        if self._closed is None:
            try:
                await self.flush()
            finally:
                self._end()

    def _end(self) -> None:
        self.fail(UsageError(f"this publisher on {self.channel!r} is closed; open another one"))
        self._host.publisher_closed(self)

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        elif self._closed is None:
            self._end()


class Publishers(Mapping[Channel, Publisher]):
    """The publishers of all channels that match a pattern; each opens when it is first used.

    >>> async with node.publishers("plant/**") as plant:        # doctest: +SKIP
    ...     for outbox in plant.values():
    ...         outbox.post(b"good night")
    """

    def __init__(
        self, channels: Callable[[], list[Channel]], publisher: Callable[[Channel], Publisher]
    ) -> None:
        self._channels = channels
        self._publisher = publisher
        self._open: dict[Channel, Publisher] = {}

    def __getitem__(self, channel: str) -> Publisher:
        name = Channel(channel)
        if name not in self._open:
            if name not in self._channels():
                raise KeyError(channel)
            self._open[name] = self._publisher(name)
        return self._open[name]

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._channels())

    def __len__(self) -> int:
        return len(self._channels())

    async def flush(self) -> None:
        """Wait until everything posted so far is acknowledged, on all channels."""
        await _all(publisher.flush() for publisher in self._open.values())

    async def close(self) -> None:
        """Wait until everything posted is acknowledged, then close all."""
        await _all(publisher.close() for publisher in self._open.values())

    async def __aenter__(self) -> Publishers:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *details: object) -> None:
        await _all(publisher.__aexit__(kind, *details) for publisher in self._open.values())


async def _all(waits: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, also if one fails; then raise the first error."""
    for result in await asyncio.gather(*waits, return_exceptions=True):
        if result is not None:
            raise result


def _is_batch(event: object) -> bool:
    import pyarrow as pa  # not at the top: publishers of payloads do without Arrow

    return isinstance(event, pa.RecordBatch)


def _within(events: list[object], limit: int) -> int:
    """The number of leading events that fit into `limit` bytes; at least one."""
    total = 0
    for count, event in enumerate(events):
        total += len(event)  # type: ignore[arg-type]
        if total > limit:
            return max(count, 1)
    return len(events)
