"""The predicates of a broker's subscribers, and what they cost.

A subscriber names its predicates in every `Subscribe`. A broker reads a text when it changes, and
evaluates it on every publication of its channel, so both are paid for from an account per client:
whoever asks for more than its share gets its answers later, and others do not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorumcast.cell.filters import filter_of
from quorumcast.core.ids import Channel, Millis, NodeId, holder
from quorumcast.manifest.manifest import ChannelEntry

if TYPE_CHECKING:
    from quorumcast.matching.filter import Filter
    from quorumcast.matching.selection import RowFilter

#: Microseconds of work that a client gains per millisecond, and has at most.
INCOME_US, MOST_US = 200, 1_000_000
#: What it costs to read a predicate: once, and per character.
PREDICATE_US, CHARACTER_US = 100, 4
#: Predicates from which on an index of their own pays.
INDEXED = 8


class WorkAccount:
    """How much work a client may still ask of a broker."""

    __slots__ = ("_at", "_left_us")

    def __init__(self, now: Millis) -> None:
        self._at = now
        self._left_us = MOST_US

    def may_ask(self, now: Millis) -> bool:
        """Whether anything is left. Whoever asks for more than that is in debt for a while."""
        self._left_us = min(MOST_US, self._left_us + INCOME_US * max(0, now - self._at))
        self._at = now
        return self._left_us > 0

    def spend(self, work_us: int) -> None:
        """Note work that is done for the client."""
        self._left_us -= work_us

    @property
    def is_full(self) -> bool:
        """Whether a new account would be the same."""
        return self._left_us == MOST_US


class KnownFilter(NamedTuple):
    """What a node asks of a channel: the texts, the columns that they name, and their meaning."""

    where: tuple[str, ...]
    schema: tuple[tuple[str, str], ...]
    filter: Filter
    #: Finds the rows that match, and whether it does so plainly.
    finder: RowFilter
    plain: bool


class KnownFilters:
    """What every subscriber of a broker asked for last, on each channel."""

    __slots__ = ("_accounts", "_filters")

    def __init__(self) -> None:
        #: Only of entitled nodes that are connected, and not of those that want everything.
        self._filters: dict[tuple[NodeId, Channel], KnownFilter] = {}
        #: One per client, whatever its seats; only of clients that asked for rows, until it is
        #: full again.
        self._accounts: dict[NodeId, WorkAccount] = {}

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
        if not where:
            self._filters.pop(key, None)
            return True
        known = self._filters.get(key)
        if known is not None and known.where == where and known.schema == entry.schema:
            return True
        if not self.may_ask(reader, now):
            return False
        self.spend((reader,), PREDICATE_US * len(where) + CHARACTER_US * sum(map(len, where)))
        self._filters.pop(key, None)
        filter_ = filter_of(entry, where)
        if filter_ is not None:
            self._filters[key] = _known(where, entry, filter_)
        return True

    def may_ask(self, reader: NodeId, now: Millis) -> bool:
        """Whether a node may ask for more work now."""
        client = holder(reader)
        if client not in self._accounts:
            self._accounts[client] = WorkAccount(now)
        return self._accounts[client].may_ask(now)

    def spend(self, readers: tuple[NodeId, ...], work_us: int) -> None:
        """Note work that is done for all of these at once."""
        for reader in readers:
            account = self._accounts.get(holder(reader))
            if account is not None:
                account.spend(work_us // len(readers))

    def forget(self, reader: NodeId, channel: Channel | None = None) -> None:
        """Forget what a node asked for, on one channel or on all."""
        for key in [k for k in self._filters if k[0] == reader and channel in (None, k[1])]:
            del self._filters[key]

    def sweep(self, now: Millis) -> None:
        """Forget the accounts of clients that ask for nothing."""
        asking = {holder(reader) for reader, _ in self._filters}
        for client, account in list(self._accounts.items()):
            if client not in asking and account.may_ask(now) and account.is_full:
                del self._accounts[client]

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"predicates": len(self._filters), "accounts": len(self._accounts)}


def _known(where: tuple[str, ...], entry: ChannelEntry, filter_: Filter) -> KnownFilter:
    if len(filter_.predicates) < INDEXED or filter_.cost < filter_.indexed_cost:
        return KnownFilter(where, entry.schema, filter_, filter_, plain=True)
    # Not at the top: brokers without predicates start without Arrow.
    from quorumcast.matching.indexing.solo import IndexedFilter

    return KnownFilter(where, entry.schema, filter_, IndexedFilter(filter_), plain=False)
