"""How far an application has read: what its channels held at the beginning, and where it is.

`Subscription.held` ends where each stream ended when the subscription was established. A stream has
been read up to a number once the application has taken what came up to there. With a predicate
some numbers never come: the subscriber machine says up to where nothing more matches. That counts
as soon as everything has been taken that was queued before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quorumcast.core.ids import CELL, Channel, Stream, total_order


class ReadingProgress:
    """How far one subscription has been read."""

    __slots__ = ("_first", "_passed", "_queued", "_starting", "_taken", "unread")

    def __init__(self, *, reads_past: bool) -> None:
        #: Streams that have not been read to their end, with the last number that each had when the
        #: subscription was established.
        self.unread: dict[Stream, int] = {}
        #: The same for all streams, also those that have been read.
        self._first: dict[Stream, int] = {}
        #: Whether more streams with an end may come: those are not known until it is established.
        self._starting = reads_past
        #: The last number of each stream that was queued, and that was taken: of streams with an
        #: end, and of total orders.
        self._queued: dict[Stream, int] = {}
        self._taken: dict[Stream, int] = {}
        #: Up to where nothing more matches, and what was queued last before that was known.
        self._passed: dict[Stream, tuple[int, int]] = {}

    @property
    def ends(self) -> Mapping[Stream, int]:
        """The last number of each stream when the subscription was established."""
        return self._first

    def add(self, ends: Mapping[Stream, int]) -> None:
        """Note the last numbers of streams that were not read to their end in the beginning."""
        self._first.update(ends)
        self.unread.update(ends)
        for stream in ends:
            self._maybe_skip(stream)

    def established(self) -> None:
        """Handle that all ends are known."""
        self._starting = False
        for numbers in (self._queued, self._taken, self._passed):
            for stream in [one for one in numbers if not self._follows(one)]:
                del numbers[stream]

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
            self._taken[stream] = number
            self._read_upto(stream, number)
            self._maybe_skip(stream)

    def skip(self, stream: Stream, number: int) -> None:
        """Note that nothing more of this stream comes up to this number."""
        if self._follows(stream):
            self._passed[stream] = (self._queued.get(stream, 0), number)
            self._maybe_skip(stream)

    def _maybe_skip(self, stream: Stream) -> None:
        before, upto = self._passed.get(stream, (0, 0))
        if upto and self._taken.get(stream, 0) >= before:
            self._read_upto(stream, upto)

    def _read_upto(self, stream: Stream, number: int) -> None:
        if self.unread.get(stream, number + 1) <= number:
            del self.unread[stream]

    def give_back(self, stream: Stream, number: int) -> None:
        """Note that what was taken from this number on waits again."""
        if stream in self._taken:
            self._taken[stream] = min(self._taken[stream], number - 1)
        if number <= self._first.get(stream, 0):
            self.unread[stream] = self._first[stream]

    def forget(self, channel: Channel) -> None:
        """Wait no longer for the streams of a channel."""
        self.unread = {s: number for s, number in self.unread.items() if s.channel != channel}

    def position(self, channels: Collection[Channel]) -> int | None:
        """The first position that was not read; None if nothing was, or there is no one order."""
        order = total_order(next(iter(channels))) if len(channels) == 1 else None
        if order is None:
            return None
        taken = self._taken.get(order, 0)
        before, upto = self._passed.get(order, (0, 0))
        reached = max(taken, upto) if taken >= before else taken
        return reached + 1 if reached else None
