"""What a broker keeps of one stream: digests and bodies of consecutive numbers, bounded.

A ledger holds base … next-1. It is the broker's memory of what it vouches for: a number is written
once, and only a settled history may correct it. Replays, pulls and signed statements read from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from quorumcast.broadcast.quota import Quota
from quorumcast.broadcast.times import BLOCK, Search, Times
from quorumcast.core.errors import ensure
from quorumcast.core.ids import Digest, Millis, NodeId
from quorumcast.core.limits import MAX_NUMBER, MAX_RUN, Limits

#: Ages are told apart to this part of the time that publications are kept.
AGES = 8

Order = tuple[NodeId, ...]


class Taken(msgspec.Struct, frozen=True):
    """What became of a run: where its new part starts, or the number that contradicts us."""

    first: int
    digests: bytes = b""
    conflict: int = 0


class Held(msgspec.Struct, frozen=True):
    """A run read back from the ledger."""

    first: int
    digests: bytes
    bodies: tuple[bytes, ...]
    order: Order = ()


class Ledger:
    """Consecutive publications of one stream, as many of the newest as its quota allows."""

    __slots__ = (
        "_bytes",
        "_entries",
        "_incarnation",
        "_marks",
        "_times",
        "_unsettled_bytes",
        "base",
        "floor",
        "next",
        "quota",
        "settled",
        "settles",
        "start",
        "unrepeated",
    )

    def __init__(self, limits: Limits, base: int = 1) -> None:
        #: What retention counts together with this ledger: its publisher's other lives.
        self.quota = Quota(limits)
        self._incarnation = 0
        self.quota.enter(0, self)
        #: Number → (digest, body, chain it came by); the keys are exactly base … next-1.
        self._entries: dict[int, tuple[Digest, bytes, Order]] = {}
        #: Sum of the sizes of the bodies in _entries, and of those beyond `settled`.
        self._bytes = 0
        self._unsettled_bytes = 0
        #: Noted when somebody asks for a time; a block goes with the last of its numbers.
        self._times = Times()
        #: How far the ledger was at a time: what lies before is at least as old. At most AGES + 1.
        self._marks: deque[tuple[Millis, int]] = deque()
        #: The oldest number still held; grows, except when what was lost is fetched again.
        self.base = base
        #: What lies before was let go of because it is not retained any longer; only grows.
        self.floor = 1
        #: The number that will be written next; only grows.
        self.next = base
        #: Where this ledger began; what lies before is never written on a publisher's word.
        self.start = base
        #: The publisher can no longer repeat what lies before this number.
        self.unrepeated = 0
        #: Brokers have settled together what they hold up to this number; without end where
        #: nothing is settled. Only grows.
        self.settled = MAX_NUMBER
        #: Whether brokers settle together what this ledger holds.
        self.settles = False

    def __len__(self) -> int:
        return len(self._entries)

    def share(self, quota: Quota, incarnation: int) -> None:
        """Count with the other lives of the publisher, before anything is written."""
        ensure(not self._entries, "a ledger joins its quota while it is empty")
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
        return self._bytes - self._unsettled_bytes

    @property
    def unsettled(self) -> int:
        """How many publications are held that are not settled."""
        return len(self._entries) - self.kept

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of contents held that are not settled."""
        return self._unsettled_bytes

    @property
    def exhausted(self) -> bool:
        """Whether retention has let go of everything that was ever written."""
        return self.begun and not self._entries and self.floor >= self.next

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

    def digest(self, number: int) -> Digest | None:
        """The digest of a number, if it is still held."""
        entry = self._entries.get(number)
        return None if entry is None else entry[0]

    def take(
        self, first: int, digests: Sequence[Digest], bodies: Sequence[bytes], order: Order = ()
    ) -> Taken:
        """Write the part of a run that is new, unless the run contradicts what is held.

        The run may overlap what is held; it must not start beyond `next`.
        """
        ensure(first <= self.next, "a ledger has no holes")
        for number, digest in enumerate(digests, first):
            held = self._entries.get(number)
            if held is not None and held[0] != digest:
                return Taken(number, conflict=number)
        new = max(first, self.next)
        offset = new - first
        for number in range(first, min(new, first + len(digests))):
            self._reroute(number, order)
        for digest, body in zip(digests[offset:], bodies[offset:], strict=True):
            self.append(digest, body, order)
        return Taken(new, b"".join(digests[offset:]))

    def append(self, digest: Digest, body: bytes, order: Order = ()) -> None:
        """Write the next number."""
        quota, number = self.quota, self.next
        size = len(body)
        self._bytes += size
        self.next = number + 1
        if number > self.settled:
            self._entries[number] = (digest, body, order)
            self._unsettled_bytes += size
            quota.unsettled += 1
            quota.unsettled_bytes += size
            return
        if not self._entries:
            quota.stock(self._incarnation)
        self._entries[number] = (digest, body, order)
        quota.publications += 1
        quota.held_bytes += size
        if quota.publications > quota.most or quota.held_bytes > quota.most_bytes:
            quota.trim()

    def prepend(self, digests: Sequence[Digest], bodies: Sequence[bytes]) -> bool:
        """Write what lies right before `base`; False if that is more than is retained."""
        size = sum(map(len, bodies))
        quota, life = self.quota, self._incarnation
        if len(bodies) >= self.base or not quota.make_room(life, len(bodies), size):
            return False
        quota.stock(life)
        self.settled = max(self.settled, self.base - 1)
        self.base -= len(bodies)
        for number, (digest, body) in enumerate(zip(digests, bodies, strict=True), self.base):
            self._entries[number] = (digest, body, ())
            self._times.changed(number)
        self._bytes += size
        quota.publications += len(bodies)
        quota.held_bytes += size
        return True

    def wait_for_settling(self) -> None:
        """Count nothing as settled before brokers have settled it."""
        ensure(not self._entries, "a ledger waits from the beginning")
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
        size = sum([len(self._entries[number][1]) for number in numbers])
        self._unsettled_bytes -= size
        quota.settle(len(numbers), size)

    def cut(self, upto: int) -> None:
        """Give up what lies beyond a number; only other brokers can still supply it."""
        end = max(self.base, upto + 1)
        while self.next > end:
            self.next -= 1
            self._drop(self.next)
            self._times.changed(self.next)
        self.unrepeated = MAX_NUMBER

    def expire(self, now: Millis, retained_ms: int, below: int) -> None:
        """Let go of what has been here for longer than that, and lies below a number.

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
        for _ in range(self.base, min(old, below)):
            self.let_go()

    def correct(self, number: int, digest: Digest, body: bytes) -> None:
        """Replace what a lying publisher told us by what the cell has settled on."""
        held = self._entries.get(number)
        if held is not None:
            self._entries[number] = (digest, body, ())
            self._times.changed(number)
            more = len(body) - len(held[1])
            self._bytes += more
            if number <= self.settled:
                self.quota.held_bytes += more
            else:
                self._unsettled_bytes += more
                self.quota.unsettled_bytes += more

    def begin_at(self, number: int) -> None:
        """Begin at a number, before anything is written: an earlier life let go of the rest."""
        ensure(not self.begun, "a ledger begins once")
        self.start = self.base = self.next = self.floor = number

    def join(self, base: int, fresh: int, *, trusted: bool) -> bool:
        """Take a publisher's word for where to go on; True if that leaves numbers out.

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
            self._entries.clear()
            self._times.clear()
            self._bytes = self._unsettled_bytes = 0
            self.base = self.next = number

    def since(self, search: Search, *, labelled: bool) -> int:
        """The first held number stamped at or after a time, or one before it; `next` if none."""
        return self._times.first(
            search, self.base, self.next, lambda number: self._entries[number][1], labelled
        )

    def digests(self, first: int, count: int) -> bytes | None:
        """The digests of a range, if all of it is held."""
        if first < self.base or first + count > self.next:
            return None
        return b"".join(self._entries[number][0] for number in range(first, first + count))

    def read(self, first: int, count: int, max_bytes: int) -> Held | None:
        """What is held from a number on: same chain, at most so many publications and bytes."""
        first = max(first, self.base)
        stop = min(first + min(count, MAX_RUN), self.next)
        if first >= stop:
            return None
        order = self._entries[first][2]
        digests: list[Digest] = []
        bodies: list[bytes] = []
        size = 0
        for number in range(first, stop):
            digest, body, way = self._entries[number]
            size += len(body)
            if bodies and (size > max_bytes or way != order):
                break
            digests.append(digest)
            bodies.append(body)
        return Held(first, b"".join(digests), tuple(bodies), order)

    def _reroute(self, number: int, order: Order) -> None:
        held = self._entries.get(number)
        if held is not None and held[2] != order:
            self._entries[number] = (held[0], held[1], order)

    def let_go(self) -> None:
        """Let go of the oldest publication."""
        number = self.base
        self._drop(number)
        self.base = number = number + 1
        if number > self.settled or not self._entries:
            self.quota.drain()
        if number % BLOCK == 0:
            self._times.changed(number - 1)
        if number > self.floor:
            self.floor = number

    def _drop(self, number: int) -> None:
        size = len(self._entries.pop(number)[1])
        self._bytes -= size
        quota = self.quota
        if number <= self.settled:
            quota.publications -= 1
            quota.held_bytes -= size
        else:
            self._unsettled_bytes -= size
            quota.unsettled -= 1
            quota.unsettled_bytes -= size
