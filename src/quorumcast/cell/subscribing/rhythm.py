"""When a subscriber asks brokers again, which it looks at with every refresh.

A stream is *stalled* if something is known of it and it has not moved since the last refresh. It is
asked for at once, then ever more rarely, also while other streams move. If nothing moves, brokers
are asked for the whole channel: like this if a stream is stuck, and else now and then, since the
last votes may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.core.ids import Stream

#: Refreshes without progress after which a subscriber asks whether it missed the last publication.
QUIET_TICKS = 8
#: Refreshes between two such questions once it has been quiet for as long and may be idle. Answers
#: about many streams are a load even where nothing is published.
IDLE_TICKS = 32


class Rhythm:
    """The refreshes of one channel."""

    __slots__ = ("_stalled", "_ticks")

    def __init__(self) -> None:
        #: Refreshes since something moved.
        self._ticks = 0
        #: For how many refreshes each stalled stream has not moved.
        self._stalled: dict[Stream, int] = {}

    def note(self, acceptors: Mapping[Stream, Acceptor], seen: Mapping[Stream, int]) -> bool:
        """Note a refresh; `seen` are the next numbers at the last one. True if something moved."""
        moved = any(a.next != seen.get(s) for s, a in acceptors.items())
        self._ticks = 0 if moved else self._ticks + 1
        self._stalled = {
            stream: self._stalled.get(stream, 0) + 1
            for stream, acceptor in acceptors.items()
            if acceptor.stuck and acceptor.next == seen.get(stream)
        }
        return moved

    def is_due(self, is_stuck: bool, may_be_idle: Callable[[], bool]) -> bool:
        """Whether to ask for the whole channel, as nothing has moved."""
        due = _is_due(self._ticks)
        if is_stuck or self._ticks % QUIET_TICKS:
            return is_stuck and due
        return self._ticks < IDLE_TICKS or self._ticks % IDLE_TICKS == 0 or not may_be_idle()

    def stalled(self) -> list[Stream]:
        """The streams to ask for alone."""
        return [stream for stream, ticks in self._stalled.items() if _is_due(ticks)]


def _is_due(ticks: int) -> bool:
    return ticks & (ticks - 1) == 0 or ticks % QUIET_TICKS == 0
