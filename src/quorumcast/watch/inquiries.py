"""Requests that a broker leaves unanswered.

A subscriber sends `Subscribe`, a broker sends `Survey`, and a publisher sends `Open`. Each repeats
its request until it is answered. An answer is missing if none came within OVERDUE_MS although the
link was up and lost nothing all that time.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from quorumcast.broadcast.messages import Ack, Open
from quorumcast.cell.messages import Positions, Refuse, Subscribe, Survey
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.message import Message
from quorumcast.watch.observation import Kind, Notes, remember
from quorumcast.watch.turnout import OVERDUE_MS, LinkHistory, bucket_of

#: The `message` column of observations about answers.
ANSWER = "Answer"


class _Pending(msgspec.Struct):
    """A request without an answer: the time it was first sent, and how often it was sent."""

    since: int
    attempts: int = 0


class Inquiries:
    """The unanswered requests of one node, by peer and channel."""

    def __init__(self, links: LinkHistory, notes: Notes) -> None:
        self._links = links
        self._notes = notes
        self._pending: OrderedDict[tuple[NodeId, Channel], _Pending] = OrderedDict()
        #: When requests that were noted as unanswered were sent. A late answer is noted as well.
        self._overdue: OrderedDict[tuple[NodeId, Channel], int] = OrderedDict()

    def on_sent(self, now: Millis, peers: tuple[NodeId, ...], message: Message) -> None:
        """This node sent a message, which may be a request."""
        match message:
            case Subscribe(channel=channel) | Survey(channel=channel):
                pass
            case Open(stream=Stream(channel=channel)):
                pass
            case _:
                return
        for peer in peers:
            if peer in self._links.up_since:
                pending = self._pending.get((peer, channel)) or _Pending(now)
                pending.attempts += 1
                remember(self._pending, (peer, channel), pending)

    def on_received(self, now: Millis, peer: NodeId, message: Message) -> None:
        """This node received a message, which may be an answer."""
        match message:
            case Positions(channel=channel) | Refuse(channel=channel):
                pass
            case Ack(stream=Stream(channel=channel)):
                pass
            case _:
                return
        since = self._overdue.pop((peer, channel), None)
        pending = self._pending.pop((peer, channel), None)
        if pending is not None:
            since = pending.since
        if since is not None:
            self._note(now, Kind.CAME, peer, channel, 1, bucket_of(now - since))

    def sweep(self, now: Millis) -> None:
        """Note the requests that have been pending for too long."""
        while self._pending:
            (peer, channel), pending = next(iter(self._pending.items()))
            since = pending.since
            if now - since < OVERDUE_MS:
                return
            del self._pending[peer, channel]
            remember(self._overdue, (peer, channel), since)
            clear = self._links.clear_since.get(peer)
            if clear is not None and clear <= since and not self._links.loss_reason(peer, since):
                # A single request may have been lost, so one that was repeated counts twice.
                self._note(now, Kind.MISSING, peer, channel, min(pending.attempts, 2), 0)

    def _note(
        self, now: Millis, kind: Kind, peer: NodeId, channel: Channel, count: int, bucket: int
    ) -> None:
        stream = Stream(channel, NodeId(""), 0)
        self._notes.add(now, kind, peer, "", ANSWER, stream, count=count, bucket=bucket)
