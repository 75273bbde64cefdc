"""Refusals of a channel to a client: it does not exist, or enough brokers refuse the client."""

from __future__ import annotations

from collections.abc import Collection

from quorumcast.broadcast.application import Refused
from quorumcast.cell.messages import Refuse
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, NodeId
from quorumcast.core.machine import Drop, DropReason, Effect
from quorumcast.core.tally import Ballot, Tally
from quorumcast.manifest.manifest import ChannelEntry, Manifest
from quorumcast.manifest.view import View


def channel_entry(manifest: Manifest, channel: Channel) -> ChannelEntry:
    """The channel of this name; raises UsageError with the names that exist."""
    entry = manifest.channel(channel)
    if entry is None:
        raise UsageError(
            f"there is no channel {channel!r} in cell {manifest.cell!r}; it has "
            f"{', '.join(c.name for c in manifest.channels) or 'none'}"
        )
    return entry


class Refusals:
    """Brokers that refuse a client, per channel; the client is told once, when f+1 agree."""

    __slots__ = ("_by_channel",)

    def __init__(self) -> None:
        #: Only channels that the client uses; one reason per broker.
        self._by_channel: dict[Channel, Tally[str]] = {}

    def clear(self) -> None:
        """Forget all refusals: in a new epoch brokers may serve us."""
        self._by_channel.clear()

    def forget(self, channel: Channel) -> None:
        """Forget the refusals of a channel that the client left or opens again."""
        self._by_channel.pop(channel, None)

    def served(self, channel: Channel, broker: NodeId) -> None:
        """Withdraw the refusal of a broker that serves us now."""
        if channel in self._by_channel:
            self._by_channel[channel].withdraw(broker)

    def on_refuse(
        self, view: View, used: Collection[Channel], broker: NodeId, refuse: Refuse
    ) -> list[Effect]:
        """Count the refusal of a broker; `used` are the channels that the client uses."""
        if broker not in view.brokers or refuse.channel not in used:
            return [Drop(DropReason.UNEXPECTED, broker)]
        tally = self._by_channel.setdefault(refuse.channel, Tally())
        counted = tally.vote(broker, refuse.reason) is Ballot.COUNTED
        if counted and tally.count(refuse.reason) == view.quorums.one_correct:
            return [Refused(refuse.channel, refuse.reason)]
        return []
