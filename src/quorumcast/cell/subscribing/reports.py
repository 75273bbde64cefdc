"""What brokers report that they hold of a channel, and how much of it a subscriber may believe.

Up to f of them lie. So reports are ranked: of 2f+1 the (f+1)-th smallest is neither smaller nor
larger than all that correct brokers made. Fewer reports are all that there may be where cells have
2f+1 brokers, and then it may be a liar's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from quorumcast.cell.messages import Position
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.quorum import accept_votes
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View

#: Rounds of questions that a broker may leave unanswered and still count among those who answer.
FRESH_ROUNDS = 3


class Reports:
    """The last report of each broker."""

    __slots__ = ("_held", "_policy", "_round", "_rounds", "_view")

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        #: At most MAX_STREAMS_NAMED streams each.
        self._held: dict[NodeId, dict[Stream, Position]] = {}
        #: How often all brokers were asked, and in which of these rounds each one reported last.
        self._round = 0
        self._rounds: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, broker: NodeId) -> bool:
        return broker in self._held

    def hear(self, broker: NodeId, held: dict[Stream, Position]) -> None:
        """A broker reports; what it said before no longer counts."""
        self._held[broker] = held
        self._rounds[broker] = self._round

    def ask(self) -> None:
        """All brokers are about to be asked."""
        self._round += 1

    def _answers(self, broker: NodeId) -> bool:
        """Whether a broker still answers; where brokers may lie, whether it ever did.

        There, f of those who answer may claim to hold nothing, so whoever ceases to answer counts.
        """
        if not self._policy.crash_only:
            return broker in self._held
        return self._round - self._rounds.get(broker, -FRESH_ROUNDS) < FRESH_ROUNDS

    def forget(self, broker: NodeId) -> None:
        """What this broker reported may no longer be so."""
        self._held.pop(broker, None)

    def forget_gone(self) -> None:
        """Brokers that left have no say."""
        for gone in [broker for broker in self._held if broker not in self._view.brokers]:
            del self._held[gone]
            self._rounds.pop(gone, None)

    @property
    def enough(self) -> int:
        """So many brokers do not all lie."""
        return 1 if self._policy.crash_only else self._view.quorums.one_correct

    @property
    def _voters(self) -> tuple[NodeId, ...]:
        """The brokers whose votes make a subscriber accept: on a bare chain those of the pool."""
        brokers = self._view.brokers
        return brokers if self._policy.live else brokers[: self._view.quorums.chain_pool]

    def needed(self, lane: Lane) -> int:
        """How many brokers must hold a publication so that it can still be accepted."""
        quorums, policy = self._view.quorums, self._policy
        if lane is Lane.HISTORY:
            return quorums.ready_accept
        if policy.has_history:
            return quorums.one_correct
        return accept_votes(quorums, policy.protection, policy.broadcast)

    def streams(self) -> Counter[Stream]:
        """Every stream (data lane) that is spoken of, and by how many."""
        return Counter(
            data for held in self._held.values() for data in {stream.data: None for stream in held}
        )

    def doubtful(self, start: int) -> bool:
        """Whether what is wanted from `start` on may be there, although too few say so as yet.

        Some lie about their oldest, or have lost it; those that have not reported can tell.
        """
        streams = {stream for held in self._held.values() for stream in held}
        return any(max(start, self._possible(stream)) < self.agreed(stream) for stream in streams)

    def claimed(self, stream: Stream) -> int:
        """From this number on, a correct broker holds a stream, or what is wanted; or may hold it.

        What may be there counts only where it is in doubt: a liar could else have us begin earlier.
        """
        possible, claimed = self._possible(stream), _rank(self._bases(stream), self.enough)
        return min(possible, claimed) if possible < self.agreed(stream) else claimed

    def _possible(self, stream: Stream) -> int:
        """From this number on, enough may hold it if all do that have not named the stream."""
        voters = self._voters
        bases = [position.base for position in self._of(stream, voters)]
        needed = self.needed(stream.lane) - len(voters) + len(bases)
        return _rank(bases, needed) if needed > 0 else 1

    def agreed(self, stream: Stream) -> int:
        """From this number on, as many brokers as it takes to accept hold a stream, or will.

        A broker that has answered and not named the stream may be about to hear of it, from the
        publisher or from its peers. Without its vote one liar about its oldest would hide a stream
        that has just begun.
        """
        voters = self._voters
        oldest = [position.oldest or position.base for position in self._of(stream, voters)]
        unaware = sum(broker in voters for broker in self._held) - len(oldest)
        return _rank(oldest, self.needed(stream.lane) - unaware)

    def oldest(self, stream: Stream, wanted: int, *, of_those_who_answer: bool) -> int:
        """The first number that enough brokers may still hold to be accepted.

        Where the stream is over at a broker, and the number that is `wanted` lies beyond its end,
        that broker never will.
        """
        # A broker that has not spoken of the stream may hold all of it.
        bases = [
            _begins(held[stream], wanted) if held is not None and stream in held else 0
            for broker in self._voters
            for held in (self._held.get(broker),)
            if not of_those_who_answer or self._answers(broker)
        ]
        return _rank(bases, self.needed(stream.lane)) if bases else 0

    def end(self, stream: Stream, *, highest: bool = True) -> int:
        """The (f+1)-th largest or smallest next number; who does not know a stream is at 1."""
        ends = [held[stream].next if stream in held else 1 for held in self._held.values()]
        return sorted(ends, reverse=highest)[min(self.enough, len(ends)) - 1]

    def reached(self, stream: Stream) -> int:
        """The next number of at least one correct broker that knows a stream; 0 if none need be."""
        ends = sorted((position.next for position in self._of(stream)), reverse=True)
        return ends[self.enough - 1] if len(ends) >= self.enough else 0

    def _of(self, stream: Stream, brokers: Sequence[NodeId] | None = None) -> list[Position]:
        return [
            held[stream]
            for broker, held in self._held.items()
            if stream in held and (brokers is None or broker in brokers)
        ]

    def _bases(self, stream: Stream) -> list[int]:
        return [position.base for position in self._of(stream)]


def _begins(position: Position, wanted: int) -> int:
    if position.over and wanted >= position.next:
        return MAX_NUMBER
    return position.oldest or position.base


def _rank(numbers: list[int], rank: int) -> int:
    """The so-manieth smallest, or the largest if there are fewer; 1 if there are none."""
    return sorted(numbers or [1])[max(1, min(rank, len(numbers))) - 1]
