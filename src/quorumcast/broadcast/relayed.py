"""Relayed channels: brokers of a child cell vouch for what they accepted from a parent cell.

Each broker of the child subscribes to the parent, accepts by the parent's own thresholds, and
vouches to its readers for what it accepted, under the same stream and numbers (positions, where the
parent has a total order). Nothing is decided in the child.

    parent's brokers ──Vote──▶ every broker of the child ──Vote──▶ every reader of the child

Guarantees: what the parent's policy promises to a subscriber, with up to f faulty brokers in each
cell on the way. Two correct subscribers of the parent never accept different contents for one
number (SC1), so correct brokers of the child vouch for one value, and f+1 equal votes have one of
theirs among them. 2f+1 brokers are enough: f+1 of them are correct and reach that number.

Messages: none of its own. An *uplink* (`cell.subscribing.uplink`) is the broker's subscriber in the
parent; the two machines of one process exchange `Attach`, `Follow`, `ParentEnds`, `Relayed` and
`RelayedGap`. Each is an effect of one and an event of the other.

A broker of the child that restarts gets back what the other brokers of the child hold, before its
uplink goes on; what they do not bring comes from the parent (`cell.serving.relays`). It may lose
numbers for good: the parent no longer retained them when it came back. Such a gap is a hole in its
ledger. Other brokers of the child may hold these numbers (`cell.serving.recovering` fills holes as
it fetches what lies before a ledger); subscribers hear of the gap if fewer than f+1 brokers hold
them.

Source: ours; Jehl-Meling §3.2 and §3.3 place a BFT-broker's acceptors on a path of the tree instead
(ADR 0036).
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.broadcast.contract import Carrier, CarrierContext, Vouch
from quorumcast.broadcast.ledger import Ledger, StoredRun
from quorumcast.broadcast.messages import Cursor
from quorumcast.core.ids import DIGEST_SIZE, Channel, Digest, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Event

#: Holes that a ledger remembers; beyond it, everything before the second one is dropped.
MAX_HOLES = 64
#: Numbers in one hole; a ledger begins anew behind a larger one.
MAX_HOLE = 4096

#: What stands in a hole.
_NOTHING = Digest(bytes(DIGEST_SIZE))


class RelayEvent(Effect, Event, frozen=True):
    """Base of what a broker and its uplink tell one another."""


class Attach(RelayEvent, frozen=True):
    """The uplink can reach the parent: where is it to go on with this channel?"""

    channel: Channel


class Follow(RelayEvent, frozen=True):
    """The broker wants a channel from these numbers on, and whole what is not among them."""

    channel: Channel
    cursors: tuple[Cursor, ...] = ()


class Relayed(RelayEvent, frozen=True):
    """The uplink accepted these publications; the stream is that of the child's channel."""

    stream: Stream
    first: int
    digests: bytes
    bodies: Bodies


class RelayedGap(RelayEvent, frozen=True):
    """The parent no longer holds these numbers."""

    stream: Stream
    first: int
    upto: int


class ParentEnds(RelayEvent, frozen=True):
    """The parent's brokers have said where its streams end, before which numbers.

    Only of streams of which something is still to come. What is published from now on comes, too.
    """

    channel: Channel
    ends: tuple[Cursor, ...] = ()


class RelayLedger(Ledger):
    """A ledger with holes: numbers that were lost, between others that are held.

    A hole counts for retention as if its numbers were held, so that it goes when they would.
    """

    __slots__ = ("_holes",)

    def __init__(self, limits: Limits, base: int = 1) -> None:
        super().__init__(limits, base)
        #: Oldest first, with something held before each one; at most MAX_HOLES.
        self._holes: list[range] = []

    @property
    def holes(self) -> tuple[range, ...]:
        """The holes, oldest first."""
        return tuple(self._holes)

    @property
    def whole_from(self) -> int:
        """The number from which on everything is held."""
        return self._holes[-1].stop if self._holes else self.base

    @property
    def room(self) -> int:
        return super().room + self.whole_from - self.base

    def leave_out(self, upto: int) -> None:
        """Go on behind a number: what lies before it from the end of the ledger on is lost."""
        count = upto + 1 - self.next
        if count <= 0:
            return
        start = self.next
        if self._holes and self._holes[-1].stop == start:
            start = self._holes.pop().start  # two gaps in a row are one hole
        if not len(self) or upto + 1 - start > min(MAX_HOLE, self.quota.most):
            self.skip_to(upto + 1)
            return
        self._holes.append(range(start, upto + 1))
        self.extend([_NOTHING] * count, [b""] * count)
        self.quota.written -= count
        self._bound_holes()

    def _bound_holes(self) -> None:
        if len(self._holes) > MAX_HOLES:
            self.let_go(self._holes[0].stop - self.base)

    def fill(self, first: int, digests: Sequence[Digest], bodies: Sequence[bytes]) -> None:
        """Write those of these numbers that lie in holes."""
        run = range(first, first + len(bodies))
        rest: list[range] = []
        for hole in self._holes:
            common = range(max(hole.start, run.start), min(hole.stop, run.stop))
            if not common:
                rest.append(hole)
                continue
            for number in common:
                self.correct(number, digests[number - first], bodies[number - first])
            parts = (range(hole.start, common.start), range(common.stop, hole.stop))
            rest += [part for part in parts if part]
        self._holes = rest
        self._bound_holes()

    def begin_lower(self, number: int) -> None:
        """Begin at an earlier number, while nothing is held: the parent still has it."""
        if not len(self) and self.floor <= number < self.next:
            self._shelf.clear(number)
            self.base = self.next = number

    def begin_anew(self) -> None:
        """Hold nothing, and begin wherever the next run does."""
        self.skip_to(self.next + 1)
        self._shelf.clear(self.floor)
        self.base = self.next = self.floor

    def skip_to(self, number: int) -> None:
        if number > self.next:
            self._holes.clear()
        super().skip_to(number)

    def let_go(self, count: int) -> None:
        super().let_go(count)
        while self._holes and self._holes[0].start <= self.base:
            hole = self._holes.pop(0)
            if hole.stop > self.base:
                super().let_go(hole.stop - self.base)

    # -------------------------------------------------------------- reading

    def behind_hole(self, number: int) -> int:
        return next((hole.stop for hole in self._holes if number in hole), 0)

    def digest(self, number: int) -> Digest | None:
        return None if self.behind_hole(number) else super().digest(number)

    def digests(self, first: int, count: int) -> bytes | None:
        if any(hole.start < first + count and first < hole.stop for hole in self._holes):
            return None
        return super().digests(first, count)

    def read(self, first: int, count: int, max_bytes: int) -> StoredRun | None:
        first = max(first, self.base)
        first = self.behind_hole(first) or first
        stop = min((hole.start for hole in self._holes if hole.start > first), default=self.next)
        return super().read(first, min(count, stop - first), max_bytes)


class RelayCarrier(Carrier):
    """One stream of a parent cell at one broker of its child."""

    __slots__ = ("ledger", "relayed")

    ledger: RelayLedger

    def __init__(self, stream: Stream, context: CarrierContext) -> None:
        super().__init__(stream, context, RelayLedger(context.policy.limits))
        #: Whether the uplink has brought some of it in this life of the broker.
        self.relayed = False

    def take(self, run: Relayed) -> list[Effect]:
        """Vouch for what the uplink accepted."""
        ledger, digests = self.ledger, split_digests(run.digests)
        self.relayed = True
        ledger.begin_lower(run.first)
        ledger.leave_out(run.first - 1)
        ledger.fill(run.first, digests, run.bodies)
        taken = ledger.take(run.first, digests, run.bodies)
        if taken.conflict:
            # More brokers of the parent than its f are faulty, or have forgotten.
            return [Drop(DropReason.CONFLICT, self.stream.publisher)]
        # Other brokers of the child may have brought it before.
        return [Vouch(self.stream, taken.first, taken.digests)] if taken.digests else []

    def sizes(self) -> dict[str, int]:
        return {"ledger": len(self.ledger), "holes": len(self.ledger.holes)}

    @property
    def credit(self) -> int:
        return 0

    @property
    def final_from(self) -> int:
        return self.ledger.whole_from

    def begin_at(self, number: int, history: int = 1) -> None:
        self.ledger.begin_at(number)

    def resume(self, number: int) -> None:
        self.ledger.leave_out(number - 1)

    def recover(self, first: int, digests: list[Digest], bodies: Bodies) -> bool:
        ledger = self.ledger
        if first == ledger.next:
            ledger.extend(digests, bodies)
            return True
        if first + len(digests) != ledger.whole_from:
            return False
        ledger.fill(first, digests, bodies)
        before = ledger.base - first
        return before <= 0 or ledger.prepend(digests[:before], bodies[:before])
