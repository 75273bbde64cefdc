"""Periodic work of a consumer: heartbeats, expiry of silent sessions, snapshots, new manifests.

- While the consumer has assignments, it writes a `Heartbeat` at least every third of the timeout,
  and otherwise every IDLE_HEARTBEAT_S, so that operators can tell an idle consumer from a dead one.
- It observes the other consumers that have assignments. If one writes nothing for the timeout, it
  writes `ExpireSession`. An idle consumer keeps nobody waiting, so its session stays.
- It writes a snapshot after SNAPSHOT_EVERY operations, and earlier if the companion would otherwise
  drop the last root (`named.follower`).
- It writes `Configure` when a new manifest changes the group.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

from quorumcast.client.named.companion import Connection
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel
from quorumcast.named.follower import Follower, charter_of
from quorumcast.named.operations import (
    AnyOperation,
    Configure,
    ExpireSession,
    Heartbeat,
    SubscriptionSettings,
    WriteSnapshot,
)
from quorumcast.named.state import SubscriptionState

#: Operations since the last root after which the author of the newest one writes a snapshot.
SNAPSHOT_EVERY = 256
#: Time between two heartbeats of a consumer without assignments.
IDLE_HEARTBEAT_S = 60.0


class MaintainedConsumer(Protocol):
    """The part of a consumer that maintenance needs."""

    session: int
    last_write_at: float

    @property
    def state(self) -> SubscriptionState:
        """The state after the newest operation that was read."""

    @property
    def busy(self) -> bool:
        """Whether the consumer has assignments."""

    def write(self, operation: AnyOperation) -> None:
        """Publish an operation on the companion."""

    def update(self) -> None:
        """Compare the state with what the consumer is doing, and act on the differences."""


class Observed(NamedTuple):
    """The newest known operation of another consumer."""

    session: int
    last_seen: int
    #: Local time at which we first saw it.
    since: float


class ConsumerMaintenance:
    """The periodic work of one consumer."""

    def __init__(
        self,
        consumer: MaintainedConsumer,
        node: Connection,
        follower: Follower,
        channel: Channel,
        companion: Channel,
    ) -> None:
        self._consumer = consumer
        self._node = node
        self._follower = follower
        self._channel = channel
        self._companion = companion
        self._loop = asyncio.get_running_loop()
        #: The newest root at the time of our last snapshot, so that we write one snapshot per root.
        self._snapshot_after = -1
        #: Epoch of the manifest that was last compared with the state.
        self._epoch = 0
        #: Other consumers that have assignments.
        self._observed: dict[str, Observed] = {}

    def maybe_snapshot(self, *, ours: bool) -> None:
        """Write a snapshot if one is due; `ours` tells whether we wrote the newest operation."""
        follower = self._follower
        if follower.state is None or self._snapshot_after == follower.newest_root:
            return
        due = ours and follower.operations_since_root >= SNAPSHOT_EVERY
        if due or follower.read_upto - follower.newest_root > self._retained() // 2:
            self._snapshot_after = follower.newest_root
            self._consumer.write(WriteSnapshot(follower.read_upto, follower.state.snapshot()))

    def _retained(self) -> int:
        entry = self._node.manifest.channel(self._companion)
        return 2**62 if entry is None else entry.policy.limits.retained_publications

    async def run(self) -> None:
        """Do the periodic work until cancelled."""
        while True:
            timeout_s = (
                self._consumer.state.settings.ack_timeout_ms / 1000
                if self._consumer.session
                else 1.0
            )
            pause_s = min(timeout_s / 4, 1.0)
            before = self._loop.time()
            await asyncio.sleep(pause_s)
            self._extend_observations(self._loop.time() - before - pause_s)
            if self._consumer.session:
                self._maybe_configure()
                self._maybe_heartbeat(timeout_s)
                self._expire_silent_sessions(timeout_s)
                self._consumer.update()

    def _extend_observations(self, delay_s: float) -> None:
        """Allow others the time by which this process was delayed.

        A process that was suspended has read nothing meanwhile, so it cannot tell who was silent.
        """
        self._observed = {
            consumer: one._replace(since=one.since + delay_s)
            for consumer, one in self._observed.items()
        }

    def _maybe_heartbeat(self, timeout_s: float) -> None:
        silent_s = self._loop.time() - self._consumer.last_write_at
        due_s = timeout_s / 3 if self._consumer.busy else max(timeout_s / 3, IDLE_HEARTBEAT_S)
        if silent_s >= due_s:
            self._consumer.write(Heartbeat(self._consumer.session))

    def _expire_silent_sessions(self, timeout_s: float) -> None:
        now, me, state = self._loop.time(), self._node.name, self._consumer.state
        busy = {assignment.consumer for assignment in state.assigned.values()} - {me}
        self._observed = {name: one for name, one in self._observed.items() if name in busy}
        for consumer in sorted(busy):
            found = state.sessions[consumer]
            session, last_seen, since = self._observed.get(consumer, Observed(0, 0, now))
            if (session, last_seen) != (found.session, found.last_seen):
                self._observed[consumer] = Observed(found.session, found.last_seen, now)
            elif now - since > timeout_s:
                self._consumer.write(ExpireSession(consumer, session, last_seen))
                self._observed[consumer] = Observed(session, last_seen, now)

    def _maybe_configure(self) -> None:
        """Write the charter of a new manifest if it changes the group."""
        manifest = self._node.manifest
        if not self._follower.shared or manifest.epoch == self._epoch:
            return
        self._epoch = manifest.epoch
        entry = manifest.channel(self._channel)
        group = None if entry is None else entry.group(self._follower.name)
        if group is None:
            raise UsageError(f"the operator has ended the group {self._follower.name!r}")
        charter, state = charter_of(manifest, group), self._consumer.state
        if charter.epoch > state.epoch and (charter.members, charter.settings) != (
            state.allowed,
            state.settings,
        ):
            self._consumer.write(Configure(SubscriptionSettings(), self._node.charter()))
