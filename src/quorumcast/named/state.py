"""The state of one named subscription: a pure function of the operations on its companion.

Every position from the start of the subscription on is in exactly one of four states:

    new         `next` or later: never assigned
    assigned    claimed by one session of one consumer
    returned    awaits redelivery: negatively acknowledged, or its session ended
    settled     acknowledged, or dead

Therefore no position is lost, and no two consumers work on the same position.

The state contains no time. A consumer that suspects another consumer writes `ExpireSession` with
the newest operation that it has read from it. The operation has no effect if the suspect wrote
another one in between. Invalid operations (not from a member, of an ended session, about a position
of another consumer) are ignored, by all readers alike.

An *attempt* is one assignment of a position. An attempt beyond `max_attempts` never reaches the
application: its consumer publishes a dead letter instead and writes `MarkDead`.

Bounds: MAX_SESSIONS sessions with MAX_CLAIMED positions each. New positions are assigned only while
no position awaits redelivery, so assigned and returned positions together stay below the product.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quorumcast.core.ids import NodeId, holder
from quorumcast.named.operations import (
    MAX_CLAIMED,
    MAX_DEAD,
    MAX_SESSIONS,
    AckPositions,
    AnyOperation,
    Assignment,
    ClaimPositions,
    CloseSession,
    Configure,
    ConsumerSession,
    ExpireSession,
    Heartbeat,
    MarkDead,
    NackPositions,
    OpenSession,
    SessionOperation,
    SkipTo,
    StateSnapshot,
    SubscriptionSettings,
)
from quorumcast.named.ranges import within

#: Wildcard in a list of members: every client that may write to the companion.
ANYBODY = "*"


def is_listed(author: str, members: tuple[str, ...]) -> bool:
    """Whether an author is one of these clients, at any seat."""
    return ANYBODY in members or holder(author) in members


class Charter(msgspec.Struct, frozen=True):
    """The declaration of a shared subscription in the operator's manifest of one epoch."""

    epoch: int
    members: tuple[str, ...]
    settings: SubscriptionSettings


class SubscriptionState:
    """Sessions and assignments of one subscription."""

    __slots__ = (
        "allowed",
        "assigned",
        "dead",
        "dead_count",
        "epoch",
        "next",
        "redelivered",
        "returned",
        "root",
        "sessions",
        "settings",
    )

    def __init__(
        self,
        root: int,
        start: int,
        allowed: tuple[str, ...],
        settings: SubscriptionSettings,
        epoch: int = 0,
    ) -> None:
        #: Position (on the companion) of the `Create` that this state started from.
        self.root = root
        #: Clients that may take part; only `Configure` changes it.
        self.allowed = allowed
        #: Epoch of the manifest that says so; 0 for a private subscription.
        self.epoch = epoch
        self.settings = settings
        #: The first position that was never assigned; only grows.
        self.next = start
        #: Open sessions by consumer, at most MAX_SESSIONS.
        self.sessions: dict[str, ConsumerSession] = {}
        #: Assignments by position; each consumer in it has an open session.
        self.assigned: dict[int, Assignment] = {}
        #: Attempts so far of positions that await redelivery; disjoint from `assigned`.
        self.returned: dict[int, int] = {}
        #: The newest dead positions, at most MAX_DEAD.
        self.dead: list[int] = []
        #: The number of all dead positions.
        self.dead_count = 0
        #: The number of assignments of positions that may have been delivered before.
        self.redelivered = 0

    # ---------------------------------------------------------------- reading

    @property
    def cursor(self) -> int:
        """The low watermark: every position before it is settled."""
        return min((self.next, *self.assigned, *self.returned))

    def is_allowed(self, author: str) -> bool:
        """Whether operations of this author count."""
        return is_listed(author, self.allowed)

    def session(self, consumer: str) -> int:
        """The open session of a consumer; 0 if there is none."""
        found = self.sessions.get(consumer)
        return 0 if found is None else found.session

    def assigned_to(self, consumer: str) -> list[Assignment]:
        """The assignments of a consumer, by position."""
        mine = [one for one in self.assigned.values() if one.consumer == consumer]
        return sorted(mine, key=lambda one: one.position)

    def is_exhausted(self, assignment: Assignment) -> bool:
        """Whether this attempt is beyond the allowed number of attempts."""
        return 0 < self.settings.max_attempts < assignment.attempt

    def sizes(self) -> dict[str, int]:
        """The size of each container that peers fill."""
        return {
            "sessions": len(self.sessions),
            "assigned": len(self.assigned),
            "returned": len(self.returned),
            "dead": len(self.dead),
        }

    # --------------------------------------------------------------- changing

    def apply(
        self, position: int, author: NodeId, operation: AnyOperation, charter: Charter | None = None
    ) -> None:
        """Apply the next operation; `charter` is that of a `Configure` of a shared subscription."""
        if charter is not None and not is_listed(author, charter.members):
            return
        # The operator's signature on a newer charter suffices: a client that it adds may write it.
        if charter is None and not self.is_allowed(author):
            return
        match operation:
            case OpenSession():
                self._open_session(position, author, operation)
            case ExpireSession():
                self._expire_session(operation)
            case Configure():
                self._configure(operation, charter)
            case (
                ClaimPositions()
                | AckPositions()
                | NackPositions()
                | Heartbeat()
                | CloseSession()
                | MarkDead()
                | SkipTo()
            ):
                if self.session(author) == operation.session:
                    self.sessions[author] = ConsumerSession(author, operation.session, position)
                    self._apply_in_session(author, operation)
            case _:
                pass  # the follower handles `Create` and `WriteSnapshot`

    def _apply_in_session(self, author: str, operation: SessionOperation) -> None:
        match operation:
            case ClaimPositions():
                self._claim(author, operation)
            case AckPositions(ranges=ranges):
                for position in self._assigned_within(author, ranges):
                    del self.assigned[position]
            case NackPositions(ranges=ranges):
                for position in self._assigned_within(author, ranges):
                    self._nack(position)
            case CloseSession(delivered=ranges):
                delivered = self._assigned_within(author, ranges)
                for one in self.assigned_to(author):
                    if one.position not in delivered:
                        del self.assigned[one.position]
                        self.returned[one.position] = max(0, one.attempt - 1)
                self._end_session(author)
            case MarkDead(position=position):
                found = self.assigned.get(position)
                if found is not None and found.consumer == author and self.is_exhausted(found):
                    del self.assigned[position]
                    self.dead = [*self.dead, position][-MAX_DEAD:]
                    self.dead_count += 1
            case SkipTo(upto=upto):
                self.next = max(self.next, upto)
            case Heartbeat():
                pass

    def _assigned_within(self, author: str, ranges: Iterable[tuple[int, int]]) -> list[int]:
        return list(within(ranges, [one.position for one in self.assigned_to(author)]))

    def _open_session(self, position: int, author: str, operation: OpenSession) -> None:
        if self.session(author) == operation.session:
            return
        self._end_session(author)
        if len(self.sessions) >= MAX_SESSIONS:
            busy = {one.consumer for one in self.assigned.values()}
            idle = [one for one in self.sessions.values() if one.consumer not in busy]
            if not idle:
                return
            del self.sessions[min(idle, key=lambda one: (one.last_seen, one.consumer)).consumer]
        self.sessions[author] = ConsumerSession(author, operation.session, position)

    def _claim(self, author: str, claim: ClaimPositions) -> None:
        room = min(claim.count, MAX_CLAIMED - len(self.assigned_to(author)))
        for position in sorted(self.returned)[: max(room, 0)]:
            attempt = self.returned.pop(position) + 1
            self.assigned[position] = Assignment(position, author, attempt)
            # A session that closes returns what it had claimed in advance as never delivered.
            self.redelivered += attempt > 1
            room -= 1
        for position in range(self.next, min(self.next + max(room, 0), claim.end)):
            self.assigned[position] = Assignment(position, author, 1)
            self.next = position + 1

    def _nack(self, position: int) -> None:
        found = self.assigned[position]
        most = self.settings.max_attempts
        if most and found.attempt >= most:
            # The position stays with its consumer, which has the contents for the dead letter.
            self.assigned[position] = Assignment(position, found.consumer, most + 1)
        else:
            del self.assigned[position]
            self.returned[position] = found.attempt

    def _expire_session(self, expire: ExpireSession) -> None:
        found = self.sessions.get(expire.consumer)
        if found is None or found.session != expire.session or found.last_seen > expire.last_seen:
            return
        self._end_session(expire.consumer)

    def _end_session(self, consumer: str) -> None:
        """Remove a session and return its positions for redelivery."""
        for one in self.assigned_to(consumer):
            del self.assigned[one.position]
            self.returned[one.position] = one.attempt
        self.sessions.pop(consumer, None)

    def _configure(self, configure: Configure, charter: Charter | None) -> None:
        if charter is None:
            if not self.epoch:
                self.settings = configure.settings
            return
        if self.epoch and charter.epoch > self.epoch:
            self.epoch, self.allowed = charter.epoch, charter.members
            self.settings = charter.settings
            for consumer in [name for name in self.sessions if not self.is_allowed(name)]:
                self._end_session(consumer)

    # -------------------------------------------------------------- snapshots

    def snapshot(self) -> StateSnapshot:
        """This state in serialised form."""
        return StateSnapshot(
            root=self.root,
            epoch=self.epoch,
            allowed=self.allowed,
            settings=self.settings,
            next=self.next,
            sessions=tuple(self.sessions.values()),
            assigned=tuple(self.assigned.values()),
            returned=tuple(self.returned.items()),
            dead=tuple(self.dead),
            dead_count=self.dead_count,
            redelivered=self.redelivered,
        )

    @classmethod
    def from_snapshot(cls, found: StateSnapshot) -> SubscriptionState:
        """The state in a snapshot.

        The author of the snapshot is trusted, but its contents may be inconsistent. A position that
        is assigned to a consumer without a session is returned, so that it is not lost.
        """
        state = cls(found.root, found.next, found.allowed, found.settings, found.epoch)
        state.sessions = {one.consumer: one for one in found.sessions}
        state.assigned = {o.position: o for o in found.assigned if o.consumer in state.sessions}
        state.returned = {p: a for p, a in found.returned if p not in state.assigned}
        state.returned |= {
            o.position: o.attempt for o in found.assigned if o.consumer not in state.sessions
        }
        state.dead = list(found.dead)
        state.dead_count = found.dead_count
        state.redelivered = found.redelivered
        return state
