"""The publisher side of the chain: every run to its head, and another chain when this one fails.

Of two neighbours between which acknowledgements stop one is to blame, so both get a point; so do
the last f+1 of the chain when subscribers say that they missed something. The f brokers with the
most points stand aside (BChain's idea): after a few changes those are the faulty ones.

A point is no suspicion: under load, acknowledgements stop now and then. How long a chain may make
no progress before it is changed follows the stalls that were measured (`core.patience`), and ticks
that come late do not count. A stalled chain is asked for acknowledgements before it is changed.
Suspected is

- a broker next to the break that answers nothing at all, on any stream, for MOST_SILENCE_MS,
- a broker next to a break whose neighbours answer, for the second time without progress between,
  if the next chain, in which it stands aside, works at once. This does not apply while stalls vary
  so much that the longest patience is not enough.

What subscribers missed makes nobody a suspect: a history that overtakes votes on a slow link looks
the same to a publisher as a last broker that keeps them back.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quorumcast.broadcast.messages import Ack, ChainRun, Voucher
from quorumcast.broadcast.sender import (
    REPEAT_BURST,
    REPEAT_BYTES,
    BrokerProgress,
    FanOutSender,
    HistorySender,
    PendingRun,
)
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Effect, Send, Suspect, Suspicion
from quorumcast.core.message import Message
from quorumcast.core.patience import LATE_MS, Patience
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View

#: Time between two ticks.
TICK_MS = 250
#: A chain is changed after a stall that is longer than the usual ones, at least and at most.
LEAST_STALL_MS = 2 * TICK_MS
MOST_STALL_MS = 8 * TICK_MS
#: A broker next to a break that answers nothing for so long is suspected.
MOST_SILENCE_MS = 10_000
#: Breaks behind one broker, without progress between, after which it is suspected.
BREAKS_BEFORE_SUSPICION = 2


class UnansweredBreak(msgspec.Struct):
    """A broker next to a break from which nothing was heard since."""

    #: Ticks since the break, and how often the broker was heard by then.
    ticks: int
    heard: int
    #: The first number that is lacking, and a set that contains the culprit.
    number: int
    among: tuple[NodeId, ...]


class ChainSender(FanOutSender):
    """Every run to the head of a chain."""

    __slots__ = (
        "_answers",
        "_began",
        "_breaks",
        "_changes",
        "_charges",
        "_done_at_tick",
        "_doubted",
        "_heard",
        "_missed",
        "_patience",
        "_points",
        "_stalled",
        "_stalls",
        "order",
    )

    def __init__(
        self,
        stream: Stream,
        view: View,
        policy: Policy,
        histories: HistorySender | None = None,
        heard: Mapping[NodeId, int] | None = None,
    ) -> None:
        super().__init__(stream, view, policy, histories)
        # The pool stays in all epochs (`manifest.successor`): nothing is chosen anew.
        pool = view.brokers[: view.quorums.chain_pool]
        #: How often each broker was next to a break; the f worst stand aside.
        self._points = dict.fromkeys(pool, 0)
        #: How often the chain was changed.
        self._changes = 0
        #: The chain in use.
        self.order = pool[: view.quorums.chain_length]
        #: How far each of its members was when it was chosen.
        self._began = dict.fromkeys(self.order, 0)
        #: What subscribers were said to have missed when the chain was last changed for it.
        self._missed = 0
        #: Ticks without progress on this chain, and since the last progress on any.
        self._stalls = self._stalled = 0
        #: How long chains stall while they work.
        self._patience = Patience(LEAST_STALL_MS, MOST_STALL_MS)
        #: Brokers that have acknowledged something, were it nothing new, since the chain stalled.
        self._answers: dict[NodeId, None] = {}
        #: Breaks behind each broker since a chain with it made progress.
        self._breaks: dict[NodeId, int] = {}
        #: How many acknowledgements came from each broker, on all streams of this publisher.
        self._heard = {} if heard is None else heard
        #: Brokers next to a break that have not answered since.
        self._charges: dict[NodeId, UnansweredBreak] = {}
        #: Brokers that are suspected if the present chain works without them.
        self._doubted: tuple[Suspect, ...] = ()
        #: Highest number acknowledged by the whole chain at the last tick.
        self._done_at_tick = 0

    @property
    def oldest(self) -> int:
        """The oldest number of which brokers are told that the publisher still has it.

        Brokers outside the chain fetch from the others what a history names. One that skipped a
        number because the chain has acknowledged it could never echo the history that names it, so
        this does not pass the first number whose history is not delivered.
        """
        undelivered = self.next if self._histories is None else self._histories.undelivered
        return min(self.base, undelivered)

    @property
    def reach(self) -> int:
        """The highest number that was sent to the head, or that the chain acknowledged.

        The second may be higher: `sent` goes back when something is to be repeated.
        """
        return max(self._progress[self.order[0]].sent - 1, self.acknowledged)

    @property
    def unfinished(self) -> bool:
        """Whether something is not acknowledged yet; brokers outside the chain do not matter."""
        return self.acknowledged < self.next - 1

    def _send_new(self, run: PendingRun) -> list[Effect]:
        head = self._progress[self.order[0]]
        if head.connected and head.sent == run.first and self._chain_credit() >= run.last:
            head.sent = run.last + 1
            return [Send((self.order[0],), self._message(run), run.bodies)]
        return []

    def _chain_credit(self) -> int:
        return min(self._progress[broker].credit for broker in self.order)

    def _message(self, run: PendingRun) -> Message:
        vouchers = tuple(
            Voucher(
                self._view.me,
                reader,
                self._view.keyring.vouch(reader, self.stream, run.first, run.digests, self.order),
            )
            for reader in self.order[: self._view.quorums.chain_reach]
        )
        return ChainRun(self.stream, run.first, run.digests, self.order, vouchers)

    def _pump(self, broker: NodeId, progress: BrokerProgress, burst: int) -> list[Effect]:
        # Whoever acknowledged, only the head is sent to.
        head = self._progress[self.order[0]]
        credit = self._chain_credit()
        effects: list[Effect] = []
        repeated = 0
        while head.connected and len(effects) < burst:
            run = self._runs.get(head.sent)
            if run is None or run.last > credit or repeated > REPEAT_BYTES:
                break
            effects.append(Send((self.order[0],), self._message(run), run.bodies))
            if head.sent < head.again:
                repeated += run.size
            head.sent = run.last + 1
        return effects

    def _burst(self, progress: BrokerProgress) -> int:
        head = self._progress[self.order[0]]
        if head.sent >= head.again:
            return len(self._runs)
        done = min(self._progress[broker].acked for broker in self.order)
        return REPEAT_BURST if done + 1 >= head.sent else 0

    def _held_by_enough(self) -> int:
        # The whole chain holds it, or a quorum has settled it through histories.
        chain = min(self._progress[broker].acked for broker in self.order)
        return max(chain, self._settled_by_enough())

    @property
    def watches(self) -> bool:
        """Whether a broker may still be suspected if it stays silent."""
        return bool(self._charges or self._doubted)

    def on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        self._answers[broker] = None
        self._charges.pop(broker, None)
        effects = super().on_ack(broker, ack)
        if self.missed > self._missed:
            self._missed = self.missed
            last = self.order[-self._view.quorums.chain_reach :]
            effects += self._change_chain(last)
        return effects

    def tick(self, late_ms: int = 0) -> list[Effect]:
        """After a first tick without progress send again; after a stall change the chain."""
        effects: list[Effect] = []
        for broker, progress in self._progress.items():
            if progress.connected and progress.credit == 0:
                effects.append(Send((broker,), self._introduction(broker)))
        if late_ms > LATE_MS:
            return effects
        effects += self._press_charges()
        done = min(self._progress[broker].acked for broker in self.order)
        if done >= self.next - 1 or done != self._done_at_tick:
            return effects + self._on_progress(done)
        self._stalls += 1
        self._stalled += 1
        if self._stalls == 1:
            self._answers.clear()
            return effects + self._restart(ask=True)
        if self._stalls * TICK_MS < self._patience.limit_ms:
            return effects
        self._stalls = 0
        suspects, among = self._break()
        if not suspects:
            return effects
        self._blame(suspects, among)
        return effects + self._change_chain(suspects)

    def _on_progress(self, done: int) -> list[Effect]:
        """Begin to count stalls anew; a chain that was just chosen may also fall back."""
        effects: list[Effect] = []
        if done > self._done_at_tick:
            if self._stalled:
                self._patience.observe(self._stalled * TICK_MS)
            self._stalled = 0
            for broker in self.order:
                self._breaks.pop(broker, None)
            effects += [doubt for doubt in self._doubted if doubt.node not in self.order]
            self._doubted = ()
        self._done_at_tick = done
        self._stalls = 0
        return effects

    def _blame(self, nearest: tuple[NodeId, ...], among: tuple[NodeId, ...]) -> None:
        """Charge the brokers next to a break, or doubt one that is next to every break."""
        number = self._done_at_tick + 1
        for doubt in self._doubted:
            # Without it the chain breaks as well.
            self._breaks.pop(doubt.node, None)
        self._doubted = ()
        silent = [broker for broker in nearest if broker not in self._answers]
        for broker in silent:
            heard = self._heard.get(broker, 0)
            self._charges.setdefault(broker, UnansweredBreak(0, heard, number, among))
        if silent or self._patience.exhausted:
            return
        for broker in nearest:
            self._breaks[broker] = self._breaks.get(broker, 0) + 1
            if self._breaks[broker] >= BREAKS_BEFORE_SUSPICION:
                self._doubted += (self._suspect(broker, number, among),)

    def _press_charges(self) -> list[Effect]:
        """Ask brokers that were charged; suspect those that have not answered for long."""
        effects: list[Effect] = []
        for broker, charge in list(self._charges.items()):
            charge.ticks += 1
            if self._heard.get(broker, 0) != charge.heard:
                del self._charges[broker]
            elif charge.ticks * TICK_MS > MOST_SILENCE_MS:
                del self._charges[broker]
                effects.append(self._suspect(broker, charge.number, charge.among))
            elif self._progress[broker].connected:
                effects.append(Send((broker,), self._introduction(broker)))
        return effects

    def _suspect(self, broker: NodeId, number: int, among: tuple[NodeId, ...] = ()) -> Suspect:
        return Suspect(broker, Suspicion.BROKEN_CHAIN, self.stream, number, among)

    def _break(self) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
        """Who gets points, and a set that contains the culprit unless messages were lost.

        The first disconnected member; else up to f without credit; else the first that stopped
        acknowledging, and its predecessor. The set is in the order of the chain, and empty where
        nothing can be said.
        """
        done = self._done_at_tick
        members = {broker: self._progress[broker] for broker in self.order}
        for broker, progress in members.items():
            if not progress.connected:
                return (broker,), ()
        wanted = next((run.last for run in self._runs.values() if run.last > done), done)
        short = tuple(broker for broker, progress in members.items() if progress.credit < wanted)
        if short:
            # f+1 of them: one is correct, so it is we who owe something (a history).
            return (short, ()) if len(short) < self._view.quorums.one_correct else ((), ())
        for place, (_, progress) in enumerate(members.items()):
            if progress.acked <= done:
                return self.order[max(0, place - 1) : place + 1], self._culprits(place)
        return self.order[-1:], ()

    def _culprits(self, stuck: int) -> tuple[NodeId, ...]:
        """Brokers that may keep something from the broker at a place, and that broker itself.

        A broker that acknowledged more since this chain was chosen has it by this chain, so those
        before are not to blame; unless histories may have brought it.
        """
        since = [
            place
            for place, broker in enumerate(self.order[:stuck])
            if self._progress[broker].acked > self._began[broker]
        ]
        first = since[-1] if since and self._histories is None else 0
        return self.order[first : stuck + 1]

    def _change_chain(self, suspects: tuple[NodeId, ...]) -> list[Effect]:
        for broker in suspects:
            self._points[broker] += 1
        # The f with most points stand aside; of equals the one further down the present chain.
        rank = {broker: place for place, broker in enumerate(self.order)}
        standing = sorted(self._points, key=lambda b: (self._points[b], rank.get(b, -1)))
        chosen = standing[: self._view.quorums.chain_length]
        self._changes += 1
        order = self.order = self._arranged(chosen)
        self._began = {broker: self._progress[broker].acked for broker in order}
        return self._restart()

    def _arranged(self, chosen: list[NodeId]) -> tuple[NodeId, ...]:
        """Other neighbours with every change.

        A faulty broker always gets the point for a break, and its neighbour shares it: if the two
        stayed neighbours they would come and go together, and two such pairs could take turns for
        ever.
        """
        pool = list(self._points)
        stride = 1 + (self._changes - 1) % max(1, len(pool) - 1)
        return tuple(sorted(chosen, key=lambda b: (pool.index(b) * stride % len(pool), b)))

    def _restart(self, *, ask: bool = False) -> list[Effect]:
        """Send again what at least one member of the chain has not acknowledged.

        `ask`: all members are to acknowledge what they have.
        """
        head = self._progress[self.order[0]]
        slowest = min((self._progress[b] for b in self.order), key=lambda p: p.acked)
        furthest = max(p.sent for p in self._progress.values())
        self._rewind(slowest)
        head.sent = slowest.sent
        head.again = max(head.again, furthest)
        # A broker new to the chain starts where our buffer does.
        behind = [b for b in self.order if self._progress[b].acked + 1 < self.base]
        sent = self._pump(self.order[0], head, REPEAT_BURST)
        if ask or (not sent and not behind):
            # A broker gives no credit, or the Ack that gave it was lost: ask all of them.
            behind = list(self.order)
        effects: list[Effect] = [Send((b,), self._introduction(b)) for b in behind]
        return sent + effects if ask else effects + sent
