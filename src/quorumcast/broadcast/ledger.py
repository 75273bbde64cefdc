"""What a broker keeps of one stream: digests and bodies of consecutive numbers, bounded.

A ledger holds base … next-1. It is the broker's memory of what it vouches for: a number is written
once, and only a settled history may correct it. Replays, pulls and signed statements read from it.

Runs are written, read and dropped as a whole (`shelf`): nothing is done in Python for each of their
publications.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

import msgspec

from quorumcast.broadcast.shelf import Shelf
from quorumcast.broadcast.times import Search, Times
from quorumcast.core.errors import ensure
from quorumcast.core.ids import DIGEST_SIZE, Digest, Millis, NodeId
from quorumcast.core.limits import MAX_NUMBER, MAX_RUN, Limits

#: Ages are told apart to this part of the time that publications are kept.
AGES = 8

Order = tuple[NodeId, ...]


class AppendResult(msgspec.Struct, frozen=True):
    """What became of a run: where its new part starts, or the number that contradicts us."""

    first: int
    digests: bytes = b""
    conflict: int = 0


class StoredRun(msgspec.Struct, frozen=True):
    """A run read back from the ledger."""

    first: int
    digests: bytes
    bodies: tuple[bytes, ...]
    order: Order = ()

    @property
    def stop(self) -> int:
        """The number after its last one."""
        return self.first + len(self.digests) // DIGEST_SIZE


class Ledger:
    """Consecutive publications of one stream, as many of the newest as its quota allows."""

    __slots__ = (
        "_bytes",
        "_incarnation",
        "_marks",
        "_orders",
        "_shelf",
        "_times",
        "base",
        "floor",
        "gone_bytes",
        "next",
        "quota",
        "settled",
        "settles",
        "start",
        "unrepeated",
        "unsettled_bytes",
    )

    def __init__(self, limits: Limits, base: int = 1) -> None:
        #: What retention counts together with this ledger: its publisher's other lives.
        self.quota = Quota(limits)
        self._incarnation = 0
        self.quota.enter(0, self)
        #: Digests and contents of exactly base … next-1.
        self._shelf = Shelf(base)
        #: The chain that a number came by, if it came by one.
        self._orders: dict[int, Order] = {}
        #: Sum of the sizes of all bodies, and of those beyond `settled`.
        self._bytes = 0
        self.unsettled_bytes = 0
        #: Bytes of what lay before, as a running total of which only differences count.
        self.gone_bytes = 0
        #: Noted when somebody asks for a time; a block goes with the last of its numbers.
        self._times = Times()
        #: How far the ledger was at a time: what lies before is at least as old. At most AGES + 1.
        self._marks: deque[tuple[Millis, int]] = deque()
        #: The oldest number still held; grows, except when what was lost is fetched again.
        self.base = base
        #: What lies before was dropped because it is not retained any longer; only grows.
        self.floor = 1
        #: The number that will be written next; only grows.
        self.next = base
        #: Where this ledger began; what lies before is never written because a publisher says so.
        self.start = base
        #: The publisher can no longer repeat what lies before this number.
        self.unrepeated = 0
        #: Brokers have settled together what they hold up to this number; without end where
        #: nothing is settled. Only grows.
        self.settled = MAX_NUMBER
        #: Whether brokers settle together what this ledger holds.
        self.settles = False

    def __len__(self) -> int:
        return len(self._shelf)

    def share(self, quota: Quota, incarnation: int) -> None:
        """Count with the other lives of the publisher, before anything is written."""
        ensure(not self._shelf, "a ledger joins its quota while it is empty")
        self.quota = quota
        self._incarnation = incarnation
        quota.enter(incarnation, self)

    @property
    def kept(self) -> int:
        """How many publications are held that are settled."""
        return max(0, min(self.next, self.settled + 1) - self.base)

    @property
    def kept_bytes(self) -> int:
        """Bytes of contents held that are settled."""
        return self._bytes - self.unsettled_bytes

    @property
    def unsettled(self) -> int:
        """How many publications are held that are not settled."""
        return len(self._shelf) - self.kept

    @property
    def exhausted(self) -> bool:
        """Whether retention has dropped everything that was ever written."""
        return self.begun and not self._shelf and self.floor >= self.next

    @property
    def begun(self) -> bool:
        """Whether this ledger has moved on from where it may begin."""
        return self.next > self.start

    @property
    def left_behind(self) -> bool:
        """Whether only other brokers can still supply the next number."""
        return self.begun and self.next < self.unrepeated

    @property
    def room(self) -> int:
        """How many publications may still be written before `base`."""
        return self.quota.room_for(self._incarnation)[0]

    def fitting(self, bodies: Sequence[bytes]) -> int:
        """How many of these, the newest ones, may still be got back."""
        room, room_bytes = self.quota.room_for(self._incarnation)
        count = 0
        for body in reversed(bodies):
            room_bytes -= len(body)
            if count >= room or room_bytes < 0:
                break
            count += 1
        return count

    def behind_hole(self, number: int) -> int:
        """The first number behind the hole that a number lies in; 0 if it lies in none."""
        return 0

    def digest(self, number: int) -> Digest | None:
        """The digest of a number, if it is still held."""
        return self._shelf.digest(number)

    def take(
        self, first: int, digests: Sequence[Digest], bodies: Sequence[bytes], order: Order = ()
    ) -> AppendResult:
        """Write the part of a run that is new, unless the run contradicts what is held.

        The run may overlap what is held; it must not start beyond `next`.
        """
        ensure(first <= self.next, "a run begins no later than the ledger ends")
        new = max(first, self.next)
        offset = new - first
        for number, digest in enumerate(digests[:offset], first):
            if self._shelf.digest(number) not in (None, digest):
                return AppendResult(number, conflict=number)
        if order or self._orders:
            held = range(max(first, self.base), min(new, first + len(digests)))
            self._orders.update(dict.fromkeys(held, order))
        self.extend(digests[offset:], bodies[offset:], order)
        return AppendResult(new, b"".join(digests[offset:]))

    def extend(self, digests: Sequence[Digest], bodies: Sequence[bytes], order: Order = ()) -> None:
        """Write the next numbers."""
        count, size = len(bodies), sum(map(len, bodies))
        numbers = range(self.next, self.next + count)
        settled = self._settled_among(numbers)
        settled_bytes = size if settled == count else sum(map(len, bodies[:settled]))
        quota = self.quota
        if settled and not self._shelf:
            quota.stock(self._incarnation)
        self._shelf.extend(digests, bodies)
        if order:
            self._orders.update(dict.fromkeys(numbers, order))
        self.next += count
        self._bytes += size
        self.unsettled_bytes += size - settled_bytes
        quota.written += count
        quota.written_bytes += size
        quota.add(settled, settled_bytes, count - settled, size - settled_bytes)

    def _settled_among(self, numbers: range) -> int:
        """How many of these, the first ones, are settled."""
        return min(max(0, self.settled + 1 - numbers.start), len(numbers))

    def prepend(self, digests: Sequence[Digest], bodies: Sequence[bytes]) -> bool:
        """Write what lies right before `base`; False if that is more than is retained."""
        size = sum(map(len, bodies))
        quota, life = self.quota, self._incarnation
        if len(bodies) >= self.base or not quota.make_room(life, len(bodies), size):
            return False
        quota.stock(life)
        self.settled = max(self.settled, self.base - 1)
        self.base -= len(bodies)
        self._shelf.prepend(digests, bodies)
        self._times.changed(range(self.base, self.base + len(bodies)))
        self._bytes += size
        self.gone_bytes -= size
        quota.publications += len(bodies)
        quota.held_bytes += size
        return True

    def wait_for_settling(self) -> None:
        """Count nothing as settled before brokers have settled it."""
        ensure(not self._shelf, "a ledger waits from the beginning")
        self.settles, self.settled = True, 0

    def settle(self, upto: int) -> None:
        """Brokers have settled everything up to a number: retention counts it from now on."""
        if upto <= self.settled:
            return
        first, self.settled = max(self.settled + 1, self.base), upto
        numbers = range(first, min(upto + 1, self.next))
        if not numbers:
            return
        quota = self.quota
        if first == self.base:
            quota.stock(self._incarnation)
        # Usually all that waits is settled.
        everything = numbers.stop == self.next
        size = self.unsettled_bytes if everything else self._shelf.size(first, numbers.stop)
        self.unsettled_bytes -= size
        quota.settle(len(numbers), size)

    def cut(self, upto: int) -> None:
        """Give up what lies beyond a number; only other brokers can still supply it."""
        end = max(self.base, upto + 1)
        if end < self.next:
            lost = range(end, self.next)
            self._count_dropped(lost)
            self._shelf.cut(len(lost))
            self._times.changed(lost)
            self.next = end
        self.unrepeated = MAX_NUMBER

    def expire(self, now: Millis, retained_ms: int, below: int) -> None:
        """Drop what has been here for longer than that, and lies below a number.

        To be called now and then. What is prepended counts as old as what it lies before.
        """
        marks = self._marks
        if not marks or now - marks[-1][0] >= max(1, retained_ms // AGES):
            marks.append((now, self.next))
        old = self.base
        while marks and now - marks[0][0] >= retained_ms:
            old = marks.popleft()[1]
        if old > below:
            marks.appendleft((Millis(now - retained_ms), old))
        if self.base < min(old, below):
            self.let_go(min(old, below) - self.base)

    def correct(self, number: int, digest: Digest, body: bytes) -> None:
        """Replace what a lying publisher told us by what the cell has settled on."""
        if self._shelf.digest(number) is not None:
            held = self._shelf.body(number)
            self._shelf.correct(number, digest, body)
            self._orders.pop(number, None)
            self._times.changed(range(number, number + 1))
            more = len(body) - len(held)
            self._bytes += more
            if number <= self.settled:
                self.quota.held_bytes += more
            else:
                self.unsettled_bytes += more
                self.quota.unsettled_bytes += more

    def begin_at(self, number: int) -> None:
        """Begin at a number, before anything is written: an earlier life dropped the rest."""
        ensure(not self.begun, "a ledger begins once")
        self.start = self.base = self.next = self.floor = number
        self._shelf.clear(number)

    def join(self, base: int, fresh: int, *, trusted: bool) -> bool:
        """Believe a publisher about where to go on; True if that leaves numbers out.

        A broker that holds nothing begins where its own part is not done yet (`fresh`), or with the
        oldest number that the publisher can still repeat (`base`). A broker that has begun stays
        where it is. If it followed a lying publisher to a later `base`, it would drop publications
        that subscribers still lack; it gets what lies between from the other brokers. Only a
        trusted publisher is followed.
        """
        self.unrepeated = base
        if self.begun and (self.next >= base or not trusted):
            return False
        before = self.next
        self.skip_to(max(base, fresh))
        return self.next > before

    def skip_to(self, number: int) -> None:
        """Start anew at a later number: the publisher no longer holds what lies before."""
        if number > self.next:
            self.quota.empty(self)
            self._shelf.clear(number)
            self._orders.clear()
            self._times.clear()
            self.gone_bytes += self._bytes
            self._bytes = self.unsettled_bytes = 0
            self.base = self.next = number

    def since(self, search: Search, *, labelled: bool) -> int:
        """The first held number stamped at or after a time, or one before it; `next` if none."""
        return self._times.first(search, self.base, self.next, self._shelf.body, labelled)

    @property
    def end_bytes(self) -> int:
        """The same total as `gone_bytes` up to the end."""
        return self.gone_bytes + self._bytes

    def size(self, first: int, stop: int) -> int:
        """Bytes of the contents held of these numbers."""
        first, stop = max(first, self.base), min(stop, self.next)
        return self._shelf.size(first, stop) if first < stop else 0

    def digests(self, first: int, count: int) -> bytes | None:
        """The digests of a range, if all of it is held."""
        if first < self.base or first + count > self.next:
            return None
        return self._shelf.digests(first, first + count)

    def read(self, first: int, count: int, max_bytes: int) -> StoredRun | None:
        """What is held from a number on: same chain, within these limits."""
        first = max(first, self.base)
        stop = min(first + min(count, MAX_RUN), self.next)
        if first >= stop:
            return None
        order = self._orders.get(first, ())
        if self._orders:
            way = self._orders.get
            stop = next((n for n in range(first, stop) if way(n, ()) != order), stop)
        bodies = tuple(self._shelf.bodies(first, stop))
        fitting = max(1, bisect_right([*accumulate(map(len, bodies))], max_bytes))
        bodies = bodies[:fitting]
        return StoredRun(first, self.digests(first, len(bodies)) or b"", bodies, order)

    def read_digests(self, first: int, count: int, max_bytes: int) -> StoredRun | None:
        """The same for who needs no bodies; they may be left out."""
        return self.read(first, count, max_bytes)

    def let_go(self, count: int) -> None:
        """Let go of the oldest publications: retention does not keep them."""
        gone = range(self.base, self.base + count)
        self._drop(count)
        self.base = gone.stop
        if self.base > self.settled or not self._shelf:
            self.quota.drain()
        self._times.gone(gone)
        self.floor = max(self.floor, self.base)

    def _drop(self, count: int) -> None:
        """Drop the first of what is in memory."""
        end = self.end_bytes
        self._count_dropped(range(self._shelf.start, self._shelf.start + count))
        self._shelf.drop(count)
        self.gone_bytes = end - self._bytes

    def _count_dropped(self, numbers: range) -> None:
        """Count less for these, which are about to be dropped."""
        if self._orders:
            for number in numbers:
                self._orders.pop(number, None)
        size = self._shelf.size(numbers.start, numbers.stop)
        settled = self._settled_among(numbers)
        settled_bytes = size
        if settled < len(numbers):
            settled_bytes = self._shelf.size(numbers.start, numbers.start + settled)
        self._bytes -= size
        self.unsettled_bytes -= size - settled_bytes
        unsettled = len(numbers) - settled
        self.quota.remove(settled, settled_bytes, unsettled, size - settled_bytes)


def _kept(ledger: Ledger) -> int:
    return ledger.kept


class Quota:
    """Retention over all lives of a publisher, for one lane of its streams on a channel.

    A publisher that restarts begins a new stream. Its earlier publications are worth as much as its
    later ones, so retention counts them together and drops the oldest first: of the oldest life,
    and there of the longer of its two streams (the other one is for what is urgent).

    What brokers have not settled together counts apart. Otherwise a lying publisher could begin one
    life after the other at a single broker, settle none, and so push out what everybody has
    settled. As much may be unsettled as is retained. Beyond that the broker gives up what is
    unsettled of earlier lives, and refuses more of the newest one (`crowded`). Lower limits do not
    lower that bound: a history that is under way may name as much as was retained before.
    """

    __slots__ = (
        "_ages",
        "_lives",
        "_only",
        "_queued",
        "crowded",
        "emptied",
        "held_bytes",
        "most",
        "most_bytes",
        "most_lives",
        "most_unsettled",
        "most_unsettled_bytes",
        "pending_bytes",
        "publications",
        "unsettled",
        "unsettled_bytes",
        "written",
        "written_bytes",
    )

    def __init__(self, limits: Limits) -> None:
        #: Publications and bytes that may be unsettled; only grow.
        self.most_unsettled = 0
        self.most_unsettled_bytes = 0
        self.limit(limits)
        #: The ledgers that share this quota, by life and incarnation: at most two in a life.
        self._lives: dict[int, dict[int, Ledger]] = {}
        #: A heap of the lives that hold something, each once; others in it are skipped.
        self._ages: list[int] = []
        self._queued: set[int] = set()
        #: The ledger of the oldest life, if it is its only one and not empty: the usual case.
        self._only: Ledger | None = None
        #: Publications and bytes that are settled, over all of them; and those that are not.
        self.publications = 0
        self.held_bytes = 0
        self.unsettled = 0
        self.unsettled_bytes = 0
        #: Publications and bytes that were ever written at the end of a ledger; only grow.
        self.written = 0
        self.written_bytes = 0
        #: Bytes of runs that are in no ledger yet, or in one and wait to be delivered.
        self.pending_bytes = 0
        #: Whether more is unsettled than may be: earlier lives have to give up theirs.
        self.crowded = False
        #: Whether one of them has become empty, or another has begun, since somebody looked.
        self.emptied = False

    def limit(self, limits: Limits) -> None:
        """Go by these limits from the next publication on."""
        self.most = limits.retained_publications
        self.most_bytes = limits.retained_bytes
        self.most_lives = limits.streams_per_publisher
        self.most_unsettled = max(self.most_unsettled, self.most)
        self.most_unsettled_bytes = max(self.most_unsettled_bytes, self.most_bytes)

    def narrow(self, limits: Limits, count: int) -> bool:
        """Go by these limits, dropping at most so many publications; False if more have to go."""
        self.limit(limits)
        self.trim(count)
        if not self.is_overfull:
            return True
        # Until the next call nothing is added to what is too much.
        self.most = max(self.most, self.publications)
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        return False

    def enter(self, incarnation: int, ledger: Ledger) -> None:
        """A ledger that is still empty takes part."""
        self._only = None
        self._lives.setdefault(incarnation >> 1, {})[incarnation] = ledger

    def leave(self, incarnation: int) -> None:
        """A ledger is given up with all that it holds."""
        life = self._lives[incarnation >> 1]
        ledger = life.pop(incarnation)
        if not life:
            del self._lives[incarnation >> 1]
        self.empty(ledger)

    def empty(self, ledger: Ledger) -> None:
        """A ledger gives up all that it holds."""
        self.remove(ledger.kept, ledger.kept_bytes, ledger.unsettled, ledger.unsettled_bytes)
        self.drain()

    def stock(self, incarnation: int) -> None:
        """A ledger that held nothing settled does from now on."""
        self._only = None
        life = incarnation >> 1
        if life not in self._queued:
            self._queued.add(life)
            heappush(self._ages, life)

    def drain(self) -> None:
        """A ledger has nothing settled left."""
        self._only = None
        self.emptied = True

    def room_for(self, incarnation: int) -> tuple[int, int]:
        """Publications and bytes that a ledger may still get back: earlier lives give way to it."""
        kept = [
            ledger
            for life, ledgers in self._lives.items()
            if life >= incarnation >> 1
            for ledger in ledgers.values()
        ]
        held_bytes = sum(ledger.kept_bytes for ledger in kept)
        return self.most - sum(ledger.kept for ledger in kept), self.most_bytes - held_bytes

    def make_room(self, incarnation: int, count: int, size: int) -> bool:
        """Make room in a ledger by dropping earlier lives; False if that is not enough."""
        most, most_bytes = self.room_for(incarnation)
        if count > most or size > most_bytes:
            return False
        while self.publications + count > self.most or self.held_bytes + size > self.most_bytes:
            self._oldest().let_go(1)
        return True

    def add(self, settled: int, settled_bytes: int, unsettled: int, unsettled_bytes: int) -> None:
        """So much is held in addition: drop what is too much now."""
        self.publications += settled
        self.held_bytes += settled_bytes
        self.unsettled += unsettled
        self.unsettled_bytes += unsettled_bytes
        if self.publications > self.most or self.held_bytes > self.most_bytes:
            self.trim()

    def remove(
        self, settled: int, settled_bytes: int, unsettled: int, unsettled_bytes: int
    ) -> None:
        """So much is not held any longer."""
        self.publications -= settled
        self.held_bytes -= settled_bytes
        self.unsettled -= unsettled
        self.unsettled_bytes -= unsettled_bytes

    def settle(self, count: int, size: int) -> None:
        """So much of what was not settled is settled now."""
        self.add(count, size, -count, -size)

    def refuses(self, count: int, size: int) -> bool:
        """Whether so much more would be too much that is not settled.

        Where nothing else waits, a run is taken whatever its size.
        """
        # What is pending may be in a ledger as well, and is not held twice.
        waits = max(self.unsettled_bytes, self.pending_bytes)
        fits = self.unsettled + count <= self.most_unsettled
        if fits and waits + size <= self.most_unsettled_bytes:
            return False
        if not self.unsettled and not waits:
            return False
        self.crowded = True
        return True

    @property
    def relieved(self) -> bool:
        """Whether no more than half of what may be unsettled is."""
        waits = max(self.unsettled_bytes, self.pending_bytes)
        return 2 * self.unsettled <= self.most_unsettled and 2 * waits <= self.most_unsettled_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether more is settled than is retained. A single publication may have any size."""
        return self.publications > self.most or (
            self.held_bytes > self.most_bytes and self.publications > 1
        )

    def trim(self, count: int = MAX_NUMBER) -> None:
        """Drop the oldest publications, at most so many, until the rest may be retained."""
        least = self.publications - count
        while self.publications > least and self.is_overfull:
            ledger = self._oldest() if self._only is None else self._only
            most = self.publications - max(self.most, least)
            ledger.let_go(max(1, min(most, self._surplus(ledger))))

    def _surplus(self, ledger: Ledger) -> int:
        """How many more a ledger of the oldest life holds than the other stream of that life."""
        life = self._lives[self._ages[0]]
        others = [other.kept for other in life.values() if other is not ledger]
        return ledger.kept - max(others, default=0)

    def _oldest(self) -> Ledger:
        # Each life is taken from the heap once for each time that it was put there: a scan over
        # all lives for each publication would let a publisher of many lives hold up its broker.
        while True:
            ledgers = self._lives.get(self._ages[0], {})
            ledger = max(ledgers.values(), key=_kept, default=None)
            if ledger is not None and ledger.kept:
                self._only = ledger if len(ledgers) == 1 else None
                return ledger
            self._queued.discard(heappop(self._ages))
