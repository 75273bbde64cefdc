"""Fetches positions that were ordered while this broker was away, or that its disk lost.

After a state transfer a broker goes on from the state at once. It fetches earlier positions in the
background, newest first, so that its ledger never has a hole. For each channel the state has a hash
chain over everything that was ordered there. A run is sent together with the value of the chain
before it. Only the true run and the true value give the known next value, so the sender need not be
trusted, and nothing is written before this check. A run that nobody sends is asked for seldom: the
others have dropped it, or are away.

The chain goes on where a channel was deleted and created again with the same name, and a liar may
have kept what was deleted. So a broker takes only positions that f+1 others (crash: one) say they
hold: one of them is correct, and correct brokers hold nothing of deleted channels.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorumcast.core.ids import Channel, Millis, NodeId, total_order
from quorumcast.core.machine import (
    Bodies,
    Drop,
    DropReason,
    Effect,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.quorum import Protection
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.messages import Past, PastQuery
from quorumcast.ordering.offers import Offers

if TYPE_CHECKING:
    from quorumcast.ordering.context import LogContext

#: Most runs of one answer; bytes after which it ends; and the time between two answers to a peer.
PAST_RUNS = 64
PAST_BYTES = 1024 * 1024
PAST_MS = 50
#: How long to wait for the next run of an answer before another peer is asked. Answers are large:
#: asked for sooner, a busy or distant peer's would be sent several times.
ANSWER_MS = 500
#: How often in vain the next run is asked for like this, and after how many ticks then. A prime
#: number: every peer has its turn.
MAX_ATTEMPTS = 10
SELDOM_TICKS = 61


class Request:
    """What a channel waits for."""

    __slots__ = ("asked", "attempts", "bases", "due", "runs", "size")

    def __init__(self) -> None:
        #: How often the next run was asked for in vain.
        self.attempts = 0
        #: The peer that was asked last, and when to ask again.
        self.asked: NodeId | None = None
        self.due = Millis(0)
        #: The oldest position that each peer says it holds.
        self.bases: dict[NodeId, int] = {}
        #: Runs and bytes that have come since a peer was asked.
        self.runs = self.size = 0

    def sent(self, peer: NodeId, now: Millis) -> None:
        """A peer was asked."""
        self.asked = peer
        self.attempts += 1
        self.runs = self.size = 0
        self.due = Millis(now + ANSWER_MS)

    def got(self, bodies: Bodies, now: Millis) -> None:
        """The next run has come; after the last one of an answer there is nothing to wait for."""
        self.attempts = 0
        self.runs += 1
        self.size += sum(map(len, bodies))
        is_whole = self.runs >= PAST_RUNS or self.size >= PAST_BYTES
        self.due = now if is_whole else Millis(now + ANSWER_MS)


class Backfill:
    """What the channels of one log lack before their oldest positions."""

    __slots__ = ("_answered", "_context", "_log", "_offers", "_requests", "_turn", "believe")

    def __init__(self, log: Protection, context: LogContext, offers: Offers) -> None:
        self._log = log
        self._context = context
        self._offers = offers
        #: Channels that lack something, in turn.
        self._requests: dict[Channel, Request] = {}
        #: When each peer was answered last.
        self._answered: dict[NodeId, Millis] = {}
        #: Counts requests: whose turn it is to be asked.
        self._turn = 0
        #: How many brokers must say that they hold a position. The sequencer sets it in each epoch.
        self.believe = 1

    def __bool__(self) -> bool:
        """Whether something is lacking that others may well have."""
        return any(request.attempts < MAX_ATTEMPTS for request in self._requests.values())

    def want(self, log: OrderedLog) -> None:
        """Fetch what a channel lacks, if it lacks something."""
        if log.filling:
            self._requests[log.stream.channel] = Request()

    def ask(self, now: Millis) -> list[Effect]:
        """Ask for what comes next: a peer for one channel, since it answers one query at a time."""
        effects: list[Effect] = []
        self._turn += 1
        peers = deque(self._context.peers)
        peers.rotate(self._turn)
        for channel, request in list(self._requests.items()):
            log = self._context.log_of(channel)
            if log is not None and log.arriving:
                continue  # the disk is busy with what has come
            if log is None or not log.filling or not log.has_room:
                del self._requests[channel]
                effects += [] if log is None else log.stop_filling()
                continue
            is_paused = request.attempts >= MAX_ATTEMPTS and self._turn % SELDOM_TICKS > 0
            if peers and now >= request.due and not is_paused:
                del self._requests[channel]
                self._requests[channel] = request  # the others come first at the next tick
                peer = peers.popleft()
                request.sent(peer, now)
                query = PastQuery(self._log, channel, log.lowest[0])
                effects.append(Send((peer,), query))
        return effects

    def on_query(self, sender: NodeId, query: PastQuery, now: Millis) -> list[Effect]:
        """Send what is held right before a position."""
        log = self._context.log_of(query.channel)
        if now - self._answered.get(sender, Millis(-PAST_MS)) < PAST_MS:
            return [Drop(DropReason.OVER_LIMIT, sender)]
        self._answered[sender] = now
        effects: list[Effect] = []
        before, size = query.before, 0
        while log is not None and len(effects) < PAST_RUNS and size < PAST_BYTES:
            placed = log.run_before(before)
            found = None if placed is None else log.contents(placed)
            if placed is None or found is None:
                break
            offer, bodies = found
            past = Past(
                self._log,
                placed.position,
                placed.chain,
                log.ledger.base,
                offer.stream,
                offer.first,
                offer.digests,
                offer.signature,
            )
            effects.append(Send((sender,), past, bodies))
            before, size = placed.position, size + placed.size
        return effects or [Drop(DropReason.NOT_HELD, sender)]

    def take(self, sender: NodeId, past: Past, bodies: Bodies, now: Millis) -> list[Effect]:
        """A run of the past, if it is the one that comes next."""
        channel = past.stream.channel
        log = self._context.log_of(channel)
        request = self._requests.get(channel)
        if log is None or request is None or not log.filling or not log.has_room:
            return [Drop(DropReason.UNEXPECTED, sender)]
        request.bases[sender] = past.base
        if sum(base <= past.position for base in request.bases.values()) < self.believe:
            if sender == request.asked:
                request.due = now  # the next peer may hold it as well
            return [Drop(DropReason.NOT_HELD, sender)]
        if not log.is_next(past):
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        flaw = self._offers.flaw(past.offer, bodies)
        effects = None if flaw else log.prepend(past, bodies, now)
        if effects is None:
            altered = flaw is DropReason.BAD_BODY
            lie = Suspicion.BAD_BODY if altered else Suspicion.FALSE_STATEMENT
            told = Suspect(sender, lie, total_order(channel), past.position)
            return [Drop(flaw or DropReason.BAD_RUN, sender), told]
        request.got(bodies, now)
        return effects
