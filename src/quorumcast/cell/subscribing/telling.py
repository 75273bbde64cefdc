"""What a subscriber tells brokers of how far it is, where publishers wait for subscribers.

Brokers learn it after every quarter of a window, and on each refresh after it has moved: a few
times, since a report may be lost, and without it publishers would wait for nothing. A subscriber
whose application has stopped accepts nothing and tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.broadcast.messages import Cursor
from quorumcast.cell.naming import name_in_turn
from quorumcast.core.ids import Lane, Stream
from quorumcast.core.limits import Limits

#: Refreshes on which the last report is repeated.
REPEATS = 3


class Telling:
    """How far brokers were told that a subscriber is on one channel."""

    __slots__ = ("_left", "_step", "_told")

    def __init__(self, limits: Limits) -> None:
        #: Publications between two reports; 0 where nobody waits for subscribers.
        self._step = 0
        #: The last number told of each stream (data lanes), and how often it is to be repeated.
        self._told: dict[Stream, int] = {}
        self._left: dict[Stream, int] = {}
        self.adopt(limits)

    def adopt(self, limits: Limits) -> None:
        """Go by the limits of a new epoch."""
        self._step = max(1, limits.window // 4) if limits.wait_ms else 0

    def forget(self, stream: Stream) -> None:
        """Tell nothing more of a stream."""
        self._told.pop(stream, None)
        self._left.pop(stream, None)

    def due(self, acceptor: Acceptor) -> tuple[Cursor, ...]:
        """The report that is due now that a stream may have moved."""
        if not self._step or acceptor.stream.lane is not Lane.DATA:
            return ()
        if acceptor.next - self._told.get(acceptor.stream, acceptor.start) < self._step:
            return ()
        return (self._tell(acceptor, REPEATS),)

    def refresh(self, acceptors: Iterable[Acceptor]) -> tuple[Cursor, ...]:
        """The report that is due on a refresh."""
        if not self._step:
            return ()
        found: list[Cursor] = []
        for acceptor in acceptors:
            stream = acceptor.stream
            if stream.lane is not Lane.DATA:
                continue
            if acceptor.next != self._told.get(stream):
                found.append(self._tell(acceptor, REPEATS))
            elif left := self._left.get(stream, 0):
                found.append(self._tell(acceptor, left - 1))
        return name_in_turn(found)

    def _tell(self, acceptor: Acceptor, repeats: int) -> Cursor:
        self._told[acceptor.stream], self._left[acceptor.stream] = acceptor.next, repeats
        return Cursor(acceptor.stream, acceptor.next)
