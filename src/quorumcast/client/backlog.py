"""The queue between a subscriber and its application: bounded, ordered, without silent loss.

The queue holds at most `most` publications and about `most_bytes` bytes of contents (but at least
one publication of any length). The subscription's `Overflow` is the rule for a full queue:

    wait      the publication is added and the queue is `full`: the node reads nothing more from
              brokers until half of the queue is taken
    oldest    the oldest queued publication is discarded
    newest    the arriving publication is discarded

A `Gap` takes the place of discarded publications. Adjacent gaps of one stream are merged, also if
publications of other streams were discarded in between. The number of gaps is bounded as well: a
queue that reaches MAX_GAPS is `full` under every rule, so an application that takes nothing costs
bounded memory.

Urgent streams have their own queue, which is emptied first. A stream is either urgent or not, so
the order of each stream is kept, including its gaps. On a channel with total order nothing
overtakes, because the order is what the channel promises. The rule `oldest` discards urgent
publications only if there are no others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.client.arguments import check_overflow
from quorumcast.client.events import Gap, GapReason
from quorumcast.client.options import SubscriptionOptions
from quorumcast.client.selecting import Arrival
from quorumcast.core.ids import Stream
from quorumcast.core.limits import Limits, Overflow
from quorumcast.manifest.manifest import ChannelEntry

#: Gaps in one backlog.
MAX_GAPS = 1024


class MergedGaps:
    """The gaps at one place of a queue, in order for each stream; adjacent ones are merged."""

    __slots__ = ("_last", "_serial", "gaps")

    def __init__(self) -> None:
        #: Gaps by serial number, in order of arrival.
        self.gaps: dict[int, Gap] = {}
        #: Serial number of the newest gap of each stream.
        self._last: dict[Stream, int] = {}
        self._serial = 0

    def add(self, gap: Gap) -> None:
        """Append a gap, or extend the newest gap of its stream."""
        serial = self._last.get(gap.stream)
        if serial is not None:
            before = self.gaps[serial]
            if (before.reason, before.upto + 1) == (gap.reason, gap.first):
                self.gaps[serial] = replace(gap, first=before.first)
                return
        self._serial += 1
        self.gaps[self._serial] = gap
        self._last[gap.stream] = self._serial

    def pop(self) -> Gap:
        """Remove and return the first gap."""
        serial = next(iter(self.gaps))
        gap = self.gaps.pop(serial)
        if self._last[gap.stream] == serial:
            del self._last[gap.stream]
        return gap


class DeliveryQueue:
    """Publications in order, with the gaps before, between and after them."""

    __slots__ = ("gaps_after", "gaps_before", "items", "publications")

    def __init__(self) -> None:
        #: Gaps before all items: publications discarded as the oldest, and gaps among them.
        self.gaps_before = MergedGaps()
        self.items: deque[Arrival | Gap] = deque()
        #: Gaps after all items: announced losses, and publications discarded as the newest.
        self.gaps_after = MergedGaps()
        #: The number of publications in `items`.
        self.publications = 0

    def __len__(self) -> int:
        return len(self.items) + len(self.gaps_before.gaps) + len(self.gaps_after.gaps)

    @property
    def empty(self) -> bool:
        """Whether there are neither publications nor gaps."""
        return not self.items and not self.gaps_before.gaps and not self.gaps_after.gaps

    def append(self, delivered: Arrival) -> None:
        """Append a publication, after all gaps so far."""
        while self.gaps_after.gaps:
            self.items.append(self.gaps_after.pop())
        self.items.append(delivered)
        self.publications += 1

    def pop(self) -> Arrival | Gap:
        """Remove and return the next item of a queue that is not empty."""
        if self.gaps_before.gaps:
            return self.gaps_before.pop()
        if not self.items:
            return self.gaps_after.pop()
        item = self.items.popleft()
        if not isinstance(item, Gap):
            self.publications -= 1
        return item

    def discard_oldest(self) -> Arrival:
        """Replace the oldest publication, which must exist, by a gap; return it."""
        while isinstance(item := self.items.popleft(), Gap):
            self.gaps_before.add(item)
        self.publications -= 1
        self.gaps_before.add(_gap_of(item))
        return item


class Backlog:
    """The bounded queue of one subscription."""

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
        self._urgent = DeliveryQueue()
        self._plain = DeliveryQueue()
        #: Publications in both queues, and the bytes of their contents.
        self._publications = 0
        self._bytes = 0
        #: Publications and gaps in both queues.
        self.waiting = 0
        #: Publications discarded so far.
        self.discarded = 0
        #: Whether the node should stop reading; stays set until half of the queue is taken.
        self.full = False

    def sizes(self) -> dict[str, int]:
        """The size of each bounded quantity."""
        return {
            "publications": self._publications,
            "bytes": self._bytes,
            "gaps": self.waiting - self._publications,
        }

    def put(self, delivered: Arrival) -> int:
        """Add a publication; return how many publications were discarded, perhaps this one."""
        # The parity is `Stream.urgent` without the call, because this runs once per publication.
        urgent = delivered.stream.incarnation & 1 and not delivered.position
        queue = self._urgent if urgent else self._plain
        if (
            not self._waits
            and self._overflow is Overflow.NEWEST
            and self._lacks_room_for(delivered)
        ):
            queue.gaps_after.add(_gap_of(delivered))
            self._count_discarded(1)
            return 1
        queue.append(delivered)
        self.waiting += 1
        self._publications += 1
        self._bytes += len(delivered.body)
        if not self._waits:
            return self._discard_oldest()
        if self._publications >= self._most or self._bytes >= self._most_bytes:
            self.full = True
        return 0

    def announce(self, gap: Gap) -> None:
        """Add a gap that brokers or the machine announced."""
        (self._urgent if gap.stream.urgent else self._plain).gaps_after.add(gap)
        self._count_discarded(0)

    def pop(self) -> Arrival | Gap:
        """Remove and return the next item; `waiting` must not be 0."""
        item = (self._plain if self._urgent.empty else self._urgent).pop()
        self.waiting -= 1
        if not isinstance(item, Gap):
            self._publications -= 1
            self._bytes -= len(item.body)
        if self.full:
            self.full = self.waiting - self._publications > MAX_GAPS // 2 or (
                self._waits
                and (self._publications > self._most // 2 or self._bytes > self._most_bytes // 2)
            )
        return item

    def clear(self) -> None:
        """Drop everything: the subscription is closed."""
        self._urgent, self._plain = DeliveryQueue(), DeliveryQueue()
        self.waiting = self._publications = self._bytes = 0
        self.full = False

    def _lacks_room_for(self, delivered: Arrival) -> bool:
        """Whether a publication does not fit; an empty queue takes a publication of any length."""
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
            self._count_discarded(discarded)
        return discarded

    def _count_discarded(self, discarded: int) -> None:
        self.discarded += discarded
        self.waiting = len(self._urgent) + len(self._plain)
        if self.waiting - self._publications >= MAX_GAPS:
            self.full = True


def _gap_of(delivered: Arrival) -> Gap:
    stream, number = delivered.place
    return Gap(stream, number, number, GapReason.OVERFLOW)


def backlog_for(options: SubscriptionOptions, entries: Sequence[ChannelEntry]) -> Backlog:
    """The queue, with the defaults of the channels; if these differ in `overflow`, it waits."""
    queue, overflow = options.queue, options.overflow
    if queue is None:
        queue = max((entry.policy.limits.queue for entry in entries), default=Limits().queue)
    if overflow is None:
        agreed = {entry.overflow for entry in entries}
        overflow = agreed.pop() if len(agreed) == 1 else Overflow.WAIT
    return Backlog(queue, options.queue_bytes, check_overflow(overflow))
