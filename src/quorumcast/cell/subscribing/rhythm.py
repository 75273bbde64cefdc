"""When a subscriber asks brokers again, which it looks at with every refresh.

A stream is *stalled* if it has not moved since the last refresh although there is more of it: votes
have come, or a correct broker has reported it. It is asked for at once, then ever more rarely, also
while other streams move. If nothing moves, brokers are asked for the whole channel: like this if a
stream is stalled, and else now and then, since the last votes may be lost.

Votes may also be lost on a channel where something always moves, and nothing is known of them. So
brokers are asked for the whole channel every IDLE_TICKS refreshes in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.core.ids import Stream

#: Refreshes without progress after which a subscriber asks whether it missed the last publication.
QUIET_TICKS = 8
#: Refreshes between two such questions once it has been quiet for as long and may be idle, and the
#: most between two questions. Answers about many streams are a load.
IDLE_TICKS = 32


class Rhythm:
    """The refreshes of one channel."""

    __slots__ = ("_quiet", "_stalled", "_unasked")

    def __init__(self) -> None:
        #: Refreshes since something moved, and since brokers were asked for the whole channel.
        self._quiet = 0
        self._unasked = 0
        #: For how many refreshes each stalled stream has not moved.
        self._stalled: dict[Stream, int] = {}

    def asked(self) -> None:
        """Brokers have been asked for the whole channel."""
        self._unasked = 0

    def note(
        self,
        acceptors: Mapping[Stream, Acceptor],
        seen: Mapping[Stream, int],
        reached: Callable[[Stream], int],
    ) -> None:
        """Note a refresh; `seen` are the next numbers at the last one."""
        still = [s for s, acceptor in acceptors.items() if acceptor.next == seen.get(s)]
        self._quiet = self._quiet + 1 if len(still) == len(acceptors) else 0
        self._unasked += 1
        self._stalled = {
            stream: self._stalled.get(stream, 0) + 1
            for stream in still
            if acceptors[stream].stuck or reached(stream) > acceptors[stream].next
        }

    def due(self, is_awaited: bool, may_be_idle: Callable[[], bool]) -> Collection[Stream] | None:
        """The streams to ask for now; empty means the whole channel, None means nothing.

        `is_awaited`: more of the channel is due, whatever is known of its streams.
        """
        quiet = self._quiet
        if self._unasked >= IDLE_TICKS:
            return ()
        if quiet and (is_awaited or self._stalled):
            return () if is_due(quiet) else None
        if quiet and not quiet % QUIET_TICKS and (quiet <= IDLE_TICKS or not may_be_idle()):
            return ()
        return [stream for stream, ticks in self._stalled.items() if is_due(ticks)] or None


def is_due(ticks: int) -> bool:
    """Whether to ask again after so many refreshes: ever more rarely."""
    return ticks & (ticks - 1) == 0 or ticks % QUIET_TICKS == 0
