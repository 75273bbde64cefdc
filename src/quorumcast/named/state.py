"""The state of one named subscription: a pure function of the operations that consumers wrote.

Every position from the start on is in exactly one of these, and none is in two:

    fresh     not before `next`: nobody has had it yet
    held      claimed by one session of one consumer
    pool      to come again: nacked, or its holder went away
    settled   acknowledged, or dead

so nothing is lost and nobody works on what somebody else holds. The state says nothing of time: a
member that believes another one dead says so in the order (`Release`), and loses against any sign
of life that stands before it there. Operations that make no sense where they stand (not a member,
not its claim, a session that is over) change nothing, and change nothing for everybody.

An *attempt* is an assignment. One beyond `max_attempts` is never handed to the application:
its holder puts the publication on the dead-letter channel and says `Dead`.

Bounds: MAX_MEMBERS members, MAX_CLAIMED positions each. New positions are handed out only when
nothing waits to come again, so held and pool together are bounded by their product.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quorumcast.core.ids import NodeId, holder
from quorumcast.named.operations import (
    MAX_CLAIMED,
    MAX_DEAD,
    MAX_MEMBERS,
    Ack,
    AnyOperation,
    Beat,
    Claim,
    Claimed,
    Configure,
    Dead,
    Join,
    Leave,
    Member,
    Nack,
    Picture,
    Release,
    Settings,
    Skip,
)
from quorumcast.named.ranges import within

#: In a list of members: whoever may write to the companion.
ANYBODY = "*"


def listed(author: str, members: tuple[str, ...]) -> bool:
    """Whether an author is one of these clients, at whichever seat."""
    return ANYBODY in members or holder(author) in members


class Charter(msgspec.Struct, frozen=True):
    """What the operator says of a shared subscription in one epoch."""

    epoch: int
    members: tuple[str, ...]
    settings: Settings


class State:
    """Who holds what of one subscription."""

    __slots__ = (
        "allowed",
        "dead",
        "dead_count",
        "epoch",
        "held",
        "members",
        "next",
        "pool",
        "redelivered",
        "root",
        "settings",
    )

    def __init__(
        self, root: int, start: int, allowed: tuple[str, ...], settings: Settings, epoch: int = 0
    ) -> None:
        #: The operation that created it.
        self.root = root
        #: Who may take part, since which epoch; changed by `Configure` alone.
        self.allowed = allowed
        self.epoch = epoch
        self.settings = settings
        #: The first position that nobody has had yet; only grows.
        self.next = start
        #: Consumers at work, at most MAX_MEMBERS.
        self.members: dict[str, Member] = {}
        #: Position → who holds it, and in which attempt; holders are members.
        self.held: dict[int, Claimed] = {}
        #: Position → attempts so far; disjoint from `held`.
        self.pool: dict[int, int] = {}
        #: The newest positions that were given up, and how many there were.
        self.dead: list[int] = []
        self.dead_count = 0
        #: How often a position was handed out again.
        self.redelivered = 0

    # ---------------------------------------------------------------- reading

    @property
    def cursor(self) -> int:
        """Everything before it is settled."""
        return min((self.next, *self.held, *self.pool))

    def may(self, author: str) -> bool:
        """Whether this author's operations count."""
        return listed(author, self.allowed)

    def session(self, consumer: str) -> int:
        """The session of a consumer; 0 if it is at work in none."""
        member = self.members.get(consumer)
        return 0 if member is None else member.session

    def held_by(self, consumer: str) -> list[Claimed]:
        """What a consumer holds, by position."""
        mine = [claim for claim in self.held.values() if claim.consumer == consumer]
        return sorted(mine, key=lambda claim: claim.position)

    def condemned(self, claim: Claimed) -> bool:
        """Whether its attempts are used up."""
        return 0 < self.settings.max_attempts < claim.attempt

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "members": len(self.members),
            "held": len(self.held),
            "pool": len(self.pool),
            "dead": len(self.dead),
        }

    # --------------------------------------------------------------- changing

    def apply(
        self, position: int, author: NodeId, operation: AnyOperation, charter: Charter | None = None
    ) -> None:
        """The next operation of the order; `charter` is what a `Configure` of a group carries."""
        if charter is not None and not listed(author, charter.members):
            return
        # A newer charter speaks for itself: whom it adds need not wait for an older member.
        if charter is None and not self.may(author):
            return
        match operation:
            case Join():
                self._join(position, author, operation)
            case Release():
                self._release(operation)
            case Configure():
                self._configure(operation, charter)
            case Claim() | Ack() | Nack() | Beat() | Leave() | Dead() | Skip():
                if self.session(author) == operation.session:
                    self.members[author] = Member(author, operation.session, position)
                    self._work(author, operation)
            case _:
                pass  # `Create` and `Snapshot` are the follower's business

    def _work(
        self, author: str, operation: Claim | Ack | Nack | Beat | Leave | Dead | Skip
    ) -> None:
        match operation:
            case Claim():
                self._claim(author, operation)
            case Ack(ranges=ranges):
                for position in self._mine(author, ranges):
                    del self.held[position]
            case Nack(ranges=ranges):
                for position in self._mine(author, ranges):
                    self._nack(position)
            case Leave(touched=touched):
                seen = self._mine(author, touched)
                for claim in self.held_by(author):
                    if claim.position not in seen:
                        del self.held[claim.position]
                        self.pool[claim.position] = max(0, claim.attempt - 1)
                self._free(author)
            case Dead(position=position):
                claimed = self.held.get(position)
                if claimed is not None and claimed.consumer == author and self.condemned(claimed):
                    del self.held[position]
                    self.dead = [*self.dead, position][-MAX_DEAD:]
                    self.dead_count += 1
            case Skip(upto=upto):
                self.next = max(self.next, upto)
            case Beat():
                pass

    def _mine(self, author: str, ranges: Iterable[tuple[int, int]]) -> list[int]:
        return list(within(ranges, [claim.position for claim in self.held_by(author)]))

    def _join(self, position: int, author: str, join: Join) -> None:
        if self.session(author) == join.session:
            return
        self._free(author)
        if len(self.members) >= MAX_MEMBERS:
            holders = {claim.consumer for claim in self.held.values()}
            idle = [m for m in self.members.values() if m.consumer not in holders]
            if not idle:
                return
            del self.members[min(idle, key=lambda m: (m.seen, m.consumer)).consumer]
        self.members[author] = Member(author, join.session, position)

    def _claim(self, author: str, claim: Claim) -> None:
        room = min(claim.count, MAX_CLAIMED - len(self.held_by(author)))
        for position in sorted(self.pool)[: max(room, 0)]:
            self.held[position] = Claimed(position, author, self.pool.pop(position) + 1)
            self.redelivered += 1
            room -= 1
        for position in range(self.next, min(self.next + max(room, 0), claim.end)):
            self.held[position] = Claimed(position, author, 1)
            self.next = position + 1

    def _nack(self, position: int) -> None:
        claim = self.held[position]
        most = self.settings.max_attempts
        if most and claim.attempt >= most:
            # It stays with its holder, who has the contents at hand and gives it up.
            self.held[position] = Claimed(position, claim.consumer, most + 1)
        else:
            del self.held[position]
            self.pool[position] = claim.attempt

    def _release(self, release: Release) -> None:
        member = self.members.get(release.consumer)
        if member is None or member.session != release.session or member.seen > release.seen:
            return
        self._free(release.consumer)

    def _free(self, consumer: str) -> None:
        """End a session: what it holds is to come again."""
        for claim in self.held_by(consumer):
            del self.held[claim.position]
            self.pool[claim.position] = claim.attempt
        self.members.pop(consumer, None)

    def _configure(self, configure: Configure, charter: Charter | None) -> None:
        if charter is None:
            if not self.epoch:
                self.settings = configure.settings
            return
        if self.epoch and charter.epoch > self.epoch:
            self.epoch, self.allowed = charter.epoch, charter.members
            self.settings = charter.settings
            for consumer in [name for name in self.members if not self.may(name)]:
                self._free(consumer)

    # -------------------------------------------------------------- snapshots

    def picture(self) -> Picture:
        """The state, written down."""
        return Picture(
            root=self.root,
            epoch=self.epoch,
            allowed=self.allowed,
            settings=self.settings,
            next=self.next,
            members=tuple(self.members.values()),
            held=tuple(self.held.values()),
            pool=tuple(self.pool.items()),
            dead=tuple(self.dead),
            dead_count=self.dead_count,
            redelivered=self.redelivered,
        )

    @classmethod
    def restored(cls, picture: Picture) -> State:
        """The state that was written down."""
        state = cls(picture.root, picture.next, picture.allowed, picture.settings, picture.epoch)
        state.members = {member.consumer: member for member in picture.members}
        # Whoever wrote it is trusted with what it says, not with making sense.
        state.held = {c.position: c for c in picture.held if c.consumer in state.members}
        state.pool = {p: a for p, a in picture.pool if p not in state.held}
        state.pool |= {
            c.position: c.attempt for c in picture.held if c.consumer not in state.members
        }
        state.dead = list(picture.dead)
        state.dead_count = picture.dead_count
        state.redelivered = picture.redelivered
        return state
