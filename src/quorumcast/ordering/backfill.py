"""Fetches positions that were ordered while this broker was away, or that its disk lost.

After a state transfer a broker continues behind the state at once, and fills in what lies before it
in the background, newest first, so that its ledger never has a hole. The state holds, for each
channel, a chain that stands for everything that was ordered there. Each run comes with the chain
before it, and only the right one gives the chain that is known: the sender need not be trusted, and
what it sends is checked before anything is written. What nobody sends is asked for seldom: the
others may have dropped it, or they are away.
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

#: Runs and bytes of one answer, or one run more; and how often a peer may ask.
PAST_RUNS = 64
PAST_BYTES = 4 * 1024 * 1024
PAST_MS = 50
#: How often in vain the next run is asked for with every tick, and after how many ticks then. A
#: prime number: every peer has its turn.
MAX_ATTEMPTS = 20
SELDOM_TICKS = 61


class Backfill:
    """What the channels of one log lack before their oldest positions."""

    __slots__ = ("_answered", "_attempts", "_context", "_log", "_offers", "_turn")

    def __init__(self, log: Protection, context: LogContext, offers: Offers) -> None:
        self._log = log
        self._context = context
        self._offers = offers
        #: Channels that lack something, and how often it was asked for in vain; in turn.
        self._attempts: dict[Channel, int] = {}
        #: When each peer was answered last.
        self._answered: dict[NodeId, Millis] = {}
        #: Counts requests: whose turn it is to be asked.
        self._turn = 0

    def __bool__(self) -> bool:
        """Whether something is lacking that others may well have."""
        return any(attempts < MAX_ATTEMPTS for attempts in self._attempts.values())

    def want(self, log: OrderedLog) -> None:
        """Fetch what a channel lacks, if it lacks something."""
        if log.filling:
            self._attempts[log.stream.channel] = 0

    def ask(self) -> list[Effect]:
        """Ask for what comes next: a peer for one channel, since it answers one query at a time."""
        effects: list[Effect] = []
        self._turn += 1
        peers = deque(self._context.peers)
        peers.rotate(self._turn)
        for channel, attempts in list(self._attempts.items()):
            log = self._context.log_of(channel)
            if log is not None and log.arriving:
                continue  # the disk is busy with what has come
            if log is None or not log.has_room:
                del self._attempts[channel]
                effects += [] if log is None else log.stop_filling()
            elif peers and (attempts < MAX_ATTEMPTS or self._turn % SELDOM_TICKS == 0):
                del self._attempts[channel]
                self._attempts[channel] = attempts + 1  # the others come first at the next tick
                query = PastQuery(self._log, channel, log.lowest[0])
                effects.append(Send((peers.popleft(),), query))
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
            found = None if placed is None else log.find(placed.stream, placed.first)
            if placed is None or found is None or found[0].digests != placed.digests:
                break
            offer, bodies = found
            past = Past(
                self._log,
                placed.position,
                placed.chain,
                placed.stamp,
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
        if log is None or channel not in self._attempts or not log.has_room:
            return [Drop(DropReason.UNEXPECTED, sender)]
        if not log.is_next(past):
            return [Drop(DropReason.OUT_OF_TURN, sender)]
        effects = None if self._offers.flaw(past.offer, bodies) else log.prepend(past, bodies, now)
        if effects is None:
            told = Suspect(sender, Suspicion.FALSE_STATEMENT, total_order(channel), past.position)
            return [Drop(DropReason.BAD_RUN, sender), told]
        self._attempts[channel] = 0
        return effects
