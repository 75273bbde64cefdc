"""Votes on results: what brokers owe a subscriber that wants some rows only.

Its brokers send `Matches` instead of `Vote`, and say where nothing matches a little later than what
does. Both are counted as one message, `Matches`: what one quorum has voted on, and the subscriber
has accepted or passed over, every broker must vote on. A vote under another predicate counts for
nothing. The machine knows the predicate; so a vote is counted once the machine has not dropped it.

A change of the predicate begins anew: brokers vote again from the number whose turn it is, and are
excused from votes on the numbers before. What a broker votes for is the machine's to judge, which
suspects it of `omits` or `dissent`.
"""

from __future__ import annotations

import msgspec

from quorumcast.broadcast.messages import Matches
from quorumcast.cell.messages import Subscribe
from quorumcast.core.ids import Channel, Millis, NodeId, Stream
from quorumcast.core.machine import Drop, DropReason
from quorumcast.watch.claims import PositionClaims
from quorumcast.watch.observation import Notes
from quorumcast.watch.sources import Sources
from quorumcast.watch.turnout import CumulativeTurnout, LinkHistory


class _HeardResult(msgspec.Struct, frozen=True):
    """A vote that the machine is handling."""

    sender: NodeId
    message: Matches
    bodies: int
    at: Millis


class ResultsWatch:
    """The votes on results that one subscriber is owed."""

    def __init__(
        self,
        others: tuple[NodeId, ...],
        links: LinkHistory,
        notes: Notes,
        claims: PositionClaims,
        sources: Sources,
    ) -> None:
        self.turnout = CumulativeTurnout("Matches", others, links, notes)
        self._claims = claims
        self._sources = sources
        #: The predicates of this node, by channel; none is empty.
        self._where: dict[Channel, tuple[str, ...]] = {}
        self._handling: _HeardResult | None = None

    def __contains__(self, channel: object) -> bool:
        """Whether this node has predicates on a channel."""
        return channel in self._where

    def on_subscribe(self, message: Subscribe) -> bool:
        """This node says what it wants; return whether it wants something else than before."""
        channel, where = message.channel, message.where
        if message.until or self._where.get(channel, ()) == where:
            return False
        self._where.pop(channel, None)
        if where:
            self._where[channel] = where
        self.turnout.begin_anew(channel)
        return True

    def on_message(self, now: Millis, sender: NodeId, message: Matches, bodies: int) -> None:
        """A broker votes."""
        self._handling = _HeardResult(sender, message, bodies, now)

    def on_drop(self, drop: Drop) -> None:
        """The machine drops a message: perhaps a vote under another predicate."""
        if drop.reason is DropReason.OTHER_PREDICATE:
            self._handling = None

    def settle(self) -> None:
        """Count the vote that the machine was handling."""
        heard, self._handling = self._handling, None
        if heard is None or heard.message.stream.channel not in self._where:
            return
        stream, last = heard.message.stream, heard.message.first + heard.message.count - 1
        self._claims.on_reached(stream, last)
        self.turnout.on_report(heard.sender, stream.channel)
        self.turnout.on_progress(heard.at, heard.sender, stream, last)
        if heard.message.places:
            self._sources.on_vote(heard.at, heard.sender, heard.message, heard.bodies)

    def on_quorum(self, now: Millis, stream: Stream, number: int) -> None:
        """This node has accepted, or passed over, everything up to a number."""
        self.turnout.on_quorum(now, stream, number)
