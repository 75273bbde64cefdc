"""Acceptance: how a subscriber decides that a publication is genuine and that its turn has come.

One acceptor per stream counts the brokers' votes, keeps bodies whose hash matches, and hands out
publications in order, none twice. A number is *decided* by enough equal votes, or by a history,
which overrules nothing: it can only name what votes could have decided too. Contents are taken from
whichever broker sends them first with the right hash; a decided number whose body does not come is
pulled from a broker that voted for it.

Votes are counted per box of consecutive numbers (`boxes`), normally a run. The plain twin in
`tests/broadcast/plain_acceptance.py` counts per number; the two must never differ.

Thresholds: `core.quorum.accept_votes`; on a chain all of the last f+1 brokers of the chain, or 2f+1
of those that chains are drawn from, by whatever chains it came to them.
Source: Freeman §3 (algorithms 3, 6, 9). Ours: votes without bodies, pulls, boxes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.boxes import Box, Boxes, Value, part_of
from quorumcast.broadcast.chain import last_of_chain
from quorumcast.core.ids import DIGEST_SIZE, Digest, Lane, NodeId, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Drop, DropReason, Effect, Suspect, Suspicion
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

    When a publisher changes its chain, a run that every broker holds may have come to each of them
    by another one, and no chain's last brokers agree on the way.
    """
    votes = tally.votes()
    return sum(broker in votes and votes[broker][0] == value[0] for broker in brokers)


class Acceptor:
    """A subscriber's view of one stream."""

    __slots__ = (
        "_accepted",
        "_boxes",
        "_hash",
        "_keep",
        "_pending_bytes",
        "_rule",
        "_split_by",
        "_window",
        "last_vote",
        "next",
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
        may_split: bool = False,
    ) -> None:
        self.stream = stream
        #: Who else may be to blame where brokers differ: a publisher that may lie to them.
        self._split_by = (stream.publisher,) if may_split else ()
        #: The number whose turn it is; everything from `start` to below it was delivered once.
        self.next = first
        self.start = first
        self._rule = rule
        self._hash = hash_
        self._window = limits.vote_window
        self._keep = limits.segment * limits.kept_segments
        #: What was said of the numbers in [next, next + window), and what histories name beyond.
        self._boxes = Boxes()
        #: Bytes of bodies in the boxes.
        self._pending_bytes = 0
        #: Digests delivered lately: to recognise dissent, and for receipts.
        # Ordered: finding the oldest key of a dict that loses its front all the time takes a walk.
        self._accepted: OrderedDict[int, Digest] = OrderedDict()
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
        """Whether something beyond `next` is known but its turn does not come."""
        return bool(self._boxes)

    @property
    def complete(self) -> bool:
        """Whether the next number is decided and its body is there."""
        box = self._boxes.get(self.next)
        return box is not None and box.decided is not None and box.decided in box.bodies

    @property
    def crowded(self) -> bool:
        """Whether so much waits for its turn that histories should wait, too."""
        return self._boxes.top - self.next >= self._window

    def lacking(self, limit: int) -> list[int]:
        """Decided numbers, from the next one on, whose bodies are lacking."""
        found: list[int] = []
        number = self.next
        while number < self.next + limit and (box := self._boxes.get(number)) is not None:
            if box.decided is None:
                break
            number += box.count
            if box.decided not in box.bodies:
                found.extend(range(box.first, number))
        return found[:limit]

    def voters(self, number: int) -> list[NodeId]:
        """Brokers that voted for what a lacking number was decided to be."""
        box = self._boxes.get(number)
        if box is None or box.decided is None:
            return []
        return [broker for broker, v in box.tally.votes().items() if v[0] == box.decided]

    def voted(self, broker: NodeId | None, number: int) -> bool:
        """Whether a broker has voted on a lacking number, for whatever contents."""
        box = self._boxes.get(number)
        return box is not None and broker in box.tally.votes()

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        boxes = self._boxes.all()
        return {
            "tallies": sum(box.count for box in boxes),
            "decided": sum(box.count for box in boxes if box.decided is not None),
            "bodies": sum(box.count for box in boxes if box.bodies),
            "pending_bytes": self._pending_bytes,
            "accepted": len(self._accepted),
        }

    def recount(self, rule: Rule, brokers: tuple[NodeId, ...]) -> None:
        """Go on in a new epoch: votes of brokers that left no longer count.

        What was decided stays decided. A broker that is new need not have voted on what was there
        before it.
        """
        self._rule = rule
        self.last_vote = {b: self.last_vote.get(b, self.next - 1) for b in brokers}
        for box in self._boxes.all():
            box.tally.retain(brokers)
            if box.decided is None:
                # With a broker less, what is there may be enough.
                won = [value for value in box.tally.values() if rule(box.tally, value)]
                box.decided = won[0][0] if won else None

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
        box = self._boxes.get(first)
        if box is None and first > self._boxes.top:
            box = self._boxes.add(Box(first, count))
        if box is not None and box.count == count:
            return effects + self._vote_in_box(broker, box, digests, bodies, order)
        for box in self._boxes.region(first, count, create=True):
            part = part_of(box, first, digests)
            here = slice(box.first - first, box.first - first + box.count)
            effects += self._vote_in_box(broker, box, part, bodies[here], order)
        return effects

    def _on_late_vote(self, broker: NodeId, first: int, digests: bytes) -> list[Effect]:
        if self.accepted_run(first, len(digests) // DIGEST_SIZE) == digests:
            return []
        return [
            self._suspect(broker, Suspicion.DISSENT, number)
            for number, digest in enumerate(split_digests(digests), first)
            if self._accepted.get(number, digest) != digest
        ]

    def _vote_in_box(
        self,
        broker: NodeId,
        box: Box,
        digests: bytes,
        bodies: tuple[bytes, ...],
        order: tuple[NodeId, ...],
    ) -> list[Effect]:
        value = (digests, order)
        tally = box.tally
        effects: list[Effect] = []
        if not tally.count(value) and (cuts := box.disputed(digests)):
            start = box.first
            for part in self._boxes.cut(box, cuts):
                here = slice(part.first - start, part.first - start + part.count)
                word = part_of(part, start, digests)
                effects += self._vote_in_box(broker, part, word, bodies[here], order)
            return effects
        ballot = tally.vote(broker, value)
        if ballot is Ballot.CONFLICTING:
            earlier = tally.vote_of(broker)
            if earlier is None or earlier[0] != digests:
                effects = [
                    # A history may have corrected it.
                    self._suspect(broker, Suspicion.EQUIVOCATION, number)
                    for number in range(box.first, box.first + box.count)
                ]
            else:
                # The same contents by another chain: the publisher has re-selected.
                tally.revote(broker, value)
        if ballot is not Ballot.REPEATED and box.decided is None and self._rule(tally, value):
            box.decided = digests
        return effects + self._keep_bodies(broker, box, digests, bodies) if bodies else effects

    def settle(self, first: int, digests: bytes) -> list[int]:
        """A history names these digests; returns the numbers that votes had not decided."""
        missed: list[int] = []
        late = max(0, self.next - first)
        first, digests = first + late, digests[late * DIGEST_SIZE :]
        for box in self._boxes.region(first, len(digests) // DIGEST_SIZE, create=True):
            if box.decided is not None:
                continue
            missed.extend(range(box.first, box.first + box.count))
            for part in self._boxes.cut(box, box.disputed(part_of(box, first, digests))):
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
        for box in self._boxes.region(first + late, max(0, count - late), create=False):
            for part in self._boxes.cut(box, box.disputed(part_of(box, first, digests))):
                here = slice(part.first - first, part.first - first + part.count)
                effects += self._keep_bodies(
                    broker, part, part_of(part, first, digests), bodies[here]
                )
        return effects

    def _keep_bodies(
        self, broker: NodeId, box: Box, digests: bytes, bodies: tuple[bytes, ...]
    ) -> list[Effect]:
        if digests in box.bodies or not self._of_use(broker, box, digests):
            return []
        size = sum(map(len, bodies))
        if self._pending_bytes + size > MAX_PENDING_BYTES and box.first != self.next:
            return [Drop(DropReason.OVER_LIMIT, broker)]
        for place, (digest, body) in enumerate(zip(split_digests(digests), bodies, strict=True)):
            if not self._genuine(body, digest):
                return [
                    Drop(DropReason.BAD_BODY, broker),
                    Suspect(broker, Suspicion.BAD_BODY, self.stream, box.first + place),
                ]
        box.bodies[digests] = bodies
        self._pending_bytes += size
        return []

    def _of_use(self, broker: NodeId, box: Box, digests: bytes) -> bool:
        """Contents of what was decided, or else of what this broker voted for.

        Any other contents could be sent without end, each with its right hash.
        """
        if box.decided is not None:
            return box.decided == digests
        value = box.tally.vote_of(broker)
        return value is not None and value[0] == digests

    def _genuine(self, body: bytes, digest: Digest) -> bool:
        return self._hash(body) == digest

    # ------------------------------------------------------------ delivery

    def deliver(self, awaited: tuple[NodeId, ...] = ()) -> list[Effect]:
        """Hand out whatever is decided, complete and due, and has the votes of those awaited."""
        effects: list[Effect] = []
        while (box := self._boxes.get(self.next)) is not None:
            bodies = None if box.decided is None else box.bodies.get(box.decided)
            if bodies is None or (awaited and not box.tally.votes().keys() >= set(awaited)):
                break
            effects += self._deliver(box, bodies)
        return effects

    def _deliver(self, box: Box, bodies: tuple[bytes, ...]) -> list[Effect]:
        digests = box.decided or b""
        self._boxes.remove(box)
        self._pending_bytes -= box.size
        cast = box.tally.votes()
        votes = tuple([broker for broker, value in cast.items() if value[0] == digests])
        dissent: tuple[NodeId, ...] = ()
        if len(votes) != len(cast):
            dissent = tuple([broker for broker, value in cast.items() if value[0] != digests])
        effects: list[Effect] = []
        for number, (digest, body) in enumerate(
            zip(split_digests(digests), bodies, strict=True), box.first
        ):
            self._accepted[number] = digest
            effects.append(
                Deliver(self.stream, number, digest, body, votes, dissent, box.by_history)
            )
            effects += [self._suspect(broker, Suspicion.DISSENT, number) for broker in dissent]
        self.next = box.first + box.count
        while len(self._accepted) > self._keep:
            self._accepted.popitem(last=False)
        return effects

    def _suspect(self, broker: NodeId, reason: Suspicion, number: int) -> Suspect:
        """Suspect a broker that differs from the others, or its publisher."""
        among = (broker, *self._split_by) if self._split_by else ()
        return Suspect(broker, reason, self.stream, number, among)

    def skip_to(self, number: int) -> None:
        """Give up on what nobody holds any longer."""
        if number <= self.next:
            return
        self._boxes.cut_at(number)
        # By what is held and not by number: a lying publisher may leave out any number of them.
        for box in [b for b in self._boxes.all() if b.first < number]:
            self._boxes.remove(box)
            self._pending_bytes -= box.size
        self.next = self.start = number
