"""When a client may not use a channel: there is no such channel, or enough brokers refuse it."""

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
    """The channel that the application means, or a sentence that names those there are."""
    entry = manifest.channel(channel)
    if entry is None:
        raise UsageError(
            f"there is no channel {channel!r} in cell {manifest.cell!r}; it has "
            f"{', '.join(c.name for c in manifest.channels) or 'none'}"
        )
    return entry


class Refusals:
    """Brokers that refuse a client, per channel; f+1 that agree are believed, once."""

    __slots__ = ("_by_channel",)

    def __init__(self) -> None:
        #: Only channels that the client uses; one reason per broker.
        self._by_channel: dict[Channel, Tally[str]] = {}

    def clear(self) -> None:
        """A new epoch: whoever refused before may serve us now."""
        self._by_channel.clear()

    def forget(self, channel: Channel) -> None:
        """The client has given the channel up; it may ask again."""
        self._by_channel.pop(channel, None)

    def served(self, channel: Channel, broker: NodeId) -> None:
        """A broker serves us: what it said before no longer holds."""
        if channel in self._by_channel:
            self._by_channel[channel].withdraw(broker)

    def hear(
        self, view: View, used: Collection[Channel], broker: NodeId, refuse: Refuse
    ) -> list[Effect]:
        """A broker refuses; `used` are the channels on which we asked for anything."""
        if broker not in view.brokers or refuse.channel not in used:
            return [Drop(DropReason.UNEXPECTED, broker)]
        tally = self._by_channel.setdefault(refuse.channel, Tally())
        counted = tally.vote(broker, refuse.reason) is Ballot.COUNTED
        if counted and tally.count(refuse.reason) == view.quorums.one_correct:
            return [Refused(refuse.channel, refuse.reason)]
        return []
