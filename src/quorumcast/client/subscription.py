"""Subscribing: accepted publications in order, with back-pressure instead of an unbounded queue.

The subscriber machine decides which publications are genuine and in which order they come. They
wait in a bounded `backlog` until the application takes them. With the overflow rule "wait", the
node stops reading from brokers when the backlog is full (see `node.Node`), and brokers buffer for
this subscriber up to their own limits. When the application continues, the machine requests what it
missed. Brokers retain a bounded amount, so an application that lags too far behind gets a *gap*:
iteration raises `GapError` and can be continued, or `items()` yields a `Gap`. Nothing is lost
silently.

A subscription to a pattern has one queue for several channels, which the manifest may change. There
may be none of them yet.

A publication may be valid for a limited time. If it has expired when its turn comes, it is skipped
and counted in `expired`. Expiry compares the local clock with the time that the publisher claims.

With a predicate the node asks brokers for matching rows only (`selecting`). What is queued are the
rows of this subscription, and `held` knows from the machine where nothing more matches.

Contents that violate the schema of the channel can only come from a lying publisher. They are
skipped, counted in `undecodable` and reported to the node's `on_undecodable`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

import pyarrow as pa

from quorumcast.broadcast import application
from quorumcast.client.arguments import (
    Where,
    check_poll,
    check_start,
    check_timeout,
    check_until,
)
from quorumcast.client.backlog import backlog_for
from quorumcast.client.events import Batch, Event, Gap, GapError, GapReason
from quorumcast.client.held import ReadingProgress
from quorumcast.client.options import SubscriptionOptions
from quorumcast.client.publishing.packing import Clock, wall_us
from quorumcast.client.selecting import (
    Arrival,
    Filters,
    Portion,
    all_that_came,
    bind,
    check_any,
    contents_of,
    delivery_of,
    envelope_of,
    suiting,
)
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Stream, total_order
from quorumcast.core.limits import MAX_STREAMS_NAMED
from quorumcast.core.statements import Receipt
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.patterns import is_pattern
from quorumcast.manifest.retention import retention_sentence
from quorumcast.matching.filter import Filter

#: Begins the text of a gap before the oldest publication if a time was asked for.
MAYBE_WANTED = "some of them may be of the time asked for; "
#: Drop reasons in `telemetry.drops` for publications that did not reach the application.
EXPIRED, DISCARDED = "expired", "discarded"


class SubscriptionHost(Protocol):
    """The part of the subscribing role that a subscription needs."""

    def queue_changed(self) -> None:
        """React to a queue that became full or has room again."""

    def subscription_closed(self, subscription: Subscription) -> None:
        """Remove a subscription that is closed."""

    def describe_brokers(self, channel: Channel | None = None) -> str:
        """Which brokers have reported what they hold of a channel; without one, the connected."""

    def undecodable(self, delivered: application.Deliver) -> None:
        """Report contents that violate the schema."""

    async def change(self, subscription: Subscription, where: Where, filters: Filters) -> None:
        """Select other rows of these channels from now on."""

    def ignored(self, reason: str, publications: int) -> None:
        """Count publications that do not reach the application."""

    async def prove(self, delivered: application.Deliver) -> Receipt:
        """Fetch the receipt of a publication."""

    def end(self, channel: Channel) -> int:
        """The next position of a channel."""

    def oldest(self, channel: Channel) -> int:
        """The oldest position that brokers hold."""

    async def recall(
        self, channel: Channel, positions: Iterable[int]
    ) -> Sequence[application.Recalled]:
        """Fetch old positions again."""


class Subscription:
    """The accepted events of one channel, or of all channels that match a pattern.

    >>> async with node.subscribe("orders") as orders:        # doctest: +SKIP
    ...     async for event in orders:
    ...         print(event.publisher, event.payload)
    """

    #: The subscribing role, from `open` on.
    _host: SubscriptionHost

    def __init__(
        self,
        entries: Sequence[ChannelEntry],
        options: SubscriptionOptions,
        now_us: Clock = wall_us,
    ) -> None:
        #: The channel or pattern that was subscribed to.
        self.channel = Channel(options.channel)
        #: The predicate on rows, or several of which a row matches one; None for all.
        self.where = options.where
        #: What the predicate means on each channel so far.
        self._filters: dict[Channel, Filter | None] = {}
        #: Channels that match the pattern and cannot be asked for the predicate.
        self._left_out: set[Channel] = set()
        if is_pattern(options.channel):
            check_any(entries, options.where)
            entries = self.suiting(entries)
        #: The present channels, and whether the subscription is established on each.
        self._channels: dict[Channel, bool] = {}
        #: Schemas of all channels so far: publications of a former one may still be queued.
        self._schemas: dict[Channel, pa.Schema] = {}
        #: The newest entries of all channels so far.
        self._entries: dict[Channel, ChannelEntry] = {}
        #: The first position (None for the next publication, 0 for the oldest), and the first
        #: publication time (0 for any).
        self.start, self.since_us = check_start(options.start, entries)
        check_until(options.until, self.start, entries)
        #: The position before which it ends; 0 for none.
        self.until = options.until or 0
        #: Streams that have reached `since_us`; the newest MAX_STREAMS_NAMED.
        self._reached: dict[Stream, None] = {}
        self._now_us = now_us
        #: Delivered by the machine and not taken by the application.
        self._backlog = backlog_for(options, entries)
        #: Whether the application wants expired publications as well.
        self._keeps_expired = options.expired
        #: The rest of a publication of which the application has taken some events.
        self.rows: Iterator[Event] = iter(())
        #: Taken from the backlog and given back; they come after `rows` and before the backlog.
        self._front: deque[Batch | Gap] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended: Exception | None = None
        self._closed = False
        #: Done when it is established: n-f brokers have reported the ends of all streams.
        self.joined = asyncio.get_running_loop().create_future()
        #: Publications skipped because their contents violate the schema.
        self.undecodable = 0
        #: Publications skipped because they had expired.
        self.expired = 0
        self._progress = ReadingProgress(reads_past=self.start is not None)
        #: What brokers had dropped of each stream when the subscription was established. It begins
        #: after these publications, and iteration yields no gap for them. Empty with "latest" or a
        #: position; with a time, without the streams of which brokers hold something older.
        self.dropped: list[Gap] = []
        for entry in entries:
            self.attach(entry)
        self._check_joined()  # a pattern that matches no channel yet has nothing to wait for

    # ----------------------------------------------------------- called by the node

    def open(self, host: SubscriptionHost) -> None:
        """Begin, as a subscription of this role."""
        self._host = host

    def deliver(self, delivered: Arrival) -> None:
        """Queue an accepted publication, or what the subscription selects of it."""
        if self.since_us and self._too_early(delivered):
            return
        if not self._progress.idle:
            self._progress.queue(*delivered.place)
        full = self._backlog.full
        discarded = self._backlog.put(delivered)
        if discarded:
            self._host.ignored(DISCARDED, discarded)
        if self._backlog.full and not full:
            self._host.queue_changed()
        if self._waiter is not None:
            self._wake()

    def passed(self, stream: Stream, upto: int) -> None:
        """Handle that nothing more matches up to this number."""
        self._progress.skip(stream, upto)
        self._wake()

    def _too_early(self, delivered: Arrival) -> bool:
        """Whether its stream has not reached the time at which the subscription starts.

        Brokers start there or a little before. Everything after the first publication with that
        time is delivered, whatever its own time is, to keep the order.
        """
        stream, number = delivered.place
        if stream in self._reached:
            return False
        envelope = envelope_of(delivery_of(delivered))
        if envelope is not None and envelope.published_us >= self.since_us:
            self._reached[stream] = None
            if len(self._reached) > MAX_STREAMS_NAMED:
                del self._reached[next(iter(self._reached))]
            return False
        self.passed(stream, number)
        return True

    def gap(self, effect: application.DeliverGap) -> None:
        """Queue a gap."""
        full = self._backlog.full
        self._progress.queue(effect.stream, effect.upto)
        self._backlog.announce(self.gone(effect.stream, effect.first, effect.upto))
        if self._backlog.full and not full:
            self._host.queue_changed()
        self._wake()

    def gone(self, stream: Stream, first: int, upto: int, caveat: str = "") -> Gap:
        """A gap that says what the channel keeps; with `caveat` before it."""
        entry = self._entries.get(stream.channel)
        kept = "" if entry is None else caveat + retention_sentence(entry)
        return Gap(stream, first, upto, GapReason.RETENTION, kept)

    def attach(self, entry: ChannelEntry) -> None:
        """Add a channel."""
        self._learn(entry)
        self._channels[entry.name] = False
        if entry.policy.total:
            self._progress.follow_order()

    def _learn(self, entry: ChannelEntry) -> None:
        self._filters[entry.name] = bind(entry, self.where)
        self._entries[entry.name] = entry
        self._schemas[entry.name] = entry.arrow_schema()

    def suiting(self, entries: Sequence[ChannelEntry]) -> list[ChannelEntry]:
        """Those of the channels of a pattern that the predicate can be asked of."""
        return suiting(self.channel, entries, self.where, self._left_out)

    def filter(self, channel: Channel) -> Filter | None:
        """What the subscription selects on a channel; None for everything."""
        return self._filters.get(channel)

    def schema(self, channel: Channel) -> pa.Schema:
        """The columns of a channel."""
        return self._schemas[channel]

    def select(self, where: Where, filters: Filters) -> None:
        """Select other rows of what is delivered from now on."""
        self.where = where
        self._filters.update(filters)

    def detach(self, channel: Channel) -> None:
        """Remove a channel; publications that are queued can still be taken."""
        self._channels.pop(channel, None)
        self._progress.forget(channel)
        self._check_joined()
        self._wake()

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The present channels."""
        return tuple(self._channels)

    def awaits(self, channel: Channel) -> bool:
        """Whether the subscription is not established on this channel yet."""
        return not self._channels.get(channel, True)

    def established(
        self,
        channel: Channel,
        ends: dict[Stream, int],
        dropped: Sequence[application.DeliverGap],
    ) -> None:
        """Handle that it is established on a channel whose streams have these ends."""
        self._channels[channel] = True
        # With "latest" there is no old data to read, even if another subscription reads it.
        if not self.joined.done() and self.start is not None:
            self._progress.add({stream: end - 1 for stream, end in ends.items()})
            caveat = MAYBE_WANTED if self.since_us else ""
            self.dropped += [self.gone(g.stream, g.first, g.upto, caveat) for g in dropped]
        self._check_joined()

    def _check_joined(self) -> None:
        if all(self._channels.values()) and not self.joined.done():
            self._progress.established()
            self.joined.set_result(None)

    def adopt(self, entry: ChannelEntry | None) -> None:
        """Adopt a channel of a new epoch."""
        if entry is None:
            return
        try:
            self._learn(entry)
        except UsageError as error:  # the channel was made anew, with other columns
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End with an error, which iteration raises once the queue is empty."""
        self._ended = self._ended or error
        if not self.joined.done():
            self.joined.set_exception(error)
            self.joined.exception()  # mark it as retrieved: nobody may be waiting
        self._wake()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return self._ended is not None

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ------------------------------------------------------------------ iterating

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        for event in self.rows:
            return event
        while True:
            item = await self._next()
            if isinstance(item, Gap):
                raise GapError(item)
            self.rows = iter(item.events())
            for event in self.rows:
                return event

    async def items(self) -> AsyncIterator[Event | Gap]:
        """Events, and gaps as items instead of exceptions."""
        while True:
            for event in self.rows:
                yield event
            try:
                item = await self._next()
            except StopAsyncIteration:
                return
            if isinstance(item, Gap):
                yield item
            else:
                self.rows = iter(item.events())

    async def batches(self) -> AsyncIterator[Batch]:
        """Whole publications as Arrow record batches (`batch.data`); gaps raise `GapError`.

        After a `GapError` call `batches()` again to continue.
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
        """At least one item, and all others that wait, up to `most`; empty at the end."""
        try:
            items = [await self._next()]
        except StopAsyncIteration:
            return []
        while self.waiting and len(items) < most:
            item = self._pop()
            if item is not None:
                items.append(item)
        return items

    async def poll(
        self, n: int | None = None, *, at_least: int | None = None, timeout_s: float | None = None
    ) -> list[Event]:
        """Up to `n` events that wait, or all of them; returns at once.

        With `at_least` it waits until there are so many, and with `timeout_s` no longer than that;
        it returns what there is then. A `timeout_s` alone waits for one event. Events after a gap
        are left for the next poll, which raises `GapError` first. The list is shorter than
        `at_least` at the end, too, and an error is raised once there are no more events.
        """
        poll = check_poll(n, at_least, timeout_s)
        found: list[Event] = []
        try:
            async with asyncio.timeout(timeout_s):
                while not self._poll(found, poll.most) and len(found) < poll.at_least:
                    if self.until:
                        await asyncio.shield(self.joined)
                    await self._arrival(held=bool(self.until))
        except (TimeoutError, StopAsyncIteration):
            pass
        except asyncio.CancelledError:
            self.rows = chain(found, self.rows)
            raise
        except Exception:
            if not found:
                raise
        return found

    def _poll(self, found: list[Event], most: int) -> bool:
        """Add events that wait; whether the poll is over: there are `most`, or a gap is next."""
        while True:
            found += islice(self.rows, most - len(found))
            if len(found) == most:
                return True
            if not self.waiting:
                return False
            item = self._pop()
            if isinstance(item, Batch):
                self.rows = iter(item.events())
            elif isinstance(item, Gap):
                if not found:
                    raise GapError(item)
                self.give_back(deque([item]))
                return True

    def give_back(self, items: deque[Batch | Gap]) -> None:
        """Put items that were taken, and not used, in front of the queue; empties `items`."""
        for item in items:
            stream, number = (item.stream, item.first) if isinstance(item, Gap) else item.place
            self._progress.give_back(stream, number)
        self._front.extendleft(reversed(items))
        items.clear()

    async def held(self) -> AsyncIterator[Batch | Gap]:
        """Everything up to the end that the channel had when the subscription was established.

        Use `start="earliest"`, a time or a position. Later publications stay queued for the other
        iterators.
        """
        await self.wait_joined()
        while self._progress.unread:
            try:
                yield await self._next(held=True)
            except StopAsyncIteration:
                return

    @property
    def unread(self) -> dict[Stream, int]:
        """Streams that `held` has not read completely, with the last number of each.

        On a channel with total order there is one stream, and its numbers are positions.
        """
        return dict(self._progress.unread)

    @property
    def ends(self) -> dict[Stream, int]:
        """The last number of each stream when it was established, of those that had any to read."""
        return dict(self._progress.ends)

    @property
    def position(self) -> int | None:
        """With total order: where to begin to go on from here; None as long as nothing was read.

        Everything before it has been taken, or does not match the predicate.
        """
        return self._progress.position(self.channels)

    async def _next(self, *, held: bool = False) -> Batch | Gap:
        if self.until:
            held = True
            await asyncio.shield(self.joined)
        while True:
            while self.waiting:
                item = self._pop()
                if item is not None:
                    return item
                if held and not self._progress.unread:
                    raise StopAsyncIteration
            await self._arrival(held=held)

    async def _arrival(self, *, held: bool) -> None:
        """Wait until something is queued; raise at the end."""
        if self._closed or (held and not self._progress.unread):
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
        item = self._front.popleft() if self._front else backlog.pop()
        if full and not backlog.full:
            self._host.queue_changed()
        if isinstance(item, Gap):
            self._progress.take(item.stream, item.upto)
            return item
        if not self._progress.idle:
            self._progress.take(*item.place)
        return item if isinstance(item, Batch) else self._open(item)

    def _open(self, item: Arrival) -> Batch | None:
        """Decode a publication; None if it violates the schema or has expired."""
        delivered = delivery_of(item)
        envelope = envelope_of(delivered)
        expired = False
        if envelope is not None and envelope.valid_ms:
            expired = envelope.expires_us <= self._now_us()
        if expired and not self._keeps_expired:
            self.expired += 1
            self._host.ignored(EXPIRED, 1)
            return None
        data, payloads = contents_of(item, self._schemas[item.stream.channel])
        if envelope is None or (data is None and payloads is None):
            self.undecodable += 1
            self._host.undecodable(delivered)
            return None
        prove, portion = self._host.prove, item if isinstance(item, Portion) else None
        return Batch(delivered, envelope, data, payloads, prove, expired=expired, portion=portion)

    # ------------------------------------------------------------------ selecting

    async def change(self, where: Where) -> None:
        """Select other rows; None for all. It returns when that is in force.

        Publications are selected by one predicate or the other: what is accepted from then on by
        the new one, and what already waits in the queue by the former one; `batch.where` says
        which. Nothing is lost or repeated. Raises `UsageError`, and changes nothing, if a channel
        of the subscription cannot be asked for that.
        """
        if self._closed:
            raise UsageError("this subscription is closed: subscribe again")
        filters = {channel: bind(self._entries[channel], where) for channel in self._channels}
        await self._host.change(self, where, filters)

    # ------------------------------------------------------------------- old data

    @property
    def end(self) -> int:
        """On a channel with total order: the next position, as far as is known."""
        return self._host.end(self.channel)

    @property
    def oldest(self) -> int:
        """On a channel with total order: the oldest position that brokers hold."""
        return self._host.oldest(self.channel)

    async def recall(self, positions: Iterable[int]) -> dict[int, Batch | Gap | None]:
        """Fetch single old positions of a channel with total order.

        Enough brokers must send equal contents, as for the subscription itself. A position maps to
        a `Gap` if brokers no longer hold it, and to None if it violates the schema, has expired, or
        has none of the rows that its cell carries on of another cell's channel. There is no
        timeout.
        """
        wanted = sorted(set(positions))
        if wanted and not 1 <= wanted[0] <= wanted[-1] < self.end:
            raise UsageError(
                f"positions {wanted[0]} to {wanted[-1]} of {self.channel!r} cannot be recalled: "
                f"it has positions from 1 to {self.end - 1}"
            )
        found: dict[int, Batch | Gap | None] = {}
        for item in await self._host.recall(self.channel, wanted):
            if item.found is not None:
                schema = self._schemas[self.channel]
                found[item.position] = self._open(all_that_came(item.found, schema))
            elif not item.oldest:
                found[item.position] = None
            else:
                order = total_order(self.channel)
                found[item.position] = self.gone(order, item.position, item.oldest - 1)
        return found

    @property
    def waiting(self) -> int:
        """Publications and gaps in the queue."""
        return len(self._front) + self._backlog.waiting

    @property
    def discarded(self) -> int:
        """Publications discarded because the queue was full; a `Gap` covers each."""
        return self._backlog.discarded

    @property
    def full(self) -> bool:
        """Whether the node should stop reading; stays set until half of the queue is taken."""
        return self._backlog.full

    # --------------------------------------------------------------------- ending

    async def wait_joined(self, timeout_s: float | None = None) -> None:
        """Wait until it is established: everything published from then on is delivered."""
        check_timeout(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self.joined)
        except TimeoutError:
            pending = next((one for one, done in self._channels.items() if not done), self.channel)
            raise TimeoutError(
                f"the subscription to {pending!r} was not established within {timeout_s:g} s; "
                f"{self._host.describe_brokers(pending)}"
            ) from None

    def overdue(self, timeout_s: float) -> str:
        """The text of a time-out: nothing came, and which brokers are connected."""
        brokers = self._host.describe_brokers()
        return f"nothing came on {self.channel!r} within {timeout_s:g} s; {brokers}"

    def close(self) -> None:
        """Leave the channels and drop the queue."""
        if not self._closed:
            self._closed = True
            self._backlog.clear()
            self._front.clear()
            if not self.joined.done():
                self.joined.cancel()
            self._wake()
            self._host.subscription_closed(self)

    async def __aenter__(self) -> Subscription:
        try:
            await self.wait_joined()
        except BaseException:
            self.close()  # `__aexit__` will not run; another attempt needs the channels
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
