"""Acceptance: how a subscriber decides that a publication is genuine and that its turn has come.

One acceptor per stream counts the brokers' votes, keeps bodies whose hash matches, and hands out
publications in order, none twice. A number is *decided* by enough equal votes, or by a history,
which overrules nothing: it can only name what votes could have decided too. Contents are taken from
whichever broker sends them first with the right hash; a decided number whose body does not come is
pulled from a broker that voted for it.

Votes are counted per *box*: a whole run as long as every broker that spoke of it said the same of
the same numbers, which is the normal case; as soon as somebody says something else the box is split
into single numbers. `tests/broadcast/plain_acceptance.py` is the plain twin that counts per number
from the start; the two must never differ.

Thresholds: `core.quorum.accept_votes`; on a chain all of the last f+1 brokers of the chain.
Source: Freeman §3 (algorithms 3, 6, 9). Ours: votes without bodies, pulls, boxes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from quorumcast.broadcast.chain import last_of_chain
from quorumcast.core.ids import DIGEST_SIZE, Digest, NodeId, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Deliver, Drop, DropReason, Effect, Suspect, Suspicion
from quorumcast.core.quorum import Broadcast, Protection, Quorums, accept_votes
from quorumcast.core.tally import Ballot, Tally
from quorumcast.crypto.digest import Hasher

#: What a broker votes for: digests and, on a chain, the chain that brought them.
Value = tuple[bytes, tuple[NodeId, ...]]
#: Whether the votes so far decide for a value.
Rule = Callable[[Tally[Value], Value], bool]

#: Bytes of bodies kept for numbers that are not decided or not due yet.
MAX_PENDING_BYTES = 64 * 1024 * 1024


def rule_for(quorums: Quorums, protection: Protection, broadcast: Broadcast) -> Rule:
    """When a subscriber of such a channel accepts."""
    if broadcast is Broadcast.CHAIN:
        return lambda tally, value: _all_voted(tally, value, last_of_chain(quorums, value[1]))
    threshold = accept_votes(quorums, protection, broadcast)
    return lambda tally, value: tally.count(value) >= threshold


def _all_voted(tally: Tally[Value], value: Value, brokers: tuple[NodeId, ...]) -> bool:
    return bool(brokers) and all(tally.vote_of(broker) == value for broker in brokers)


class Box:
    """Consecutive numbers of which everybody has said the same so far, or one number."""

    __slots__ = ("bodies", "by_history", "count", "decided", "first", "tally")

    def __init__(self, first: int, count: int) -> None:
        self.first = first
        self.count = count
        #: If count > 1 all votes in it are equal.
        self.tally: Tally[Value] = Tally()
        #: The digests that won.
        self.decided: bytes | None = None
        #: Whether a history decided.
        self.by_history = False
        #: Bodies with the right hashes, by digests.
        self.bodies: dict[bytes, tuple[bytes, ...]] = {}

    def split(self) -> list[Box]:
        """The same, number by number."""
        singles = []
        for place in range(self.count):
            part = slice(place * DIGEST_SIZE, (place + 1) * DIGEST_SIZE)
            single = Box(self.first + place, 1)
            for broker, (digests, order) in self.tally.votes().items():
                single.tally.vote(broker, (digests[part], order))
            single.decided = None if self.decided is None else self.decided[part]
            single.by_history = self.by_history
            single.bodies = {d[part]: (bodies[place],) for d, bodies in self.bodies.items()}
            singles.append(single)
        return singles

    @property
    def size(self) -> int:
        """Bytes of bodies kept."""
        return sum(len(body) for bodies in self.bodies.values() for body in bodies)


class Acceptor:
    """A subscriber's view of one stream."""

    __slots__ = (
        "_accepted",
        "_boxes",
        "_hash",
        "_keep",
        "_pending_bytes",
        "_rule",
        "_top",
        "_wide",
        "_window",
        "last_vote",
        "next",
        "start",
        "stream",
    )

    def __init__(
        self, stream: Stream, first: int, rule: Rule, hash_: Hasher, limits: Limits
    ) -> None:
        self.stream = stream
        #: The number whose turn it is; everything from `start` to below it was delivered once.
        self.next = first
        self.start = first
        self._rule = rule
        self._hash = hash_
        self._window = limits.vote_window
        self._keep = limits.segment * limits.kept_segments
        #: Boxes by first number; they do not overlap and lie in [next, next + window), but for
        #: what histories name beyond it.
        self._boxes: dict[int, Box] = {}
        #: Those with more than one number.
        self._wide: dict[int, Box] = {}
        #: No box reaches beyond this number.
        self._top = 0
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
    def crowded(self) -> bool:
        """Whether so much waits for its turn that histories should wait, too."""
        return self._top - self.next >= self._window

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
        boxes = self._boxes.values()
        return {
            "tallies": sum(box.count for box in boxes),
            "decided": sum(box.count for box in boxes if box.decided is not None),
            "bodies": sum(box.count for box in boxes if box.bodies),
            "pending_bytes": self._pending_bytes,
            "accepted": len(self._accepted),
        }

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
        if box is None and first > self._top:
            box = self._add(Box(first, count))
        if box is not None and box.count == count:
            return effects + self._vote_in_box(broker, box, digests, bodies, order)
        for box, start, stop in self._region(first, count, create=True):
            part = digests[start * DIGEST_SIZE : stop * DIGEST_SIZE]
            effects += self._vote_in_box(broker, box, part, bodies[start:stop], order)
        return effects

    def _on_late_vote(self, broker: NodeId, first: int, digests: bytes) -> list[Effect]:
        if self.accepted_run(first, len(digests) // DIGEST_SIZE) == digests:
            return []
        return [
            Suspect(broker, Suspicion.DISSENT, self.stream, number)
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
        if box.count > 1 and len(tally) and not tally.count(value):
            # Not everybody says the same: from here on every number is counted by itself.
            return [
                effect
                for place, single in enumerate(self._split(box))
                for effect in self._vote_in_box(
                    broker,
                    single,
                    digests[place * DIGEST_SIZE : (place + 1) * DIGEST_SIZE],
                    bodies[place : place + 1],
                    order,
                )
            ]
        effects: list[Effect] = []
        ballot = tally.vote(broker, value)
        if ballot is Ballot.CONFLICTING:
            earlier = tally.vote_of(broker)
            if earlier is None or earlier[0] != digests:
                effects = [Suspect(broker, Suspicion.EQUIVOCATION, self.stream, box.first)]
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
        digests = digests[late * DIGEST_SIZE :]
        if not digests:
            return missed
        for box, start, stop in self._region(
            first + late, len(digests) // DIGEST_SIZE, create=True
        ):
            if box.decided is None:
                missed.extend(range(box.first, box.first + box.count))
                self._settle_box(box, digests[start * DIGEST_SIZE : stop * DIGEST_SIZE])
        return missed

    def _settle_box(self, box: Box, digests: bytes) -> None:
        singles = [box]
        if any(value[0] != digests for value in box.tally.values()):
            # Whoever is wrong about one number of a run may be right about the others.
            singles = self._split(box)
        for single in singles:
            place = single.first - box.first
            single.decided = digests[place * DIGEST_SIZE : (place + single.count) * DIGEST_SIZE]
            single.by_history = True

    # --------------------------------------------------------------- boxes

    def _add(self, box: Box) -> Box:
        self._boxes[box.first] = box
        if box.count > 1:
            self._wide[box.first] = box
        self._top = max(self._top, box.first + box.count - 1)
        return box

    def _remove(self, box: Box) -> None:
        del self._boxes[box.first]
        self._wide.pop(box.first, None)

    def _split(self, box: Box) -> list[Box]:
        self._remove(box)
        return [self._add(single) for single in box.split()]

    def _region(self, first: int, count: int, *, create: bool) -> Iterator[tuple[Box, int, int]]:
        """The boxes of a range, with where each lies in it; no box sticks out of the range."""
        end = first + count
        for box in list(self._wide.values()):
            stop = box.first + box.count
            if box.first < end and stop > first and not (first <= box.first and stop <= end):
                self._split(box)
        number = first
        while number < end:
            found = self._boxes.get(number)
            if found is None and create:
                found = self._add(Box(number, 1))
            if found is None:
                number += 1
                continue
            # Whoever is given a box may split it: its length is read before.
            length = found.count
            yield found, number - first, number - first + length
            number += length

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
        for box, start, stop in self._region(first + late, max(0, count - late), create=False):
            part = digests[(late + start) * DIGEST_SIZE : (late + stop) * DIGEST_SIZE]
            effects += self._keep_bodies(broker, box, part, bodies[late + start : late + stop])
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

    def deliver(self) -> list[Effect]:
        """Hand out whatever is decided, complete and due."""
        effects: list[Effect] = []
        while (box := self._boxes.get(self.next)) is not None:
            bodies = None if box.decided is None else box.bodies.get(box.decided)
            if bodies is None:
                break
            effects += self._deliver(box, bodies)
        return effects

    def _deliver(self, box: Box, bodies: tuple[bytes, ...]) -> list[Effect]:
        digests = box.decided or b""
        self._remove(box)
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
            effects += [
                Suspect(broker, Suspicion.DISSENT, self.stream, number) for broker in dissent
            ]
        self.next = box.first + box.count
        while len(self._accepted) > self._keep:
            self._accepted.popitem(last=False)
        return effects

    def skip_to(self, number: int) -> None:
        """Give up on what nobody holds any longer."""
        if number <= self.next:
            return
        for box in [b for b in self._wide.values() if b.first < number < b.first + b.count]:
            self._split(box)
        # By what is held and not by number: a lying publisher may leave out any number of them.
        for box in [b for b in self._boxes.values() if b.first < number]:
            self._remove(box)
            self._pending_bytes -= box.size
        self.next = self.start = number
