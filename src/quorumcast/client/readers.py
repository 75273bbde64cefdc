"""The subscriptions of a node to one channel, which share what the machine delivers.

A node joins a channel once, whatever number of subscriptions it has there. It asks for the rows
that match the predicate of any of them, and for everything if one has none. Each subscription then
selects what matches its own predicate, so it is the same as if it were alone.

When the subscriptions to a channel change, the node asks for other rows. That is done once for all
changes of one turn of the event loop. A subscription that needs rows which were not asked for gets
nothing until then: it must not get a part of a publication of which the others are not there.
"""

from __future__ import annotations

import asyncio

import msgspec

from quorumcast.broadcast.application import Deliver
from quorumcast.client.selecting import Filters, OpenedDelivery, open_delivery, select_rows
from quorumcast.client.subscription import Subscription
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_PREDICATE_TEXT, MAX_PREDICATES

#: Bytes of predicates that a node sends to brokers for one channel; with more it asks for all rows.
MAX_ASKED_BYTES = 8 * MAX_PREDICATE_TEXT


class Reselection(msgspec.Struct, frozen=True, eq=False):
    """A subscription is going to have another predicate."""

    subscription: Subscription
    where: str | None
    filters: Filters
    done: asyncio.Future[None]


class ChannelReaders:
    """The subscriptions to one channel, which share what the machine delivers."""

    __slots__ = ("_entering", "_filters", "all", "channel", "present", "where")

    def __init__(self, channel: Channel, first: Subscription) -> None:
        self.channel = channel
        self.all = [first]
        #: Those that get what is delivered.
        self.present = [first]
        #: The predicates that brokers were asked for; () for everything.
        self.where = self._wanted()
        #: Whether one of those has a predicate.
        self._filters = first.filter(channel) is not None

    def add(self, subscription: Subscription) -> bool:
        """Add a subscription; returns whether other rows must be asked for."""
        self.all.append(subscription)
        wanted = self._wanted()
        if self.where and wanted != self.where:
            return True
        self._enter()
        return wanted != self.where

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        self.all.remove(subscription)
        if subscription in self.present:
            self.present.remove(subscription)

    def select(self) -> bool:
        """Let all take part; returns whether other rows must be asked for, which are in `where`."""
        wanted = self._wanted()
        changed = wanted != self.where
        self.where = wanted
        self._enter()
        return changed

    def _enter(self) -> None:
        self.present = list(self.all)
        self._filters = any(one.filter(self.channel) is not None for one in self.present)

    def _wanted(self) -> tuple[str, ...]:
        """The predicates of all; () for everything, also if they are too many to be sent."""
        texts: dict[bytes, str] = {}
        for subscription in self.all:
            filter_ = subscription.filter(self.channel)
            if filter_ is None:
                return ()
            texts.update({one.id: one.text for one in filter_.predicates})
        size = sum(len(text.encode()) for text in texts.values())
        if len(texts) > MAX_PREDICATES or size > MAX_ASKED_BYTES:
            return ()
        return tuple(texts[name] for name in sorted(texts))

    def deliver(self, delivered: Deliver) -> None:
        """Give each subscription what it selects of a publication."""
        if not self._filters:
            for subscription in self.present:
                subscription.deliver(delivered)
            return
        opened: OpenedDelivery | None = None
        tried = False
        for subscription in self.present:
            filter_ = subscription.filter(self.channel)
            if filter_ is None:
                subscription.deliver(delivered)
                continue
            if not tried:
                opened, tried = open_delivery(delivered, subscription.schema(self.channel)), True
            if opened is None:
                subscription.deliver(delivered)  # where it is counted and reported
                continue
            portion = select_rows(delivered, opened, filter_, subscription.where or "")
            if portion is None:
                subscription.passed(*delivered.place)
            else:
                subscription.deliver(portion)
