"""Checks whether a running cell can go from one epoch to another.

Brokers check before they adopt an epoch, and the operator's commands before they sign one. Nodes
keep state across the change: open streams, retained publications, and the state of a log, which
brokers compare byte for byte.

    may change     clients, keys, rights, addresses, channels that are added or deleted, new
                   columns at the end, groups of consumers, limits that concern one node alone
                   (`LIVE_LIMITS`); and *one* of: one more broker, one less, f by one
    may not        the cell's name, digest, MAC, and whether it reproduces figures; of a channel its
                   policy, its origin, its columns and the other limits; of a log whether it exists
                   and is durable, how far it runs ahead and how often it makes checkpoints

One step at a time, because quorums of two neighbouring epochs then share a correct broker. With
q(n, f) = ⌊(n+f)/2⌋+1, two quorums of n and n+1 brokers have q(n, f) + q(n+1, f) - (n+1) = f+1 in
common, and two of n brokers with f and f+1 have q(n, f) + q(n, f+1) - n = f+2. Chains need more:
none of their 3f+1 brokers may be removed (ADR 0017).

A log decides which epoch follows, so an epoch that was signed and never decided may be skipped, as
long as the next one is one step from the present one. Without a log epochs may be skipped while
brokers and f stay the same.

A log outlives its channels, because it decides which epoch follows: when channels are deleted that
gave it its terms, the manifest keeps them. A broker that executes the log again needs no contents
of a deleted channel.
"""

from __future__ import annotations

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import Limits
from quorumcast.core.quorum import Protection
from quorumcast.manifest.manifest import ChannelEntry, Manifest

#: Limits that each node applies by itself, so that two nodes may have different ones.
LIVE_LIMITS: tuple[str, ...] = (
    "retained_publications",
    "retained_bytes",
    "retained_ms",
    "cached_bytes",
    "streams_per_publisher",
    "publishers",
    "subscribers",
    "publisher_buffer",
    "publisher_bytes",
    "vote_window",
    "kept_segments",
    "validity_ms",
    "queue",
    "wait_ms",
)


def check_successor(present: Manifest, following: Manifest) -> None:
    """Raise `UsageError` for an epoch that a running cell cannot adopt."""
    epoch = following.epoch
    if following.cell != present.cell:
        raise UsageError(f"the manifest is now of another cell, {following.cell!r}")
    if (following.digest, following.mac) != (present.digest, present.mac):
        raise UsageError(f"epoch {epoch} has another digest or MAC: restart the cell to take it")
    if following.for_reproduction != present.for_reproduction:
        raise UsageError(
            f"epoch {epoch} changes whether the cell reproduces published figures; make another "
            "cell instead"
        )
    _check_members(present, following)
    for channel in present.channels:
        later = following.channel(channel.name)
        if later is not None:
            if later.since != channel.since and later.since <= present.epoch:
                raise UsageError(
                    f"epoch {epoch} changes when channel {channel.name!r} was created, from epoch "
                    f"{channel.since} to {later.since}: leave 'since' as it is"
                )
            _check_policy(channel, later, epoch)
            _check_schema(channel, later)
    for log in Protection:
        _check_log(log, present, following)


def _check_members(present: Manifest, following: Manifest) -> None:
    """One broker more, one less, or f by one: quorums of the two epochs must intersect."""
    epoch, old, new = following.epoch, present.broker_ids, following.broker_ids
    same = (old, present.f) == (new, following.f)
    if epoch != present.epoch + 1 and not (present.logs or same):
        raise UsageError(
            f"epoch {epoch} does not follow epoch {present.epoch}, and brokers or f have changed: "
            f"epoch {present.epoch + 1} comes first"
        )
    if same:
        return
    added = [broker for broker in new if broker not in old]
    removed = [broker for broker in old if broker not in new]
    if len(added) + len(removed) > 1:
        changes = [*(f"adds {b}" for b in added), *(f"removes {b}" for b in removed)]
        raise UsageError(
            f"epoch {epoch} {' and '.join(changes)} at once: change one broker per epoch, and wait "
            "until the cell has taken it (to replace one, add the new one and then remove the old)"
        )
    if [b for b in old if b in new] != [b for b in new if b in old]:
        raise UsageError(f"epoch {epoch} puts the brokers in another order: leave them as they are")
    step = abs(following.f - present.f)
    if step > 1 or (step and (added or removed)):
        raise UsageError(
            f"epoch {epoch} changes f from {present.f} to {following.f}"
            + (" and the brokers" if added or removed else "")
            + ": change f by one, in an epoch of its own"
        )
    _check_chains(present, following)


def _check_chains(present: Manifest, following: Manifest) -> None:
    """Refuse a change of the pool: any two chains must share f+1 brokers of the same pool."""
    pools = [m.broker_ids[: m.quorums.chain_pool] for m in (present, following)]
    if pools[0] == pools[1]:
        return
    for channel in present.channels:
        if channel.policy.chained and following.channel(channel.name):
            raise UsageError(
                f"epoch {following.epoch} changes the brokers from which channel {channel.name!r} "
                f"draws its chains ({', '.join(pools[0])}): delete the channel first, or change "
                "only brokers behind these"
            )


def _check_policy(channel: ChannelEntry, later: ChannelEntry, epoch: int) -> None:
    old, new = channel.policy, later.policy
    if msgspec.structs.replace(old, limits=new.limits) != new:
        raise UsageError(
            f"epoch {epoch} changes the policy of channel {channel.name!r}: restart "
            "the cell to take it, or make a new channel"
        )
    if channel.origin != later.origin:
        raise UsageError(
            f"epoch {epoch} changes where channel {channel.name!r} comes from, and brokers hold "
            "what came from there; make a new channel"
        )
    check_limits(channel, new.limits)


def check_limits(channel: ChannelEntry, limits: Limits) -> None:
    """Refuse limits that a channel in use cannot change to; consistency is not checked here."""
    for field in msgspec.structs.fields(Limits):
        changed = getattr(channel.policy.limits, field.name) != getattr(limits, field.name)
        if changed and field.name not in LIVE_LIMITS:
            raise UsageError(
                f"limit {field.name!r} of channel {channel.name!r} cannot change while the channel "
                f"is in use; make a new channel, or change one of {', '.join(LIVE_LIMITS)}"
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
    """Refuse a change of what all channels of a log share since its first one was made."""
    old, new = present.logs.get(log), following.logs.get(log)
    if old is None or old == new:
        return
    added = [
        (channel.name, channel.policy.name)
        for channel in following.channels
        if channel.policy.log is log and present.channel(channel.name) is None
    ]
    if new is None or not old.within(new) or not added:
        raise UsageError(
            f"epoch {following.epoch} changes the terms of the {log.value!r} log; keep them, in "
            "'kept_terms' if no channel has them, as 'quorumcast channel delete' and 'next_epoch' "
            "do by themselves"
        )
    name, kind = added[-1]
    if old.durable != new.durable:
        raise UsageError(
            f"channel {name!r} would be durable, but the log of this cell's {kind!r} channels was "
            "created without a store; make a cell whose first such channel is durable"
        )
    raise UsageError(
        f"channel {name!r} would change the limits 'pipeline' and 'checkpoint' of the log that it "
        f"shares with the other {kind!r} channels; give it theirs, {old.pipeline} and "
        f"{old.checkpoint}, or less"
    )
