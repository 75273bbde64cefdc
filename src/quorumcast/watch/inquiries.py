"""Inquiries: brokers that leave what a node asks of a channel unanswered.

A subscriber asks for votes, a broker for positions, and a publisher opens its stream; each asks
again until it is answered. A request that is not answered within PATIENCE_MS, although the link was
up and lost nothing all that time, is missing an answer.
"""

from __future__ import annotations

from collections import OrderedDict

from quorumcast.broadcast.messages import Ack, Open
from quorumcast.cell.messages import Positions, Refuse, Subscribe, Survey
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.message import Message
from quorumcast.watch.observation import Kind, Notes, remember
from quorumcast.watch.turnout import PATIENCE_MS, Links, bucket_of

#: The name of what is owed, in observations.
ANSWER = "Answer"

_Request = tuple[NodeId, Channel]


class Inquiries:
    """What one node has asked and not been told."""

    def __init__(self, links: Links, notes: Notes) -> None:
        self._links = links
        self._notes = notes
        #: When each request was first sent and not answered since, and how often.
        self._pending: OrderedDict[_Request, tuple[int, int]] = OrderedDict()
        #: Requests that count as unanswered: a late answer is one, too.
        self._overdue: OrderedDict[_Request, int] = OrderedDict()

    def asked(self, now: Millis, peers: tuple[NodeId, ...], message: Message) -> None:
        """A message was sent; perhaps it is a request."""
        match message:
            case Subscribe(channel=channel) | Survey(channel=channel):
                pass
            case Open(stream=Stream(channel=channel)):
                pass
            case _:
                return
        for peer in peers:
            if peer in self._links.up_since:
                since, often = self._pending.get((peer, channel), (now, 0))
                remember(self._pending, (peer, channel), (since, often + 1))

    def told(self, now: Millis, peer: NodeId, message: Message) -> None:
        """A message came; perhaps it is an answer."""
        match message:
            case Positions(channel=channel) | Refuse(channel=channel):
                pass
            case Ack(stream=Stream(channel=channel)):
                pass
            case _:
                return
        since = self._overdue.pop((peer, channel), None)
        since, _ = self._pending.pop((peer, channel), (since, 0))
        if since is not None:
            self._note(now, Kind.CAME, peer, channel, 1, bucket_of(now - since))

    def sweep(self, now: Millis) -> None:
        """Requests that have waited for too long are unanswered."""
        while self._pending:
            (peer, channel), (since, often) = next(iter(self._pending.items()))
            if now - since < PATIENCE_MS:
                return
            del self._pending[peer, channel]
            remember(self._overdue, (peer, channel), since)
            clear = self._links.clear_since.get(peer)
            if clear is not None and clear <= since and not self._links.state(peer, since):
                # A single request may have got lost where nothing else did.
                self._note(now, Kind.MISSING, peer, channel, min(often, 2), 0)

    def _note(
        self, now: Millis, kind: Kind, peer: NodeId, channel: Channel, count: int, bucket: int
    ) -> None:
        stream = Stream(channel, NodeId(""), 0)
        self._notes.add(now, kind, peer, "", ANSWER, stream, count=count, bucket=bucket)
