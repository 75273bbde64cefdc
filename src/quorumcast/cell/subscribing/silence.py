"""Which brokers are silent: those that owe votes for longer than their delays so far explain.

A broker *owes* votes on a stream if others' votes were enough to accept a number that it has not
voted on. Time is counted in looks, one per refresh. A look that comes late is not counted, and a
subscriber whose application reads nothing does not look (`client.incoming`): votes may wait unread.

A broker that owes votes is asked for them before it is suspected, because votes may have been lost
on a link that was full. It is suspected of silence

- if none of its votes came for longer than its `Patience`, or
- if the votes that it owes are older than MOST_BEHIND_MS, however many others came meanwhile.

A broker that starts again, or whose link does, owes nothing at first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from quorumcast.broadcast.acceptance import Acceptor
from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.machine import Effect, Suspect, Suspicion
from quorumcast.core.patience import LATE_MS, Patience

#: Time between two looks.
LOOK_MS = 250
#: A broker may always be silent for so long, as a process is that was stopped for a moment.
LEAST_SILENCE_MS = 4_000
#: No silence is longer than this, whatever was measured.
MOST_SILENCE_MS = 30_000
#: Votes that a broker owes for so long make it a suspect although it sends others.
MOST_BEHIND_MS = 120_000


class Debt(msgspec.Struct):
    """What one broker owes on one stream."""

    #: The last number that was accepted when the debt began, and the look at which it began.
    number: int
    since: int
    #: The highest number that the broker has voted on, and the look at which that last grew.
    voted: int
    moved: int
    #: Looks since `moved` at which the broker is asked next.
    ask_at: int = 0
    #: Whether it was asked since it last sent a vote.
    asked: bool = False


class SilenceWatch:
    """Watches the brokers of one channel."""

    __slots__ = ("_debts", "_looks", "_patience", "_suspected")

    def __init__(self) -> None:
        #: Looks that were counted.
        self._looks = 0
        #: By stream and broker; only where something is owed.
        self._debts: dict[Stream, dict[NodeId, Debt]] = {}
        #: By broker, for the whole channel.
        self._patience: dict[NodeId, Patience] = {}
        #: Brokers that were suspected and still owe something.
        self._suspected: dict[NodeId, None] = {}

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"debts": sum(map(len, self._debts.values()))}

    def forget(self, broker: NodeId) -> None:
        """Forget what a broker owes: it may have restarted."""
        for debts in self._debts.values():
            debts.pop(broker, None)
        self._suspected.pop(broker, None)

    def retain(self, brokers: Sequence[NodeId]) -> None:
        """Go on with the members of a new epoch."""
        gone = [broker for broker in self._patience if broker not in brokers]
        for broker in gone:
            self.forget(broker)
            del self._patience[broker]

    def end(self, stream: Stream) -> None:
        """A stream is followed no more."""
        self._debts.pop(stream, None)

    def look(
        self,
        brokers: Sequence[NodeId],
        accepted: Mapping[Stream, int],
        acceptors: Mapping[Stream, Acceptor],
        is_gone: Callable[[Stream, int], bool],
        late_ms: int,
    ) -> tuple[dict[NodeId, dict[Stream, int]], list[Effect]]:
        """Return the brokers to ask, for each stream from which number on, and suspicions.

        `accepted` names the last number of each stream that should have been voted on by now, and
        `is_gone` tells whether brokers have dropped a number, which nobody can vote on any more.
        """
        if late_ms > LATE_MS:
            return {}, []
        self._looks += 1
        ask: dict[NodeId, dict[Stream, int]] = {}
        effects: list[Effect] = []
        for broker in brokers:
            suspected_on: Stream | None = None
            owes = False
            for stream, acceptor in acceptors.items():
                if stream.lane is not Lane.DATA:
                    continue
                debt = self._debt(broker, acceptor, accepted.get(stream, 0))
                if debt is None:
                    continue
                if is_gone(stream, accepted.get(stream, 0)):
                    del self._debts[stream][broker]
                    continue
                owes = True
                if self._looks - debt.moved >= debt.ask_at:
                    ask.setdefault(broker, {})[stream] = max(debt.voted + 1, acceptor.start)
                    debt.ask_at, debt.asked = debt.ask_at + self._ask_every(broker), True
                elif self._is_overdue(broker, debt):
                    suspected_on = suspected_on or stream
            if not owes:
                self._suspected.pop(broker, None)
            elif suspected_on is not None and broker not in self._suspected:
                self._suspected[broker] = None
                number = accepted.get(suspected_on, 0)
                effects.append(Suspect(broker, Suspicion.SILENT, suspected_on, number))
        return ask, effects

    def _debt(self, broker: NodeId, acceptor: Acceptor, last: int) -> Debt | None:
        """What a broker owes on a stream now; delays that are over are measured."""
        debts = self._debts.setdefault(acceptor.stream, {})
        debt = debts.get(broker)
        voted = acceptor.last_vote.get(broker, 0)
        # Numbers before the start were never voted on here: they say nothing about anybody.
        if voted >= last or last < acceptor.start:
            if debt is not None:
                self._observe(broker, debt)
                del debts[broker]
            return None
        if debt is None:
            debt = debts[broker] = Debt(last, self._looks, voted, self._looks)
        elif voted > debt.voted:
            self._observe(broker, debt)
            debt.voted, debt.moved, debt.asked = voted, self._looks, False
            if voted >= debt.number:
                debt.number, debt.since = last, self._looks
        else:
            return debt
        debt.ask_at = self._ask_every(broker)
        return debt

    def _observe(self, broker: NodeId, debt: Debt) -> None:
        self._patience_of(broker).observe((self._looks - debt.moved) * LOOK_MS)

    def _patience_of(self, broker: NodeId) -> Patience:
        patience = self._patience.get(broker)
        if patience is None:
            patience = self._patience[broker] = Patience(LEAST_SILENCE_MS, MOST_SILENCE_MS)
        return patience

    def _ask_every(self, broker: NodeId) -> int:
        """Looks after which a silent broker is asked: two thirds of its time are left."""
        return max(1, self._patience_of(broker).limit_ms // (3 * LOOK_MS))

    def _is_overdue(self, broker: NodeId, debt: Debt) -> bool:
        stalled_ms = (self._looks - debt.moved) * LOOK_MS
        behind_ms = (self._looks - debt.since) * LOOK_MS
        return (
            debt.asked and stalled_ms > self._patience_of(broker).limit_ms
        ) or behind_ms > MOST_BEHIND_MS
