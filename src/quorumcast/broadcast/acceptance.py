"""Acceptance: how a subscriber decides that a publication is genuine and that its turn has come.

One acceptor per stream counts the brokers' votes, keeps bodies whose hash matches, and hands out
publications in order, none twice. A number is *decided* by enough equal votes, or by a history,
which overrules nothing: it can only name what votes could have decided too. Contents are taken from
whichever broker sends them first with the right hash; a decided number whose body does not come is
pulled from a broker that voted for it.

Votes are counted per range of consecutive numbers (`vote_ranges`), normally a run. The simple
reference in `tests/broadcast/plain_acceptance.py` counts per number; the two must never differ.

Thresholds: `core.quorum.accept_votes`; on a chain all of its last f+1 brokers, or 2f+1 of those
that chains are drawn from, even if the run reached them by different chains.
Source: Freeman §3 (algorithms 3, 6, 9). Ours: votes without bodies, pulls, ranges.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.chain import last_of_chain
from quorumcast.broadcast.vote_ranges import Value, VoteRange, VoteRanges, part_of
from quorumcast.core.ids import DIGEST_SIZE, Digest, Lane, NodeId, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Suspect, Suspicion
from quorumcast.core.quorum import Broadcast, Protection, Quorums, accept_votes
from quorumcast.core.tally import Ballot, Tally
from quorumcast.crypto.digest import Hasher
from quorumcast.manifest.policy import Policy

#: Whether the votes so far decide for a value.
Rule = Callable[[Tally[Value], Value], bool]

#: Bytes of bodies kept for numbers that are not decided or not due yet.
MAX_PENDING_BYTES = 64 * 1024 * 1024


def rule_for(
    quorums: Quorums,
    protection: Protection,
    broadcast: Broadcast,
    brokers: tuple[NodeId, ...] = (),
) -> Rule:
    """When a subscriber of such a channel accepts."""
    if broadcast is Broadcast.CHAIN:
        pool, enough = brokers[: quorums.chain_pool], quorums.alike_over_chains
        return lambda tally, value: (
            _all_voted(tally, value, last_of_chain(quorums, value[1]))
            or (bool(value[1]) and _voted_alike(tally, value, pool) >= enough)
        )
    threshold = accept_votes(quorums, protection, broadcast)
    return lambda tally, value: tally.count(value) >= threshold


def rules_for(quorums: Quorums, policy: Policy, brokers: tuple[NodeId, ...]) -> dict[Lane, Rule]:
    """When a number of either lane is accepted."""
    return {
        Lane.DATA: rule_for(quorums, policy.protection, policy.broadcast, brokers),
        Lane.HISTORY: rule_for(quorums, Protection.BYZANTINE, Broadcast.BRACHA),
    }


def _all_voted(tally: Tally[Value], value: Value, brokers: tuple[NodeId, ...]) -> bool:
    return bool(brokers) and all(tally.vote_of(broker) == value for broker in brokers)


def _voted_alike(tally: Tally[Value], value: Value, brokers: tuple[NodeId, ...]) -> int:
    """How many of these voted for the same contents, by any chain.

    When a publisher changes its chain, a run may have reached each broker by a different one, so
    that no chain's last brokers all vote for that chain.
    """
    votes = tally.votes()
    return sum(broker in votes and votes[broker][0] == value[0] for broker in brokers)


class Acceptor:
    """A subscriber's view of one stream."""

    __slots__ = (
        "_accepted",
        "_dissenters",
        "_hash",
        "_keep",
        "_liars",
        "_pending_bytes",
        "_ranges",
        "_rule",
        "_window",
        "is_split",
        "last_vote",
        "next",
        "refused",
        "start",
        "stream",
    )

    def __init__(
        self,
        stream: Stream,
        first: int,
        rule: Rule,
        hash_: Hasher,
        limits: Limits,
        *,
        may_split: int | None = None,
    ) -> None:
        self.stream = stream
        #: So many brokers may lie (f), on a channel whose publisher can make correct ones differ.
        self._liars = may_split
        #: Brokers that voted for something else than what was accepted, until they are more than f:
        #: then one of them is correct, and forwarded what its publisher sent to it.
        self._dissenters: dict[NodeId, None] = {}
        #: Whether votes show in this way that the publisher sent brokers different contents.
        self.is_split = False
        #: The number whose turn it is; everything from `start` to below it was delivered once.
        self.next = first
        self.start = first
        self._rule = rule
        self._hash = hash_
        self._window = limits.vote_window
        self._keep = limits.segment * limits.kept_segments
        #: Votes on the numbers in [next, next + window), and what histories name beyond.
        self._ranges = VoteRanges()
        #: Bytes of bodies in the ranges.
        self._pending_bytes = 0
        #: Digests delivered lately: to recognise dissent, and for receipts.
        # Ordered: finding the oldest key of a dict that loses its front all the time takes a walk.
        self._accepted: OrderedDict[int, Digest] = OrderedDict()
        #: The highest number whose body came when there was no room for it.
        self.refused = 0
        #: The highest number that each broker voted on.
        self.last_vote: dict[NodeId, int] = {}

    def accepted(self, number: int) -> Digest | None:
        """The digest delivered at a number, if it is remembered."""
        return self._accepted.get(number)

    def accepted_run(self, first: int, count: int) -> bytes | None:
        """The digests delivered in a range, if all are remembered."""
        try:
            return b"".join([self._accepted[number] for number in range(first, first + count)])
        except KeyError:
            return None

    @property
    def stuck(self) -> bool:
        """Whether something is known that is not delivered yet."""
        return bool(self._ranges)

    @property
    def complete(self) -> bool:
        """Whether the next number is decided and its body is there."""
        span = self._ranges.get(self.next)
        return span is not None and self._held(span) is not None

    @property
    def crowded(self) -> bool:
        """Whether so much waits for its turn that histories should wait, too."""
        return self._ranges.top - self.next >= self._window

    def lacking(self, limit: int) -> list[int]:
        """Decided numbers, from the next one on, whose bodies are lacking."""
        found: list[int] = []
        number = self.next
        while number < self.next + limit and (span := self._ranges.get(number)) is not None:
            if span.decided is None:
                break
            number += span.count
            if self._held(span) is None:
                found.extend(range(span.first, number))
        return found[:limit]

    @property
    def where(self) -> bytes:
        """The id of the predicates whose results are accepted; b"" for whole publications."""
        return b""

    def pulled_whole(self, number: int) -> bool:
        """Whether a lacking number is decided as a publication, whatever is accepted of it."""
        return False

    def named(self) -> list[tuple[int, bytes]]:
        """Numbers that only a history decided and that are not due yet, and what it named."""
        return [
            (span.first, span.decided)
            for span in self._ranges.all()
            if span.by_history and span.decided is not None
        ]

    def undecided(self, end: int) -> int:
        """How many numbers below `end`, from the next one on, nothing has decided."""
        decided = (span.first for span in self._ranges.all() if span.decided is not None)
        return max(0, min(end, min(decided, default=end)) - self.next)

    def voters(self, number: int) -> list[NodeId]:
        """Brokers that voted for what a lacking number was decided to be."""
        span = self._ranges.get(number)
        if span is None or span.decided is None:
            return []
        return [broker for broker, v in span.tally.votes().items() if v[0] == span.decided]

    def voted(self, broker: NodeId | None, number: int) -> bool:
        """Whether a broker has voted on a lacking number, for whatever contents."""
        span = self._ranges.get(number)
        return span is not None and broker in span.tally.votes()

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        ranges = self._ranges.all()
        return {
            "tallies": sum(span.count for span in ranges),
            "decided": sum(span.count for span in ranges if span.decided is not None),
            "bodies": sum(span.count for span in ranges if span.bodies),
            "pending_bytes": self._pending_bytes,
            "accepted": len(self._accepted),
        }

    def recount(self, rule: Rule, brokers: tuple[NodeId, ...], f: int) -> None:
        """Go on in a new epoch: votes of brokers that left no longer count.

        What was decided stays decided. A broker that is new need not have voted on what was there
        before it.
        """
        self._rule = rule
        self.last_vote = {b: self.last_vote.get(b, self.next - 1) for b in brokers}
        # Of the members of each epoch f may lie.
        self._liars = None if self._liars is None else f
        self._dissenters = {b: None for b in self._dissenters if b in brokers}
        for span in self._ranges.all():
            span.tally.retain(brokers)
            if span.decided is None:
                # With a broker less, what is there may be enough.
                won = [value for value in span.tally.values() if rule(span.tally, value)]
                span.decided = won[0][0] if won else None

    def follow(self, old: Acceptor) -> None:
        """Go on where another acceptor of the stream is, which accepted other results of it.

        Votes are cast anew. Histories are not: what only they decided stays decided.
        """
        self.last_vote = dict.fromkeys(old.last_vote, self.next - 1)
        self._dissenters, self.is_split = old._dissenters, old.is_split
        for first, digests in old.named():
            self.settle(first, digests)

    # --------------------------------------------------------------- votes

    def vote(
        self,
        broker: NodeId,
        first: int,
        digests: bytes,
        bodies: tuple[bytes, ...],
        order: tuple[NodeId, ...] = (),
    ) -> list[Effect]:
        """Count a broker's votes for a run, and keep the bodies that came with them."""
        count = len(digests) // DIGEST_SIZE
        last = first + count - 1
        # No further than the window: a vote on some far number is no excuse for later silence.
        reached = min(last, self.next + self._window)
        if reached > self.last_vote.get(broker, 0):
            self.last_vote[broker] = reached
        if last >= self.next + self._window:
            return [Drop(DropReason.OUT_OF_WINDOW, broker)]
        if bodies and len(bodies) != count:
            return [Drop(DropReason.BAD_RUN, broker)]
        effects: list[Effect] = []
        if first < self.next:
            late = min(count, self.next - first)
            effects = self._on_late_vote(broker, first, digests[: late * DIGEST_SIZE])
            first, digests, bodies = first + late, digests[late * DIGEST_SIZE :], bodies[late:]
            count -= late
        if not count:
            return effects
        span = self._ranges.get(first)
        if span is None and first > self._ranges.top:
            span = self._ranges.add(VoteRange(first, count))
        if span is not None and span.count == count:
            return effects + self._vote_in_range(broker, span, digests, bodies, order)
        for span in self._ranges.region(first, count, create=True):
            part = part_of(span, first, digests)
            here = slice(span.first - first, span.first - first + span.count)
            effects += self._vote_in_range(broker, span, part, bodies[here], order)
        return effects

    def _on_late_vote(self, broker: NodeId, first: int, digests: bytes) -> list[Effect]:
        if self.accepted_run(first, len(digests) // DIGEST_SIZE) == digests:
            return []
        return [
            told
            for number, digest in enumerate(split_digests(digests), first)
            if self._accepted.get(number, digest) != digest
            for told in self._dissents(broker, number, digest)
        ]

    def _vote_in_range(
        self,
        broker: NodeId,
        span: VoteRange,
        digests: bytes,
        bodies: tuple[bytes, ...],
        order: tuple[NodeId, ...],
    ) -> list[Effect]:
        value = (digests, order)
        tally = span.tally
        effects: list[Effect] = []
        if not tally.count(value) and (cuts := span.disputed(digests)):
            start = span.first
            for part in self._ranges.split(span, cuts):
                here = slice(part.first - start, part.first - start + part.count)
                vote = part_of(part, start, digests)
                effects += self._vote_in_range(broker, part, vote, bodies[here], order)
            return effects
        ballot = tally.vote(broker, value)
        if ballot is Ballot.CONFLICTING:
            earlier = tally.vote_of(broker)
            if earlier is None or earlier[0] != digests:
                effects = [
                    # Suspected, not accused: a history may have corrected an honest broker.
                    self._suspect(broker, Suspicion.EQUIVOCATION, number)
                    for number in range(span.first, span.first + span.count)
                ]
            else:
                # The same contents by another chain: the publisher has re-selected.
                tally.revote(broker, value)
        if ballot is not Ballot.REPEATED and span.decided is None and self._rule(tally, value):
            span.decided = digests
        return effects + self._keep_bodies(broker, span, digests, bodies) if bodies else effects

    def settle(self, first: int, digests: bytes) -> list[int]:
        """A history names these digests; returns the numbers that votes had not decided."""
        missed: list[int] = []
        late = max(0, self.next - first)
        first, digests = first + late, digests[late * DIGEST_SIZE :]
        for span in self._ranges.region(first, len(digests) // DIGEST_SIZE, create=True):
            if span.decided is not None:
                continue
            missed.extend(range(span.first, span.first + span.count))
            for part in self._ranges.split(span, span.disputed(part_of(span, first, digests))):
                part.decided = part_of(part, first, digests)
                part.by_history = True
        return missed

    # -------------------------------------------------------------- bodies

    def contents(
        self, broker: NodeId, first: int, digests: bytes, bodies: tuple[bytes, ...]
    ) -> list[Effect]:
        """Keep bodies that were pulled."""
        count = len(bodies)
        if len(digests) != count * DIGEST_SIZE:
            return [Drop(DropReason.BAD_RUN, broker)]
        late = max(0, self.next - first)
        effects: list[Effect] = []
        for span in self._ranges.region(first + late, max(0, count - late), create=False):
            for part in self._ranges.split(span, span.disputed(part_of(span, first, digests))):
                here = slice(part.first - first, part.first - first + part.count)
                effects += self._keep_bodies(
                    broker, part, part_of(part, first, digests), bodies[here]
                )
        return effects

    def _keep_bodies(
        self, broker: NodeId, span: VoteRange, digests: bytes, bodies: tuple[bytes, ...]
    ) -> list[Effect]:
        if digests in span.bodies or not self._of_use(broker, span, digests):
            return []
        size = sum(map(len, bodies))
        if self._pending_bytes + size > MAX_PENDING_BYTES and span.first != self.next:
            self.refused = max(self.refused, span.first + span.count - 1)
            return [Drop(DropReason.OVER_LIMIT, broker)]
        for place, (digest, body) in enumerate(zip(split_digests(digests), bodies, strict=True)):
            if not self._genuine(body, digest):
                return [
                    Drop(DropReason.BAD_BODY, broker),
                    Suspect(broker, Suspicion.BAD_BODY, self.stream, span.first + place),
                ]
        span.bodies[digests] = bodies
        self._pending_bytes += size
        return []

    def _of_use(self, broker: NodeId, span: VoteRange, digests: bytes) -> bool:
        """Contents of what was decided, or else of what this broker voted for.

        Any other contents could be sent without end, each with its right hash.
        """
        if span.decided is not None:
            return span.decided == digests
        value = span.tally.vote_of(broker)
        return value is not None and value[0] == digests

    def _genuine(self, body: bytes, digest: Digest) -> bool:
        return self._hash(body) == digest

    # ------------------------------------------------------------ delivery

    def deliver(self, awaited: tuple[NodeId, ...] = ()) -> list[Effect]:
        """Hand out what is decided, complete and due.

        `awaited` brokers must have voted as well, for whatever contents (excerpts).
        """
        effects: list[Effect] = []
        while (span := self._ranges.get(self.next)) is not None:
            bodies = self._held(span)
            if bodies is None or (awaited and not span.tally.votes().keys() >= set(awaited)):
                break
            effects += self._deliver(span, bodies)
        return effects

    def _held(self, span: VoteRange) -> Bodies | None:
        """The bodies of what was decided for a range, if it was and they are there."""
        return None if span.decided is None else span.bodies.get(span.decided)

    def _deliver(self, span: VoteRange, bodies: Bodies) -> list[Effect]:
        digests = span.decided or b""
        self._ranges.remove(span)
        self._pending_bytes -= span.size
        cast = span.tally.votes()
        votes = tuple([broker for broker, value in cast.items() if value[0] == digests])
        others: dict[NodeId, bytes] = {}
        if len(votes) != len(cast):
            others = {broker: v[0] for broker, v in cast.items() if v[0] != digests}
        effects = self._hand_out(span, digests, bodies, votes, tuple(others))
        for broker, said in others.items():
            for number, digest in enumerate(split_digests(said), span.first):
                effects += self._dissents(broker, number, digest)
        self.next = span.first + span.count
        while len(self._accepted) > self._keep:
            self._accepted.popitem(last=False)
        return effects

    def _hand_out(
        self,
        span: VoteRange,
        digests: bytes,
        bodies: Bodies,
        votes: tuple[NodeId, ...],
        dissent: tuple[NodeId, ...],
    ) -> list[Effect]:
        """Tell the application what was accepted."""
        effects: list[Effect] = []
        for number, (digest, body) in enumerate(
            zip(split_digests(digests), bodies, strict=True), span.first
        ):
            self._accepted[number] = digest
            effects.append(
                Deliver(self.stream, number, digest, body, votes, dissent, span.by_history)
            )
        return effects

    def _dissents(self, broker: NodeId, number: int, said: Digest) -> list[Suspect]:
        """Suspect a broker that differs from the others, or its publisher.

        If either may be to blame, all dissent of one broker on this stream is one suspicion: it
        does not grow more certain with every number. Once more than f brokers have differed the
        publisher equivocates.
        """
        if self._liars is None or self.is_split:
            return [self._suspect(broker, self._charge(said), number)]
        if broker in self._dissenters:
            return []
        self._dissenters[broker] = None
        self.is_split = len(self._dissenters) > self._liars
        return [self._suspect(broker, self._charge(said), number)]

    def _charge(self, said: Digest) -> Suspicion:
        """What a broker is suspected of that voted for this instead of what was accepted."""
        return Suspicion.DISSENT

    def _suspect(self, broker: NodeId, reason: Suspicion, number: int) -> Suspect:
        if self._liars is None:
            return Suspect(broker, reason, self.stream, number)
        if self.is_split:
            # What any broker said of this stream says nothing about the broker.
            return Suspect(self.stream.publisher, Suspicion.SPLIT, self.stream, number)
        return Suspect(broker, reason, self.stream, number, (broker, self.stream.publisher))

    def skip_to(self, number: int) -> None:
        """Give up on what nobody holds any longer."""
        if number <= self.next:
            return
        self._ranges.split_at(number)
        # By what is held and not by number: a lying publisher may leave out any number of them.
        for span in [b for b in self._ranges.all() if b.first < number]:
            self._ranges.remove(span)
            self._pending_bytes -= span.size
        self.next = self.start = number
