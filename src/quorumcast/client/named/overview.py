"""All named subscriptions of a channel at a glance, computed from its companion."""

from __future__ import annotations

import msgspec

from quorumcast.client.named.companion import Connection, Past, make_follower
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Overflow
from quorumcast.manifest.groups import check_companion


class SubscriptionFacts(msgspec.Struct, frozen=True):
    """How one subscription stands."""

    name: str
    #: Whose it is; "" for a shared one.
    owner: str
    #: Consumers at work.
    members: tuple[str, ...]
    #: Everything before this position is settled; None if the companion no longer says.
    cursor: int | None
    #: Positions from there on, and how many of them somebody works on or are to come again.
    lag: int = 0
    in_flight: int = 0
    waiting: int = 0
    #: How often a position was handed out again, and how many were given up; the newest of them.
    redelivered: int = 0
    dead: int = 0
    dead_positions: tuple[int, ...] = ()


async def subscriptions_of(node: Connection, channel: str) -> list[SubscriptionFacts]:
    """Every subscription of a channel that its companion still speaks of.

    Verified as everything that a subscriber accepts is; groups of the manifest that nobody has
    used yet are not among them.
    """
    entry = node.manifest.channel(channel)
    if entry is None:
        known = ", ".join(channel.name for channel in node.manifest.channels) or "none"
        raise UsageError(
            f"there is no channel {channel!r} in the cell {node.manifest.cell!r}; its channels "
            f"are: {known}"
        )
    name = check_companion(node.manifest, entry).name
    async with (
        node.subscribe(channel, overflow=Overflow.WAIT) as live,
        node.subscribe(name, overflow=Overflow.WAIT, expired=True) as companion,
    ):
        past = Past(companion)
        await past.read_all()
        found = []
        for owner, title in past.names():
            if owner is None and entry.group(title) is None:
                continue  # nobody declared it: whatever was written about it counts for nothing
            follower = past.feed(make_follower(node.manifest, entry, title, owner, past.since))
            state = follower.state
            if state is None:
                found.append(SubscriptionFacts(title, owner or "", (), None))
                continue
            found.append(
                SubscriptionFacts(
                    name=title,
                    owner=owner or "",
                    members=tuple(state.members),
                    cursor=state.cursor,
                    lag=max(0, live.end - state.cursor),
                    in_flight=len(state.held),
                    waiting=len(state.pool),
                    redelivered=state.redelivered,
                    dead=state.dead_count,
                    dead_positions=tuple(state.dead),
                )
            )
        return sorted(found, key=lambda facts: (facts.owner, facts.name))
