"""The predicates of a broker's subscribers, and what they cost.

A subscriber names its predicates in every `Subscribe`. A broker reads a text when it changes, and
evaluates it on every publication of its channel, so both are paid for from the client's account
(`cell.serving.work`). A predicate of which even a full account could not pay a publication of
PAID_ROWS rows is refused, and so are more texts than a client may have on all channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorumcast.cell.filters import filter_of
from quorumcast.cell.serving.work import MOST_US, WorkAccounts
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId, holder
from quorumcast.core.limits import MAX_CLIENT_TEXT, MAX_FILTER_TEXT, MAX_MATCHED_ROWS
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter
    from quorumcast.matching.selection import RowFilter

#: What it costs to change what a node asks for: once, per predicate, and per character read.
CHANGE_US, PREDICATE_US, CHARACTER_US = 500, 100, 6
#: Predicates from which on an index of their own pays.
INDEXED = 8
#: Rows of a publication that a full account must pay for: as many as predicates are evaluated on.
PAID_ROWS = MAX_MATCHED_ROWS


class KnownFilter(NamedTuple):
    """What a node asks of a channel: the texts, the columns that they name, and their meaning."""

    where: tuple[str, ...]
    schema: tuple[tuple[str, str], ...]
    filter: Filter
    #: Finds the rows that match, and whether it does so plainly.
    finder: RowFilter
    plain: bool

    @property
    def size(self) -> int:
        """Characters of the texts."""
        return sum(map(len, self.where))

    def work_us(self, rows: int) -> int:
        """About how long it takes to find the matching ones of so many rows, in microseconds."""
        return self.filter.work_us(rows, plain=self.plain)


class KnownFilters:
    """What every subscriber of a broker asked for last, on each channel."""

    __slots__ = ("_filters", "work")

    def __init__(self) -> None:
        #: Only of entitled nodes that are connected, and not of those that want everything.
        self._filters: dict[tuple[NodeId, Channel], KnownFilter] = {}
        self.work = WorkAccounts()

    def __len__(self) -> int:
        return len(self._filters)

    def get(self, reader: NodeId, channel: Channel) -> KnownFilter | None:
        """What a node asks for; None for everything."""
        return self._filters.get((reader, channel))

    def learn(
        self, reader: NodeId, entry: ChannelEntry, where: tuple[str, ...], now: Millis
    ) -> bool:
        """Note what a node asks for; False if it asks for more than it can pay.

        Raises `UsageError` if the predicates are none.
        """
        key = (reader, entry.name)
        if not where and not entry.carried:
            self._filters.pop(key, None)
            return True
        known = self._filters.get(key)
        if known is not None and known.where == where and known.schema == entry.schema:
            return True
        size = sum(map(len, where))
        read = size
        if entry.carried:  # each predicate is read alone, and joined with what is carried on
            read = min(2 * size + len(entry.carried) * max(1, len(where)), MAX_FILTER_TEXT)
        price_us = CHANGE_US + PREDICATE_US * len(where) + CHARACTER_US * read
        if not self.work.may_ask(reader, price_us, now):
            return False
        self.work.spend((reader,), price_us)
        self._filters.pop(key, None)
        if size + self._size_of(holder(reader)) > MAX_CLIENT_TEXT:
            raise UsageError(
                f"the predicates of {holder(reader)} have more than {MAX_CLIENT_TEXT:,} characters "
                "on all its channels: leave some of them out"
            )
        filter_ = filter_of(entry, where)
        if filter_ is not None:
            self._filters[key] = _affordable(_known(where, entry, filter_))
        return True

    def _size_of(self, client: NodeId) -> int:
        """Characters that a client has as predicates, on all channels and seats."""
        there = self._filters.items()
        return sum(known.size for (reader, _), known in there if holder(reader) == client)

    def forget(self, reader: NodeId, channel: Channel | None = None) -> None:
        """Forget what a node asked for, on one channel or on all."""
        for key in [k for k in self._filters if k[0] == reader and channel in (None, k[1])]:
            del self._filters[key]

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"predicates": len(self._filters), "accounts": len(self.work)}


def _known(where: tuple[str, ...], entry: ChannelEntry, filter_: Filter) -> KnownFilter:
    if len(filter_.predicates) < INDEXED or filter_.cost < filter_.indexed_cost:
        return KnownFilter(where, entry.schema, filter_, filter_, plain=True)
    # Not at the top: brokers without predicates start without Arrow.
    from quorumcast.matching.indexing.solo import IndexedFilter

    return KnownFilter(where, entry.schema, filter_, IndexedFilter(filter_), plain=False)


def _affordable(known: KnownFilter) -> KnownFilter:
    work_us = known.work_us(PAID_ROWS)
    if work_us > MOST_US:
        raise UsageError(
            f"the predicates take about {work_us // 1000:,} ms for {PAID_ROWS:,} rows, and may "
            f"take {MOST_US // 1000:,}: ask for more rows, and filter what comes"
        )
    return known
