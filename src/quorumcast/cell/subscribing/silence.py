"""Which brokers are silent: those that owe votes for longer than their delays so far explain.

A broker *owes* votes on a stream if others' votes were enough to accept a number that it has not
voted on. Time is counted in looks, one per refresh. A look that comes late is not counted, and a
subscriber whose application reads nothing does not look (`client.incoming`): votes may wait unread.

A broker that owes votes is asked for them before it is suspected, because votes may have been lost
on a link that was full. It is suspected of silence

- if no vote of it came, on any stream of any channel, for longer than its `Patience`, or
- if it votes on other streams only: under load the queues of one stream may be long, so there is a
  longer patience for that, or
- if votes that it owes are older than MOST_STALL_MS, however many others come meanwhile.

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
#: A broker may always be silent for so long, as a process is that was stopped for a moment; and no
#: silence is longer than the second time, whatever was measured.
LEAST_SILENCE_MS, MOST_SILENCE_MS = 10_000, 60_000
#: The same for a broker that votes on other streams.
LEAST_STALL_MS, MOST_STALL_MS = 30_000, 120_000
#: Part of the patience after which a broker is asked.
ASK_AFTER = 3


class Debt(msgspec.Struct):
    """A broker that owes votes, on one stream or at all, and sends none."""

    #: The look at which the debt began, or at which the last vote was seen.
    since: int
    #: The highest number that it has voted on, or how often it was heard.
    seen: int
    #: The last accepted number when the debt began, and the look at which it did; votes on all of
    #: this begin a new debt.
    number: int = 0
    began: int = 0
    #: Whether it was asked since.
    asked: bool = False


class BrokerDelays:
    """What was measured of one broker."""

    __slots__ = ("debt", "silence", "stall", "voted")

    def __init__(self) -> None:
        self.silence = Patience(LEAST_SILENCE_MS, MOST_SILENCE_MS)
        self.stall = Patience(LEAST_STALL_MS, MOST_STALL_MS)
        #: Set while it owes anything on this channel.
        self.debt: Debt | None = None
        #: The sum of the highest numbers that it has voted on.
        self.voted = 0


class SilenceWatch:
    """Watches the brokers of one channel."""

    __slots__ = ("_debts", "_delays", "_heard", "_looks", "_suspected")

    def __init__(self, heard: dict[NodeId, int]) -> None:
        #: How often new votes of each broker were seen; shared by all channels.
        self._heard = heard
        #: Looks that were counted.
        self._looks = 0
        #: By stream and broker; only where something is owed.
        self._debts: dict[Stream, dict[NodeId, Debt]] = {}
        self._delays: dict[NodeId, BrokerDelays] = {}
        #: Brokers that were suspected and still owe something.
        self._suspected: dict[NodeId, None] = {}

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"debts": sum(map(len, self._debts.values()))}

    def forget(self, broker: NodeId) -> None:
        """Forget what a broker owes: it may have restarted."""
        for debts in self._debts.values():
            debts.pop(broker, None)
        if broker in self._delays:
            self._delays[broker].debt = None
        self._suspected.pop(broker, None)

    def retain(self, brokers: Sequence[NodeId]) -> None:
        """Go on with the members of a new epoch."""
        for gone in [broker for broker in self._delays if broker not in brokers]:
            self.forget(gone)
            del self._delays[gone]
            self._heard.pop(gone, None)

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
        voted = dict.fromkeys(brokers, 0)
        streams: list[tuple[Acceptor, int]] = []
        for stream, acceptor in acceptors.items():
            if stream.lane is not Lane.DATA:
                continue
            last, votes = accepted.get(stream, 0), acceptor.last_vote
            least = last
            for broker in brokers:
                number = votes.get(broker, 0)
                voted[broker] += number
                least = number if number < least else least
            if self._debts.get(stream) or (least < last and acceptor.start <= last):
                streams.append((acceptor, last))  # few of many
        ask: dict[NodeId, dict[Stream, int]] = {}
        effects: list[Effect] = []
        for broker in brokers:
            delays = self._delays.setdefault(broker, BrokerDelays())
            if voted[broker] != delays.voted:
                delays.voted = voted[broker]
                self._heard[broker] = self._heard.get(broker, 0) + 1
            owed: dict[Stream, Debt] = {}
            for acceptor, last in streams:
                debt = self._debt(delays, broker, acceptor, last)
                if debt is not None and not is_gone(acceptor.stream, last):
                    owed[acceptor.stream] = debt
            asked_on, overdue = self._judge(broker, delays, owed)
            if asked_on:
                ask[broker] = {
                    s: max(owed[s].seen + 1, acceptors[s].start) for s in dict.fromkeys(asked_on)
                }
            if overdue is not None and broker not in self._suspected:
                self._suspected[broker] = None
                number = accepted.get(overdue, 0)
                effects.append(Suspect(broker, Suspicion.SILENT, overdue, number))
        return ask, effects

    def _debt(
        self, delays: BrokerDelays, broker: NodeId, acceptor: Acceptor, last: int
    ) -> Debt | None:
        """What a broker owes on a stream now; delays that are over are measured."""
        debts = self._debts.setdefault(acceptor.stream, {})
        debt = debts.get(broker)
        voted = acceptor.last_vote.get(broker, 0)
        # Numbers before the start were never voted on here: they say nothing about anybody.
        owes = acceptor.start <= last and voted < last
        if debt is not None and (voted > debt.seen or not owes):
            delays.stall.observe((self._looks - debt.since) * LOOK_MS)
            paid = voted >= debt.number
            del debts[broker]
            if owes and not paid:
                debts[broker] = Debt(self._looks, voted, debt.number, debt.began)
        if not owes:
            return None
        if broker not in debts:
            debts[broker] = Debt(self._looks, voted, last, self._looks)
        return debts[broker]

    def _judge(
        self, broker: NodeId, delays: BrokerDelays, owed: Mapping[Stream, Debt]
    ) -> tuple[list[Stream], Stream | None]:
        """The streams for which a broker is to be asked, and one on which it is overdue."""
        heard = self._heard.get(broker, 0)
        whole = delays.debt
        if whole is not None and (heard != whole.seen or not owed):
            delays.silence.observe((self._looks - whole.since) * LOOK_MS)
            whole = delays.debt = None
        if not owed:
            self._suspected.pop(broker, None)
            return [], None
        if whole is None:
            whole = delays.debt = Debt(self._looks, heard)
        ask: list[Stream] = []
        overdue: Stream | None = None
        if self._is_due(whole, delays.silence):
            ask += owed
        if self._is_overdue(whole, delays.silence):
            overdue = next(iter(owed))
        for stream, debt in owed.items():
            if self._is_due(debt, delays.stall):
                ask.append(stream)
            behind_ms = (self._looks - debt.began) * LOOK_MS
            if overdue is None and (
                self._is_overdue(debt, delays.stall) or behind_ms > MOST_STALL_MS
            ):
                overdue = stream
        return ask, overdue

    def _is_due(self, debt: Debt, patience: Patience) -> bool:
        """Whether it is time to ask."""
        waited = self._looks - debt.since
        every = patience.limit_ms // (ASK_AFTER * LOOK_MS)
        if not waited or waited % every:
            return False
        debt.asked = True
        return True

    def _is_overdue(self, debt: Debt, patience: Patience) -> bool:
        return debt.asked and (self._looks - debt.since) * LOOK_MS > patience.limit_ms
