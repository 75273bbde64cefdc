"""The publisher side of the protocols: one sender per lane of a stream.

A sender numbers publications, keeps runs until enough brokers hold them, sends each broker what it
has credit for, and retransmits what got lost: a few runs at a time, and the next ones once the
broker has acknowledged these, or a slow broker would get everything again and again. Runs are never
cut differently when they are sent again: Bracha's instances and the chain's MACs are about whole
runs. `chain_sender` has the sender for chains, `ordering.offer_sender` the one for total order.
"""

from __future__ import annotations

from collections import deque

import msgspec

from quorumcast.broadcast.application import Acknowledged
from quorumcast.broadcast.messages import Ack, Open, Publish
from quorumcast.core.ids import NodeId, Stream
from quorumcast.core.machine import Bodies, Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.tally import reached_by
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View

#: Runs repeated to one broker in one go, and their bytes; one run in any case.
REPEAT_BURST = 64
REPEAT_BYTES = 4 * 1024 * 1024
#: Runs that a broker of Bracha's broadcast is sent before it has delivered the first of them. Each
#: costs 2(n-1) messages at every broker, however short it is.
RUNS_UNDER_WAY = 128
#: A broker that stalls is sent runs again after these ticks, and then every REPEAT_TICKS.
FIRST_REPEATS = (1, 3)
REPEAT_TICKS = 6


class PendingRun(msgspec.Struct, frozen=True):
    """A run that waits for acknowledgement."""

    first: int
    last: int
    digests: bytes
    bodies: Bodies
    size: int
    #: Whatever must be made once for the run and travels with it.
    seal: bytes = b""


class BrokerProgress:
    """What a publisher knows of one broker."""

    __slots__ = (
        "acked",
        "again",
        "connected",
        "credit",
        "flying",
        "missed",
        "seen",
        "sent",
        "settled",
        "stalled",
    )

    def __init__(self) -> None:
        self.connected = False
        #: Highest number that the broker says it holds.
        self.acked = 0
        #: Highest number that the broker is willing to take; 0 until it answered our Open.
        self.credit = 0
        #: First number not sent to it yet; always the first number of a run or `next`.
        self.sent = 1
        #: What lies before this number was sent before: `sent` is below it while it is repeated.
        self.again = 1
        #: The last numbers of runs that were sent and are not settled, where these are counted.
        self.flying: deque[int] = deque()
        self.settled = 0
        self.missed = 0
        #: `acked` at the last tick, and for how many ticks it has not moved.
        self.seen = 0
        self.stalled = 0


class FanOutSender:
    """Every run to every broker."""

    __slots__ = (
        "_histories",
        "_limits",
        "_most_flying",
        "_needed",
        "_pending_bytes",
        "_policy",
        "_progress",
        "_runs",
        "_settles",
        "_view",
        "acknowledged",
        "next",
        "stream",
    )

    def __init__(
        self,
        stream: Stream,
        view: View,
        policy: Policy,
        histories: HistorySender | None = None,
    ) -> None:
        self.stream = stream
        self._view = view
        #: What carries the histories of this lane, if there are any.
        self._histories = histories
        self._policy = policy
        #: So many brokers must hold a publication before it counts as acknowledged.
        self._needed = self._brokers_needed()
        self._limits = policy.limits
        #: Total order settles by positions (`OfferSender`), not by numbers of this stream.
        self._settles = policy.settles and not policy.total
        #: Runs that one broker may be sent before it has settled the first; 0: any number.
        self._most_flying = RUNS_UNDER_WAY if policy.whole_runs else 0
        #: Runs by first number, contiguous and in order; the newest ends at next-1.
        self._runs: dict[int, PendingRun] = {}
        #: Bytes of bodies in _runs.
        self._pending_bytes = 0
        self._progress = {broker: BrokerProgress() for broker in view.brokers}
        #: Every number up to this one is held by enough brokers, and was reported so.
        self.acknowledged = 0
        #: The number of the next publication.
        self.next = 1

    @property
    def base(self) -> int:
        """The oldest number that can still be repeated."""
        return next(iter(self._runs), self.next)

    @property
    def oldest(self) -> int:
        """The oldest number that a broker can still get."""
        return self.base

    def _introduction(self, broker: NodeId) -> Open:
        fresh = self._kept(self._progress[broker]) + 1
        if self._histories is not None:
            # Acks of one lane may be lost, and not those of the other. A broker that began before
            # the first history that it gets would wait for what no history names to it.
            fresh = max(fresh, self._histories.due(broker))
        return Open(self.stream, self.oldest, fresh)

    def _kept(self, progress: BrokerProgress) -> int:
        """Up to here a broker has done its part: repeating it would help nobody.

        Where runs are settled by several brokers together, having received one is not enough: a
        broker that forgets it half-way must take part again, or a cell whose brokers restart one
        after the other would never settle it.
        """
        return progress.settled if self._settles else progress.acked

    @property
    def missed(self) -> int:
        """How many publications subscribers missed; f+1 brokers say so, one of them correct."""
        told = (progress.missed for progress in self._progress.values())
        return reached_by(told, self._view.quorums.one_correct)

    @property
    def settled(self) -> int:
        """Every number up to this one is settled; f+1 brokers say so, one of them correct."""
        told = (progress.settled for progress in self._progress.values())
        return reached_by(told, self._view.quorums.one_correct)

    @property
    def room(self) -> int:
        """How many more publications fit into the buffer."""
        most = self._limits.publisher_buffer
        if self._pending_bytes >= self._limits.publisher_bytes:
            return 0
        # What is acknowledged and not settled stays as well, and a broker may lie about that.
        return max(0, min(most - (self.next - 1 - self.acknowledged), 2 * most - self._span))

    @property
    def _span(self) -> int:
        """How many publications the runs hold that are kept."""
        return self.next - self.base

    @property
    def reach(self) -> int:
        """Every number up to this one was sent to as many brokers as one may wait for."""
        return reached_by((p.sent for p in self._progress.values()), self._needed) - 1

    @property
    def lacking(self) -> list[NodeId]:
        """Brokers that have not acknowledged everything."""
        return [broker for broker, p in self._progress.items() if p.acked < self.next - 1]

    @property
    def watches(self) -> bool:
        """Whether ticks are needed although nothing is unfinished."""
        return False

    @property
    def unfinished(self) -> bool:
        """Whether a broker that can be reached has not acknowledged everything."""
        return any(p.connected and p.acked < self.next - 1 for p in self._progress.values())

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"runs": len(self._runs), "run_bytes": self._pending_bytes}

    def recount(self) -> list[Effect]:
        """Go on in a new epoch, with its brokers and quorums."""
        self._needed = self._brokers_needed()
        self._progress = {b: self._progress.get(b) or BrokerProgress() for b in self._view.brokers}
        return self._advance()

    def _brokers_needed(self) -> int:
        """n-f, unless a protocol needs fewer."""
        return self._view.quorums.responders

    def conclude(self) -> list[Effect]:
        """Everything has been submitted: of interest to a resumed stream, which then ends."""
        return []

    def contents(self) -> Bodies:
        """What was submitted and can still be repeated, in order."""
        return tuple([body for run in self._runs.values() for body in run.bodies])

    # ------------------------------------------------------------- sending

    def submit(self, bodies: Bodies) -> tuple[bytes, list[Effect]]:
        """Number a run and send it; returns its digests as well."""
        hash_ = self._view.hash
        digests = b"".join([hash_(body) for body in bodies])
        size = sum(map(len, bodies))
        seal = self._seal(self.next, digests)
        run = PendingRun(self.next, self.next + len(bodies) - 1, digests, bodies, size, seal)
        self._runs[run.first] = run
        self._pending_bytes += size
        self.next = run.last + 1
        if self._span > self._limits.publisher_buffer:
            self._forget()
        return digests, self._send_new(run)

    def _send_new(self, run: PendingRun) -> list[Effect]:
        ready = []
        for broker, progress in self._progress.items():
            if progress.connected and progress.sent == run.first and self._admit(progress, run):
                ready.append(broker)
        return [Send(tuple(ready), self._message(run), run.bodies)] if ready else []

    def _admit(self, progress: BrokerProgress, run: PendingRun) -> bool:
        """Let a broker have a run, if it has credit for it and may have one more under way."""
        if run.last > progress.credit:
            return False
        if self._most_flying:
            if len(progress.flying) >= self._most_flying:
                return False
            progress.flying.append(run.last)
        progress.sent = run.last + 1
        return True

    def _seal(self, first: int, digests: bytes) -> bytes:
        return b""

    def _message(self, run: PendingRun) -> Message:
        return Publish(self.stream, run.first, run.digests)

    def _pump(self, broker: NodeId, progress: BrokerProgress, burst: int) -> list[Effect]:
        """Send a broker whatever it has credit for and has not been sent."""
        effects: list[Effect] = []
        repeated = 0
        while len(effects) < burst and (run := self._runs.get(progress.sent)) is not None:
            if repeated > REPEAT_BYTES or not self._admit(progress, run):
                break
            effects.append(Send((broker,), self._message(run), run.bodies))
            if run.first < progress.again:
                repeated += run.size
        return effects

    def _burst(self, progress: BrokerProgress) -> int:
        """How many runs a broker may be sent now that it has acknowledged something."""
        if progress.sent >= progress.again:
            return len(self._runs)
        return REPEAT_BURST if progress.acked + 1 >= progress.sent else 0

    def _rewind(self, progress: BrokerProgress) -> None:
        """Start again at the run that holds the first number which was not acknowledged."""
        progress.again = max(progress.again, progress.sent)
        wanted = progress.acked + 1
        lacking = (run.first for run in self._runs.values() if run.last >= wanted)
        progress.sent = next(lacking, self.next)
        while progress.flying and progress.flying[-1] >= progress.sent:
            progress.flying.pop()

    def _skip_acknowledged(self, progress: BrokerProgress) -> None:
        """Do not repeat what was acknowledged meanwhile."""
        while (run := self._runs.get(progress.sent)) is not None and run.last <= progress.acked:
            progress.sent = run.last + 1
            if self._most_flying and run.last > progress.settled:
                progress.flying.append(run.last)

    # -------------------------------------------------------------- events

    def connected(self, broker: NodeId) -> list[Effect]:
        """Introduce the stream to a broker; its answer says where to go on."""
        progress = self._progress[broker]
        progress.connected = True
        progress.credit = 0
        progress.stalled = 0
        return [Send((broker,), self._introduction(broker))]

    def disconnected(self, broker: NodeId) -> None:
        """A broker cannot be reached."""
        self._progress[broker].connected = False

    def on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        """A broker tells how far it is."""
        progress = self._progress[broker]
        fresh = progress.credit == 0
        upto = min(ack.upto, self.next - 1)
        progress.acked = upto
        # Never 0 again: a broker that withdraws its credit is served by ticks, not by every ack.
        progress.credit = max(1, ack.credit)
        if fresh:
            # Its answer to Open: it may have restarted and know less than it once did.
            self._rewind(progress)
            progress.again = progress.sent
        settled, before = min(ack.settled, self.next - 1), progress.settled
        progress.settled = settled
        while progress.flying and progress.flying[0] <= settled:
            progress.flying.popleft()
        progress.missed = ack.missed
        if progress.sent <= upto and progress.sent < progress.again:
            self._skip_acknowledged(progress)
        return self._advance(relieved=settled != before) + self._pump(
            broker, progress, self._burst(progress)
        )

    def _held_by_enough(self) -> int:
        acked = reached_by([p.acked for p in self._progress.values()], self._needed)
        return max(acked, self._settled_by_enough())

    def _settled_by_enough(self) -> int:
        return reached_by([p.settled for p in self._progress.values()], self._needed)

    def _advance(self, *, relieved: bool = True) -> list[Effect]:
        """Say what enough brokers hold; runs may go if it has grown, or what they have settled."""
        upto = self._held_by_enough()
        news = upto > self.acknowledged
        if not (news or relieved):
            return []
        had_room = self.room > 0
        self.acknowledged = max(upto, self.acknowledged)
        self._forget()
        if not had_room and self.room > 0:
            news = True  # a client that waits for room waits for an acknowledgement
        return [Acknowledged(self.stream, self.acknowledged)] if news else []

    def _forget(self) -> None:
        """Runs that enough brokers hold stay for the slow ones as long as there is room.

        Where brokers settle a run together, one that they only received may still need a broker
        that never got it: nobody but the publisher can bring it there.
        """
        kept = self._limits.publisher_buffer // 2
        done = sorted(map(self._kept, self._progress.values()), reverse=True)
        enough, everywhere = min(self.acknowledged, done[self._needed - 1]), done[-1]
        done_with: list[int] = []
        for first, run in self._runs.items():
            spare = (
                self.next - run.first > kept or self._pending_bytes > self._limits.publisher_bytes
            )
            if run.last > enough or not (spare or run.last <= everywhere):
                break
            done_with.append(first)
            self._pending_bytes -= run.size
        for first in done_with:
            del self._runs[first]

    def tick(self, late_ms: int = 0) -> list[Effect]:
        """Repeat what brokers that can be reached do not acknowledge.

        `late_ms`: how much later than it was due the tick comes.
        """
        effects: list[Effect] = []
        for broker, progress in self._progress.items():
            if not progress.connected or progress.acked >= self.next - 1:
                progress.stalled = 0
                continue
            if progress.acked != progress.seen:
                progress.seen = progress.acked
                progress.stalled = 0
                continue
            progress.stalled += 1
            if progress.stalled not in FIRST_REPEATS and progress.stalled % REPEAT_TICKS:
                continue
            effects += self._repeat(broker, progress)
        return effects

    def _repeat(self, broker: NodeId, progress: BrokerProgress) -> list[Effect]:
        if progress.credit == 0 or progress.acked + 1 < self.base:
            progress.credit = 0
            return [Send((broker,), self._introduction(broker))]
        self._rewind(progress)
        # Without credit there is nothing to repeat; the Ack that gave it may be what was lost, and
        # only asking again brings it back.
        return self._pump(broker, progress, REPEAT_BURST) or [
            Send((broker,), self._introduction(broker))
        ]


class HistorySender(FanOutSender):
    """Every history to every broker, and where each begins: both lanes are introduced alike."""

    __slots__ = ("_begins",)

    def __init__(self, stream: Stream, view: View, policy: Policy) -> None:
        super().__init__(stream, view, policy)
        #: The first number that each history names; of base … next, the next one included.
        self._begins = {1: 1}

    @property
    def undelivered(self) -> int:
        """The first number whose history is not settled by enough brokers."""
        return self._begins[max(self.base, self._settled_by_enough() + 1)]

    def due(self, broker: NodeId) -> int:
        """The first number in whose history a broker has yet to take part."""
        return self._begins[max(self.base, self._kept(self._progress[broker]) + 1)]

    def send(self, history: bytes, following: int) -> list[Effect]:
        """Send a history, after which the next one begins with this number."""
        self._begins[self.next + 1] = following
        return self.submit((history,))[1]

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "begins": len(self._begins)}

    def _forget(self) -> None:
        super()._forget()
        while (oldest := next(iter(self._begins))) < self.base:
            del self._begins[oldest]
