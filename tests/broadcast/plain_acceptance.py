"""The plain twin of `quorumcast.broadcast.acceptance.Acceptor`: it counts every number by itself.

Slower and simpler; the two must never differ in what they deliver, whom they suspect, and what they
lack (`test_acceptance_twins.py`).
"""

from __future__ import annotations

from quorumcast.broadcast.acceptance import MAX_PENDING_BYTES, Rule
from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.vote_ranges import Value
from quorumcast.core.ids import Digest, NodeId, Stream, split_digests
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Drop, DropReason, Effect, Suspect, Suspicion
from quorumcast.core.tally import Ballot, Tally
from quorumcast.crypto.digest import Hasher


class PlainAcceptor:
    """A subscriber's view of one stream, number by number."""

    __slots__ = (
        "_accepted",
        "_bodies",
        "_by_history",
        "_decided",
        "_hash",
        "_keep",
        "_pending_bytes",
        "_rule",
        "_tallies",
        "_window",
        "last_vote",
        "next",
        "stream",
    )

    def __init__(
        self, stream: Stream, first: int, rule: Rule, hash_: Hasher, limits: Limits
    ) -> None:
        self.stream = stream
        #: The number whose turn it is; everything below was delivered once.
        self.next = first
        self._rule = rule
        self._hash = hash_
        self._window = limits.vote_window
        self._keep = limits.segment * limits.kept_segments
        #: Votes per number, for numbers in [next, next + window).
        self._tallies: dict[int, Tally[Value]] = {}
        #: The value that won, for numbers not delivered yet.
        self._decided: dict[int, Digest] = {}
        #: Which of those a history decided.
        self._by_history: dict[int, None] = {}
        #: Bodies with the right hash, per number and digest, for numbers not delivered yet.
        self._bodies: dict[int, dict[Digest, bytes]] = {}
        self._pending_bytes = 0
        #: Digests delivered lately: to recognise dissent, and for receipts.
        self._accepted: dict[int, Digest] = {}
        #: The highest number that each broker voted on.
        self.last_vote: dict[NodeId, int] = {}

    def accepted(self, number: int) -> Digest | None:
        """The digest delivered at a number, if it is remembered."""
        return self._accepted.get(number)

    def accepted_run(self, first: int, count: int) -> bytes | None:
        """The digests delivered in a range, if all are remembered."""
        found = [self._accepted.get(number) for number in range(first, first + count)]
        return None if None in found else b"".join(d for d in found if d is not None)

    @property
    def stuck(self) -> bool:
        """Whether something beyond `next` is known but its turn does not come."""
        return bool(self._tallies or self._decided)

    def lacking(self, limit: int) -> list[int]:
        """Decided numbers, from the next one on, whose bodies are lacking."""
        found = []
        for number in range(self.next, self.next + limit):
            digest = self._decided.get(number)
            if digest is None:
                break
            if digest not in self._bodies.get(number, ()):
                found.append(number)
        return found

    def voters(self, number: int) -> list[NodeId]:
        """Brokers that voted for what a number was decided to be."""
        tally = self._tallies.get(number)
        digest = self._decided.get(number)
        if tally is None or digest is None:
            return []
        return [broker for broker, value in tally.votes().items() if value[0] == digest]

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "tallies": len(self._tallies),
            "decided": len(self._decided),
            "bodies": len(self._bodies),
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
        effects: list[Effect] = []
        parts = split_digests(digests)
        last = first + len(parts) - 1
        # No further than the window: a vote on some far number is no excuse for later silence.
        reached = min(last, self.next + self._window)
        if reached > self.last_vote.get(broker, 0):
            self.last_vote[broker] = reached
        if last >= self.next + self._window:
            return [Drop(DropReason.OUT_OF_WINDOW, broker)]
        tallies, decided, rule = self._tallies, self._decided, self._rule
        for number, digest in enumerate(parts, first):
            if number < self.next:
                if self._accepted.get(number, digest) != digest:
                    effects.append(Suspect(broker, Suspicion.DISSENT, self.stream, number))
                continue
            tally = tallies.get(number)
            if tally is None:
                tally = tallies[number] = Tally()
            value = (digest, order)
            ballot = tally.vote(broker, value)
            if ballot is Ballot.COUNTED:
                if number not in decided and rule(tally, value):
                    decided[number] = digest
            elif ballot is Ballot.CONFLICTING:
                effects += self._on_second_vote(broker, number, tally, value)
        return effects + self._keep_bodies(broker, first, parts, bodies) if bodies else effects

    def _on_second_vote(
        self, broker: NodeId, number: int, tally: Tally[Value], value: Value
    ) -> list[Effect]:
        earlier = tally.vote_of(broker)
        if earlier is not None and earlier[0] == value[0]:
            # The same contents by another chain: the publisher has re-selected.
            tally.revote(broker, value)
            if number not in self._decided and self._rule(tally, value):
                self._decided[number] = Digest(value[0])
            return []
        return [Suspect(broker, Suspicion.EQUIVOCATION, self.stream, number)]

    def settle(self, first: int, digests: bytes) -> list[int]:
        """A history names these digests; returns the numbers that votes had not decided."""
        missed = []
        for number, digest in enumerate(split_digests(digests), first):
            if number >= self.next and number not in self._decided:
                self._decided[number] = digest
                self._by_history[number] = None
                missed.append(number)
        return missed

    # -------------------------------------------------------------- bodies

    def contents(
        self, broker: NodeId, first: int, digests: bytes, bodies: tuple[bytes, ...]
    ) -> list[Effect]:
        """Keep bodies that were pulled."""
        parts = split_digests(digests)
        if len(parts) != len(bodies):
            return [Drop(DropReason.BAD_RUN, broker)]
        return self._keep_bodies(broker, first, parts, bodies)

    def _keep_bodies(
        self, broker: NodeId, first: int, parts: list[Digest], bodies: tuple[bytes, ...]
    ) -> list[Effect]:
        if len(parts) != len(bodies):
            return [Drop(DropReason.BAD_RUN, broker)]
        for number, (digest, body) in enumerate(zip(parts, bodies, strict=True), first):
            if not self.next <= number < self.next + self._window:
                continue
            if not self._of_use(broker, number, digest):
                continue
            held = self._bodies.get(number)
            if held is None:
                held = self._bodies[number] = {}
            elif digest in held:
                continue
            if not self._genuine(body, digest):
                return [
                    Drop(DropReason.BAD_BODY, broker),
                    Suspect(broker, Suspicion.BAD_BODY, self.stream, number),
                ]
            if self._pending_bytes + len(body) > MAX_PENDING_BYTES and number != self.next:
                return [Drop(DropReason.OVER_LIMIT, broker)]
            held[digest] = body
            self._pending_bytes += len(body)
        return []

    def _of_use(self, broker: NodeId, number: int, digest: Digest) -> bool:
        """Contents of what was decided, or else of what this broker voted for.

        Any other contents could be sent without end, each with its right hash.
        """
        decided = self._decided.get(number)
        if decided is not None:
            return decided == digest
        tally = self._tallies.get(number)
        value = None if tally is None else tally.vote_of(broker)
        return value is not None and value[0] == digest

    def _genuine(self, body: bytes, digest: Digest) -> bool:
        return self._hash(body) == digest

    # ------------------------------------------------------------ delivery

    def deliver(self) -> list[Effect]:
        """Hand out whatever is decided, complete and due."""
        effects: list[Effect] = []
        number = self.next
        while (digest := self._decided.get(number)) is not None:
            held = self._bodies.get(number)
            body = None if held is None else held.get(digest)
            if body is None:
                break
            effects += self._deliver(number, digest, body)
            number = self.next
        return effects

    def _deliver(self, number: int, digest: Digest, body: bytes) -> list[Effect]:
        del self._decided[number]
        for other in self._bodies.pop(number).values():
            self._pending_bytes -= len(other)
        by_history = number in self._by_history
        self._by_history.pop(number, None)
        tally = self._tallies.pop(number, None)
        cast = {} if tally is None else tally.votes()
        votes = tuple([broker for broker, value in cast.items() if value[0] == digest])
        dissent: tuple[NodeId, ...] = ()
        if len(votes) != len(cast):
            dissent = tuple([broker for broker, value in cast.items() if value[0] != digest])
        self._accepted[number] = digest
        if len(self._accepted) > self._keep:
            del self._accepted[next(iter(self._accepted))]
        self.next = number + 1
        delivery = Deliver(self.stream, number, digest, body, votes, dissent, by_history)
        return [
            delivery,
            *(Suspect(broker, Suspicion.DISSENT, self.stream, number) for broker in dissent),
        ]

    def skip_to(self, number: int) -> None:
        """Give up on what nobody holds any longer."""
        for container in (self._tallies, self._decided, self._by_history, self._bodies):
            for stale in [n for n in container if n < number]:
                del container[stale]
        self._pending_bytes = sum(
            len(body) for held in self._bodies.values() for body in held.values()
        )
        self.next = max(self.next, number)
