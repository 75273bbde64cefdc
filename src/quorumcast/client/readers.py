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
from quorumcast.core.limits import MAX_FILTER_TEXT, MAX_PREDICATES
from quorumcast.matching.filter import Filter


class Reselection(msgspec.Struct, frozen=True, eq=False):
    """A subscription is going to have another predicate."""

    subscription: Subscription
    where: str | None
    filters: Filters
    done: asyncio.Future[None]


class ChannelReaders:
    """The subscriptions to one channel, which share what the machine delivers."""

    __slots__ = ("_asked", "_filters", "all", "channel", "present", "where")

    def __init__(self, channel: Channel, first: Subscription) -> None:
        self.channel = channel
        self.all = [first]
        #: Those that get what is delivered.
        self.present: list[Subscription] = []
        #: Whether one of those has a predicate.
        self._filters = False
        #: The predicates that brokers were asked for; () for everything. And their ids.
        self.where: tuple[str, ...] = ()
        self._asked: frozenset[bytes] = frozenset()
        self.select()

    def add(self, subscription: Subscription) -> bool:
        """Add a subscription; returns whether other rows must be asked for."""
        self.all.append(subscription)
        filter_ = subscription.filter(self.channel)
        if self.where and (filter_ is None or not self._asked.issuperset(_ids(filter_))):
            return True
        self.present.append(subscription)
        self._filters = self._filters or filter_ is not None
        return False

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        self.all.remove(subscription)
        if subscription in self.present:
            self.present.remove(subscription)

    def select(self) -> bool:
        """Let all take part; returns whether other rows must be asked for, which are in `where`."""
        before, wanted = self.where, self._wanted()
        self.where, self._asked = tuple(wanted.values()), frozenset(wanted)
        self.present = list(self.all)
        self._filters = any(one.filter(self.channel) is not None for one in self.present)
        return self.where != before

    def _wanted(self) -> dict[bytes, str]:
        """The predicates of all, by id; none for everything, also if they are too many."""
        texts: dict[bytes, str] = {}
        for subscription in self.all:
            filter_ = subscription.filter(self.channel)
            if filter_ is None:
                return {}
            texts.update({one.id: one.text for one in filter_.predicates})
        size = sum(len(text) for text in texts.values())
        if len(texts) > MAX_PREDICATES or size > MAX_FILTER_TEXT:
            return {}
        return {name: texts[name] for name in sorted(texts)}

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


def _ids(filter_: Filter) -> list[bytes]:
    return [predicate.id for predicate in filter_.predicates]
