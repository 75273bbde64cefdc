"""Acceptance by content: a subscriber that wants some rows only, and wants all of those.

Each broker evaluates the subscriber's predicate and votes for what came out (`matching.cut`): that
nothing matches, the whole publication, or a cut. To a subscriber these results are a stream with
the numbers of the original, and votes on them are counted as votes on publications are. As many
equal votes as it takes to accept include a correct broker's, so what is accepted is genuine *and
complete*: f brokers can neither add a row nor leave one out.

Votes are bound to the predicate by its id. A subscriber changes its predicate at the number whose
turn it is, and brokers vote again from there.

Histories name publications, not results. A number that only a history decides is pulled whole, and
the subscriber evaluates it itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from quorumcast.broadcast.acceptance import MAX_PENDING_BYTES, Acceptor, Rule
from quorumcast.broadcast.application import Deliver, Passed
from quorumcast.broadcast.vote_ranges import VoteRange, part_of
from quorumcast.core.cuts import digest_of_cut, is_result, looks_cut, publication_of
from quorumcast.core.ids import DIGEST_SIZE, NOTHING, Digest, NodeId, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Suspect, Suspicion
from quorumcast.crypto.digest import Hasher
from quorumcast.matching.filter import Filter
from quorumcast.matching.selection import OpenedRun


class FilteredAcceptor(Acceptor):
    """A subscriber's view of what its predicates make of one stream."""

    __slots__ = ("_labelled", "_named", "filter")

    def __init__(
        self,
        stream: Stream,
        first: int,
        rule: Rule,
        hash_: Hasher,
        limits: Limits,
        *,
        filter_: Filter,
        labelled: bool = False,
        may_split: int | None = None,
    ) -> None:
        super().__init__(stream, first, rule, hash_, limits, may_split=may_split)
        self.filter = filter_
        #: Whether publications carry a label (`core.labels`).
        self._labelled = labelled
        #: Publications that a history named and votes had not decided, until their turn is over.
        self._named: dict[int, Digest] = {}

    @property
    def where(self) -> bytes:
        return self.filter.id

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "settled_whole": len(self._named)}

    # ------------------------------------------------------------ histories

    def settle(self, first: int, digests: bytes) -> list[int]:
        late = max(0, self.next - first)
        first, digests = first + late, digests[late * DIGEST_SIZE :]
        missed: list[int] = []
        for span in self._ranges.region(first, len(digests) // DIGEST_SIZE, create=True):
            if span.decided is not None:
                continue
            for one in self._ranges.split(span, list(range(1, span.count))):
                self._named[one.first] = Digest(part_of(one, first, digests))
                missed.append(one.first)
        return missed

    def named(self) -> list[tuple[int, bytes]]:
        return [(number, digest) for number, digest in self._named.items() if number >= self.next]

    def undecided(self, end: int) -> int:
        named = min((number for number, _ in self.named()), default=end)
        return max(0, min(self.next + super().undecided(end), named) - self.next)

    def pulled_whole(self, number: int) -> bool:
        span = self._ranges.get(number)
        return number in self._named and span is not None and span.decided is None

    def lacking(self, limit: int) -> list[int]:
        found = super().lacking(limit)
        if found or not self._named:
            return found
        number = self.next
        while number < self.next + limit and (span := self._ranges.get(number)) is not None:
            if self.pulled_whole(number):
                found.append(number)
            elif span.decided is None:
                break
            number += span.count
        return found

    def contents(
        self, broker: NodeId, first: int, digests: bytes, bodies: tuple[bytes, ...]
    ) -> list[Effect]:
        """Evaluate publications that a history named."""
        if len(digests) != len(bodies) * DIGEST_SIZE:
            return [Drop(DropReason.BAD_RUN, broker)]
        effects: list[Effect] = []
        for number, (digest, body) in enumerate(
            zip(split_digests(digests), bodies, strict=True), first
        ):
            span = self._ranges.get(number)
            if span is None or not self.pulled_whole(number) or self._named[number] != digest:
                continue
            if self._hash(body) != digest:
                blame = Suspect(broker, Suspicion.BAD_BODY, self.stream, number)
                return [*effects, Drop(DropReason.BAD_BODY, broker), blame]
            if self._pending_bytes + len(body) > MAX_PENDING_BYTES and number != self.next:
                return [*effects, Drop(DropReason.OVER_LIMIT, broker)]
            self._evaluate(span, digest, body)
        return effects

    def _evaluate(self, span: VoteRange, digest: Digest, body: bytes) -> None:
        opened = OpenedRun(self.filter.schema, digest, (body,), labelled=self._labelled)
        found = opened.select(self.filter)
        span.decided, span.by_history = found.votes, True
        if found.places:
            before = span.size
            span.bodies[found.votes] = (found.body(0),)
            self._pending_bytes += span.size - before

    # ------------------------------------------------------------- contents

    def _held(self, span: VoteRange) -> Bodies | None:
        held = super()._held(span)
        if held is None and span.decided == NOTHING * span.count:
            return (b"",) * span.count
        return held

    def _genuine(self, body: bytes, digest: Digest) -> bool:
        return is_result(body, digest) or (digest != NOTHING and super()._genuine(body, digest))

    # ------------------------------------------------------------- delivery

    def _hand_out(
        self,
        span: VoteRange,
        digests: bytes,
        bodies: Bodies,
        votes: tuple[NodeId, ...],
        dissent: tuple[NodeId, ...],
    ) -> list[Effect]:
        effects: list[Effect] = []
        values = split_digests(digests)
        self._accepted.update(zip(range(span.first, span.first + span.count), values, strict=True))
        passed = span.first
        for number, (value, body) in enumerate(zip(values, bodies, strict=True), span.first):
            self._named.pop(number, None)
            if value == NOTHING:
                continue
            if passed < number:
                effects.append(Passed(self.stream, passed, number - 1))
            passed = number + 1
            found = Deliver(self.stream, number, value, body, votes, dissent, span.by_history)
            if looks_cut(body) and digest_of_cut(body) == value:
                digest, where = publication_of(body), self.filter.id
                found = replace(found, digest=digest, cut=bytes(value), where=where)
            effects.append(found)
        if passed < span.first + span.count:
            effects.append(Passed(self.stream, passed, span.first + span.count - 1))
        return effects

    def _charge(self, said: Digest) -> Suspicion:
        return Suspicion.OMITS if said == NOTHING else Suspicion.DISSENT

    def skip_to(self, number: int) -> None:
        super().skip_to(number)
        for gone in [n for n in self._named if n < number]:
            del self._named[gone]
