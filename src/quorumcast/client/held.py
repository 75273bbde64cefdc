"""How far an application has read: what its channels held at the beginning, and where it is.

`Subscription.held` ends where each stream ended when the subscription was established. A stream has
been read up to a number once the application has taken what came up to there. With a predicate
some numbers never come: the subscriber machine says up to where nothing more matches. That counts
as soon as everything has been taken that was queued before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from quorumcast.core.ids import CELL, Channel, Stream, total_order


class Skip(NamedTuple):
    """Nothing comes between these numbers of a stream."""

    #: What was queued last when that became known; 0 if nothing was.
    after: int
    upto: int


class ReadingProgress:
    """How far one subscription has been read."""

    __slots__ = ("_first", "_last", "_queued", "_reached", "_skips", "_starting", "idle", "unread")

    def __init__(self, *, reads_past: bool) -> None:
        #: Streams that have not been read to their end, with the last number that each had when the
        #: subscription was established.
        self.unread: dict[Stream, int] = {}
        #: The same for all streams, also those that have been read.
        self._first: dict[Stream, int] = {}
        #: Whether more streams with an end may come: those are not known until it is established.
        self._starting = reads_past
        #: Whether there is nothing to note yet. Most subscriptions begin with the next publication
        #: of channels without one order; they ask this for every publication.
        self.idle = not reads_past
        #: The last number of each stream that was queued, and up to where it was read: of streams
        #: with an end, and of total orders.
        self._queued: dict[Stream, int] = {}
        self._reached: dict[Stream, int] = {}
        #: What waits to be skipped of each stream, in order: at most one for each that is queued.
        self._skips: dict[Stream, deque[Skip]] = {}
        #: What was skipped last of each stream.
        self._last: dict[Stream, Skip] = {}

    @property
    def ends(self) -> Mapping[Stream, int]:
        """The last number of each stream when the subscription was established."""
        return self._first

    def follow_order(self) -> None:
        """Note positions as well: there is a channel with total order."""
        self.idle = False

    def add(self, ends: Mapping[Stream, int]) -> None:
        """Note the last numbers of streams that were not read to their end in the beginning."""
        self._first.update(ends)
        for stream, end in ends.items():
            if self._reached.get(stream, 0) < end:
                self.unread[stream] = end

    def established(self) -> None:
        """Handle that all ends are known."""
        self._starting = False
        for noted in (self._queued, self._reached, self._skips, self._last):
            for stream in [one for one in noted if not self._follows(one)]:
                del noted[stream]

    def _follows(self, stream: Stream) -> bool:
        """Whether it matters how far a stream was read; all others come and go without a bound."""
        return self._starting or stream in self._first or stream.publisher == CELL

    def queue(self, stream: Stream, number: int) -> None:
        """Note that something up to this number waits to be taken."""
        if self._follows(stream):
            self._queued[stream] = number

    def take(self, stream: Stream, number: int) -> None:
        """Note that the application has taken what came up to this number."""
        if self._follows(stream):
            self._read_upto(stream, number)
            self._skip_on(stream)

    def skip(self, stream: Stream, number: int) -> None:
        """Note that nothing more of this stream comes up to this number."""
        if self._follows(stream):
            skips = self._skips.setdefault(stream, deque())
            after = self._queued.get(stream, 0)
            if skips and skips[-1].after == after:
                skips.pop()
            skips.append(Skip(after, number))
            self._skip_on(stream)

    def _skip_on(self, stream: Stream) -> None:
        skips = self._skips.get(stream)
        while skips and skips[0].after <= self._reached.get(stream, 0):
            skip = self._last[stream] = skips.popleft()
            self._read_upto(stream, skip.upto)

    def _read_upto(self, stream: Stream, number: int) -> None:
        self._reached[stream] = max(number, self._reached.get(stream, 0))
        if self.unread.get(stream, number + 1) <= number:
            del self.unread[stream]

    def give_back(self, stream: Stream, number: int) -> None:
        """Note that what was taken from this number on waits again."""
        reached = self._reached.get(stream, 0)
        if reached >= number:
            self._reached[stream] = number - 1
            last = self._last.get(stream)
            if last is not None and last.after >= number:
                self._skips[stream].appendleft(last)
        if number <= self._first.get(stream, 0):
            self.unread[stream] = self._first[stream]

    def forget(self, channel: Channel) -> None:
        """Wait no longer for the streams of a channel."""
        self.unread = {s: number for s, number in self.unread.items() if s.channel != channel}

    def position(self, channels: Collection[Channel]) -> int | None:
        """The first position that was not read; None if nothing was, or there is no one order."""
        if len(channels) != 1:
            return None
        reached = self._reached.get(total_order(next(iter(channels))), 0)
        return reached + 1 if reached else None
