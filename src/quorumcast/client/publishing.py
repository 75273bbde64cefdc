"""Publishing: what waits becomes the next publication.

`post` appends to a list and makes sure that this turn of the event loop ends in one `_drain`, which
packs everything that waits into one publication (up to `max_batch` events) and submits it. When the
program posts faster than the cell takes, at most `MOST_FLYING` publications are under way and the
next ones grow; when it is idle, an event leaves at once. With `linger_ms` an idle publisher waits
that long for company. With `batching=False` every event is a publication of its own, and all that
wait travel as one run.

Bounds hold whatever happens: at most `buffer` events and about `buffer_bytes` bytes wait here
(`BufferFull` beyond), and the machine's own buffer takes only what its window allows: while brokers
do not acknowledge, nothing is packed and what waits stays here.

Acknowledgements come as "every publication up to number k"; publications remember up to which event
they reach, so whoever awaits event i is woken when i is covered. Nothing is made per posted event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, TypeAlias

import pyarrow as pa

from quorumcast.client.arguments import check_counts, check_timeout, check_times, check_validity
from quorumcast.client.events import BufferFull
from quorumcast.client.packing import Packer, too_long
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_BODY_BYTES, MAX_RUN
from quorumcast.manifest.manifest import ChannelEntry

#: What may be published: bytes, a mapping of columns, or a whole record batch.
Publishable: TypeAlias = bytes | bytearray | memoryview | Mapping[str, object] | pa.RecordBatch

#: A natural batch stops growing at about this many bytes.
BATCH_BYTES = 1024 * 1024
#: The longest event: a publication has room for Arrow's own bytes beside it.
MAX_EVENT_BYTES = MAX_BODY_BYTES - 1024
#: Natural batches under way before further events wait for company.
MOST_FLYING = 32


class Outlet(Protocol):
    """What a publisher needs of its node."""

    def room(self, channel: Channel, urgent: bool) -> int:
        """How many more publications the machine takes now."""
        ...

    def submit(self, channel: Channel, bodies: tuple[bytes, ...], urgent: bool) -> int:
        """Publish these contents; the number of the last one."""
        ...

    def publisher_closed(self, publisher: Publisher) -> None:
        """It publishes no more."""
        ...


class Publisher:
    """Publishes on one channel.

    >>> async with node.publisher("orders") as orders:        # doctest: +SKIP
    ...     await orders.publish(b"one")        # waits until enough brokers hold it
    ...     orders.post(b"two")                 # does not wait; BufferFull if there is no room
    ...     await orders.flush()                # waits for everything posted so far
    """

    def __init__(
        self,
        outlet: Outlet,
        channel: Channel,
        packer: Packer,
        *,
        batching: bool = True,
        max_batch: int = 4096,
        linger_ms: float = 0.0,
        buffer: int = 65_536,
        buffer_bytes: int = 64 * 1024 * 1024,
        timeout_s: float | None = None,
        valid_for_s: float | None = None,
        urgent: bool = False,
    ) -> None:
        check_counts(max_batch=max_batch, buffer=buffer, buffer_bytes=buffer_bytes)
        check_times(linger_ms=linger_ms)
        check_timeout(timeout_s)
        #: For how long publications are valid, if that is said here and not by the channel.
        self._valid_ms = check_validity(valid_for_s)
        if self._valid_ms is not None:
            packer.valid_ms = self._valid_ms
        self.channel = channel
        #: Whether its publications overtake what this node has queued elsewhere.
        self.urgent = urgent
        self._outlet = outlet
        self._packer = packer
        self._kind = packer.kind
        self._opaque = packer.opaque
        self._batching = batching
        self._max_batch = max_batch if batching else 1
        self._linger_s = linger_ms / 1000
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        #: Events posted and not packed.
        self._waiting: list[object] = []
        #: Contents packed and not submitted, each with the count of events up to its end.
        self._packed: deque[tuple[bytes, int]] = deque()
        #: Bytes in both; counted for payloads and record batches.
        self._bytes = 0
        #: Events ever posted ≥ packed ≥ submitted ≥ acknowledged.
        self._posted = 0
        self._packed_upto = 0
        self._submitted = 0
        self._acknowledged = 0
        #: Publications under way: (their number, events up to their end).
        self._flying: deque[tuple[int, int]] = deque()
        #: The last number that was acknowledged.
        self._told = 0
        #: Whether publications are just being given their numbers.
        self._submitting = False
        #: Who awaits which event, in order of events.
        self._awaiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: Who awaits room.
        self._wanting: list[asyncio.Future[None]] = []
        #: Whether `_drain` will run by itself.
        self._scheduled = False
        self._closed: Exception | None = None
        #: The first posted event that did not fit the schema; told by the next `flush`.
        self._misfit: UsageError | None = None

    # ----------------------------------------------------------------- posting

    def post(self, event: bytes | bytearray | memoryview | Mapping[str, object]) -> None:
        """Publish without waiting. Raises `BufferFull` if there is no room.

        On a channel with a schema a value of the wrong type is found out when the batch is packed:
        the event is left out and the next `flush` raises the sentence.
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
        if self._waiting:  # they were posted before
            self._pack_events(len(self._waiting))
        self._posted += batch.num_rows
        self._packed_upto = self._posted
        self._packed.append((body, self._posted))
        self._bytes += len(body)

    async def publish(self, event: Publishable) -> None:
        """Publish and wait until enough brokers hold it; waits for room if there is none."""
        if not self._opaque and isinstance(event, Mapping):
            self._packer.pack([event])  # a misfit is told here, not to some later flush
        while True:
            try:
                if isinstance(event, pa.RecordBatch):
                    self.post_batch(event)
                else:
                    self.post(event)
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
            self._wanting.append(future)
            await future
        self._check_open()

    async def flush(self) -> None:
        """Wait until everything posted so far is acknowledged."""
        if self._posted > self._acknowledged:
            self._drain()
            await self._acknowledgement(self._posted)
        misfit, self._misfit = self._misfit, None
        if misfit is not None:
            raise misfit

    def admit(self, event: object) -> bytes | Mapping[str, object]:
        """An event that this channel takes, or a `UsageError` that says why not."""
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
        self._awaiting.append((event, future))
        async with asyncio.timeout(self._timeout_s):
            await future

    # ----------------------------------------------------------------- packing

    def _schedule(self) -> None:
        self._check_open()
        self._scheduled = True
        if self._linger_s and not self._flying:
            self._loop.call_later(self._linger_s, self._drain)
        else:
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Submit what waits, as far as there is room; the rest goes with an acknowledgement."""
        self._scheduled = False
        if self._closed is not None:
            return
        room = min(self._outlet.room(self.channel, self.urgent), MAX_RUN)
        if self._batching:
            room = min(room, MOST_FLYING - len(self._flying))
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
        elif not self._flying:
            self._settle(self._packed_upto)
        if self._wanting:
            self._wake_wanting()

    def _submit(self, ready: list[tuple[bytes, int]]) -> None:
        bodies = tuple([body for body, _ in ready])
        self._bytes -= sum(map(len, bodies))
        self._submitted = ready[-1][1]
        self._submitting = True
        last = self._outlet.submit(self.channel, bodies, self.urgent)
        self._submitting = False
        for number, (_, upto) in enumerate(ready, last - len(ready) + 1):
            self._flying.append((number, upto))
        if self._flying[0][0] <= self._told:
            self.acknowledged(self._told)

    def _pack_events(self, publications: int) -> None:
        """Move waiting events into about so many publications (more if a misfit splits one)."""
        waiting, taken = self._waiting, 0
        for _ in range(publications):
            if taken >= len(waiting):
                break
            events = waiting[taken : taken + self._max_batch]
            if self._opaque:
                size = sum(map(len, events))  # type: ignore[arg-type]
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
        except UsageError as misfit:
            # One event spoils the batch, or it is too long: halve it until the misfit is alone.
            if len(events) == 1:
                self._misfit = self._misfit or misfit
                self._packed_upto += 1
                return
            half = len(events) // 2
            self._pack(events[:half])
            self._pack(events[half:])
            return
        self._packed_upto += len(events)
        self._packed.append((body, self._packed_upto))
        self._bytes += len(body)

    # --------------------------------------------------------- what the node says

    def adopt(self, entry: ChannelEntry | None) -> None:
        """Go on in a new epoch of the channel."""
        if entry is not None:
            self._packer.adopt(entry.arrow_schema())
            if self._valid_ms is None:
                self._packer.valid_ms = entry.policy.limits.validity_ms

    def acknowledged(self, upto: int) -> None:
        """Every publication up to this number is held by enough brokers."""
        self._told = upto
        if self._submitting:
            return  # of what is being submitted something was held before
        flying = self._flying
        events = self._acknowledged
        while flying and flying[0][0] <= upto:
            events = flying.popleft()[1]
        if not flying and not self._packed:
            events = self._packed_upto  # misfits behind the last publication are done with, too
        self._settle(events)
        if (self._waiting or self._packed) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _settle(self, events: int) -> None:
        self._acknowledged = events
        self._submitted = max(self._submitted, events)
        while self._awaiting and self._awaiting[0][0] <= events:
            future = self._awaiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing will be published any more; whoever waits is told why."""
        if self._closed is None:
            self._closed = error
        for _, future in self._awaiting:
            if not future.done():
                future.set_exception(error)
        self._awaiting.clear()
        self._wake_wanting()
        self._scheduled = False

    def _wake_wanting(self) -> None:
        wanting, self._wanting = self._wanting, []
        for future in wanting:
            if not future.done():
                future.set_result(None)

    # -------------------------------------------------------------------- ending

    async def close(self) -> None:
        """Wait for what was posted, then publish no more."""
        if self._closed is None:
            try:
                await self.flush()
            finally:
                self._end()

    def _end(self) -> None:
        self.fail(UsageError(f"this publisher on {self.channel!r} is closed; open another one"))
        self._outlet.publisher_closed(self)

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        elif self._closed is None:
            self._end()


def _within(events: list[object], limit: int) -> int:
    """How many of the first events fit into so many bytes; at least one."""
    total = 0
    for count, event in enumerate(events):
        total += len(event)  # type: ignore[arg-type]
        if total > limit:
            return max(count, 1)
    return len(events)
