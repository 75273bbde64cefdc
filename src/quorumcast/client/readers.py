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
from quorumcast.client.arguments import Where
from quorumcast.client.selecting import Filters, open_delivery, portion_of
from quorumcast.client.subscription import Subscription
from quorumcast.core.ids import Channel
from quorumcast.core.limits import MAX_FILTER_TEXT, MAX_PREDICATES
from quorumcast.matching.filter import Filter
from quorumcast.matching.indexing.filter_set import FilterSet


class Reselection(msgspec.Struct, frozen=True, eq=False):
    """A subscription is going to have another predicate."""

    subscription: Subscription
    where: Where
    filters: Filters
    done: asyncio.Future[None]


class ChannelReaders:
    """The subscriptions to one channel, which share what the machine delivers."""

    __slots__ = ("_asked", "_filters", "_selecting", "all", "channel", "present", "where")

    def __init__(self, channel: Channel, first: Subscription) -> None:
        self.channel = channel
        self.all = [first]
        #: Those that get what is delivered.
        self.present: list[Subscription] = []
        #: What those select, and which of them select it, by id; None for everything.
        self._filters = FilterSet()
        self._selecting: dict[bytes | None, list[Subscription]] = {}
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
        self._enter(subscription)
        return False

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        self.all.remove(subscription)
        if subscription in self.present:
            self._take_part([one for one in self.present if one is not subscription])

    def select(self) -> bool:
        """Let all take part; returns whether other rows must be asked for, which are in `where`."""
        before, wanted = self.where, self._wanted()
        self.where, self._asked = tuple(wanted.values()), frozenset(wanted)
        self._take_part(self.all)
        return self.where != before

    def adopt(self) -> None:
        """Select by the columns of a new epoch."""
        self._take_part([one for one in self.present if not one.has_failed])

    def _take_part(self, present: list[Subscription]) -> None:
        """These get what is delivered, and no others."""
        self.present, self._selecting = [], {}
        for subscription in present:
            self._enter(subscription, index=False)
        filters = [one.filter(self.channel) for one in present]
        self._filters.add(*[one for one in filters if one is not None])
        for name in [one for one in self._filters if one not in self._selecting]:
            self._filters.discard(name)

    def _enter(self, subscription: Subscription, *, index: bool = True) -> None:
        filter_ = subscription.filter(self.channel)
        self.present.append(subscription)
        self._selecting.setdefault(None if filter_ is None else filter_.id, []).append(subscription)
        if filter_ is not None and index:
            self._filters.add(filter_)

    def _wanted(self) -> dict[bytes, str]:
        """The predicates of all, by id; none for everything, also if they are too many."""
        texts: dict[bytes, str] = {}
        for subscription in self.all:
            filter_ = subscription.filter(self.channel)
            if filter_ is None or subscription.where is None:
                # Of a channel that carries on some rows only, brokers know which.
                return {}
            texts.update({one.id: one.text for one in filter_.predicates})
        size = sum(len(text) for text in texts.values())
        if len(texts) > MAX_PREDICATES or size > MAX_FILTER_TEXT:
            return {}
        return {name: texts[name] for name in sorted(texts)}

    def deliver(self, delivered: Deliver) -> None:
        """Give each subscription what it selects of a publication."""
        if not len(self._filters):
            for subscription in self.present:
                subscription.deliver(delivered)
            return
        opened = open_delivery(delivered, self.present[0].schema(self.channel))
        left = dict(self._selecting)
        whole = left.pop(None, []) if opened is not None else self.present
        for subscription in whole:
            subscription.deliver(delivered)  # counted and reported there if it makes no sense
        if opened is None:
            return
        if delivered.where and left.keys() == {delivered.where}:
            # Brokers have selected just that.
            for subscription in left[delivered.where]:
                subscription.deliver(portion_of(delivered, opened, None, subscription.where))
            return
        for one, rows in self._filters.match(opened.data):
            for subscription in left.pop(one.id):
                subscription.deliver(portion_of(delivered, opened, rows, subscription.where))
        for subscriptions in left.values():
            for subscription in subscriptions:
                subscription.passed(*delivered.place)


def _ids(filter_: Filter) -> list[bytes]:
    return [predicate.id for predicate in filter_.predicates]
