"""What a subscriber accepted and its application has not taken: bounded, in order, nothing silent.

At most `most` publications and about `most_bytes` bytes of contents wait (at least one publication,
however long). What happens when one more comes is the subscription's `Overflow`:

    wait      it is kept, and the backlog is `full`: nothing more is read from the brokers until
              half of it is taken
    oldest    the oldest one that waits is discarded
    newest    what comes is discarded

What is discarded leaves a notice in its place: all of a stream that went at one place is one `Gap`,
whatever the other streams did meanwhile. Notices have a bound of their own; a backlog that reaches
it is `full`, as when it waits, so that whoever never takes anything costs no more than that.

Urgent streams have a lane of their own, which is emptied first. A stream is urgent or not as a
whole, so that the order of each stream holds, its gaps included. Where there is a total order that
order is the promise, and nothing overtakes. The oldest that is discarded is one that is not urgent,
as long as there is any.
"""

from __future__ import annotations

from collections import deque

from quorumcast.broadcast.application import Deliver
from quorumcast.client.events import Gap, GapReason
from quorumcast.core.ids import Stream
from quorumcast.core.limits import Overflow

#: Gaps that may wait for one application.
MAX_NOTICES = 1024


class Notices:
    """Gaps at one place, each stream's in order, those that continue one another as one."""

    __slots__ = ("_last", "_serial", "gaps")

    def __init__(self) -> None:
        #: By serial number, in the order in which they began.
        self.gaps: dict[int, Gap] = {}
        #: The newest gap of each stream.
        self._last: dict[Stream, int] = {}
        self._serial = 0

    def add(self, gap: Gap) -> None:
        """One more, behind the others of its stream."""
        serial = self._last.get(gap.stream)
        if serial is not None:
            before = self.gaps[serial]
            if (before.reason, before.upto + 1) == (gap.reason, gap.first):
                self.gaps[serial] = Gap(gap.stream, before.first, gap.upto, gap.reason)
                return
        self._serial += 1
        self.gaps[self._serial] = gap
        self._last[gap.stream] = self._serial

    def pop(self) -> Gap:
        """The first one."""
        serial = next(iter(self.gaps))
        gap = self.gaps.pop(serial)
        if self._last[gap.stream] == serial:
            del self._last[gap.stream]
        return gap


class Lane:
    """A queue of publications with the gaps between them, before them and behind them."""

    __slots__ = ("behind", "front", "items", "publications")

    def __init__(self) -> None:
        #: What was discarded as the oldest, or announced before it; goes first.
        self.front = Notices()
        self.items: deque[Deliver | Gap] = deque()
        #: What was announced, or discarded as the newest, since the last item; goes last.
        self.behind = Notices()
        #: How many of the items are no gaps.
        self.publications = 0

    def __len__(self) -> int:
        return len(self.items) + len(self.front.gaps) + len(self.behind.gaps)

    @property
    def empty(self) -> bool:
        """Whether there is nothing here."""
        return not self.items and not self.front.gaps and not self.behind.gaps

    def append(self, delivered: Deliver) -> None:
        """Behind everything that is known."""
        while self.behind.gaps:
            self.items.append(self.behind.pop())
        self.items.append(delivered)
        self.publications += 1

    def pop(self) -> Deliver | Gap:
        """What is next; there is something."""
        if self.front.gaps:
            return self.front.pop()
        if not self.items:
            return self.behind.pop()
        item = self.items.popleft()
        if type(item) is Deliver:
            self.publications -= 1
        return item

    def discard_oldest(self) -> Deliver:
        """Turn the oldest publication into a notice; there is one."""
        while isinstance(item := self.items.popleft(), Gap):
            self.front.add(item)
        self.publications -= 1
        self.front.add(_discarded(item))
        return item


class Backlog:
    """See above."""

    __slots__ = (
        "_bytes",
        "_most",
        "_most_bytes",
        "_overflow",
        "_plain",
        "_publications",
        "_urgent",
        "_waits",
        "discarded",
        "full",
        "waiting",
    )

    def __init__(self, most: int, most_bytes: int, overflow: Overflow = Overflow.WAIT) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._overflow = overflow
        self._waits = overflow is Overflow.WAIT
        self._urgent = Lane()
        self._plain = Lane()
        #: Publications in both lanes, and the bytes of their contents.
        self._publications = 0
        self._bytes = 0
        #: Publications and gaps in both lanes.
        self.waiting = 0
        #: Publications that gave way.
        self.discarded = 0
        #: Whether nothing more should come; it stays so until half of it is taken.
        self.full = False

    def sizes(self) -> dict[str, int]:
        """What waits here."""
        return {
            "publications": self._publications,
            "bytes": self._bytes,
            "notices": self.waiting - self._publications,
        }

    def put(self, delivered: Deliver) -> int:
        """One more publication; how many were discarded for it, or with it."""
        # The parity is `Stream.urgent`, without the call: this is once per publication.
        urgent = delivered.stream.incarnation & 1 and not delivered.position
        lane = self._urgent if urgent else self._plain
        if not self._waits and self._overflow is Overflow.NEWEST and self._crowded_by(delivered):
            lane.behind.add(_discarded(delivered))
            self._note(1)
            return 1
        lane.append(delivered)
        self.waiting += 1
        self._publications += 1
        self._bytes += len(delivered.body)
        if not self._waits:
            return self._discard_oldest()
        if self._publications >= self._most or self._bytes >= self._most_bytes:
            self.full = True
        return 0

    def announce(self, gap: Gap) -> None:
        """News of a loss, in its place."""
        (self._urgent if gap.stream.urgent else self._plain).behind.add(gap)
        self._note(0)

    def pop(self) -> Deliver | Gap:
        """What is next; there is something."""
        item = (self._plain if self._urgent.empty else self._urgent).pop()
        self.waiting -= 1
        if type(item) is Deliver:
            self._publications -= 1
            self._bytes -= len(item.body)
        if self.full:
            self.full = self.waiting - self._publications > MAX_NOTICES // 2 or (
                self._waits
                and (self._publications > self._most // 2 or self._bytes > self._most_bytes // 2)
            )
        return item

    def clear(self) -> None:
        """Nobody wants any of it any more."""
        self._urgent, self._plain = Lane(), Lane()
        self.waiting = self._publications = self._bytes = 0
        self.full = False

    def _crowded_by(self, delivered: Deliver) -> bool:
        """Whether there is no room for one more; there always is for one."""
        return self._publications > 0 and (
            self._publications >= self._most or self._bytes + len(delivered.body) > self._most_bytes
        )

    def _discard_oldest(self) -> int:
        discarded = 0
        while self._publications > self._most or (
            self._bytes > self._most_bytes and self._publications > 1
        ):
            gone = (self._plain if self._plain.publications else self._urgent).discard_oldest()
            self._publications -= 1
            self._bytes -= len(gone.body)
            discarded += 1
        if discarded:
            self._note(discarded)
        return discarded

    def _note(self, discarded: int) -> None:
        self.discarded += discarded
        self.waiting = len(self._urgent) + len(self._plain)
        if self.waiting - self._publications >= MAX_NOTICES:
            self.full = True


def _discarded(delivered: Deliver) -> Gap:
    stream, number = delivered.place
    return Gap(stream, number, number, GapReason.OVERFLOW)
