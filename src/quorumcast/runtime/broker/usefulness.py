"""Which messages of a cell are of use to others than their sender: the rest has a budget.

The transport asks this judge (`runtime.links.fairness.Judge`) about every measured link.

Publications are what a cell is for. Brokers say most of what they say in order to deliver them. A
lying broker can ask without end, say without end what is rarely needed, or invent ever new streams.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import ChainRun, Contents, Echo, Publish, Pull, Ready
from quorumcast.cell.messages import Positions, Regain, Survey, Taken
from quorumcast.core.message import Message
from quorumcast.ordering.messages import (
    ChunkQuery,
    Fetch,
    LogQuery,
    Offer,
    Standing,
    Stop,
    StopData,
    Sync,
)

#: What clients send that is of use to others.
PUBLICATIONS = frozenset({Publish, ChainRun, Offer})
#: What brokers send that is of use to nobody else.
ASKED_BY_BROKERS = frozenset({ChunkQuery, Fetch, LogQuery, Pull, Regain, Survey})
#: What brokers say now and then: more of it than a turn can take is a flood.
RARE = frozenset({Positions, Standing, Stop, StopData, Sync, Taken})
#: What brokers say of any stream, also of one that they have invented.
HEARSAY = frozenset({Contents, Echo, Ready})
#: Streams of which a peer has spoken, as far as is remembered.
STREAMS_REMEMBERED = 1024


class Usefulness:
    """Judges the messages of one peer of a broker."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        #: Streams on which the peer has published, or of which it has spoken; at most
        #: STREAMS_REMEMBERED.
        self._streams: dict[tuple[str, str, int], None] = {}

    def is_publication(self, message: Message) -> bool:
        """Whether this is what the system is for."""
        return type(message) in PUBLICATIONS

    def is_work_of_a_client(self, message: Message) -> bool:
        """Whether this is a publication on a stream that the peer has used before."""
        return type(message) in PUBLICATIONS and self._knows_stream(message)

    def is_work_of_a_broker(self, message: Message) -> bool:
        """Whether this helps to deliver something; the first word on a stream may not."""
        kind = type(message)
        if kind in ASKED_BY_BROKERS or kind in RARE:
            return False
        return kind not in HEARSAY or self._knows_stream(message)

    def _knows_stream(self, message: Message) -> bool:
        """Whether the peer has spoken of a stream before; from now on it has."""
        stream = message.stream  # type: ignore[attr-defined]
        key = (stream.channel, stream.publisher, stream.incarnation)
        streams = self._streams
        if key in streams:
            return True
        if len(streams) >= STREAMS_REMEMBERED:
            del streams[next(iter(streams))]
        streams[key] = None
        return False
