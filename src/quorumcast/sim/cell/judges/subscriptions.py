"""A test of named subscriptions: random operations, and followers that must agree on the state.

The state of a named subscription is a pure function of the operations on its companion channel. A
scenario with total order draws such a sequence: consumers open sessions, claim, acknowledge and
return positions, expire and leave; the operator changes the group; others write what they may not,
or write too late. Followers start at random operations. All of them must agree with
`PlainSubscription`, an independent model of `named.state` with one entry per position.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import msgspec
from msgspec.structs import replace

from quorumcast.core.ids import NodeId
from quorumcast.manifest.files import sign_manifest
from quorumcast.manifest.groups import make_companion
from quorumcast.manifest.manifest import Group, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.named.follower import Follower, charter_reader
from quorumcast.named.operations import (
    MAX_CLAIMED,
    MAX_SESSIONS,
    AckPositions,
    AnyOperation,
    Assignment,
    ClaimPositions,
    CloseSession,
    Configure,
    ConsumerSession,
    Create,
    ExpireSession,
    Heartbeat,
    MarkDead,
    NackPositions,
    OpenSession,
    SkipTo,
    StateSnapshot,
    SubscriptionSettings,
    WriteSnapshot,
    encode,
)
from quorumcast.sim.cell.cells import channel_entry, make_simulated_cell, operator_of

NAME, CHANNEL = "workers", "orders"
#: Number of operations, and of followers that start in the middle.
OPERATIONS, FOLLOWERS = 100, 4
#: Number of operations after which followers are compared with the model, and a snapshot is taken.
CHECK_EVERY = 5
OWNER, OTHER, OUTSIDER = NodeId("sub-1"), NodeId("sub-2"), NodeId("sub-3")
AUTHORS = (OWNER, NodeId("sub-1#1"), OTHER, OUTSIDER)
#: Members of the group and maximum of attempts in each epoch.
GROUPS = {1: ((OWNER, OTHER), 0), 2: ((OWNER,), 2), 3: ((OWNER, OTHER), 3)}


@cache
def charter(epoch: int, *, forged: bool = False) -> bytes:
    """The signed manifest of an epoch with the group in it; or one with a false signature."""
    members, attempts = GROUPS[epoch]
    orders = channel_entry(CHANNEL, Policy.named("total"))
    group = Group(NAME, members, max_attempts=attempts)
    channels = (replace(orders, groups=(group,)), make_companion(orders))
    manifest = replace(make_simulated_cell(4, 1, channels).manifest, epoch=epoch)
    signed = sign_manifest(manifest, operator_of())
    if forged:
        everybody = replace(group, members=(*members, OUTSIDER))
        orders = replace(orders, groups=(everybody,))
        lie = replace(manifest, channels=(orders, channels[1]))
        signed = replace(signed, manifest=lie)
    return msgspec.json.encode(signed)


class PositionState(msgspec.Struct):
    """The consumer that holds a position ("": none), and its number of attempts."""

    holder: str
    attempts: int


class PlainSubscription:
    """The state of a subscription in its simplest form."""

    def __init__(self, root: int, start: int, epoch: int, allowed: tuple[str, ...], most: int):
        self.root, self.next, self.epoch = root, start, epoch
        self.allowed, self.most = allowed, most
        #: Positions that were assigned and are not settled.
        self.positions: dict[int, PositionState] = {}
        #: Session number and last operation of each consumer.
        self.sessions: dict[str, tuple[int, int]] = {}
        self.dead = self.redelivered = 0

    def is_allowed(self, author: str) -> bool:
        """Whether an author is a member, at any of its seats."""
        return author.split("#")[0] in self.allowed

    def _held_by(self, author: str) -> list[int]:
        return sorted(p for p, state in self.positions.items() if state.holder == author)

    def _end(self, author: str) -> None:
        self.sessions.pop(author, None)
        for position in self._held_by(author):
            self.positions[position].holder = ""

    def write(self, at: int, author: str, operation: AnyOperation) -> None:
        """Apply the next operation, by a member."""
        if isinstance(operation, OpenSession):
            if self.sessions.get(author, (0, 0))[0] != operation.session:
                self._end(author)
                self.sessions[author] = (operation.session, at)
            return
        if isinstance(operation, ExpireSession):
            session, seen = self.sessions.get(operation.consumer, (0, 0))
            if session == operation.session and seen <= operation.last_seen:
                self._end(operation.consumer)
            return
        if self.sessions.get(author, (0, 0))[0] != getattr(operation, "session", -1):
            return
        self.sessions[author] = (self.sessions[author][0], at)
        match operation:
            case ClaimPositions(count=count, end=end):
                self._claim(author, count, end)
            case AckPositions(ranges=ranges):
                for position in self._named(author, ranges):
                    del self.positions[position]
            case NackPositions(ranges=ranges):
                for position in self._named(author, ranges):
                    state = self.positions[position]
                    if self.most and state.attempts >= self.most:
                        state.attempts = self.most + 1
                    else:
                        state.holder = ""
            case CloseSession(delivered=touched):
                delivered = self._named(author, touched)
                for position in self._held_by(author):
                    state = self.positions[position]
                    if position not in delivered:
                        state.attempts = max(0, state.attempts - 1)
                self._end(author)
            case MarkDead(position=position):
                is_held = self.most and position in self._held_by(author)
                if is_held and self.positions[position].attempts > self.most:
                    del self.positions[position]
                    self.dead += 1
            case SkipTo(upto=upto):
                self.next = max(self.next, upto)
            case _:
                pass

    def _named(self, author: str, ranges: tuple[tuple[int, int], ...]) -> list[int]:
        return [p for p in self._held_by(author) if any(a <= p <= b for a, b in ranges)]

    def _claim(self, author: str, count: int, end: int) -> None:
        for _ in range(min(count, MAX_CLAIMED - len(self._held_by(author)))):
            free = sorted(p for p, state in self.positions.items() if not state.holder)
            if free:
                self.positions[free[0]].holder = author
                self.positions[free[0]].attempts += 1
                self.redelivered += self.positions[free[0]].attempts > 1
            elif self.next < end:
                self.positions[self.next] = PositionState(author, 1)
                self.next += 1

    def govern(self, epoch: int, members: tuple[str, ...], most: int) -> None:
        """Apply the group of a newer epoch."""
        if epoch > self.epoch:
            self.epoch, self.allowed, self.most = epoch, members, most
            for consumer in [name for name in self.sessions if not self.is_allowed(name)]:
                self._end(consumer)

    def snapshot(self) -> StateSnapshot:
        """The state as a snapshot, sorted by names and positions."""
        positions = sorted(self.positions.items())
        sessions = sorted(self.sessions.items())
        return StateSnapshot(
            root=self.root,
            epoch=self.epoch,
            allowed=self.allowed,
            settings=SubscriptionSettings(self.most),
            next=self.next,
            sessions=tuple(ConsumerSession(name, *known) for name, known in sessions),
            assigned=tuple(Assignment(p, s.holder, s.attempts) for p, s in positions if s.holder),
            returned=tuple((p, s.attempts) for p, s in positions if not s.holder),
            dead=(),
            dead_count=self.dead,
            redelivered=self.redelivered,
        )


class Companion:
    """The sequence of operations, drawn one by one, and the model's state."""

    def __init__(self, rng: random.Random, *, shared: bool) -> None:
        self._rng = rng
        self.shared = shared
        self.at = 0
        self.model: PlainSubscription | None = None
        #: The current session number of each author.
        self._session = dict.fromkeys(AUTHORS, 0)
        #: The last snapshot, with the operation after which it was taken.
        self.taken: tuple[int, StateSnapshot] | None = None

    def draw(self) -> tuple[NodeId, AnyOperation]:
        """The next operation and its author."""
        rng, model = self._rng, self.model
        author = rng.choice((*AUTHORS[:3], rng.choice(AUTHORS)))
        if model is None or rng.randrange(30) == 0:
            upto = self.at if model is None else rng.choice((self.at, model.root - 1, 0))
            start = rng.choice((1, rng.randrange(1, 30)))
            settings = SubscriptionSettings(rng.choice((0, 2)))
            return author, Create(upto, start, settings, self._charter(new=True))
        if rng.randrange(12) == 0:
            upto, snapshot = self.taken or (self.at, model.snapshot())
            if rng.randrange(3) == 0:
                return OUTSIDER, WriteSnapshot(self.at, _falsified(snapshot))
            members = [a for a in AUTHORS if model.is_allowed(a)]
            return rng.choice(members), WriteSnapshot(upto, snapshot)
        return author, self._work(author, model)

    def _charter(self, *, new: bool = False) -> bytes:
        """A manifest for an operation; for a new subscription, not an older one."""
        rng = self._rng
        if not self.shared:
            return b""
        newest = 1 if self.model is None else self.model.epoch
        epoch = rng.choice((newest, newest, min(3, newest + 1), newest if new else 1))
        return b"none" if rng.randrange(15) == 0 else charter(epoch, forged=rng.randrange(8) == 0)

    def _work(self, author: NodeId, model: PlainSubscription) -> AnyOperation:
        rng = self._rng
        session = self._session[author] if rng.randrange(10) else rng.randrange(1, 4)
        if not session or rng.randrange(12) == 0:
            session = self._session[author] = self._session[author] % 3 + 1
            return OpenSession(session)
        mine = [p for p, state in model.positions.items() if state.holder == author]
        chosen = mine if mine and rng.randrange(4) else list(model.positions) or [1]
        first = rng.choice(chosen)
        ranges = ((first, first + rng.randrange(3)),)
        consumer = rng.choice(list(model.sessions) or [author])
        known, seen = model.sessions.get(consumer, (1, 0))
        release = ExpireSession(
            consumer, known if rng.randrange(4) else 1, max(0, seen + rng.choice((-1, 0, 1)))
        )
        return rng.choice(
            (
                ClaimPositions(session, rng.randrange(1, 8), model.next + rng.randrange(8)),
                ClaimPositions(session, rng.randrange(1, 8), model.next + rng.randrange(8)),
                AckPositions(session, ranges),
                AckPositions(session, ranges),
                NackPositions(session, ranges),
                NackPositions(session, ranges),
                MarkDead(session, first),
                Heartbeat(session),
                release,
                CloseSession(session, ranges if rng.randrange(2) else ()),
                SkipTo(session, max(1, model.next + rng.randrange(-3, 4))),
                Configure(SubscriptionSettings(rng.choice((0, 2, 3))), self._charter()),
            )
        )

    def write(self, author: NodeId, operation: AnyOperation) -> None:
        """Append an operation, and apply it to the model if its author may write it."""
        self.at += 1
        model, owner = self.model, author.split("#")[0]
        if not self.shared and owner != OWNER:
            return
        given = getattr(operation, "charter", b"")
        epoch = next((e for e in GROUPS if given == charter(e)), 0)
        members, most = GROUPS[epoch] if self.shared and epoch else ((OWNER,), 0)
        if isinstance(operation, Create | Configure) and self.shared:
            if not epoch or owner not in members:
                return
        elif isinstance(operation, Create | Configure):
            most = operation.settings.max_attempts
        match operation:
            case Create(upto=upto, start=start):
                if model is None or (model.root <= upto and epoch >= model.epoch):
                    self.model = PlainSubscription(self.at, start, epoch, members, most)
            case Configure() if model is not None and self.shared:
                model.govern(epoch, members, most)
            case Configure() if model is not None:
                model.most = most
            case WriteSnapshot():
                pass
            case _:
                if model is not None and model.is_allowed(author):
                    model.write(self.at, author, operation)


def _falsified(snapshot: StateSnapshot) -> StateSnapshot:
    """The state with all positions assigned to an outsider."""
    claims = tuple(Assignment(p, OUTSIDER, 1) for p in range(1, snapshot.next))
    return replace(
        snapshot,
        sessions=(ConsumerSession(OUTSIDER, 1, 0),),
        assigned=claims,
        returned=(),
        allowed=("*",),
    )


def _known(follower: Follower) -> StateSnapshot | None:
    """The follower's state, sorted as the model sorts it."""
    if follower.state is None:
        return None
    found = follower.state.snapshot()
    return replace(
        found,
        settings=SubscriptionSettings(found.settings.max_attempts),
        sessions=tuple(sorted(found.sessions, key=lambda m: m.consumer)),
        assigned=tuple(sorted(found.assigned, key=lambda c: c.position)),
        returned=tuple(sorted(found.returned)),
        dead=(),
    )


def _follower(since: int, manifest: Manifest, *, shared: bool) -> Follower:
    charters = charter_reader(manifest.cell, manifest.operator, CHANNEL, NAME)
    trusted = (OWNER, OTHER) if shared else (OWNER,)
    owner = None if shared else OWNER
    return Follower(NAME, owner, since, lambda a: a.split("#")[0] in trusted, charters)


def examine_subscriptions(rng: random.Random) -> Iterator[str]:
    """Draw a sequence of operations; yield each disagreement between a follower and the model."""
    shared = rng.randrange(3) > 0
    companion = Companion(rng, shared=shared)
    manifest = make_simulated_cell(4, 1, ()).manifest
    begins = [1, *(rng.randrange(2, OPERATIONS) for _ in range(FOLLOWERS))]
    followers = {since: _follower(since, manifest, shared=shared) for since in begins}
    for _ in range(OPERATIONS):
        author, operation = companion.draw()
        companion.write(author, operation)
        # The same operation on another subscription means nothing to this one.
        name = NAME if rng.randrange(20) else rng.choice(("others", NAME))
        written = [encode(shared, NAME, operation)]
        if rng.randrange(20) == 0:
            written.insert(0, encode(not shared, name, operation))
        for since, follower in followers.items():
            if since <= companion.at:
                follower.read(companion.at, author, written)
        if companion.at % CHECK_EVERY == 0:
            truth = None if companion.model is None else companion.model.snapshot()
            companion.taken = None if truth is None else (companion.at, truth)
            for since, follower in followers.items():
                known = _known(follower)
                if known != truth and (known is not None or since == 1):
                    yield f"a reader from {since} on is wrong after {type(operation).__name__}"
                    return
    if companion.model is not None and len(companion.model.sessions) <= MAX_SESSIONS:
        companion.at += 1
        last = WriteSnapshot(companion.at - 1, companion.model.snapshot())
        member = next(a for a in AUTHORS if companion.model.is_allowed(a))
        for since, follower in followers.items():
            follower.read(companion.at, member, [encode(shared, NAME, last)])
            if _known(follower) != companion.model.snapshot():
                yield f"a reader from {since} on does not know the state after a snapshot"
