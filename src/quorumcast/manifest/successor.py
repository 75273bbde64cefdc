"""What a running cell can take from one epoch to the next, and what its streams stand on.

Brokers ask before they take an epoch, and the operator's commands before they sign one. Everything
here is about what nodes remember across the change: streams that are open, publications that are
retained, and the state of a log, which brokers compare byte for byte.

    may change     clients, keys, rights, addresses, new channels, columns behind those there are,
                   groups of consumers, limits that concern one node alone (`LIVE_LIMITS`)
    may not        the cell's name, brokers, f, digest, MAC; of a channel its policy, its columns
                   and the other limits; of a log whether it is durable, how far it runs ahead and
                   how often it makes checkpoints

A channel with total order cannot go either: its publications lie in the log between those of the
others, and whoever executes the log again must still know what they were.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import Protection
from quorumcast.manifest.manifest import ChannelEntry, Manifest

#: Limits that each node keeps to by itself. Two nodes with different ones understand each other.
LIVE_LIMITS: tuple[str, ...] = (
    "retained_publications",
    "retained_bytes",
    "retained_ms",
    "streams_per_publisher",
    "publishers",
    "subscribers",
    "publisher_buffer",
    "publisher_bytes",
    "vote_window",
    "kept_segments",
    "validity_ms",
    "queue",
)
#: In a log the newest positions are part of the state that brokers compare.
_STATE_LIMITS = ("retained_publications",)


def check_successor(present: Manifest, following: Manifest) -> None:
    """Refuse an epoch that a running cell cannot take."""
    epoch = following.epoch
    if following.cell != present.cell:
        raise UsageError(f"the manifest is now of another cell, {following.cell!r}")
    if (following.broker_ids, following.f) != (present.broker_ids, present.f):
        raise UsageError(
            f"epoch {epoch} has other brokers or another f: restart the cell to take it"
        )
    if (following.digest, following.mac) != (present.digest, present.mac):
        raise UsageError(f"epoch {epoch} has another digest or MAC: restart the cell to take it")
    for channel in present.channels:
        later = following.channel(channel.name)
        if later is None:
            _check_deletion(channel)
        else:
            _check_policy(channel, later, epoch)
            _check_schema(channel, later)
    for log in Protection:
        _check_log(log, present, following)


def live_limits(channel: ChannelEntry) -> tuple[str, ...]:
    """The limits of a channel that may change while it is in use."""
    kept = _STATE_LIMITS if channel.policy.total else ()
    return tuple(name for name in LIVE_LIMITS if name not in kept)


def _check_deletion(channel: ChannelEntry) -> None:
    if channel.policy.total:
        raise UsageError(
            f"channel {channel.name!r} has a place in the log of the cell and cannot be deleted; "
            "close it instead: leave nobody the right to publish or to subscribe"
        )


def _check_policy(channel: ChannelEntry, later: ChannelEntry, epoch: int) -> None:
    old, new = channel.policy, later.policy
    if msgspec.structs.replace(old, limits=new.limits) != new:
        raise UsageError(
            f"epoch {epoch} changes the policy of channel {channel.name!r}: restart "
            "the cell to take it, or make a new channel"
        )
    allowed = live_limits(channel)
    for field in msgspec.structs.fields(Limits):
        changed = getattr(old.limits, field.name) != getattr(new.limits, field.name)
        if changed and field.name not in allowed:
            raise UsageError(
                f"limit {field.name!r} of channel {channel.name!r} cannot change while the channel "
                f"is in use; make a new channel, or change one of {', '.join(allowed)}"
            )


def _check_schema(channel: ChannelEntry, later: ChannelEntry) -> None:
    old, new = channel.schema, later.schema
    if old == new:
        return
    if not old or not new:
        raise UsageError(
            f"channel {channel.name!r} {'has columns' if old else 'carries bytes'}, and what is "
            f"retained {'has them' if old else 'is bytes'}; make a new channel"
        )
    if new[: len(old)] != old:
        raise UsageError(
            f"the columns of channel {channel.name!r} must stay as they are, because publications "
            "with them are retained; add columns behind them, or make a new channel"
        )


def _check_log(log: Protection, present: Manifest, following: Manifest) -> None:
    """All channels of a log share its terms, which were settled when its first one was made."""
    old, new = _terms(log, present), _terms(log, following)
    if old is None or new is None or old == new:
        return
    name = next(
        c.name
        for c in reversed(following.channels)
        if c.policy.total and c.policy.protection is log and present.channel(c.name) is None
    )
    policy = following.channel(name)
    kind = "" if policy is None else policy.policy.name
    if old[0] != new[0]:
        raise UsageError(
            f"channel {name!r} would be durable, but the log of this cell's {kind!r} channels was "
            "founded without a disk; make a cell whose first such channel is durable"
        )
    raise UsageError(
        f"channel {name!r} would change the limits 'pipeline' and 'checkpoint' of the log that it "
        f"shares with the other {kind!r} channels; give it theirs, {old[1]} and {old[2]}, or less"
    )


def _terms(log: Protection, manifest: Manifest) -> tuple[bool, int, int] | None:
    policies = [
        channel.policy
        for channel in manifest.channels
        if channel.policy.total and channel.policy.protection is log
    ]
    if not policies:
        return None
    return (
        any(policy.journal for policy in policies),
        max(policy.limits.pipeline for policy in policies),
        max(policy.limits.checkpoint for policy in policies),
    )
