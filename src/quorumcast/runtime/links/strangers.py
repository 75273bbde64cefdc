"""Strangers: incoming connections that are not authenticated yet, and limits on their number.

A stranger is *silent* until its greeting is complete; then it *claims* to be some node of the
directory, which only its first sealed packet proves. Anybody can connect and claim any name, so a
full pool still admits newcomers: it evicts the oldest connection of its largest group. Silent
strangers are grouped by address, claims by name and address. Clients and brokers have separate
pools of claims, so that neither silent connections nor false claims to be a client evict a broker
that reconnects; false claims to be a broker from one address evict only one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from quorumcast.core.ids import NodeId
from quorumcast.runtime.links.limits import TransportLimits


class Stranger(Protocol):
    """What the pools need of a connection."""

    address: str
    peer: NodeId

    def expire(self) -> None:
        """Close: the greeting took too long."""

    def give_way(self) -> None:
        """Close: a newer connection gets the place."""


S = TypeVar("S", bound=Stranger)


class Pool(Generic[S]):
    """Connections in groups; oldest first in each."""

    __slots__ = ("_count", "_groups", "_limit", "_per_group")

    def __init__(self, limit: int, per_group: int) -> None:
        self._limit = limit
        self._per_group = per_group
        #: No empty ones; none larger than `_per_group`, and no more than `_limit` in all.
        self._groups: dict[Hashable, dict[S, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, stranger: S, group: Hashable) -> S | None:
        """Add a connection; returns the one that is evicted if there is no room."""
        members = self._groups.get(group, {})
        victim: S | None = None
        if len(members) >= self._per_group:
            victim = next(iter(members))
            self.remove(victim, group)
        elif self._count >= self._limit:
            largest = max(self._groups, key=lambda key: len(self._groups[key]))
            victim = next(iter(self._groups[largest]))
            self.remove(victim, largest)
        self._groups.setdefault(group, {})[stranger] = None
        self._count += 1
        return victim

    def remove(self, stranger: S, group: Hashable) -> None:
        """Remove a connection that is closed or authenticated."""
        members = self._groups.get(group, {})
        if stranger in members:
            del members[stranger]
            self._count -= 1
            if not members:
                del self._groups[group]


class Strangers(Generic[S]):
    """All connections of a node that are not authenticated."""

    def __init__(self, limits: TransportLimits, is_broker: Callable[[NodeId], bool]) -> None:
        self._is_broker = is_broker
        self._timeout_s = limits.greeting_timeout_s
        self._loop = asyncio.get_running_loop()
        self._silent: Pool[S] = Pool(limits.strangers, limits.strangers_per_address)
        self._clients: Pool[S] = Pool(limits.claims_of_clients, limits.claims_per_name)
        self._brokers: Pool[S] = Pool(limits.claims_of_brokers, limits.claims_per_name)
        #: The pool and group of each connection, and the timer of its greeting.
        self._places: dict[S, tuple[Pool[S], Hashable, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def all(self) -> list[S]:
        """Every such connection."""
        return list(self._places)

    def enter(self, stranger: S) -> None:
        """Add a new connection."""
        timer = self._loop.call_later(self._timeout_s, stranger.expire)
        self._put(stranger, self._silent, stranger.address, timer)

    def claim(self, stranger: S) -> None:
        """Move a connection that has named itself from the silent ones to the claims."""
        place = self._places.pop(stranger, None)
        if place is not None:
            pool, group, timer = place
            pool.remove(stranger, group)
            pool = self._brokers if self._is_broker(stranger.peer) else self._clients
            self._put(stranger, pool, (stranger.peer, stranger.address), timer)

    def _put(self, stranger: S, pool: Pool[S], group: Hashable, timer: asyncio.TimerHandle) -> None:
        victim = pool.add(stranger, group)
        self._places[stranger] = (pool, group, timer)
        if victim is not None:
            self.leave(victim)
            victim.give_way()

    def leave(self, stranger: S) -> None:
        """Remove a connection that is closed or authenticated."""
        place = self._places.pop(stranger, None)
        if place is not None:
            pool, group, timer = place
            pool.remove(stranger, group)
            timer.cancel()
