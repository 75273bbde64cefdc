"""Checks groups: subscriptions that the operator declares for several consumers.

The consumers of `orders` share the work through its *companion*, the channel
`orders/subscriptions`. It has total order and carries bytes, and every subscriber of `orders` may
publish and subscribe there. A group whose members lack a right, or whose companion is not such a
channel, would stop silently, so it is refused here.
"""

from __future__ import annotations

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, holder
from quorumcast.core.limits import MAX_NAME
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry, Group, Manifest

SUFFIX = "/subscriptions"
MAX_ATTEMPTS = 1000
MAX_TIMEOUT_MS = 24 * 3600 * 1000
#: Clients that a group may name.
MAX_MEMBERS_NAMED = 4096


def companion_of(channel: str) -> Channel:
    """The name of the companion of a channel."""
    return Channel(channel + SUFFIX)


def make_companion(entry: ChannelEntry) -> ChannelEntry:
    """A companion for a channel: the same policy, with all rights for its subscribers."""
    _check_place(entry)
    if not entry.policy.total:
        raise UsageError(
            f"channel {entry.name!r} has no total order, so consumers cannot agree on who works "
            "on what; make it with the policy 'total' or 'total+durable'"
        )
    name = companion_of(entry.name)
    if len(name) > MAX_NAME:
        raise UsageError(
            f"the name {name[:16]!r}… of the companion channel would have {len(name)} characters; "
            f"{MAX_NAME} are allowed, so choose a shorter name for the channel"
        )
    return ChannelEntry(name, entry.policy, entry.subscribers, entry.subscribers)


def _check_place(entry: ChannelEntry) -> None:
    """Refuse named subscriptions to a channel that comes from another cell."""
    if entry.origin:
        raise UsageError(
            f"channel {entry.name!r} comes from cell {entry.origin.cell!r}: make named "
            "subscriptions there, where its consumers can agree on who works on what"
        )


def check_companion(manifest: Manifest, channel: ChannelEntry) -> ChannelEntry:
    """The companion of a channel; raises `UsageError` if it is missing or unsuitable."""
    _check_place(channel)
    if not channel.policy.total:
        raise UsageError(
            f"channel {channel.name!r} has no total order, so it has no named subscriptions; "
            "make a channel with the policy 'total' or 'total+durable'"
        )
    companion = manifest.channel(companion_of(channel.name))
    if companion is None:
        raise UsageError(
            f"channel {channel.name!r} has no companion {companion_of(channel.name)!r} on which "
            f"consumers agree; make it with 'quorumcast channel change {channel.name} "
            "--subscriptions'"
        )
    if companion.policy.log is None or companion.schema:
        raise UsageError(
            f"channel {companion.name!r} is to be the companion of {channel.name!r} and must "
            "have total order and carry bytes; make both channels anew"
        )
    return companion


def check_group(manifest: Manifest, channel: ChannelEntry, group: Group) -> None:
    """Raise `UsageError` for a group that could not work."""
    companion = check_companion(manifest, channel)
    where = f"group {group.name!r} of channel {channel.name!r}"
    if not group.members or len(group.members) > MAX_MEMBERS_NAMED:
        raise UsageError(
            f"{where} has {len(group.members)} members; name from 1 to {MAX_MEMBERS_NAMED}"
        )
    if not 0 <= group.max_attempts <= MAX_ATTEMPTS:
        raise UsageError(
            f"{where} tries {group.max_attempts} times; choose from 1 to {MAX_ATTEMPTS}, or 0 for "
            "no end"
        )
    if not 1 <= group.ack_timeout_ms <= MAX_TIMEOUT_MS:
        raise UsageError(
            f"{where} has a time-out of {group.ack_timeout_ms} ms; choose from 1 to "
            f"{MAX_TIMEOUT_MS:,}"
        )
    for member in _members(manifest, channel, group):
        if manifest.client(member) is None or holder(member) != member:
            raise UsageError(f"{where} names {member!r}, which is not a client of the cell; add it")
        if not manifest.may_subscribe(member, channel.name):
            raise UsageError(
                f"{where} names {member!r}, which may not subscribe to {channel.name!r}; give it "
                "the right"
            )
        if not (
            manifest.may_publish(member, companion.name)
            and manifest.may_subscribe(member, companion.name)
        ):
            raise UsageError(
                f"{where} names {member!r}, which may not publish on and subscribe to "
                f"{companion.name!r}; give it both rights"
            )
    if group.dead_letter:
        _check_dead_letter(manifest, channel, group, where)


def _check_dead_letter(manifest: Manifest, channel: ChannelEntry, group: Group, where: str) -> None:
    target = manifest.channel(group.dead_letter)
    if target is None or target.name in (channel.name, companion_of(channel.name)):
        raise UsageError(
            f"{where} gives up to {group.dead_letter!r}, which is not another channel of the cell; "
            "create it first"
        )
    if target.schema:
        raise UsageError(
            f"{where} gives up to {group.dead_letter!r}, which has columns; dead letters need a "
            "channel that carries bytes"
        )
    if not group.max_attempts:
        raise UsageError(f"{where} has a dead-letter channel and tries without end; say how often")
    for member in _members(manifest, channel, group):
        if not manifest.may_publish(member, group.dead_letter):
            raise UsageError(
                f"{where} names {member!r}, which may not publish on {group.dead_letter!r}; give "
                "it the right"
            )


def _members(manifest: Manifest, channel: ChannelEntry, group: Group) -> list[str]:
    """All members of a group, by name."""
    if EVERYONE not in group.members:
        return list(group.members)
    return [c.id for c in manifest.clients if manifest.may_subscribe(c.id, channel.name)]
