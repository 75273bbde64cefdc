"""Reading a companion channel: the state of one named subscription, from the cell's own order.

The newest operations are read first, then ever older ones, until there is a root that the state can
be computed from (`named.follower`). Every one of them was accepted as any publication is: no broker
is believed.
"""

from __future__ import annotations

from typing import Protocol

from quorumcast.client.events import Batch, Gap
from quorumcast.client.publishing import Publisher
from quorumcast.client.subscription import Subscription
from quorumcast.core.ids import NodeId, holder
from quorumcast.core.limits import Overflow
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.named.follower import Follower, charters_of
from quorumcast.named.operations import decode
from quorumcast.named.state import listed

#: Operations that are read at first.
LOOK_BACK = 256


class Connection(Protocol):
    """What named subscriptions need of the node that they are on."""

    manifest: Manifest

    @property
    def name(self) -> NodeId:
        """Who we are."""
        ...

    def publisher(self, channel: str) -> Publisher:
        """Publish on a channel."""
        ...

    def subscribe(
        self, channel: str, *, overflow: Overflow | None = None, expired: bool = False
    ) -> Subscription:
        """Subscribe to a channel."""
        ...

    def charter(self) -> bytes:
        """The manifest as its operator signed it."""
        ...


def make_follower(
    manifest: Manifest, entry: ChannelEntry, name: str, owner: NodeId | None, since: int
) -> Follower:
    """A follower of a private (its owner's) or a shared subscription."""
    if owner is not None:
        return Follower(name, owner, since, lambda author: holder(author) == owner)
    charters = charters_of(manifest.cell, manifest.operator, entry.name, name)
    group = entry.group(name)
    members = () if group is None else group.members

    return Follower(name, None, since, lambda author: listed(author, members), charters)


class Past:
    """What was read of a companion: from `since` to before `end`, without a hole."""

    def __init__(self, companion: Subscription) -> None:
        self._companion = companion
        self.end = companion.end
        self.since = self.end
        #: Whether there is nothing before `since`: not held any longer, or never written.
        self.exhausted = self.end == 1
        self._found: dict[int, Batch] = {}

    async def read_back(self, count: int) -> None:
        """Read so many more, older ones."""
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
        """Everything that the cell still holds."""
        while not self.exhausted:
            await self.read_back(4 * LOOK_BACK)

    def feed(self, follower: Follower) -> Follower:
        """Let a follower take all of it."""
        for position in sorted(self._found):
            if position >= self.since:
                batch = self._found[position]
                follower.take(position, batch.publisher, batch.payloads)
        follower.seen = max(follower.seen, self.end - 1)
        return follower

    def names(self) -> list[tuple[NodeId | None, str]]:
        """Owner (None for shared ones) and name of all subscriptions that something was said of."""
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
    """A follower of a subscription, and whether everything that was ever said was read."""
    past, count = Past(companion), LOOK_BACK
    while True:
        if not past.exhausted:
            await past.read_back(count)
        follower = past.feed(make_follower(manifest, entry, name, owner, past.since))
        if follower.state is not None or past.exhausted:
            return follower, past.since == 1
        count *= 4
