"""Subscribing: accepted publications in order, and back-pressure instead of an endless queue.

The subscriber machine decides what is genuine and whose turn it is; what it delivers waits in a
bounded `backlog` until the application takes it. Unless the application prefers to lose something,
the node stops reading from the brokers when that is full (see `node.Node`), the brokers' outboxes
for this subscriber fill, and when the application goes on, the machine asks the brokers for what it
missed. Brokers keep a bounded past, so an application that stays behind too long finds a *gap*:
iteration raises `GapError` (and can simply be continued), or `items()` yields a `Gap`. Nothing is
lost silently.

A subscription to a pattern is one queue for several channels, which come and go with the epochs.

A publication may be valid for a limited time. One that has expired when the application would take
it is skipped and counted in `expired`; by the clock of this machine and the claim of its publisher.

Contents that are not what the channel's schema promises can only come from a lying publisher: they
are skipped, counted in `undecodable` and reported to the node's `on_undecodable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

from quorumcast.broadcast import application
from quorumcast.client.arguments import check_counts, check_timeout
from quorumcast.client.backlog import Backlog
from quorumcast.client.events import Batch, Event, Gap, GapError, Prover
from quorumcast.client.packing import Clock, Packer, wall_us
from quorumcast.core.envelope import read_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Stream, total_order
from quorumcast.core.limits import MAX_STREAMS_NAMED, Overflow
from quorumcast.manifest.manifest import ChannelEntry

#: Why publications did not reach the application, in `telemetry.drops`.
EXPIRED, DISCARDED = "expired", "discarded"


class Inlet(Protocol):
    """What a subscription needs of its node."""

    def queue_changed(self) -> None:
        """The queue became full, or has room again."""
        ...

    def subscription_closed(self, subscription: Subscription) -> None:
        """Its application listens no more."""
        ...

    def undecodable(self, delivered: application.Deliver) -> None:
        """A publisher sent nonsense."""
        ...

    def ignored(self, reason: str, publications: int) -> None:
        """The application will not see these, for this reason."""
        ...

    def end(self, channel: Channel) -> int:
        """The position that comes next."""
        ...

    def oldest(self, channel: Channel) -> int:
        """The oldest position that is still held."""
        ...

    async def recall(
        self, channel: Channel, positions: Iterable[int]
    ) -> Sequence[application.Recalled]:
        """Positions of the past, once more."""
        ...


class Subscription:
    """The accepted events of one channel, or of all those that match a pattern.

    >>> async with node.subscribe("orders") as orders:        # doctest: +SKIP
    ...     async for event in orders:
    ...         print(event.publisher, event.payload)
    """

    def __init__(
        self,
        inlet: Inlet,
        name: str,
        entries: Iterable[ChannelEntry],
        prove: Prover,
        *,
        start: int | None = None,
        since_us: int = 0,
        until: int = 0,
        queue: int = 4096,
        queue_bytes: int = 64 * 1024 * 1024,
        overflow: Overflow = Overflow.WAIT,
        expired: bool = False,
        now_us: Clock = wall_us,
    ) -> None:
        check_counts(queue=queue, queue_bytes=queue_bytes)
        #: What was asked for: a channel, or a pattern.
        self.channel = Channel(name)
        #: The channels that it listens to, and whether it has begun to stand there.
        self._channels: dict[Channel, bool] = {}
        #: Of every channel that it ever listened to: what was queued may still be taken.
        self._packers: dict[Channel, Packer] = {}
        #: Where it begins: None with what comes next, 0 with the oldest, else at a position.
        self.start = start
        #: The time that it begins with; 0 for any.
        self.since_us = since_us
        #: The position that it ends before; 0 if it does not.
        self.until = until
        #: Streams that have reached that time; so many at most, the newest.
        self._reached: dict[Stream, None] = {}
        self._inlet = inlet
        self._prove = prove
        self._now_us = now_us
        #: What the machine delivered and the application has not taken.
        self._backlog = Backlog(queue, queue_bytes, overflow)
        #: Whether the application wants what has expired as well.
        self._keeps_expired = expired
        self._rows: Iterator[Event] = iter(())
        self._waiter: asyncio.Future[None] | None = None
        self._ended: Exception | None = None
        self._closed = False
        #: Set when enough brokers have said where the streams of all its channels stand.
        self.joined = asyncio.get_running_loop().create_future()
        #: Publications skipped because a lying publisher wrote nonsense.
        self.undecodable = 0
        #: Publications skipped because they were not valid any more.
        self.expired = 0
        #: What `held` has yet to come to: the last number of each stream that was there when the
        #: subscription began to stand.
        self._ends: dict[Stream, int] = {}
        for entry in entries:
            self.attach(entry)

    # --------------------------------------------------------- what the node says

    def deliver(self, delivered: application.Deliver) -> None:
        """Queue an accepted publication."""
        if self.since_us and self._too_early(delivered):
            return
        full = self._backlog.full
        discarded = self._backlog.put(delivered)
        if discarded:
            self._inlet.ignored(DISCARDED, discarded)
        if self._backlog.full and not full:
            self._inlet.queue_changed()
        if self._waiter is not None:
            self._wake()

    def _too_early(self, delivered: application.Deliver) -> bool:
        """Whether its stream has not reached the time that the application wants to begin with.

        Brokers begin there or a little before. What comes after the first publication of that time
        comes whatever its stamp is: the order is not ours to change.
        """
        stream, number = delivered.place
        if stream in self._reached:
            return False
        envelope = read_envelope(delivered.body)
        if envelope is not None and envelope.published_us >= self.since_us:
            self._reached[stream] = None
            if len(self._reached) > MAX_STREAMS_NAMED:
                del self._reached[next(iter(self._reached))]
            return False
        self._passed(stream, number)
        self._wake()
        return True

    def gap(self, effect: application.Gap) -> None:
        """Queue the news of a loss."""
        full = self._backlog.full
        self._backlog.announce(Gap(effect.stream, effect.first, effect.upto))
        if self._backlog.full and not full:
            self._inlet.queue_changed()
        self._wake()

    def attach(self, entry: ChannelEntry) -> None:
        """Listen to one more channel."""
        self._channels[entry.name] = False
        self._packers[entry.name] = Packer(entry.arrow_schema())

    def detach(self, channel: Channel) -> None:
        """Listen to it no more; what it has brought already can still be taken."""
        self._channels.pop(channel, None)
        self._ends = {s: number for s, number in self._ends.items() if s.channel != channel}
        self._check_joined()
        self._wake()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels that it listens to now."""
        return tuple(self._channels)

    def awaits(self, channel: Channel) -> bool:
        """Whether it does not stand on this channel yet."""
        return not self._channels.get(channel, True)

    def stands(self, channel: Channel, ends: dict[Stream, int]) -> None:
        """Enough brokers have said where the streams of a channel stand."""
        self._channels[channel] = True
        # Who begins with what comes next has nothing before it, wherever others on this node began.
        if not self.joined.done() and self.start is not None:
            self._ends.update({stream: end - 1 for stream, end in ends.items()})
        self._check_joined()

    def _check_joined(self) -> None:
        if all(self._channels.values()) and not self.joined.done():
            self.joined.set_result(None)

    def adopt(self, entry: ChannelEntry | None) -> None:
        """Go on in a new epoch of a channel."""
        if entry is not None:
            self._packers[entry.name].adopt(entry.arrow_schema())

    def fail(self, error: Exception) -> None:
        """Nothing more will come; iteration raises this once the queue is empty."""
        self._ended = self._ended or error
        if not self.joined.done():
            self.joined.set_exception(error)
            self.joined.exception()  # whoever waits sees it; nobody has to
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ------------------------------------------------------------------ iterating

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        for event in self._rows:
            return event
        while True:
            item = await self._next()
            if isinstance(item, Gap):
                raise GapError(item)
            self._rows = iter(item.events())
            for event in self._rows:
                return event

    async def items(self) -> AsyncIterator[Event | Gap]:
        """Events, and gaps as items instead of exceptions."""
        while True:
            for event in self._rows:
                yield event
            try:
                item = await self._next()
            except StopAsyncIteration:
                return
            if isinstance(item, Gap):
                yield item
            else:
                self._rows = iter(item.events())

    async def batches(self) -> AsyncIterator[Batch]:
        """Whole publications as Arrow record batches (`batch.data`); gaps raise `GapError`.

        After a `GapError` call `batches()` again to go on.
        """
        while True:
            try:
                item = await self._next()
            except StopAsyncIteration:
                return
            if isinstance(item, Gap):
                raise GapError(item)
            yield item

    async def take(self, most: int = 1024) -> list[Batch | Gap]:
        """At least one item, and whatever else waits already; empty at the end."""
        try:
            items = [await self._next()]
        except StopAsyncIteration:
            return []
        while self._backlog.waiting and len(items) < most:
            item = self._pop()
            if item is not None:
                items.append(item)
        return items

    async def held(self) -> AsyncIterator[Batch | Gap]:
        """What the cell held when the subscription began to stand, and no more.

        Begin with `start="earliest"` or a position. What comes from then on waits for `items` and
        the other iterators.
        """
        await self.wait_joined()
        while self._ends:
            try:
                yield await self._next(held=True)
            except StopAsyncIteration:
                return

    @property
    def unread(self) -> dict[Stream, int]:
        """What `held` has yet to come to: streams that were there, and the last number of each.

        On a channel with total order there is one stream, and its numbers are positions.
        """
        return dict(self._ends)

    def _passed(self, stream: Stream, number: int) -> None:
        if self._ends.get(stream, number + 1) <= number:
            del self._ends[stream]

    async def _next(self, *, held: bool = False) -> Batch | Gap:
        if self.until:
            held = True
            await asyncio.shield(self.joined)
        while True:
            while self._backlog.waiting:
                item = self._pop()
                if item is not None:
                    return item
                if held and not self._ends:
                    raise StopAsyncIteration
            if self._closed or (held and not self._ends):
                raise StopAsyncIteration
            if self._ended is not None:
                raise self._ended
            if self._waiter is not None:
                raise UsageError(
                    "another task already waits on this subscription: subscribe once per task"
                )
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _pop(self) -> Batch | Gap | None:
        backlog = self._backlog
        full = backlog.full
        item = backlog.pop()
        if full and not backlog.full:
            self._inlet.queue_changed()
        if isinstance(item, Gap):
            self._passed(item.stream, item.upto)
            return item
        if self._ends:
            self._passed(*item.place)
        return self._open(item)

    def _open(self, item: application.Deliver) -> Batch | None:
        """What the application gets of a publication; None if it is nonsense or has expired."""
        envelope = read_envelope(item.body)
        expired = False
        if envelope is not None and envelope.valid_ms:
            expired = envelope.expires_us <= self._now_us()
        if expired and not self._keeps_expired:
            self.expired += 1
            self._inlet.ignored(EXPIRED, 1)
            return None
        packer = self._packers[item.stream.channel]
        unpacked = None if envelope is None else packer.unpack(item.body)
        if envelope is None or unpacked is None:
            self.undecodable += 1
            self._inlet.undecodable(item)
            return None
        return Batch(item, envelope, *unpacked, self._prove, expired=expired)

    # ------------------------------------------------------------------- the past

    @property
    def end(self) -> int:
        """On a channel with total order: the position that comes next, as far as is known."""
        return self._inlet.end(self.channel)

    @property
    def oldest(self) -> int:
        """On a channel with total order: the oldest position that the cell still holds."""
        return self._inlet.oldest(self.channel)

    async def recall(self, positions: Iterable[int]) -> dict[int, Batch | Gap | None]:
        """Single positions of the past, wherever this subscription stands; total order only.

        As trustworthy as what the subscription brings: enough brokers must send equal contents. A
        `Gap` says from where to where publications are gone, None that contents were nonsense or
        have expired. Waits as long as it takes.
        """
        wanted = sorted(set(positions))
        if wanted and not 1 <= wanted[0] <= wanted[-1] < self.end:
            raise UsageError(
                f"positions {wanted[0]} to {wanted[-1]} of {self.channel!r} cannot be recalled: "
                f"it has positions from 1 to {self.end - 1}"
            )
        found: dict[int, Batch | Gap | None] = {}
        for item in await self._inlet.recall(self.channel, wanted):
            if item.found is None:
                found[item.position] = Gap(
                    total_order(self.channel), item.position, item.oldest - 1
                )
            else:
                found[item.position] = self._open(item.found)
        return found

    @property
    def waiting(self) -> int:
        """Publications (and gaps) accepted and not yet taken."""
        return self._backlog.waiting

    @property
    def discarded(self) -> int:
        """Publications that gave way because the queue was full; each is in a `Gap`."""
        return self._backlog.discarded

    @property
    def full(self) -> bool:
        """Whether nothing more should come; it stays so until half of the queue is taken."""
        return self._backlog.full

    # --------------------------------------------------------------------- ending

    async def wait_joined(self, timeout_s: float | None = None) -> None:
        """Until the subscription stands: whatever is published from now on will come."""
        check_timeout(timeout_s)
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(self.joined)

    def close(self) -> None:
        """Listen no more."""
        if not self._closed:
            self._closed = True
            self._backlog.clear()
            if not self.joined.done():
                self.joined.cancel()
            self._wake()
            self._inlet.subscription_closed(self)

    async def __aenter__(self) -> Subscription:
        try:
            await self.wait_joined()
        except BaseException:
            self.close()  # nobody will: who was refused may subscribe again
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
