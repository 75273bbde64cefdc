"""The predicates of a broker's subscribers, and what they cost.

A subscriber names its predicates in every `Subscribe`. A broker reads a text when it changes, and
evaluates it on every publication of its channel, so both are paid for from the client's account
(`cell.serving.work`). Many texts are read a few at a time (`ReadOn`), so that others are served
meanwhile, and the subscriber enters when all are read. A predicate of which even a full account
could not pay a publication of PAID_ROWS rows is refused, and so are more texts than a client may
have on all channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from quorumcast.cell.filters import FilterReading
from quorumcast.cell.messages import Subscribe
from quorumcast.cell.serving.work import MOST_US, WorkAccounts
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId, holder
from quorumcast.core.limits import (
    MAX_CLIENT_TEXT,
    MAX_FILTER_TEXT,
    MAX_MATCHED_ROWS,
    MAX_STREAMS_NAMED,
)
from quorumcast.core.machine import Effect, SetTimer, Timer
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter
    from quorumcast.matching.selection import RowFilter

#: What it costs to change what a node asks for: once, per predicate, and per character read.
CHANGE_US, PREDICATE_US, CHARACTER_US = 500, 100, 6
#: Time between two parts of what is read.
READ_MS = 1
#: Predicates from which on an index of their own pays.
INDEXED = 8
#: Rows of a publication that a full account must pay for: as many as predicates are evaluated on.
PAID_ROWS = MAX_MATCHED_ROWS


class KnownFilter(NamedTuple):
    """The filter of a node on a channel, with its texts and the columns that they name."""

    where: tuple[str, ...]
    schema: tuple[tuple[str, str], ...]
    filter: Filter
    #: Finds the rows that match, and whether it does so plainly.
    finder: RowFilter
    plain: bool

    def work_us(self, rows: int) -> int:
        """About how long it takes to find the matching ones of so many rows, in microseconds."""
        return self.filter.work_us(rows, plain=self.plain)


class ReadOn(Timer, frozen=True, tag=True):
    """Read more of what subscribers ask for."""


class UnreadRequest(msgspec.Struct):
    """A request whose predicates are being read."""

    #: What the requests that the node has sent meanwhile ask for together.
    asked: Subscribe
    entry: ChannelEntry
    reading: FilterReading

    @property
    def where(self) -> tuple[str, ...]:
        """The texts."""
        return self.asked.where


class KnownFilters:
    """The last filter of every subscriber of a broker, on each channel."""

    __slots__ = ("_due", "_filters", "_read", "work")

    def __init__(self) -> None:
        #: Only of entitled nodes that are connected, and not of those that want everything.
        self._filters: dict[tuple[NodeId, Channel], KnownFilter] = {}
        #: The requests of such nodes that are being read, and whether ReadOn is set.
        self._read: dict[tuple[NodeId, Channel], UnreadRequest] = {}
        self._due = False
        self.work = WorkAccounts()

    def __len__(self) -> int:
        return len(self._filters)

    def get(self, reader: NodeId, channel: Channel) -> KnownFilter | None:
        """The filter of a node; None for everything."""
        return self._filters.get((reader, channel))

    def learn(self, reader: NodeId, entry: ChannelEntry, asked: Subscribe, now: Millis) -> bool:
        """Note what a node asks for; False if it asks for more than it can pay.

        Raises `UsageError` if the predicates are none. It may take some turns to read them.
        """
        key, where = (reader, entry.name), asked.where
        if not where and not entry.carried:
            self.forget(reader, entry.name)
            return True
        there = self._read.get(key)
        if there is not None and there.where == where and there.entry.schema == entry.schema:
            there.asked = _both(there.asked, asked)
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
        self.forget(reader, entry.name)
        if size + self._size_of(holder(reader)) > MAX_CLIENT_TEXT:
            raise UsageError(
                f"the predicates of {holder(reader)} have more than {MAX_CLIENT_TEXT:,} characters "
                "on all its channels: leave some of them out"
            )
        self._read[key] = UnreadRequest(asked, entry, FilterReading(entry, where))
        self._read_some(*key)
        return True

    def is_reading(self, reader: NodeId, channel: Channel) -> bool:
        """Whether what a node asks for is not known yet."""
        return (reader, channel) in self._read

    def _read_some(self, reader: NodeId, channel: Channel) -> Subscribe | None:
        """Read on; returns the request when all of it is read. Raises `UsageError`."""
        there = self._read.pop((reader, channel))
        if not there.reading.read_on():
            self._read[reader, channel] = there  # behind the others
            return None
        if there.reading.filter is not None:
            known = _known(there.where, there.entry, there.reading.filter)
            self._filters[reader, channel] = _affordable(known)
        return there.asked

    def read_on(self) -> tuple[NodeId, Channel, Subscribe | UsageError] | None:
        """Read on for one node; returns its request if all of it is read now, or what is wrong."""
        self._due = False
        if not self._read:
            return None
        reader, channel = next(iter(self._read))
        try:
            asked = self._read_some(reader, channel)
        except UsageError as error:
            return reader, channel, error
        return None if asked is None else (reader, channel, asked)

    def await_reading(self) -> list[Effect]:
        """Read on in the next turn, if anything is being read."""
        if self._due or not self._read:
            return []
        self._due = True
        return [SetTimer(ReadOn(), READ_MS)]

    def _size_of(self, client: NodeId) -> int:
        """Characters that a client has as predicates, on all channels and seats."""
        every = [(reader, known.where) for (reader, _), known in self._filters.items()]
        every += [(reader, unread.where) for (reader, _), unread in self._read.items()]
        mine = [where for reader, where in every if holder(reader) == client]
        return sum(len(text) for where in mine for text in where)

    def forget(self, reader: NodeId, channel: Channel | None = None) -> None:
        """Forget what a node asked for, on one channel or on all."""
        for there in (self._filters, self._read):
            for key in [k for k in there if k[0] == reader and channel in (None, k[1])]:
                del there[key]

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "predicates": len(self._filters),
            "being_read": len(self._read),
            "accounts": len(self.work),
        }


def _known(where: tuple[str, ...], entry: ChannelEntry, filter_: Filter) -> KnownFilter:
    if len(filter_.predicates) < INDEXED or filter_.plain.rows_us < filter_.indexed.rows_us:
        return KnownFilter(where, entry.schema, filter_, filter_, plain=True)
    # Not at the top: brokers without predicates start without Arrow.
    from quorumcast.matching.indexing.filter_set import IndexedFilter

    return KnownFilter(where, entry.schema, filter_, IndexedFilter(filter_), plain=False)


def _both(earlier: Subscribe, later: Subscribe) -> Subscribe:
    """What two requests of a node ask for; a later cursor of a stream replaces an earlier one."""
    if later.until and not earlier.until:
        return earlier  # the span of a total order is asked for again
    if not later.few:
        return later
    cursors = {cursor.stream: cursor for cursor in (*earlier.cursors, *later.cursors)}
    both = tuple(cursors.values())[:MAX_STREAMS_NAMED]
    return msgspec.structs.replace(later, cursors=both, few=earlier.few and later.few)


def _affordable(known: KnownFilter) -> KnownFilter:
    work_us = known.work_us(PAID_ROWS)
    if work_us > MOST_US:
        raise UsageError(
            f"the predicates take about {work_us // 1000:,} ms for {PAID_ROWS:,} rows, and may "
            f"take {MOST_US // 1000:,}: ask for more rows, and filter what comes"
        )
    return known
