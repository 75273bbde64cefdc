"""Who may use a channel at a broker: rights from the manifest, and the channel's limits on clients.

A channel may limit how many clients publish and subscribe at the same time. Each broker counts for
itself. A client takes a place with its first message on the channel and keeps it until it finishes
or disconnects; all seats of a client share one place. A client gives up once f+1 brokers refuse it;
with fewer refusals it goes on, and asks those brokers again.
"""

from __future__ import annotations

from collections.abc import Collection

from quorumcast.broadcast.messages import Open
from quorumcast.cell.messages import Refuse, Subscribe
from quorumcast.cell.serving.audience import REPLAYS, Audience
from quorumcast.core.errors import UsageError
from quorumcast.core.ids import Channel, Millis, NodeId, holder
from quorumcast.core.machine import Drop, DropReason, Effect, Receive, Send
from quorumcast.manifest.view import View
from quorumcast.ordering.messages import Offer


class Admission:
    """The clients that one broker admits to each channel."""

    __slots__ = ("_audience", "_publishers", "_view", "disk_full")

    def __init__(self, view: View, audience: Audience) -> None:
        self._view = view
        self._audience = audience
        #: The publishers of a channel, by seat; only entitled ones, of no more clients than its
        #: limit. They keep their places in the next epoch.
        self._publishers: dict[Channel, dict[NodeId, None]] = {}
        self.disk_full = False

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {"publishing": sum(map(len, self._publishers.values()))}

    def publishers(self) -> dict[Channel, list[NodeId]]:
        """The publishers of each channel, for people to read."""
        return {channel: list(there) for channel, there in self._publishers.items()}

    def disconnected(self, peer: NodeId) -> None:
        """Free the places of a node that cannot be reached."""
        for there in self._publishers.values():
            there.pop(peer, None)

    def finish(self, publisher: NodeId, channel: Channel) -> None:
        """Free the place of a publisher that has finished."""
        self._publishers.get(channel, {}).pop(publisher, None)

    # ------------------------------------------------------------- refusals

    def refuse(self, sender: NodeId, channel: Channel, reason: DropReason) -> list[Effect]:
        """The answer to a client without the right, or about a channel that does not exist."""
        said = (
            f"there is no channel {channel!r}"
            if reason is DropReason.UNKNOWN_CHANNEL
            else f"{sender!r} has no right to do this on channel {channel!r}"
        )
        return [Drop(reason, sender), Send((sender,), Refuse(channel, said[:200]))]

    def _full(self, sender: NodeId, channel: Channel, what: str, limit: int) -> list[Effect]:
        said = (
            f"channel {channel!r} has its {limit} {what} already; try again when one has left, or "
            f"ask the operator to raise the limit {what!r}"
        )
        refusal = Refuse(channel, said[:200], listening=what == "subscribers")
        return [Drop(DropReason.OVER_LIMIT, sender), Send((sender,), refusal)]

    def may_not_listen(self, sender: NodeId, channel: Channel) -> list[Effect]:
        """The refusal of a client without the right to subscribe, or nothing."""
        if self._view.channel(channel) is None:
            return self.refuse(sender, channel, DropReason.UNKNOWN_CHANNEL)
        if not self._view.may_subscribe(sender, channel):
            return self.refuse(sender, channel, DropReason.NO_RIGHT)
        return []

    def may_not_enter(self, sender: NodeId, asked: Subscribe, now: Millis) -> list[Effect]:
        """The refusal of a subscription, or nothing. It takes one of the subscriber's replays."""
        channel = asked.channel
        if refusal := self.may_not_listen(sender, channel):
            return refusal
        # Before anything that costs time, such as reading predicates.
        if not self._audience.may_ask(sender, channel, REPLAYS, now):
            return [Drop(DropReason.OVER_LIMIT, sender)]
        entry = self._view.channel(channel)
        if entry is None:
            return []
        there = self._audience.readers(channel)
        if not _has_room(there, sender, entry.policy.limits.subscribers):
            return self._full(sender, channel, "subscribers", entry.policy.limits.subscribers)
        try:
            if self._audience.learn(sender, entry, asked, now):
                return []
        except UsageError as error:
            return self.refuse_predicates(sender, channel, error)
        return [Drop(DropReason.OVER_LIMIT, sender)]

    def refuse_predicates(
        self, sender: NodeId, channel: Channel, error: UsageError
    ) -> list[Effect]:
        """The answer to a subscriber that asked for rows that it cannot have."""
        said = Refuse(channel, str(error)[:200], listening=True)
        return [Drop(DropReason.OTHER_PREDICATE, sender), Send((sender,), said)]

    def may_not_publish(self, sender: NodeId, channel: Channel) -> list[Effect]:
        """The refusal of an entitled publisher if the channel is full; else it takes a place."""
        there = self._publishers.setdefault(channel, {})
        if sender in there:
            return []
        entry = self._view.channel(channel)
        if entry is not None and not _has_room(there, sender, entry.policy.limits.publishers):
            return self._full(sender, channel, "publishers", entry.policy.limits.publishers)
        there[sender] = None
        return []

    def may_not_offer(self, event: Receive) -> list[Effect]:
        """The refusal of a message to a log, or nothing."""
        message, sender = event.message, event.sender
        if not isinstance(message, Offer | Open) or sender in self._view.brokers:
            return []
        channel = message.stream.channel
        entry = self._view.channel(channel)
        if entry is None:
            return self.refuse(sender, channel, DropReason.UNKNOWN_CHANNEL)
        if not entry.policy.total:
            return []
        if not self._view.may_publish(sender, channel):
            return self.refuse(sender, channel, DropReason.NO_RIGHT)
        if self.disk_full and entry.policy.journal and isinstance(message, Offer):
            said = f"the disk of {self._view.me} is full: free some space; nothing was lost"
            return [Drop(DropReason.OVER_LIMIT, sender), Send((sender,), Refuse(channel, said))]
        return self.may_not_publish(sender, channel)


def _has_room(there: Collection[NodeId], sender: NodeId, limit: int) -> bool:
    """Whether a node or its client has a place already, or there is a free one."""
    if len(there) < limit or sender in there:
        return True
    clients = {holder(node) for node in there}
    return len(clients) < limit or holder(sender) in clients
