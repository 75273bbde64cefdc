"""The total order of one channel at one broker: a stream by the cell itself, numbered by position.

To subscribers it is a stream like any other: brokers vote for runs of it, f+1 equal votes accept
(crash: one), and replays, pulls, signed segments and receipts work as everywhere. Correct brokers
cannot differ about a position, so a broker that signs otherwise is convicted by f+1 others.

Retention drops whole runs: a channel keeps at least as much as its limits say, and less than a run
more. With a disk, memory holds only the newest positions (`ordering.past`). After a state transfer
the log continues behind the state, and what it held before stays on disk as an *island*; filling in
what lies between joins it again, which is checked by the chain and costs nothing.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import msgspec

from quorumcast.broadcast.contract import Carrier, CarrierContext, Vouch
from quorumcast.core.envelope import stamp_of
from quorumcast.core.ids import DIGEST_SIZE, Channel, Millis, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import (
    Bodies,
    Effect,
    Forget,
    Persist,
    Record,
)
from quorumcast.ordering.messages import Offer, Past
from quorumcast.ordering.offers import Stored, stored_under
from quorumcast.ordering.past import PastLedger, Peak, Placed
from quorumcast.ordering.state import Extent, chained, extent_root

#: Runs that are dropped at once; the rest follows with the next ticks.
DROPPED_AT_ONCE = 256
#: Runs and bytes that may be on their way to disk at a time, of those that were fetched.
MAX_ARRIVING = 128
ARRIVING_BYTES = 16 * 1024 * 1024
#: Islands that are remembered; older ones are dropped.
MAX_ISLANDS = 16
#: Seams that are remembered; beyond it the two oldest become one, and a little more is retained.
MAX_SEAMS = 16


class Island(msgspec.Struct, frozen=True, array_like=True):
    """Positions on disk that were held before a state transfer, and what stands for all of them."""

    base: int
    next: int
    chain: bytes


class Seam(msgspec.Struct, frozen=True, array_like=True):
    """Where an island was joined again: the totals of runs before it lack what was fetched."""

    position: int
    #: Bytes that were fetched.
    size: int


class Held(Record, frozen=True, tag=True):
    """What of a channel the disk holds without a hole: from the first run at `base` or later on."""

    archived: ClassVar[bool] = True

    channel: Channel
    base: int
    #: Whether what lies before is still being fetched.
    filling: bool
    #: Oldest first.
    islands: tuple[Island, ...] = ()
    peaks: tuple[Peak, ...] = ()
    seams: tuple[Seam, ...] = ()

    @property
    def owner(self) -> str:
        return self.channel


class OrderedLog(Carrier):
    """The broker side of a channel with total order: what was decided, by position."""

    __slots__ = (
        "_arriving",
        "_chain",
        "_end",
        "_islands",
        "_memory",
        "_newest",
        "_offers",
        "_persisted",
        "_restored",
        "_restored_at",
        "_seams",
        "_stamp",
        "filling",
        "ledger",
        "log_id",
        "spare",
    )

    #: Where the last stable checkpoint ends. A late broker executes what was ordered since, and
    #: needs the contents, whatever their age.
    spare: int
    ledger: PastLedger

    def __init__(self, stream: Stream, context: CarrierContext) -> None:
        super().__init__(stream, context, PastLedger(stream.channel))
        #: The runs in memory, in order, and the offers that they are, by position.
        self._memory: deque[Placed] = deque()
        self._offers: dict[int, tuple[Offer, Bodies]] = {}
        #: The same runs by name. A line that the state forgot may begin again: the newest counts.
        self._newest: dict[tuple[Stream, int], Placed] = {}
        #: Runs that were fetched and are on their way to disk, newest first.
        self._arriving: deque[Placed] = deque()
        #: Oldest first.
        self._islands: tuple[Island, ...] = ()
        #: Oldest first; at most MAX_SEAMS.
        self._seams: tuple[Seam, ...] = ()
        #: Stands for everything before `ledger.next`.
        self._chain = b""
        #: Bytes of all contents, and the largest time stamp.
        self._end = 0
        self._stamp = -1
        #: The disk has everything before this position.
        self._persisted = 1
        #: Positions before this one were written before the restart, by a clock that may have been
        #: another: their ages count from the first time that they are looked at.
        self._restored = 1
        self._restored_at: Millis | None = None
        #: Whether what lies before the oldest position is being fetched.
        self.filling = False
        #: b"" while there are no positions.
        self.log_id = b""
        self.spare = 1

    # -------------------------------------------------------------------- writing

    def append(
        self, extent: Extent, offer: Offer, bodies: Bodies, now: Millis, edition: int = 0
    ) -> list[Effect]:
        """Write the next positions, vouch for them, and drop what is no longer retained."""
        digests = offer.digests
        size = sum(map(len, bodies))
        effects = self.skip_to(extent.position, extent.chain)
        self._end += size
        self._stamp = max(self._stamp, _latest(bodies))
        placed = Placed(
            self.stream.channel,
            extent.position,
            extent.stream,
            extent.first,
            digests,
            extent.chain,
            size,
            self._end,
            self._stamp,
            now,
            edition,
        )
        self.ledger.extend(split_digests(digests), bodies)
        self._chain = chained(extent.chain, extent_root(digests))
        self._memory.append(placed)
        self._offers[placed.position] = (offer, bodies)
        self._newest[extent.stream, extent.first] = placed
        if self.ledger.archive is not None:
            effects.append(Persist(placed, lazy=True))
        return [*effects, Vouch(self.stream, extent.position, digests), *self.trim(now)]

    def persisted(self, placed: Placed) -> list[Effect]:
        """The disk has a run: memory need not hold it any longer."""
        if self._arriving and self._arriving[0] == placed:
            self._arriving.popleft()
            if placed.next != self.ledger.base:
                return []  # retention was faster
            self.ledger.base = placed.position
            return self._join()
        self._persisted = max(self._persisted, placed.next)
        self._evict()
        return []

    def _evict(self) -> None:
        memory, cached = self._memory, self._limits.cached_bytes
        while memory and memory[0].next <= self._persisted and self._end - memory[0].end >= cached:
            gone = self._pop_oldest()
            self.ledger.evict(gone.next - gone.position)

    def _pop_oldest(self) -> Placed:
        """Remove the oldest run from memory."""
        gone = self._memory.popleft()
        del self._offers[gone.position]
        if self._newest[gone.stream, gone.first] is gone:
            del self._newest[gone.stream, gone.first]
        return gone

    def has_in_memory(self, stream: Stream, first: int, edition: int) -> bool:
        """Whether an offer was ordered lately."""
        newest = self._newest.get((stream, first))
        return newest is not None and newest.edition == edition

    def find(self, stream: Stream, first: int) -> tuple[Offer, Bodies] | None:
        """An offer that has been ordered and is retained, or that the disk has from before that."""
        newest = self._newest.get((stream, first))
        if newest is not None:
            return self._offers[newest.position]
        archive = self.ledger.archive
        stored = None if archive is None else archive.get(Stored, str(stream), first)
        return None if stored is None else (stored.offer, stored.bodies)

    def contents(self, placed: Placed) -> tuple[Offer, Bodies] | None:
        """The offer that a run is."""
        found = self._offers.get(placed.position)
        if found is None and (stored := self.ledger.contents(placed)) is not None:
            return stored.offer, stored.bodies
        return found

    def free_edition(self, stream: Stream, first: int, position: int) -> int:
        """The edition for an offer that replaces nothing on disk, and may get this position.

        A line that the state forgot may begin again while its earlier runs are retained.
        """
        archive, edition = self.ledger.archive, 0
        if stream.line is None or archive is None:
            return edition
        newest = self._newest.get((stream, first))
        unwritten = (*self._arriving, *([] if newest is None else [newest]))
        used = {run.edition for run in unwritten if (run.stream, run.first) == (stream, first)}
        while edition in used or archive.get(Stored, stored_under(stream, edition), first):
            edition = max(edition + 1, position)
        return edition

    # ------------------------------------------------------------------ retention

    @property
    def _limits(self) -> Limits:
        entry = self._view.channel(self.stream.channel)
        return (self._policy if entry is None else entry.policy).limits

    @property
    def oldest(self) -> Placed | None:
        """The oldest run that is held."""
        if self._memory and self._memory[0].position == self.ledger.base:
            return self._memory[0]
        return self.ledger.placed(self.ledger.base)

    def _after_damage(self) -> Placed | None:
        """The oldest run that can be read, if the disk has damaged those before it."""
        ledger = self.ledger
        if ledger.archive is None or ledger.base >= ledger.warm:
            return None
        found = ledger.archive.first(Placed, self.stream.channel, ledger.base)
        return found if found is not None and found.next <= ledger.next else None

    def trim(self, now: Millis) -> list[Effect]:
        """Drop what is not retained any longer."""
        effects: list[Effect] = []
        for _ in range(DROPPED_AT_ONCE):
            gone = self.oldest or self._after_damage()
            if gone is None or not self._is_too_much(gone, now):
                break
            if self._memory and self._memory[0].position == gone.position:
                self._pop_oldest()
            self.ledger.give_up(gone.next)
            effects.append(_forget_contents(gone))
        if effects:
            since = self._islands[-1].next if self._islands else 0
            # Contents go last: a crash in between must not leave positions without them.
            effects.insert(0, Forget(Placed, self.stream.channel, self.ledger.base, since))
            if self.filling:  # what lies before would not be retained, either
                self._arriving.clear()
                effects = self.stop_filling() + effects
        return effects

    def clear_islands(self, now: Millis) -> list[Effect]:
        """Drop islands that will not be joined again, and what of them would not be retained."""
        archive, channel = self.ledger.archive, self.stream.channel
        effects: list[Effect] = []
        while self._islands and archive is not None:
            island = self._islands[0]
            gone = archive.first(Placed, channel, island.base)
            if gone is None or gone.position >= island.next:
                self._islands = self._islands[1:]
                continue
            if len(effects) >= DROPPED_AT_ONCE or (
                self.filling and not self._is_too_much(gone, now)
            ):
                break
            effects.append(Forget(Placed, channel, gone.next))
            effects.append(_forget_contents(gone))
            self._islands = (msgspec.structs.replace(island, base=gone.next), *self._islands[1:])
        return [*self._note(), *effects] if effects else []

    def _bytes_behind(self, run: Placed) -> int:
        """Bytes of all contents after a run."""
        fetched = sum(seam.size for seam in self._seams if run.position < seam.position)
        return self._end - run.end + fetched

    def _is_too_much(self, oldest: Placed, now: Millis) -> bool:
        """Whether the rest is all that is to be retained."""
        limits = self._limits
        left, left_bytes = self.ledger.next - oldest.next, self._bytes_behind(oldest)
        if left >= limits.retained_publications:
            return True
        if left and left_bytes >= limits.retained_bytes:
            return True
        if oldest.next > self.spare:
            return False
        if self._restored_at is None:
            self._restored_at = now
        at = self._restored_at if oldest.position < self._restored else oldest.at
        return now - at >= limits.retained_ms

    # --------------------------------------------------------------- state transfer

    def begin_after(self, position: int, chain: bytes) -> list[Effect]:
        """Begin at a position: a deleted channel of the same name had those before it."""
        return self.skip_to(position, chain, fill=False) if self.ledger.next == 1 else []

    def skip_to(self, position: int, chain: bytes, *, fill: bool = True) -> list[Effect]:
        """Go on at a later position: what lies before has been ordered without this broker."""
        ledger = self.ledger
        if position <= ledger.next:
            return []
        # Without filling, retention has begun to remove what older islands hold.
        islands = self._islands if self.filling else ()
        if ledger.archive is not None and ledger.base < ledger.next:
            islands = (*islands, Island(ledger.base, ledger.next, self._chain))
        self._islands = islands[-MAX_ISLANDS:]
        ledger.skip_to(position)
        self._chain = chain
        self._memory.clear()
        self._offers.clear()
        self._newest.clear()
        self._arriving.clear()
        self.filling = fill
        return self._note()

    def restore(self, position: int, chain: bytes) -> list[Effect]:
        """Take what the disk holds before a position; the rest is to be fetched."""
        archive, channel = self.ledger.archive, self.stream.channel
        if archive is None:
            return self.skip_to(position, chain)
        self._restored = position
        held = archive.get(Held, channel, 0) or Held(channel, 1, filling=False)
        first = archive.first(Placed, channel, held.base)
        last = archive.last(Placed, channel, position)
        self._islands, self.filling = held.islands, held.filling
        self._seams, self.ledger.peaks = held.seams, held.peaks
        if first is None or last is None or last.position < first.position:
            return self.skip_to(position, chain, fill=held.filling or held.base != position)
        known = chained(last.chain, extent_root(last.digests))
        self.ledger.restore(first.position, last.next)
        self._chain, self._persisted = known, last.next
        self._end, self._stamp = last.end, last.stamp
        if (last.next, known) != (position, chain):
            return self.skip_to(position, chain)
        # It may have stopped when all that was missing was here.
        return self._join() if self.filling else []

    def _note(self) -> list[Effect]:
        if self.ledger.archive is None:
            return []
        below = self._arriving[-1].position if self._arriving else self.ledger.base
        lowest = min([below, *(island.base for island in self._islands)])
        self.ledger.peaks = tuple(peak for peak in self.ledger.peaks if peak.last >= lowest)
        self._seams = tuple(seam for seam in self._seams if seam.position > lowest)
        channel, peaks = self.stream.channel, self.ledger.peaks
        held = Held(channel, below, self.filling, self._islands, peaks, self._seams)
        return [Persist(held, lazy=True)]

    @property
    def _lowest_run(self) -> Placed | None:
        """The oldest run that is held or on its way to disk."""
        return self._arriving[-1] if self._arriving else self.oldest

    @property
    def lowest(self) -> tuple[int, bytes]:
        """The position before which something is lacking, and what stands for all of that."""
        oldest = self._lowest_run
        if oldest is None:
            return self.ledger.next, self._chain
        return oldest.position, oldest.chain

    @property
    def has_room(self) -> bool:
        """Whether more of the past would be retained."""
        limits = self._limits
        oldest = self._lowest_run
        if oldest is None:
            return self.ledger.next > 1
        held = self.ledger.next - oldest.position
        size = self._bytes_behind(oldest) + oldest.size
        roomy = held < limits.retained_publications and size < limits.retained_bytes
        if self._arriving:
            arriving = self._arriving[0].end - oldest.end + oldest.size
            roomy &= len(self._arriving) < MAX_ARRIVING and arriving < ARRIVING_BYTES
        return oldest.position > 1 and roomy

    @property
    def arriving(self) -> bool:
        """Whether runs that were fetched are on their way to disk."""
        return bool(self._arriving)

    def is_next(self, past: Past) -> bool:
        """Whether a run ends where something is lacking.

        Nothing is, once an island follows: it is joined when the disk has what lies behind it.
        """
        lowest = self.lowest[0]
        at_island = bool(self._islands) and self._islands[-1].next >= lowest
        return not at_island and past.position + len(past.digests) // DIGEST_SIZE == lowest

    def run_before(self, position: int) -> Placed | None:
        """The run that ends before a position."""
        if position <= self.ledger.warm:
            found = self.ledger.placed(position - 1)
        else:
            found = next((run for run in reversed(self._memory) if run.next == position), None)
        return found if found is not None and found.next == position else None

    def prepend(self, past: Past, bodies: Bodies, now: Millis) -> list[Effect] | None:
        """Write the run right before the oldest one; None if it is another than was ordered there.

        With a disk it is held once the disk has it.
        """
        if chained(past.chain, extent_root(past.digests)) != self.lowest[1]:
            return None
        after, latest = self._lowest_run, _latest(bodies)
        stamp = latest if after is None else min(latest, after.stamp)
        self._stamp = max(self._stamp, stamp)
        edition = self.free_edition(past.stream, past.first, past.position)
        placed = Placed(
            self.stream.channel,
            past.position,
            past.stream,
            past.first,
            past.digests,
            past.chain,
            sum(map(len, bodies)),
            self._end if after is None else after.end - after.size,
            stamp,
            now,
            edition,
        )
        if self.ledger.archive is None:
            self.ledger.prepend(split_digests(past.digests), bodies)
            self._memory.appendleft(placed)
            self._offers[placed.position] = (past.offer, bodies)
            self._newest.setdefault((past.stream, past.first), placed)
            return []
        self._arriving.append(placed)
        if latest > stamp:
            self.ledger.note_later(placed.position, placed.next - 1, latest)
        stored = Stored(past.offer, bodies, edition)
        return [Persist(stored, lazy=True), Persist(placed, lazy=True), *self._note()]

    def _join(self) -> list[Effect]:
        """Take what was held before, once everything behind it is here again."""
        effects: list[Effect] = []
        while self._islands and not self._arriving:
            *others, island = self._islands
            position, chain = self.lowest
            if island.next < position:
                break
            self._islands = tuple(others)
            if (island.next, island.chain) == (position, chain):
                oldest = self.oldest
                stamp = self._stamp if oldest is None else oldest.stamp
                self.ledger.base = island.base
                self._note_seam(
                    island.next, self._end if oldest is None else oldest.end - oldest.size
                )
                newest = self.ledger.note_joined(island.base, island.next, stamp)
                self._stamp = max(self._stamp, newest)
            else:
                end = min(island.next, position)  # what lies behind was fetched
                effects.append(Forget(Placed, self.stream.channel, end, island.base))
            effects += self._note()
        return effects

    def _note_seam(self, position: int, total: int) -> None:
        """Note how much more lies behind an island that ends here than its totals say.

        `total` is that of everything before this position, by the totals of the runs behind it.
        """
        before = self.run_before(position)
        if before is None or before.end <= total:
            return
        seams = (*self._seams, Seam(position, before.end - total))
        self._seams = tuple(sorted(seams, key=lambda seam: seam.position))
        if len(self._seams) > MAX_SEAMS:
            oldest, second, *others = self._seams
            self._seams = (Seam(oldest.position, oldest.size + second.size), *others)

    def stop_filling(self) -> list[Effect]:
        """What lies before would not be retained, or is here."""
        self.filling = False
        return self._note()

    # ------------------------------------------------- what a broker asks of a carrier

    @property
    def settled(self) -> int:
        return self.upto

    @property
    def credit(self) -> int:
        return 0

    def sizes(self) -> dict[str, int]:
        return {
            "positions": len(self.ledger),
            "runs_in_memory": len(self._memory),
            "arriving": len(self._arriving),
            "islands": len(self._islands),
            "seams": len(self._seams),
            "peaks": len(self.ledger.peaks),
        }


def _forget_contents(gone: Placed) -> Forget:
    """Remove the offer of a run, and what its publisher offered before it."""
    owner = stored_under(gone.stream, gone.edition)
    # Numbers of a line that began again may lie before those of its earlier runs.
    since = 0 if gone.stream.line is None else gone.first
    return Forget(Stored, owner, gone.first + 1, since)


def _latest(bodies: Bodies) -> int:
    """The largest time stamp of these contents; -1 if they have none."""
    return max((stamp_of(body, True) for body in bodies), default=-1)
