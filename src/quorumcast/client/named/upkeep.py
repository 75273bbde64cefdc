"""What a consumer of a named subscription sees to from time to time.

While it holds something it says `Beat`; while others do, it watches for theirs and says `Release`
when they have been silent for too long. A group without work is silent. Every so many operations,
and before the companion forgets the last one, it writes the state down (`Snapshot`). When the
operator changed the group, it says so (`Configure`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from quorumcast.client.named.companion import Connection
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.named.follower import Follower, charter_of
from quorumcast.named.operations import (
    AnyOperation,
    Beat,
    Configure,
    Release,
    Settings,
    Snapshot,
)
from quorumcast.named.state import State

#: Operations after which whoever wrote the last one writes the state down.
SNAPSHOT_EVERY = 256


class Host(Protocol):
    """The consumer whose upkeep this is."""

    session: int
    said_at: float

    @property
    def state(self) -> State:
        """The state as far as it was read."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it holds anything."""
        ...

    def say(self, operation: AnyOperation) -> None:
        """Write an operation."""
        ...

    def react(self) -> None:
        """Look at the state once more."""
        ...


class Upkeep:
    """Beats, watches, snapshots and new manifests."""

    def __init__(
        self, host: Host, node: Connection, follower: Follower, channel: Channel, companion: Channel
    ) -> None:
        self._host = host
        self._node = node
        self._follower = follower
        self._channel = channel
        self._companion = companion
        self._loop = asyncio.get_running_loop()
        #: The root that was there when we last wrote a snapshot.
        self._snapshot_after = -1
        #: The manifest that we looked at last.
        self._epoch = 0
        #: Of other members at work: session, last sign of life, and when we noticed it.
        self._watched: dict[str, tuple[int, int, float]] = {}

    def maybe_snapshot(self, *, ours: bool) -> None:
        """After an operation: is it time to write the state down?"""
        follower = self._follower
        if follower.state is None or self._snapshot_after == follower.rooted:
            return
        due = ours and follower.operations >= SNAPSHOT_EVERY
        if due or follower.seen - follower.rooted > self._retained() // 2:
            self._snapshot_after = follower.rooted
            self._host.say(Snapshot(follower.seen, follower.state.picture()))

    def _retained(self) -> int:
        entry = self._node.manifest.channel(self._companion)
        return 2**62 if entry is None else entry.policy.limits.retained_publications

    async def tend(self) -> None:
        """For as long as the consumer works."""
        while True:
            timeout_s = (
                self._host.state.settings.ack_timeout_ms / 1000 if self._host.session else 1.0
            )
            pause_s = min(timeout_s / 4, 1.0)
            before = self._loop.time()
            await asyncio.sleep(pause_s)
            self._forgive(self._loop.time() - before - pause_s)
            if self._host.session:
                self._configure()
                self._beat(timeout_s)
                self._watch(timeout_s)
                self._host.react()

    def _forgive(self, late_s: float) -> None:
        """Nobody is suspected of our own slowness: while we stood still, we heard nothing."""
        for consumer, (session, seen, since) in self._watched.items():
            self._watched[consumer] = (session, seen, since + late_s)

    def _beat(self, timeout_s: float) -> None:
        if self._host.busy and self._loop.time() - self._host.said_at >= timeout_s / 3:
            self._host.say(Beat(self._host.session))

    def _watch(self, timeout_s: float) -> None:
        now, me = self._loop.time(), self._node.name
        holders = {claim.consumer for claim in self._host.state.held.values()} - {me}
        self._watched = {c: seen for c, seen in self._watched.items() if c in holders}
        for consumer in sorted(holders):
            member = self._host.state.members[consumer]
            session, seen, since = self._watched.get(consumer, (0, 0, now))
            if (session, seen) != (member.session, member.seen):
                self._watched[consumer] = (member.session, member.seen, now)
            elif now - since > timeout_s:
                self._host.say(Release(consumer, session, seen))
                self._watched[consumer] = (session, seen, now)

    def _configure(self) -> None:
        """Say what a new manifest makes of a group."""
        manifest = self._node.manifest
        if not self._follower.shared or manifest.epoch == self._epoch:
            return
        self._epoch = manifest.epoch
        entry = manifest.channel(self._channel)
        group = None if entry is None else entry.group(self._follower.name)
        if group is None:
            raise UsageError(f"the operator has ended the group {self._follower.name!r}")
        charter, state = charter_of(manifest, group), self._host.state
        if charter.epoch > state.epoch and (charter.members, charter.settings) != (
            state.allowed,
            state.settings,
        ):
            self._host.say(Configure(Settings(), self._node.charter()))
