"""Classifies the messages of a cell for `links.fairness`: of use to others, or a request.

Publications, and most of what brokers send to deliver them, are of use to others. A faulty broker
could ask without end, repeat rare kinds of messages, or invent new streams: these count as requests
and have a budget.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.broadcast.messages import ChainRun, Contents, Custom, Echo, Publish, Pull, Ready
from quorumcast.cell.messages import Accusation, Positions, Regain, Survey, Taken
from quorumcast.core.message import Message
from quorumcast.ordering.messages import (
    ChunkQuery,
    Fetch,
    LogQuery,
    Offer,
    PastQuery,
    Standing,
    Stop,
    StopData,
    Sync,
)

#: Messages of clients that are of use to others.
PUBLICATIONS = frozenset({Publish, ChainRun, Offer})
#: Requests of brokers.
BROKER_REQUESTS = frozenset({ChunkQuery, Fetch, LogQuery, PastQuery, Pull, Regain, Survey})
#: Messages that brokers send rarely: more than a turn can take are a flood.
RARE = frozenset({Accusation, Positions, Standing, Stop, StopData, Sync, Taken})
#: Messages of brokers about a stream, which they may have invented.
ABOUT_STREAMS = frozenset({Contents, Custom, Echo, Ready})
#: Streams that are remembered for each peer.
STREAMS_REMEMBERED = 1024


class CellClassifier:
    """Classifies the messages of one peer of a broker."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        #: Streams that the peer has mentioned, oldest first; at most STREAMS_REMEMBERED.
        self._streams: dict[tuple[str, str, int], None] = {}

    def is_publication(self, message: Message) -> bool:
        """Whether this is a publication of any kind."""
        return type(message) in PUBLICATIONS

    def is_client_work(self, message: Message) -> bool:
        """Whether this is a publication on a stream that the peer has used before."""
        return type(message) in PUBLICATIONS and self._knows_stream(message)

    def is_broker_work(self, message: Message) -> bool:
        """Whether this helps to deliver a publication; the first message on a stream may not."""
        kind = type(message)
        if kind in BROKER_REQUESTS or kind in RARE:
            return False
        return kind not in ABOUT_STREAMS or self._knows_stream(message)

    def requests_among(self, messages: Iterable[Message], *, is_broker: bool, most: int) -> int:
        """How many of the messages that come next are requests; it stops counting at `most`.

        It remembers no stream of theirs.
        """
        found = 0
        new: set[tuple[str, str, int]] = set()
        for message in messages:
            kind = type(message)
            if kind in ABOUT_STREAMS if is_broker else kind in PUBLICATIONS:
                key = _key(message)
                found += key not in self._streams and key not in new
                new.add(key)
            else:
                found += not is_broker or kind in BROKER_REQUESTS or kind in RARE
            if found >= most:
                break
        return found

    def _knows_stream(self, message: Message) -> bool:
        """Whether the peer has mentioned the stream before; remembers it."""
        key, streams = _key(message), self._streams
        if key in streams:
            return True
        if len(streams) >= STREAMS_REMEMBERED:
            del streams[next(iter(streams))]
        streams[key] = None
        return False


def _key(message: Message) -> tuple[str, str, int]:
    stream = message.stream  # type: ignore[attr-defined]
    return stream.channel, stream.publisher, stream.incarnation
