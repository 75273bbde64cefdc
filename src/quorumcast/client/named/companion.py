"""Finding the state of a named subscription in its companion channel.

The reader fetches the newest operations first, and then older ones, until there is a root from
which the state can be computed (`named.follower`). Operations are accepted like all publications,
with the votes of enough brokers, so no single broker is trusted.
"""

from __future__ import annotations

from typing import Protocol

from quorumcast.client.events import Batch, Gap
from quorumcast.client.publishing.publisher import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.ids import NodeId, holder
from quorumcast.core.limits import Overflow
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.named.follower import Follower, charter_reader
from quorumcast.named.operations import decode
from quorumcast.named.state import is_listed

#: Operations in the first request.
FIRST_READ = 256


class Connection(Protocol):
    """The part of a node that named subscriptions need."""

    manifest: Manifest

    @property
    def name(self) -> NodeId:
        """Our node id."""

    def publisher(self, channel: str) -> Publisher:
        """A publisher of a channel."""

    def subscribe(
        self, channel: str, *, overflow: Overflow | None = None, expired: bool = False
    ) -> Subscription:
        """A subscription to a channel."""

    def charter(self) -> bytes:
        """The manifest as its operator signed it."""


def make_follower(
    manifest: Manifest, entry: ChannelEntry, name: str, owner: NodeId | None, since: int
) -> Follower:
    """A follower of a private subscription, or of a shared one (`owner` is None)."""
    if owner is not None:
        return Follower(name, owner, since, lambda author: holder(author) == owner)
    read_charter = charter_reader(manifest.cell, manifest.operator, entry.name, name)
    group = entry.group(name)
    members = () if group is None else group.members

    return Follower(name, None, since, lambda author: is_listed(author, members), read_charter)


class CompanionLog:
    """A contiguous part of a companion, from `since` to before `end`, read backwards."""

    def __init__(self, companion: Subscription) -> None:
        self._companion = companion
        self.end = companion.end
        self.since = self.end
        #: Whether brokers retain nothing before `since`.
        self.exhausted = self.end == 1
        self._found: dict[int, Batch] = {}

    async def read_back(self, count: int) -> None:
        """Fetch up to `count` operations before `since`."""
        first = max(1, self.since - count)
        wanted = range(first, self.since)
        found = await self._companion.recall(wanted)
        since = first
        for position, item in found.items():
            if isinstance(item, Gap):
                since = max(since, item.upto + 1)
            elif item is not None:
                self._found[position] = item
        self.exhausted = first == 1 or since > first
        self.since = min(since, self.end)

    async def read_all(self) -> None:
        """Fetch everything that brokers retain."""
        while not self.exhausted:
            await self.read_back(4 * FIRST_READ)

    def written_at(self, position: int) -> float | None:
        """When its author wrote an operation, in seconds since 1970; None if it is not here."""
        batch = self._found.get(position)
        return None if batch is None else batch.published_at.timestamp()

    def replay_into(self, follower: Follower) -> Follower:
        """Pass all operations to a follower, and return it."""
        for position in sorted(self._found):
            if position >= self.since:
                batch = self._found[position]
                follower.read(position, batch.publisher, batch.payloads)
        follower.read_upto = max(follower.read_upto, self.end - 1)
        return follower

    def names(self) -> list[tuple[NodeId | None, str]]:
        """Owner (None if shared) and name of each subscription with an operation in this part."""
        found: dict[tuple[NodeId | None, str], None] = {}
        for position in sorted(self._found):
            batch = self._found[position]
            for payload in batch.payloads:
                entry = decode(payload)
                if entry is not None:
                    owner = None if entry.shared else holder(batch.publisher)
                    found[owner, entry.name] = None
        return list(found)


async def find_state(
    companion: Subscription,
    manifest: Manifest,
    entry: ChannelEntry,
    name: str,
    owner: NodeId | None,
) -> tuple[Follower, bool]:
    """A follower of a subscription, and whether it has read the companion from the beginning."""
    log, count = CompanionLog(companion), FIRST_READ
    while True:
        if not log.exhausted:
            await log.read_back(count)
        follower = log.replay_into(make_follower(manifest, entry, name, owner, log.since))
        if follower.state is not None or log.exhausted:
            return follower, log.since == 1
        count *= 4
