"""Consumers of a named subscription, drawn: what they write into the companion, and who reads it.

A companion is an order of operations, and what they mean is a pure function of that order. So a
scenario of total order draws one: consumers that join, claim, acknowledge, hand back, fall silent
and leave, of two lives and at two seats; operators that change the group; others that write what
they have no right to write, or words that came too late. Readers begin at any operation. In the end
all followers must agree with `PlainSubscription`, an independent model of `named.state` that keeps
one entry for every position.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import msgspec

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
#: Operations of one order, and readers that begin in the middle.
OPERATIONS, READERS = 100, 4
#: Every so many operations readers are compared with the ledger, and a member takes a picture.
LOOK = 5
OWNER, OTHER, OUTSIDER = NodeId("sub-1"), NodeId("sub-2"), NodeId("sub-3")
AUTHORS = (OWNER, NodeId("sub-1#1"), OTHER, OUTSIDER)
#: Who is in the group in each epoch, and how often a publication is tried.
GROUPS = {1: ((OWNER, OTHER), 0), 2: ((OWNER,), 2), 3: ((OWNER, OTHER), 3)}


@cache
def charter(epoch: int, *, forged: bool = False) -> bytes:
    """The operator's manifest of an epoch, with the group in it; or one that nobody signed."""
    members, attempts = GROUPS[epoch]
    orders = channel_entry(CHANNEL, Policy.named("total"))
    group = Group(NAME, members, max_attempts=attempts)
    channels = (msgspec.structs.replace(orders, groups=(group,)), make_companion(orders))
    manifest = msgspec.structs.replace(make_simulated_cell(4, 1, channels).manifest, epoch=epoch)
    signed = sign_manifest(manifest, operator_of(4))
    if forged:
        everybody = msgspec.structs.replace(group, members=(*members, OUTSIDER))
        orders = msgspec.structs.replace(orders, groups=(everybody,))
        lie = msgspec.structs.replace(manifest, channels=(orders, channels[1]))
        signed = msgspec.structs.replace(signed, manifest=lie)
    return msgspec.json.encode(signed)


class PositionState(msgspec.Struct):
    """What is known of one position: who has it, or that it waits; and its attempts."""

    holder: str
    attempts: int


class PlainSubscription:
    """The state of a subscription, written the simplest way."""

    def __init__(self, root: int, start: int, epoch: int, allowed: tuple[str, ...], most: int):
        self.root, self.next, self.epoch = root, start, epoch
        self.allowed, self.most = allowed, most
        #: Positions that are not settled; a holder "" is nobody.
        self.lines: dict[int, PositionState] = {}
        self.sessions: dict[str, tuple[int, int]] = {}
        self.dead = self.again = 0

    def is_allowed(self, author: str) -> bool:
        """Whether an author, at whichever seat, is a member."""
        return author.split("#")[0] in self.allowed

    def _of(self, author: str) -> list[int]:
        return sorted(p for p, line in self.lines.items() if line.holder == author)

    def _end(self, author: str) -> None:
        self.sessions.pop(author, None)
        for position in self._of(author):
            self.lines[position].holder = ""

    def write(self, at: int, author: str, operation: AnyOperation) -> None:
        """The next operation, by a member."""
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
                    del self.lines[position]
            case NackPositions(ranges=ranges):
                for position in self._named(author, ranges):
                    line = self.lines[position]
                    if self.most and line.attempts >= self.most:
                        line.attempts = self.most + 1
                    else:
                        line.holder = ""
            case CloseSession(delivered=touched):
                seen_ = self._named(author, touched)
                for position in self._of(author):
                    if position not in seen_:
                        self.lines[position].attempts = max(0, self.lines[position].attempts - 1)
                self._end(author)
            case MarkDead(position=position):
                used_up = (
                    self.most
                    and self.lines.get(position, PositionState("", 0)).attempts > self.most
                )
                if position in self._of(author) and used_up:
                    del self.lines[position]
                    self.dead += 1
            case SkipTo(upto=upto):
                self.next = max(self.next, upto)
            case _:
                pass

    def _named(self, author: str, ranges: tuple[tuple[int, int], ...]) -> list[int]:
        return [p for p in self._of(author) if any(a <= p <= b for a, b in ranges)]

    def _claim(self, author: str, count: int, end: int) -> None:
        for _ in range(min(count, MAX_CLAIMED - len(self._of(author)))):
            free = sorted(p for p, line in self.lines.items() if not line.holder)
            if free:
                self.lines[free[0]].holder = author
                self.lines[free[0]].attempts += 1
                self.again += 1
            elif self.next < end:
                self.lines[self.next] = PositionState(author, 1)
                self.next += 1

    def govern(self, epoch: int, members: tuple[str, ...], most: int) -> None:
        """A newer charter."""
        if epoch > self.epoch:
            self.epoch, self.allowed, self.most = epoch, members, most
            for consumer in [name for name in self.sessions if not self.is_allowed(name)]:
                self._end(consumer)

    def snapshot(self) -> StateSnapshot:
        """The same as a snapshot has it, in order of names and positions."""
        return StateSnapshot(
            root=self.root,
            epoch=self.epoch,
            allowed=self.allowed,
            settings=SubscriptionSettings(self.most),
            next=self.next,
            sessions=tuple(ConsumerSession(n, *said) for n, said in sorted(self.sessions.items())),
            assigned=tuple(
                Assignment(p, line.holder, line.attempts)
                for p, line in sorted(self.lines.items())
                if line.holder
            ),
            returned=tuple(
                (p, line.attempts) for p, line in sorted(self.lines.items()) if not line.holder
            ),
            dead=(),
            dead_count=self.dead,
            redelivered=self.again,
        )


class Companion:
    """One order of operations, drawn as it goes."""

    def __init__(self, rng: random.Random, *, shared: bool) -> None:
        self._rng = rng
        self.shared = shared
        self.at = 0
        self.ledger: PlainSubscription | None = None
        #: The session of each author, and what the ledger was a few operations ago.
        self._session = dict.fromkeys(AUTHORS, 0)
        self.taken: tuple[int, StateSnapshot] | None = None

    def draw(self) -> tuple[NodeId, AnyOperation]:
        """What somebody writes next."""
        rng, book = self._rng, self.ledger
        author = rng.choice((*AUTHORS[:3], rng.choice(AUTHORS)))
        if book is None or rng.randrange(30) == 0:
            upto = self.at if book is None else rng.choice((self.at, book.root - 1, 0))
            start = rng.choice((1, rng.randrange(1, 30)))
            return author, Create(
                upto, start, SubscriptionSettings(rng.choice((0, 2))), self._charter(new=True)
            )
        if rng.randrange(12) == 0:
            upto, picture = self.taken or (self.at, book.snapshot())
            if rng.randrange(3) == 0:
                return OUTSIDER, WriteSnapshot(self.at, _lie(picture))
            return rng.choice([a for a in AUTHORS if book.is_allowed(a)]), WriteSnapshot(
                upto, picture
            )
        return author, self._work(author, book)

    def _charter(self, *, new: bool = False) -> bytes:
        """A charter; whoever begins a subscription anew has one that is not older."""
        rng = self._rng
        if not self.shared:
            return b""
        newest = 1 if self.ledger is None else self.ledger.epoch
        epoch = rng.choice((newest, newest, min(3, newest + 1), newest if new else 1))
        return b"none" if rng.randrange(15) == 0 else charter(epoch, forged=rng.randrange(8) == 0)

    def _work(self, author: NodeId, book: PlainSubscription) -> AnyOperation:
        rng = self._rng
        session = self._session[author] if rng.randrange(10) else rng.randrange(1, 4)
        if not session or rng.randrange(12) == 0:
            session = self._session[author] = self._session[author] % 3 + 1
            return OpenSession(session)
        mine = [p for p, line in book.lines.items() if line.holder == author]
        chosen = mine if mine and rng.randrange(4) else list(book.lines) or [1]
        first = rng.choice(chosen)
        ranges = ((first, first + rng.randrange(3)),)
        consumer = rng.choice(list(book.sessions) or [author])
        known, seen = book.sessions.get(consumer, (1, 0))
        release = ExpireSession(
            consumer, known if rng.randrange(4) else 1, max(0, seen + rng.choice((-1, 0, 1)))
        )
        return rng.choice(
            (
                ClaimPositions(session, rng.randrange(1, 8), book.next + rng.randrange(8)),
                ClaimPositions(session, rng.randrange(1, 8), book.next + rng.randrange(8)),
                AckPositions(session, ranges),
                AckPositions(session, ranges),
                NackPositions(session, ranges),
                NackPositions(session, ranges),
                MarkDead(session, first),
                Heartbeat(session),
                release,
                CloseSession(session, ranges if rng.randrange(2) else ()),
                SkipTo(session, max(1, book.next + rng.randrange(-3, 4))),
                Configure(SubscriptionSettings(rng.choice((0, 2, 3))), self._charter()),
            )
        )

    def write(self, author: NodeId, operation: AnyOperation) -> None:
        """Let it take its place in the order, and in the ledger."""
        self.at += 1
        book, owner = self.ledger, author.split("#")[0]
        if not self.shared and owner != OWNER:
            return
        said = getattr(operation, "charter", b"")
        epoch = next((e for e in GROUPS if said == charter(e)), 0)
        members, most = GROUPS[epoch] if self.shared and epoch else ((OWNER,), 0)
        if isinstance(operation, Create | Configure) and self.shared:
            if not epoch or owner not in members:
                return
        elif isinstance(operation, Create | Configure):
            most = operation.settings.max_attempts
        match operation:
            case Create(upto=upto, start=start):
                if book is None or (book.root <= upto and epoch >= book.epoch):
                    self.ledger = PlainSubscription(self.at, start, epoch, members, most)
            case Configure() if book is not None and self.shared:
                book.govern(epoch, members, most)
            case Configure() if book is not None:
                book.most = most
            case WriteSnapshot():
                pass
            case _:
                if book is not None and book.is_allowed(author):
                    book.write(self.at, author, operation)


def _lie(picture: StateSnapshot) -> StateSnapshot:
    """A state in which somebody else has everything."""
    claims = tuple(Assignment(p, OUTSIDER, 1) for p in range(1, picture.next))
    return msgspec.structs.replace(
        picture,
        sessions=(ConsumerSession(OUTSIDER, 1, 0),),
        assigned=claims,
        returned=(),
        allowed=("*",),
    )


def _known(follower: Follower) -> StateSnapshot | None:
    """What a follower knows, in the order of the ledger."""
    if follower.state is None:
        return None
    found = follower.state.snapshot()
    return msgspec.structs.replace(
        found,
        settings=SubscriptionSettings(found.settings.max_attempts),
        sessions=tuple(sorted(found.sessions, key=lambda m: m.consumer)),
        assigned=tuple(sorted(found.assigned, key=lambda c: c.position)),
        returned=tuple(sorted(found.returned)),
        dead=(),
    )


def _reader(since: int, manifest: Manifest, *, shared: bool) -> Follower:
    charters = charter_reader(manifest.cell, manifest.operator, CHANNEL, NAME)
    trusted = (OWNER, OTHER) if shared else (OWNER,)
    owner = None if shared else OWNER
    return Follower(NAME, owner, since, lambda a: a.split("#")[0] in trusted, charters)


def examine_subscriptions(rng: random.Random) -> Iterator[str]:
    """Draw an order of operations; say where a reader of it has another state than the ledger."""
    shared = rng.randrange(3) > 0
    companion = Companion(rng, shared=shared)
    manifest = make_simulated_cell(4, 1, ()).manifest
    begins = [1, *(rng.randrange(2, OPERATIONS) for _ in range(READERS))]
    readers = {since: _reader(since, manifest, shared=shared) for since in begins}
    for _ in range(OPERATIONS):
        author, operation = companion.draw()
        companion.write(author, operation)
        # The same words about another subscription mean nothing to this one.
        name = NAME if rng.randrange(20) else rng.choice(("others", NAME))
        elsewhere = encode(not shared, name, operation)
        words = (
            [elsewhere, encode(shared, NAME, operation)]
            if rng.randrange(20) == 0
            else [encode(shared, NAME, operation)]
        )
        for since, reader in readers.items():
            if since <= companion.at:
                reader.read(companion.at, author, words)
        if companion.at % LOOK == 0:
            truth = None if companion.ledger is None else companion.ledger.snapshot()
            companion.taken = None if truth is None else (companion.at, truth)
            for since, reader in readers.items():
                known = _known(reader)
                if known != truth and (known is not None or since == 1):
                    yield f"a reader from {since} on is wrong after {type(operation).__name__}"
                    return
    if companion.ledger is not None and len(companion.ledger.sessions) <= MAX_SESSIONS:
        companion.at += 1
        last = WriteSnapshot(companion.at - 1, companion.ledger.snapshot())
        member = next(a for a in AUTHORS if companion.ledger.is_allowed(a))
        for since, reader in readers.items():
            reader.read(companion.at, member, [encode(shared, NAME, last)])
            if _known(reader) != companion.ledger.snapshot():
                yield f"a reader from {since} on does not know the state after a snapshot"
