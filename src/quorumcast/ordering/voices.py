"""Who speaks for a client's streams: at which of its seats it is to be told how far they are.

A stream that its publisher goes on with is the client's own, and each time another of its seats may
speak for it. Brokers answer whoever spoke last.
"""

from __future__ import annotations

from collections import deque

from quorumcast.core.ids import NodeId, Stream

#: Streams that one seat speaks for; it finishes one before it begins the next.
STREAMS_OF_A_SEAT = 16


class Voices:
    """The seats that speak for streams of one log."""

    __slots__ = ("_seats", "_streams")

    def __init__(self) -> None:
        #: The seat that spoke last for each stream; only streams that are in `_streams`.
        self._seats: dict[Stream, NodeId] = {}
        #: What each seat spoke for last; at most STREAMS_OF_A_SEAT.
        self._streams: dict[NodeId, deque[Stream]] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def hear(self, sender: NodeId, stream: Stream) -> None:
        """A node that may speak for a stream does."""
        if sender == stream.publisher or self._seats.get(stream) == sender:
            return
        self._forget(stream)
        self._seats[stream] = sender
        streams = self._streams.setdefault(sender, deque())
        streams.append(stream)
        if len(streams) > STREAMS_OF_A_SEAT:
            del self._seats[streams.popleft()]

    def _forget(self, stream: Stream) -> None:
        before = self._seats.pop(stream, None)
        if before is not None:
            self._streams[before].remove(stream)

    def of(self, stream: Stream) -> NodeId:
        """Whom to tell about a stream."""
        return self._seats.get(stream, stream.publisher)
