"""Resolving channel names and patterns to channels that a client has the right to use."""

from __future__ import annotations

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId
from quorumcast.manifest.groups import companion_of
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.patterns import is_pattern, matching


def to_publish(manifest: Manifest, me: NodeId, channel: str) -> ChannelEntry:
    """The channel of this name, if this client may publish on it."""
    if is_pattern(channel):
        raise UsageError(
            f"{channel!r} is a pattern: publish on one channel; those of the cell are: "
            f"{_known(manifest)}"
        )
    entry = _entry(manifest, channel)
    if entry.origin:
        raise UsageError(
            f"channel {channel!r} of {manifest.cell!r} comes from cell {entry.origin.cell!r}: "
            "publish on it there"
        )
    if not manifest.may_publish(me, channel):
        raise _missing_right(manifest, me, "publish on", channel)
    return entry


def to_subscribe(manifest: Manifest, me: NodeId, name: str) -> list[ChannelEntry]:
    """The channels of this name or pattern to which this client may subscribe; at least one."""
    if is_pattern(name):
        found = matching_channels(manifest, me, name)
        if not found:
            raise UsageError(
                f"no channel that {me!r} may subscribe to matches {name!r}; the channels of the "
                f"cell {manifest.cell!r} are: {_known(manifest)}"
            )
        return found
    entry = _entry(manifest, name)
    if not manifest.may_subscribe(me, name):
        raise _missing_right(manifest, me, "subscribe to", name)
    return [entry]


def to_consume(manifest: Manifest, me: NodeId, channel: str) -> ChannelEntry:
    """The channel of this name, if this client may have a named subscription to it."""
    if is_pattern(channel):
        raise UsageError(f"{channel!r} is a pattern: a named subscription is to one channel")
    return to_subscribe(manifest, me, channel)[0]


def matching_channels(manifest: Manifest, me: NodeId, pattern: str) -> list[ChannelEntry]:
    """The channels that match a pattern and to which this client may subscribe."""
    names = set(matching(pattern, (entry.name for entry in manifest.channels)))
    return [
        entry
        for entry in manifest.channels
        if entry.name in names and manifest.may_subscribe(me, entry.name)
    ]


def publishable_channels(manifest: Manifest, me: NodeId, pattern: str) -> list[Channel]:
    """The channels that match a pattern and on which this client may publish.

    Companions are left out: only consumers of named subscriptions write there.
    """
    names = matching(pattern, (entry.name for entry in manifest.channels))
    companions = {companion_of(entry.name) for entry in manifest.channels}
    return [
        Channel(name) for name in names if name not in companions and manifest.may_publish(me, name)
    ]


def _entry(manifest: Manifest, channel: str) -> ChannelEntry:
    entry = manifest.channel(channel)
    if entry is None:
        raise UsageError(
            f"there is no channel {channel!r} in the cell {manifest.cell!r}; "
            f"its channels are: {_known(manifest)}"
        )
    return entry


def _known(manifest: Manifest) -> str:
    return ", ".join(entry.name for entry in manifest.channels) or "none"


def _missing_right(manifest: Manifest, me: NodeId, verb: str, channel: str) -> UsageError:
    return UsageError(
        f"{me!r} may not {verb} channel {channel!r}: ask the operator of "
        f"{manifest.cell!r} for the right"
    )
