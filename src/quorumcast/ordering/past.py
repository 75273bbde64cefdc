"""A ledger of positions whose older part is on disk.

Memory holds the newest positions (`warm` … `next`-1), the disk those before it (`base` … `warm`-1).
A run on disk is two archived records: its offer with the bodies (`Stored`, by stream and number),
and its place in the order (`Placed`, by channel and position). `Placed` repeats the digests, so
that a broker reads no contents for a subscriber that wants only its votes.

Searches by time rest on stamps that never fall from one run to the next. For a run that was fetched
this broker knows only its own contents, and takes nobody's word for the rest. If it is stamped
later than a run behind it, it is noted as a *peak*, and searches for its time begin there.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import ClassVar

import msgspec

from quorumcast.broadcast.ledger import Ledger, StoredRun
from quorumcast.broadcast.times import Search
from quorumcast.core.ids import DIGEST_SIZE, Channel, Digest, Millis, Stream
from quorumcast.core.limits import MAX_NUMBER, MAX_RUN, Limits
from quorumcast.core.machine import ArchiveReader, Record
from quorumcast.ordering.offers import Stored, stored_under

#: What a channel retains is decided for whole runs (`ordering.log`), not by the ledger.
_UNBOUNDED = Limits(retained_publications=MAX_NUMBER, retained_bytes=MAX_NUMBER)
#: Most peaks of a channel; beyond it the two that lie closest together become one.
MAX_PEAKS = 32


class Placed(Record, frozen=True, tag=True, omit_defaults=True):
    """The place of a run in the order of its channel."""

    archived: ClassVar[bool] = True

    channel: Channel
    position: int
    #: Stream and first number: the name of the offer that the run is.
    stream: Stream
    first: int
    digests: bytes
    #: Hash chain over everything that was ordered before it on the channel.
    chain: bytes
    #: Bytes of its contents; and a running total up to its end, of which only differences count.
    size: int
    end: int
    #: The largest time stamp up to its end, as far as this broker knows: it never falls from one
    #: run to the next. Runs with later stamps are in peaks.
    stamp: int
    #: When this broker wrote it, by a clock that a restart may change.
    at: Millis
    #: The edition of the offer on disk.
    edition: int = 0

    @property
    def owner(self) -> str:
        return self.channel

    @property
    def place(self) -> int:
        return self.position

    @property
    def next(self) -> int:
        """The position after it."""
        return self.position + len(self.digests) // DIGEST_SIZE


class Peak(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Positions of which some are stamped later than their runs say, up to `stamp`."""

    first: int
    last: int
    stamp: int


class PastLedger(Ledger):
    """The positions of one channel at one broker."""

    __slots__ = ("_channel", "archive", "peaks")

    def __init__(self, channel: Channel) -> None:
        super().__init__(_UNBOUNDED)
        self._channel = channel
        #: None where nothing is on disk: then everything is in memory. Set before anything is held.
        self.archive: ArchiveReader | None = None
        #: Oldest first; at most MAX_PEAKS.
        self.peaks: tuple[Peak, ...] = ()

    @property
    def warm(self) -> int:
        """The first position that is in memory."""
        return self._shelf.start

    def evict(self, count: int) -> None:
        """Remove the oldest positions from memory; the disk has them."""
        self._drop(count)

    def give_up(self, below: int) -> None:
        """Retain nothing before a position."""
        self._drop(max(0, below - self.warm))
        self.base = max(self.base, below)
        self.floor = max(self.floor, self.base)

    def restore(self, base: int, end: int) -> None:
        """Hold these positions, all of them on disk."""
        self.skip_to(end)
        self.base = base

    # ----------------------------------------------------------------- the disk

    def placed(self, position: int) -> Placed | None:
        """The run on disk that a position belongs to."""
        if self.archive is None or not self.base <= position < self.warm:
            return None
        found = self.archive.last(Placed, self._channel, position + 1)
        return found if found is not None and found.next > position else None

    def contents(self, placed: Placed) -> Stored | None:
        """The offer of a run on disk, with its bodies."""
        if self.archive is None:
            return None
        owner = stored_under(placed.stream, placed.edition)
        found = self.archive.get(Stored, owner, placed.first)
        # A lying publisher may have offered something else under the same name.
        return found if found is not None and found.offer.digests == placed.digests else None

    # ------------------------------------------------------------------ reading

    def digest(self, number: int) -> Digest | None:
        if number >= self.warm:
            return super().digest(number)
        found = self.digests(number, 1)
        return None if found is None else Digest(found)

    def digests(self, first: int, count: int) -> bytes | None:
        warm, stop = self.warm, first + count
        if first >= warm or first < self.base or stop > self.next:
            return super().digests(first, count)
        cold = self._cold_digests(first, min(stop, warm))
        rest = super().digests(warm, stop - warm) if stop > warm else b""
        if rest is None or len(cold) + len(rest) != count * DIGEST_SIZE:
            return None
        return cold + rest

    def _cold_digests(self, first: int, stop: int) -> bytes:
        parts: list[bytes] = []
        while first < stop and (placed := self.placed(first)) is not None:
            end = min(placed.next, stop)
            parts.append(_part(placed, first, end))
            first = end
        return b"".join(parts)

    def read_digests(self, first: int, count: int, max_bytes: int) -> StoredRun | None:
        first = max(first, self.base)
        if first >= self.warm:
            return super().read_digests(first, count, max_bytes)
        digests = self._cold_digests(first, min(first + min(count, MAX_RUN), self.warm))
        return StoredRun(first, digests, ()) if digests else None

    def read(self, first: int, count: int, max_bytes: int) -> StoredRun | None:
        first = max(first, self.base)
        warm = self.warm
        if first >= warm:
            return super().read(first, count, max_bytes)
        stop = min(first + min(count, MAX_RUN), warm)
        digests: list[bytes] = []
        bodies: list[bytes] = []
        at = first
        while at < stop and (placed := self.placed(at)) is not None:
            stored = self.contents(placed)
            if stored is None:
                break
            held = stored.bodies[at - placed.position : stop - placed.position]
            fitting = bisect_right([*accumulate(map(len, held))], max_bytes)
            if not fitting and not bodies:
                fitting = 1
            bodies += held[:fitting]
            digests.append(_part(placed, at, at + fitting))
            max_bytes -= sum(map(len, held[:fitting]))
            at += fitting
            if fitting < len(held):
                break
        return StoredRun(first, b"".join(digests), tuple(bodies)) if bodies else None

    def since(self, search: Search, *, labelled: bool) -> int:
        warm = self.warm
        newest = self.placed(warm - 1)
        if newest is None or newest.stamp < search.since_us:
            held = self._shelf.body
            found = self._times.first(search, max(warm, self.base), self.next, held, labelled)
        else:
            found = self._stamped_since(search.since_us, self.base, newest.position)
        peaks = [p for p in self.peaks if p.stamp >= search.since_us and p.last >= self.base]
        return max(self.base, min([found, *(peak.first for peak in peaks)]))

    def _stamped_since(self, stamp: int, low: int, high: int) -> int:
        """The first position of low … high whose run on disk has this stamp or a later one."""
        while low < high:
            placed = self.placed((low + high) // 2)
            if placed is None:
                break
            if placed.stamp >= stamp:
                high = placed.position
            else:
                low = placed.next
        return low

    def note_later(self, first: int, last: int, stamp: int) -> None:
        """Note that some of these positions are stamped later than a run behind them."""
        peaks = sorted((*self.peaks, Peak(first, last, stamp)))
        if len(peaks) > MAX_PEAKS:  # searches begin too early rather than too late
            at = min(range(MAX_PEAKS), key=lambda at: peaks[at + 1].last - peaks[at].first)
            older, newer = peaks[at : at + 2]
            stamp = max(older.stamp, newer.stamp)
            peaks[at : at + 2] = [Peak(older.first, max(older.last, newer.last), stamp)]
        self.peaks = tuple(peaks)

    def note_joined(self, base: int, behind: int, stamp: int) -> int:
        """Note what of these positions is later than a stamp; return their largest stamp."""
        newest = self.placed(behind - 1)
        if newest is None or newest.stamp <= stamp:
            return stamp
        first = self._stamped_since(stamp + 1, base, newest.position)
        self.note_later(first, behind - 1, newest.stamp)
        return newest.stamp


def _part(placed: Placed, first: int, stop: int) -> bytes:
    """The digests of some positions of a run."""
    start = placed.position
    return placed.digests[(first - start) * DIGEST_SIZE : (stop - start) * DIGEST_SIZE]
