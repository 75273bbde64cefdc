"""The progress of all named subscriptions of a channel, computed from its companion."""

from __future__ import annotations

import time

import msgspec

from quorumcast.client.named.companion import CompanionLog, Connection, make_follower
from quorumcast.client.named.maintenance import IDLE_HEARTBEAT_S
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Overflow
from quorumcast.manifest.groups import check_companion
from quorumcast.named.state import SubscriptionState


class SubscriptionFacts(msgspec.Struct, frozen=True):
    """The progress of one subscription."""

    name: str
    #: Owner of a private subscription; "" for a shared one.
    owner: str
    #: Consumers with an open session that show signs of life.
    members: tuple[str, ...]
    #: Low watermark: every position before it is settled. None if brokers
    #: no longer retain an operation from which the state can be computed.
    cursor: int | None
    #: Positions from the cursor to the end of the channel; 0 if the cursor is unknown.
    lag: int = 0
    #: Positions that are assigned to a consumer.
    in_flight: int = 0
    #: Positions that await redelivery.
    waiting: int = 0
    #: The number of redeliveries, and of dead positions.
    redelivered: int = 0
    dead: int = 0
    #: The newest dead positions.
    dead_positions: tuple[int, ...] = ()
    #: Consumers whose session is open although they have not written for so long that they are
    #: dead or cut off: three times as long as a living consumer waits.
    silent: tuple[str, ...] = ()


async def subscriptions_of(node: Connection, channel: str) -> list[SubscriptionFacts]:
    """Every subscription of a channel of which brokers still retain an operation.

    Operations are verified like all publications. Groups of the manifest that were never used are
    not included.
    """
    entry = node.manifest.channel(channel)
    if entry is None:
        known = ", ".join(channel.name for channel in node.manifest.channels) or "none"
        raise UsageError(
            f"there is no channel {channel!r} in the cell {node.manifest.cell!r}; its channels "
            f"are: {known}"
        )
    companion_name = check_companion(node.manifest, entry).name
    async with (
        # Only for the end of the channel.
        node.subscribe(channel, overflow=Overflow.WAIT) as live,
        # Operations count even when they are past their validity.
        node.subscribe(companion_name, overflow=Overflow.WAIT, expired=True) as companion,
    ):
        log = CompanionLog(companion)
        await log.read_all()
        found = []
        for owner, name in log.names():
            if owner is None and entry.group(name) is None:
                continue  # the manifest declares no such group, so its operations have no effect
            follower = log.replay_into(make_follower(node.manifest, entry, name, owner, log.since))
            state = follower.state
            if state is None:
                found.append(SubscriptionFacts(name, owner or "", (), None))
                continue
            silent = silent_consumers(state, log, time.time())
            found.append(
                SubscriptionFacts(
                    name=name,
                    owner=owner or "",
                    members=tuple(one for one in state.sessions if one not in silent),
                    cursor=state.cursor,
                    lag=max(0, live.end - state.cursor),
                    in_flight=len(state.assigned),
                    waiting=len(state.returned),
                    redelivered=state.redelivered,
                    dead=state.dead_count,
                    dead_positions=tuple(state.dead),
                    silent=silent,
                )
            )
        return sorted(found, key=lambda facts: (facts.owner, facts.name))


def silent_consumers(state: SubscriptionState, log: CompanionLog, now_s: float) -> tuple[str, ...]:
    """Consumers whose last operation is too old, by their clocks, or is not retained any more."""
    busy = {one.consumer for one in state.assigned.values()}
    timeout_s = state.settings.ack_timeout_ms / 1000
    found = []
    for consumer, session in state.sessions.items():
        patience_s = timeout_s if consumer in busy else max(timeout_s, 3 * IDLE_HEARTBEAT_S)
        seen_s = log.written_at(session.last_seen)
        if seen_s is None or now_s - seen_s > patience_s:
            found.append(consumer)
    return tuple(found)
