"""What brokers report to hold of a channel, and how much of it a subscriber may believe.

Up to f of them lie, so reports are ranked: of 2f+1 the (f+1)-th smallest lies between two reports
of correct brokers. A cell of 2f+1 brokers may yield fewer reports, and then it may be a liar's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from quorumcast.cell.messages import Position
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.limits import MAX_NUMBER, MAX_STREAMS_NAMED
from quorumcast.core.quorum import accept_votes
from quorumcast.core.tally import reached_by
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View

#: Rounds of requests that a broker may leave unanswered before it counts as silent.
FRESH_ROUNDS = 3


class Reports:
    """The last report of each broker."""

    __slots__ = ("_asked", "_held", "_policy", "_round", "_rounds", "_view")

    def __init__(self, view: View, policy: Policy) -> None:
        self._view = view
        self._policy = policy
        #: At most MAX_STREAMS_NAMED streams each.
        self._held: dict[NodeId, dict[Stream, Position]] = {}
        #: How many refreshes brokers were asked in, whether in the present one, and in which of
        #: these rounds each broker reported last.
        self._round = 0
        self._asked = False
        self._rounds: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, broker: NodeId) -> bool:
        return broker in self._held

    def replace(self, broker: NodeId, held: dict[Stream, Position]) -> None:
        """Replace the report of a broker."""
        self._held[broker] = held
        self._rounds[broker] = self._round

    def amend(self, broker: NodeId, held: dict[Stream, Position]) -> None:
        """Take the positions of some streams into the report of a broker, if there is one."""
        report = self._held.get(broker)
        if report is None:
            return
        self._rounds[broker] = self._round
        # The answer names all lives of these publishers that the broker knows.
        about = {stream.publisher for stream in held}
        amended = {stream: p for stream, p in report.items() if stream.publisher not in about}
        amended.update(held)
        for oldest in list(amended)[: max(0, len(amended) - MAX_STREAMS_NAMED)]:
            del amended[oldest]
        self._held[broker] = amended

    def ask(self) -> None:
        """All brokers are about to be asked; how often between two refreshes does not matter."""
        self._round += not self._asked
        self._asked = True

    def refresh(self) -> None:
        """Note a refresh."""
        self._asked = False

    def _answers(self, broker: NodeId) -> bool:
        """Whether a broker still answers; where brokers may lie, whether it ever did.

        There, f of those that answer may claim to hold nothing, so silent ones count, too.
        """
        if not self._policy.crash_only:
            return broker in self._held
        return self.is_fresh(broker)

    def is_fresh(self, broker: NodeId) -> bool:
        """Whether a broker has answered lately."""
        return self._round - self._rounds.get(broker, -FRESH_ROUNDS) < FRESH_ROUNDS

    @property
    def answering(self) -> int:
        """How many brokers have answered lately."""
        return sum(map(self.is_fresh, self._view.brokers))

    def forget(self, broker: NodeId) -> None:
        """Forget the report of a broker."""
        self._held.pop(broker, None)

    def forget_gone(self) -> None:
        """Forget the reports of brokers that left."""
        for gone in [broker for broker in self._held if broker not in self._view.brokers]:
            del self._held[gone]
            self._rounds.pop(gone, None)

    @property
    def enough(self) -> int:
        """So many brokers that one of them is correct."""
        return 1 if self._policy.crash_only else self._view.quorums.one_correct

    @property
    def voters(self) -> tuple[NodeId, ...]:
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
        """Every stream (data lane) that was reported, and by how many brokers."""
        return Counter(
            data for held in self._held.values() for data in {stream.data: None for stream in held}
        )

    def doubtful(self, start: int, *, to_end: bool = True) -> bool:
        """Whether more may be held from `start` on than enough brokers report yet.

        Some lie, have lost it or are late; brokers that have not reported can tell. `to_end`: the
        end matters as well.
        """
        streams = {stream for held in self._held.values() for stream in held}
        return any(
            max(start, self._possible(stream)) < self.agreed(stream)
            or self._disputed(stream)
            or (to_end and self._may_be_longer(stream))
            or (not start and self._open(stream))
            for stream in streams
        )

    def _disputed(self, stream: Stream) -> bool:
        """Whether brokers that have not reported decide if dropped numbers were wanted."""
        early = sum(_passed(position) > 1 for position in self._of(stream))
        silent = len(self._view.brokers) - len(self._held)
        return 0 < early < self.enough <= early + silent and self.kept(stream) > 1

    def _open(self, stream: Stream) -> bool:
        """Whether brokers that have not reported can tell where a stream begins."""
        bases = [position.base for position in self._of(stream)]
        silent = len(self._view.brokers) - len(self._held)
        return silent > 0 and self._believed(bases) < _rank(bases, self.enough)

    def _may_be_longer(self, stream: Stream) -> bool:
        """Whether brokers that have not reported can raise the end.

        Of n-f that acknowledged a publication, f may deny it and f others not have reported. A
        reader that begins now would end before it.
        """
        end = self.end(stream)
        ahead = sum(position.next > end for position in self._of(stream))
        silent = len(self._view.brokers) - len(self._held)
        return 0 < ahead < self.enough <= ahead + silent

    def _believed(self, numbers: list[int]) -> int:
        """One of the numbers that brokers named, which f liars cannot push above the true ones.

        Nor below them, unless few have named the stream although others have answered: then it may
        have just begun, and to begin too early skips nothing.
        """
        rank = self.enough
        if len(numbers) < len(self._held):
            rank = min(rank, len(numbers) - (self.enough - 1))
        return _rank(numbers, rank)

    def claimed(self, stream: Stream) -> int:
        """The number from which on a correct broker holds, or may hold, what is wanted.

        What may be held counts only where it is in doubt: else a liar could make us begin earlier.
        """
        bases = [position.base for position in self._of(stream)]
        possible, claimed = self._possible(stream), self._believed(bases)
        return min(possible, claimed) if possible < self.agreed(stream) else claimed

    def kept(self, stream: Stream) -> int:
        """The number from which on a correct broker holds a stream, whatever is wanted of it."""
        return self._believed([p.oldest or p.base for p in self._of(stream)])

    def passed(self, stream: Stream) -> int:
        """The number before which nothing is wanted, as a correct broker has found; 1 if none has.

        A broker finds that only if the oldest publication that it holds is older than the time
        that was asked for. Else what it has dropped may be of that time.
        """
        return max(1, reached_by([_passed(p) for p in self._of(stream)], self.enough))

    def _possible(self, stream: Stream) -> int:
        """The number from which on enough brokers hold it, if all do that have not named it."""
        voters = self.voters
        bases = [position.base for position in self._of(stream, voters)]
        needed = self.needed(stream.lane) - len(voters) + len(bases)
        return _rank(bases, needed) if needed > 0 else 1

    def agreed(self, stream: Stream) -> int:
        """The number from which on as many brokers as it takes to accept hold a stream, or will.

        A broker that has not named the stream may be about to receive it. If it did not count, one
        liar could hide a stream that has just begun.
        """
        voters = self.voters
        oldest = [position.oldest or position.base for position in self._of(stream, voters)]
        unaware = sum(broker in voters for broker in self._held) - len(oldest)
        return _rank(oldest, self.needed(stream.lane) - unaware)

    def silent(self) -> list[NodeId]:
        """Brokers that do not answer."""
        return [broker for broker in self._view.brokers if not self._answers(broker)]

    def dropped_by_some(self, stream: Stream, wanted: int) -> bool:
        """Whether a broker that answers no longer holds the wanted number of a stream."""
        return any(
            self._answers(broker) and stream in held and _begins(held[stream], wanted) > wanted
            for broker, held in self._held.items()
        )

    def may_hold(self, stream: Stream, wanted: int) -> list[NodeId]:
        """Voters that have not said lately that they lack the wanted number of a stream."""
        lacking = [
            broker
            for broker, held in self._held.items()
            if self.is_fresh(broker) and stream in held and _begins(held[stream], wanted) > wanted
        ]
        return [broker for broker in self.voters if broker not in lacking]

    def claim_more(self, stream: Stream, wanted: int) -> bool:
        """Whether a broker says that it holds the wanted number of a stream or a later one."""
        return any(position.next > wanted for position in self._of(stream))

    def oldest(self, stream: Stream, wanted: int = 0, *, without: Collection[NodeId] = ()) -> int:
        """The first number that enough brokers may still hold for it to be accepted.

        A broker at which the stream ended before the `wanted` number will never hold it. Those in
        `without` do not count.
        """
        # A broker that has not named the stream may hold all of it.
        bases = [
            _begins(held[stream], wanted) if held is not None and stream in held else 0
            for broker in self.voters
            for held in (self._held.get(broker),)
            if broker not in without
        ]
        return _rank(bases, self.needed(stream.lane)) if bases else 0

    def end(self, stream: Stream, *, highest: bool = True) -> int:
        """The (f+1)-th largest or smallest next number; 1 for a broker without the stream."""
        ends = [held[stream].next if stream in held else 1 for held in self._held.values()]
        return sorted(ends, reverse=highest)[min(self.enough, len(ends)) - 1]

    def reached(self, stream: Stream) -> int:
        """A next number that at least one correct broker has reached; 0 if too few report."""
        return reached_by([position.next for position in self._of(stream)], self.enough)

    def _of(self, stream: Stream, brokers: Sequence[NodeId] | None = None) -> list[Position]:
        return [
            held[stream]
            for broker, held in self._held.items()
            if stream in held and (brokers is None or broker in brokers)
        ]


def _passed(position: Position) -> int:
    return position.base if 0 < position.oldest < position.base else 1


def _begins(position: Position, wanted: int) -> int:
    if position.over and wanted >= position.next:
        return MAX_NUMBER
    return position.oldest or position.base


def _rank(numbers: list[int], rank: int) -> int:
    """The rank-th smallest number, clamped to the list; 1 if there are none."""
    return sorted(numbers or [1])[max(1, min(rank, len(numbers))) - 1]
