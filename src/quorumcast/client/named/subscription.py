"""Named subscriptions: the public API.

    async with node.subscribe_as("orders", "billing") as billing:
        async for delivery in billing:
            handle(delivery.events)
            await delivery.ack()

The cell keeps the state of a named subscription. A consumer that opens it again continues where the
subscription stopped. Publications that were delivered and not acknowledged are redelivered: after a
`nack`, a crash, or silence for longer than the timeout. A *private* subscription belongs to the
client that created it; the client's processes share it if each has a seat. A *shared* subscription
is declared by the operator. Each publication is assigned to one of the consumers.

Delivery is at least once: if a consumer crashes between its work and the acknowledgement, the
publication is redelivered. `delivery.position` is the same in each attempt and for each consumer. A
consumer that stores the position with its effect in one transaction has each effect exactly once.

The state is computed from the companion channel, which no broker can forge (`named.state`). This
module checks arguments, opens the subscription and hands out deliveries; `consumer` does the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING

from quorumcast.client.arguments import check_poll, check_start, check_times
from quorumcast.client.events import Batch, Event, Gap, GapError
from quorumcast.client.named.companion import Connection, find_state
from quorumcast.client.named.consumer import Consumer, PendingDelivery
from quorumcast.client.options import AUTO, NamedSubscriptionOptions
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId, holder, total_order
from quorumcast.core.limits import Overflow
from quorumcast.manifest.groups import MAX_ATTEMPTS, MAX_TIMEOUT_MS, check_companion
from quorumcast.manifest.manifest import ChannelEntry
from quorumcast.manifest.retention import retention_sentence
from quorumcast.named.follower import Follower, charter_of
from quorumcast.named.operations import Configure, Create, SubscriptionSettings
from quorumcast.named.state import SubscriptionState, is_listed

if TYPE_CHECKING:
    from quorumcast.client.subscription import Subscription


class Delivery:
    """A publication that is assigned to this consumer."""

    __slots__ = ("_consumer", "_pending", "_session", "batch", "position")

    def __init__(
        self, consumer: Consumer, position: int, pending: PendingDelivery, batch: Batch
    ) -> None:
        self._consumer = consumer
        self._session = consumer.session
        self._pending = pending
        #: The publication.
        self.batch = batch
        #: Its position in the channel's total order, the same in each attempt.
        self.position = position

    @property
    def events(self) -> list[Event]:
        """Its events."""
        return self.batch.events()

    @property
    def attempt(self) -> int:
        """Attempt number, from 1; earlier attempts may not have reached an application."""
        return self._pending.attempt

    async def ack(self) -> None:
        """Acknowledge it, soon and together with others; `flush` waits until that is ordered."""
        self._answer(ack=True)

    async def nack(self) -> None:
        """Return it for redelivery to any consumer, or as a dead letter after the last attempt."""
        self._answer(ack=False)

    def _answer(self, *, ack: bool) -> None:
        # After the end of its session the publication may be assigned to another consumer.
        if not self._pending.answered and self._session == self._consumer.session:
            self._pending.answered = True
            self._consumer.answer(self.position, ack=ack)

    def __repr__(self) -> str:
        return f"<Delivery {self.position}, attempt {self.attempt}>"


class NamedSubscription:
    """The deliveries of a named subscription; made by `Node.subscribe_as`."""

    def __init__(
        self, node: Connection, entry: ChannelEntry, options: NamedSubscriptionOptions
    ) -> None:
        self._node = node
        self._entry = entry
        self._companion = check_companion(node.manifest, entry).name
        self.name = options.name
        self._beginning, _ = check_start(options.start, [entry])
        self._options = options
        self._group = entry.group(options.name)
        given = (options.ack_timeout_s, options.max_attempts, options.dead_letter)
        self._given = any(value is not None for value in given)
        self._settings = self._check_settings()
        #: The positions that brokers had dropped when this use began the subscription with
        #: "earliest". It begins after them, and iteration yields no gap for them.
        self.dropped: list[Gap] = []
        self._consumer: Consumer | None = None
        #: The newest deliveries, which the next one acknowledges with `ack="auto"`.
        self._last: list[Delivery] = []

    def _check_settings(self) -> SubscriptionSettings:
        node, group = self._node, self._group
        if group is not None:
            if self._given:
                raise UsageError(
                    f"{self.name!r} is a shared subscription: its time-out, attempts and "
                    "dead-letter channel are in the manifest"
                )
            charter = charter_of(node.manifest, group)
            if not is_listed(node.name, group.members):
                raise UsageError(
                    f"{node.name!r} is no member of the group {self.name!r} of channel "
                    f"{self._entry.name!r}; ask the operator, or choose another name"
                )
            return charter.settings
        ack_timeout_s, dead_letter = self._options.ack_timeout_s, self._options.dead_letter
        if ack_timeout_s is not None:
            check_times(ack_timeout_s=ack_timeout_s)
        timeout_ms = 30_000 if ack_timeout_s is None else math.ceil(ack_timeout_s * 1000)
        attempts = 0 if self._options.max_attempts is None else self._options.max_attempts
        if not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
            raise UsageError(f"ack_timeout_s is {ack_timeout_s}: give more than 0, at most a day")
        if isinstance(attempts, bool) or attempts not in range(MAX_ATTEMPTS + 1):
            raise UsageError(
                f"max_attempts is {attempts!r}: give 1 to {MAX_ATTEMPTS}, or 0 for no end"
            )
        if dead_letter:
            self._check_dead_letter(dead_letter, attempts)
        return SubscriptionSettings(attempts, timeout_ms, dead_letter or "")

    def _check_dead_letter(self, channel: str, attempts: int) -> None:
        target = self._node.manifest.channel(channel)
        if target is None or target.name in (self._entry.name, self._companion):
            raise UsageError(f"dead_letter is {channel!r}: name another channel of the cell")
        if target.schema or not self._node.manifest.may_publish(self._node.name, channel):
            wrong = "has columns" if target.schema else f"is closed to {self._node.name!r}"
            raise UsageError(
                f"dead_letter is {channel!r}, which {wrong}: name a channel of bytes on which "
                "this client may publish"
            )
        if not attempts:
            raise UsageError("dead_letter needs an end of attempts: give max_attempts")

    # ------------------------------------------------------------------ opening

    async def open(self) -> None:
        """Find the state of the subscription, create it if it is new, and open a session."""
        if self._consumer is not None:
            raise UsageError("this subscription was opened before: ask the node for another one")
        live = self._node.subscribe(self._entry.name, overflow=Overflow.WAIT)
        # All readers must apply the same operations, so validity times must not hide any.
        companion = self._node.subscribe(self._companion, overflow=Overflow.WAIT, expired=True)
        try:
            await live.wait_joined()
            await companion.wait_joined()
            owner = None if self._group is not None else holder(self._node.name)
            follower, complete = await find_state(
                companion, self._node.manifest, self._entry, self.name, owner
            )
            if follower.state is None and not complete and not self._options.anew:
                raise UsageError(self._state_lost(owner))
            consumer = Consumer(
                self._node, live, companion, follower, prefetch=self._options.prefetch
            )
        except BaseException:
            live.close()
            companion.close()
            raise
        self._consumer = consumer
        try:
            consumer.start()
            await self._begin(consumer, follower, live)
        except BaseException:
            await consumer.close()
            raise

    async def _begin(self, consumer: Consumer, follower: Follower, live: Subscription) -> None:
        if follower.state is None or self._options.anew:
            if self._beginning is None:
                start = live.end
            elif self._beginning > live.end:
                raise UsageError(
                    f"position {self._beginning} of {live.channel!r} does not exist yet; the next "
                    f"is {live.end}"
                )
            elif self._beginning:
                start = self._beginning
            else:
                start = live.oldest
                if start > 1:
                    self.dropped = [live.gone(total_order(live.channel), 1, start - 1)]
            self._check_charter(follower)
            upto = follower.read_upto
            consumer.write(Create(upto, start, self._settings, self._charter()))
            await consumer.wait_until(
                lambda: follower.state is not None and follower.state.root > upto
            )
        elif self._group is not None:
            state, charter = follower.state, charter_of(self._node.manifest, self._group)
            if charter.epoch > state.epoch and not state.is_allowed(self._node.name):
                consumer.write(Configure(SubscriptionSettings(), self._charter()))
                await consumer.wait_until(lambda: state.epoch >= charter.epoch)
        elif self._given and follower.state.settings != self._settings:
            consumer.write(Configure(self._settings))
        await consumer.join()

    def _check_charter(self, follower: Follower) -> None:
        """Refuse an outdated manifest: its `Create` has no effect, so we would wait forever."""
        epoch = self._node.manifest.epoch
        if self._group is not None and follower.state is not None and epoch < follower.state.epoch:
            raise UsageError(
                f"{self.name!r} follows epoch {follower.state.epoch} of the manifest, and this one "
                f"is of epoch {epoch}: connect with the newest one"
            )

    def _charter(self) -> bytes:
        return b"" if self._group is None else self._node.charter()

    def _state_lost(self, owner: NodeId | None) -> str:
        who = "" if owner is None else f" of {owner!r}"
        entry = self._node.manifest.channel(self._companion)
        kept = "" if entry is None else f"; {retention_sentence(entry)}"
        return (
            f"{self._companion!r} no longer holds all operations, and none that say how far the "
            f"subscription {self.name!r}{who} is, if it was ever used; begin it anew with "
            f"anew=True (--anew) and say from where with start (--from){kept}"
        )

    # ---------------------------------------------------------------- iterating

    def __aiter__(self) -> NamedSubscription:
        return self

    async def __anext__(self) -> Delivery:
        item = await self.next()
        if isinstance(item, Gap):
            raise GapError(item)
        return item

    async def next(self) -> Delivery | Gap:
        """The next delivery, or a gap that the subscription had to skip."""
        consumer = self._opened()
        await self._acknowledge_last()
        found = consumer.next_ready()
        while found is None:
            await consumer.changed()
            found = consumer.next_ready()
        if isinstance(found, Gap):
            return found
        self._last = [Delivery(consumer, *found)]
        return self._last[0]

    async def poll(
        self, n: int | None = None, *, at_least: int | None = None, timeout_s: float | None = None
    ) -> list[Delivery]:
        """The deliveries that wait, until they have `n` events; returns at once.

        A delivery is a whole publication, since it is acknowledged as a whole: the last one may
        have more events than are missing. `at_least`, `timeout_s` and gaps are those of
        `Subscription.poll`. It does not wait for more than may be claimed ahead (`prefetch`).
        """
        poll = check_poll(n, at_least, timeout_s)
        consumer = self._opened()
        await self._acknowledge_last()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not consumer.has_ready(poll.at_least):
                    await consumer.changed()
        found: list[Delivery] = []
        events = 0
        while events < poll.most and not (found and consumer.gap_next):
            item = consumer.next_ready()
            if item is None:
                break
            if isinstance(item, Gap):
                raise GapError(item)
            found.append(Delivery(consumer, *item))
            events += len(found[-1].batch)
        self._last = found
        return list(found)

    async def _acknowledge_last(self) -> None:
        last, self._last = self._last, []
        if self._options.ack == AUTO:
            for delivery in last:
                await delivery.ack()

    @property
    def lag(self) -> int:
        """Publications from the oldest unsettled one to the end of the channel."""
        return self._opened().lag

    def state(self) -> SubscriptionState:
        """The state after the newest operation that this consumer has read, for inspection."""
        return self._opened().state

    @property
    def position(self) -> int:
        """The newest operation that this consumer has read of the companion channel."""
        return self._opened().position

    async def flush(self) -> None:
        """Wait until all acknowledgements so far are ordered."""
        await self._opened().flush()

    def _opened(self) -> Consumer:
        if self._consumer is None:
            raise UsageError("this subscription is not open: use 'async with'")
        return self._consumer

    # ------------------------------------------------------------------- ending

    async def close(self) -> None:
        """Write pending acknowledgements, and return the other deliveries."""
        if self._consumer is not None:
            await self._consumer.close()

    async def __aenter__(self) -> NamedSubscription:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
