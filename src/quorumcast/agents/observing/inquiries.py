"""Inquiries: who answers what it is asked, how fast, and who does not.

A request that is not answered within PATIENCE_MS, although the link was up and lost nothing all
that time, is counted as unanswered. Honest nodes leave requests unanswered, too, when they do not
hold what they are asked for: what that means is for the audit to judge.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable

from quorumcast.agents.observing.observation import Kind, Notes, remember
from quorumcast.agents.observing.turnout import MENDED, PATIENCE_MS, Links, bucket_of
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.messages import (
    Ack,
    AnyMessage,
    Attest,
    Checkpoint,
    Chunk,
    ChunkQuery,
    Contents,
    Fetch,
    Fetched,
    LogPart,
    LogQuery,
    Offer,
    Open,
    Positions,
    Pull,
    Refuse,
    StateHead,
    Subscribe,
    Survey,
)
from quorumcast.core.statements import parse_statement

#: Requests that are remembered.
MAX_PENDING = 4096
#: The reason of what was asked of who had voted for it, and does hold it.
VOTED = "voted"
#: … and of what was asked more than once meanwhile: a single request may have got lost.
AGAIN = "again"

_Request = tuple[NodeId, str, Hashable]


def asks(message: AnyMessage) -> tuple[str, Hashable] | None:
    """What a message asks for, if it is a request."""
    match message:
        case Subscribe(channel=channel):
            return "Subscribe", channel
        case Survey(channel=channel):
            return "Survey", channel
        case Open(stream=stream):
            return "Open", stream
        case Pull(stream=stream):
            return "Pull", stream
        case Attest(stream=stream):
            return "Attest", stream
        case Fetch(log=log):
            return "Fetch", log
        case LogQuery(log=log):
            return "LogQuery", log
        case ChunkQuery(log=log):
            return "ChunkQuery", log
        case _:
            return None


def answers(message: AnyMessage) -> list[tuple[str, Hashable]]:
    """The requests that a message answers."""
    match message:
        case Positions(channel=channel):
            return [("Subscribe", channel), ("Survey", channel)]
        case Refuse(channel=channel):
            return [("Subscribe", channel)]
        case Ack(stream=stream):
            return [("Open", stream)]
        case Contents(stream=stream):
            return [("Pull", stream)]
        case Checkpoint(statement=signed):
            statement = parse_statement(signed.payload)
            return [] if statement is None else [("Attest", statement.stream)]
        case Fetched(log=log):
            return [("Fetch", log)]
        case LogPart(log=log) | StateHead(log=log):
            return [("LogQuery", log)]
        case Chunk(log=log):
            return [("ChunkQuery", log)]
        case _:
            return []


def _stream(about: Hashable) -> Stream | None:
    """What a request is about: a stream, or all streams of a channel."""
    if isinstance(about, str):
        return Stream(Channel(about), NodeId(""), 0)
    return about if isinstance(about, Stream) else None


class Inquiries:
    """What one node has asked and not been told."""

    __slots__ = ("_links", "_notes", "_overdue", "_pending")

    def __init__(self, links: Links, notes: Notes) -> None:
        self._links = links
        self._notes = notes
        #: When each request was first sent and not answered since, and what is special about it;
        #: at most MAX_PENDING.
        self._pending: OrderedDict[_Request, tuple[int, str]] = OrderedDict()
        #: When what was asked in vain was first asked: late is better than never.
        self._overdue: OrderedDict[_Request, int] = OrderedDict()

    def asked(
        self,
        now: Millis,
        peers: tuple[NodeId, ...],
        message: AnyMessage,
        voted: Collection[NodeId] = (),
    ) -> None:
        """A message was sent, perhaps about what some of the peers `voted` for."""
        found = asks(message)
        if found is None:
            return
        for peer in peers:
            if peer in self._links.up_since:
                key = (peer, *found)
                if key in self._pending:
                    since, reason = self._pending[key]
                    self._pending[key] = (since, reason or AGAIN)
                else:
                    self._pending[key] = (now, VOTED if peer in voted else "")
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def told(self, now: Millis, peer: NodeId, message: AnyMessage) -> None:
        """A message came."""
        found = answers(message)
        if isinstance(message, Offer):
            found = [("Fetch", key[2]) for key in self._pending if key[:2] == (peer, "Fetch")]
        if isinstance(message, Refuse):
            found += [
                ("Open", about)
                for who, request, about in (*self._pending, *self._overdue)
                if (who, request) == (peer, "Open")
                and isinstance(about, Stream)
                and about.channel == message.channel
            ]
        for request, about in found:
            key = (peer, request, about)
            since = self._overdue.pop(key, None)
            since, _ = self._pending.pop(key, (since, ""))
            if since is not None:
                lost = self._links.lost_at
                calm = not self._links.state(peer, since) and (lost is None or lost < since)
                self._notes.add(
                    now, Kind.ANSWERED, peer, "" if calm else MENDED, request, _stream(about),
                    bucket=bucket_of(now - since),
                )  # fmt: skip

    def sweep(self, now: Millis) -> None:
        """What was not answered by now is not going to be."""
        for key, (since, reason) in list(self._pending.items()):
            if now - since < PATIENCE_MS:
                break
            del self._pending[key]
            remember(self._overdue, key, since)
            clear = self._links.clear_since.get(key[0])
            if clear is not None and clear <= since:
                reason = self._links.state(key[0], since) or reason
                self._notes.add(now, Kind.UNANSWERED, key[0], reason, key[1], _stream(key[2]))
