"""Outlets: the publisher side of the protocols, one per lane of a stream.

An outlet numbers publications, keeps runs until enough brokers hold them, sends each broker what it
has credit for, and repeats what got lost. Runs are never cut differently when they are repeated:
Bracha's instances and the chain's MACs are about whole runs.

`FanOut` sends every run to every broker (direct, authenticated, Bracha, histories). `ChainOut`
sends it to the head of a chain and chooses another chain when this one loses publications: of two
neighbours between which acknowledgements stop one is to blame, so both get a point, and the f
brokers with the most points stand aside (BChain's idea).
"""

from __future__ import annotations

import msgspec

from quorumcast.core.ids import Lane, NodeId, Stream
from quorumcast.core.machine import Acknowledged, Bodies, Effect, Send, Suspect, Suspicion
from quorumcast.core.messages import Ack, AnyMessage, ChainRun, Open, Publish, Voucher
from quorumcast.core.quorum import Broadcast, Quorums
from quorumcast.crypto.digest import Hasher
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.policy import Policy

#: Runs repeated to one broker in one go.
REPEAT_BURST = 64
#: Stalled ticks after which a broker is reminded only rarely.
PATIENCE = 6


class OutRun(msgspec.Struct, frozen=True):
    """A run that waits for acknowledgement."""

    first: int
    last: int
    digests: bytes
    bodies: Bodies
    size: int


class Progress:
    """What a publisher knows of one broker."""

    __slots__ = ("acked", "connected", "credit", "missed", "seen", "sent", "settled", "stalled")

    def __init__(self) -> None:
        self.connected = False
        #: Highest number that the broker says it holds.
        self.acked = 0
        #: Highest number that the broker is willing to take; 0 until it answered our Open.
        self.credit = 0
        #: First number not sent to it yet; always the first number of a run or `next`.
        self.sent = 1
        self.settled = 0
        self.missed = 0
        #: `acked` at the last tick, and for how many ticks it has not moved.
        self.seen = 0
        self.stalled = 0


class FanOut:
    """Every run to every broker."""

    __slots__ = (
        "_acknowledged",
        "_brokers",
        "_hash",
        "_limits",
        "_one_correct",
        "_pending_bytes",
        "_progress",
        "_quorum",
        "_runs",
        "_settles",
        "next",
        "stream",
    )

    def __init__(
        self,
        stream: Stream,
        brokers: tuple[NodeId, ...],
        quorums: Quorums,
        policy: Policy,
        hash_: Hasher,
    ) -> None:
        self.stream = stream
        self._brokers = brokers
        self._quorum = quorums.responders
        self._one_correct = quorums.one_correct
        self._limits = policy.limits
        self._settles = (
            policy.has_history
            or policy.broadcast is Broadcast.BRACHA
            or stream.lane is Lane.HISTORY
        )
        self._hash = hash_
        #: Runs by first number, contiguous and in order; the newest ends at next-1.
        self._runs: dict[int, OutRun] = {}
        #: Bytes of bodies in _runs.
        self._pending_bytes = 0
        self._progress = {broker: Progress() for broker in brokers}
        #: Every number up to this one was reported as acknowledged.
        self._acknowledged = 0
        #: The number of the next publication.
        self.next = 1

    @property
    def base(self) -> int:
        """The oldest number that can still be repeated."""
        return next(iter(self._runs), self.next)

    def _introduction(self, broker: NodeId) -> Open:
        return Open(self.stream, self.base, self._kept(self._progress[broker]) + 1)

    def _kept(self, progress: Progress) -> int:
        """Up to here a broker has done its part: repeating it would help nobody.

        Where runs are settled by several brokers together, having received one is not enough: a
        broker that forgets it half-way must take part again, or a cell whose brokers restart one
        after the other would never settle it.
        """
        return progress.settled if self._settles else progress.acked

    @property
    def acknowledged(self) -> int:
        """Every number up to this one is held by enough brokers."""
        return self._acknowledged

    @property
    def missed(self) -> int:
        """How many publications subscribers missed; f+1 brokers say so, one of them correct."""
        told = sorted((p.missed for p in self._progress.values()), reverse=True)
        return told[self._one_correct - 1]

    @property
    def settled(self) -> int:
        """Every number up to this one is settled; f+1 brokers say so, one of them correct."""
        told = sorted((p.settled for p in self._progress.values()), reverse=True)
        return told[self._one_correct - 1]

    @property
    def room(self) -> int:
        """How many more publications fit into the buffer."""
        if self._pending_bytes >= self._limits.publisher_bytes:
            return 0
        return max(0, self._limits.publisher_buffer - (self.next - 1 - self._acknowledged))

    @property
    def reach(self) -> int:
        """Every number up to this one was sent to as many brokers as one may wait for."""
        sent = sorted((p.sent for p in self._progress.values()), reverse=True)
        return sent[self._quorum - 1] - 1

    @property
    def unfinished(self) -> bool:
        """Whether a broker that can be reached has not acknowledged everything."""
        return any(p.connected and p.acked < self.next - 1 for p in self._progress.values())

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"runs": len(self._runs), "pending_bytes": self._pending_bytes}

    # ------------------------------------------------------------- sending

    def submit(self, bodies: Bodies) -> tuple[bytes, list[Effect]]:
        """Number a run and send it; returns its digests as well."""
        hash_ = self._hash
        digests = b"".join([hash_(body) for body in bodies])
        size = sum(map(len, bodies))
        run = OutRun(self.next, self.next + len(bodies) - 1, digests, bodies, size)
        self._runs[run.first] = run
        self._pending_bytes += size
        self.next = run.last + 1
        return digests, self._send_new(run)

    def _send_new(self, run: OutRun) -> list[Effect]:
        ready = []
        for broker, progress in self._progress.items():
            if progress.connected and progress.sent == run.first and progress.credit >= run.last:
                progress.sent = run.last + 1
                ready.append(broker)
        return [Send(tuple(ready), self._message(run), run.bodies)] if ready else []

    def _message(self, run: OutRun) -> AnyMessage:
        return Publish(self.stream, run.first, run.digests)

    def _pump(self, broker: NodeId, progress: Progress, burst: int) -> list[Effect]:
        """Send a broker whatever it has credit for and has not been sent."""
        effects: list[Effect] = []
        while len(effects) < burst and (run := self._runs.get(progress.sent)) is not None:
            if run.last > progress.credit:
                break
            effects.append(Send((broker,), self._message(run), run.bodies))
            progress.sent = run.last + 1
        return effects

    def _rewind(self, progress: Progress) -> None:
        """Start again at the run that holds the first number which was not acknowledged."""
        wanted = progress.acked + 1
        if wanted >= self.next:
            progress.sent = self.next
            return
        progress.sent = self.base
        for run in self._runs.values():
            if run.last >= wanted:
                progress.sent = run.first
                break

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
        # Never 0 again: whoever takes back what it said is served by ticks, not by every ack.
        progress.credit = max(1, ack.credit)
        if fresh:
            # Its answer to Open: it may have restarted and know less than it once did.
            self._rewind(progress)
        progress.settled = min(ack.settled, self.next - 1)
        progress.missed = ack.missed
        return self._advance() + self._pump(broker, progress, len(self._runs))

    def _held_by_enough(self) -> int:
        acked = sorted((p.acked for p in self._progress.values()), reverse=True)
        settled = sorted((p.settled for p in self._progress.values()), reverse=True)
        return max(acked[self._quorum - 1], settled[self._quorum - 1])

    def _advance(self) -> list[Effect]:
        upto = self._held_by_enough()
        if upto <= self._acknowledged:
            return []
        self._acknowledged = upto
        self._forget()
        return [Acknowledged(self.stream, upto)]

    def _forget(self) -> None:
        """Runs that enough brokers hold stay for the slow ones as long as there is room."""
        kept = self._limits.publisher_buffer // 2
        everywhere = min(map(self._kept, self._progress.values()))
        for first in list(self._runs):
            run = self._runs[first]
            spare = (
                self.next - run.first > kept or self._pending_bytes > self._limits.publisher_bytes
            )
            if run.last > self._acknowledged or not (spare or run.last <= everywhere):
                break
            del self._runs[first]
            self._pending_bytes -= run.size

    def tick(self) -> list[Effect]:
        """Repeat what brokers that can be reached do not acknowledge."""
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
            if progress.stalled > PATIENCE and progress.stalled % PATIENCE:
                continue
            effects += self._repeat(broker, progress)
        return effects

    def _repeat(self, broker: NodeId, progress: Progress) -> list[Effect]:
        if progress.credit == 0 or progress.acked + 1 < self.base:
            progress.credit = 0
            return [Send((broker,), self._introduction(broker))]
        self._rewind(progress)
        return self._pump(broker, progress, REPEAT_BURST)


class ChainOut(FanOut):
    """Every run to the head of a chain."""

    __slots__ = ("_blamed", "_keyring", "_missed", "_order", "_points", "_quorums", "_stalls")

    def __init__(
        self,
        stream: Stream,
        brokers: tuple[NodeId, ...],
        quorums: Quorums,
        policy: Policy,
        hash_: Hasher,
        keyring: Keyring,
    ) -> None:
        super().__init__(stream, brokers, quorums, policy, hash_)
        self._quorums = quorums
        self._keyring = keyring
        pool = brokers[: quorums.chain_pool]
        #: How often each broker was next to a break; the f worst stand aside.
        self._points = dict.fromkeys(pool, 0)
        #: The chain in use.
        self._order = pool[: quorums.chain_length]
        #: What subscribers were said to have missed when the chain was last changed for it.
        self._missed = 0
        #: Ticks without progress on this chain.
        self._stalls = 0
        #: Highest number acknowledged by the whole chain at the last tick.
        self._blamed = 0

    @property
    def order(self) -> tuple[NodeId, ...]:
        """The chain in use."""
        return self._order

    @property
    def reach(self) -> int:
        return self._progress[self._order[0]].sent - 1

    @property
    def unfinished(self) -> bool:
        return self._acknowledged < self.next - 1

    def _send_new(self, run: OutRun) -> list[Effect]:
        head = self._progress[self._order[0]]
        if head.connected and head.sent == run.first and self._chain_credit() >= run.last:
            head.sent = run.last + 1
            return [Send((self._order[0],), self._message(run), run.bodies)]
        return []

    def _chain_credit(self) -> int:
        return min(self._progress[broker].credit for broker in self._order)

    def _message(self, run: OutRun) -> AnyMessage:
        vouchers = tuple(
            Voucher(
                self._keyring.identity.name,
                reader,
                self._keyring.vouch(reader, self.stream, run.first, run.digests, self._order),
            )
            for reader in self._order[: self._quorums.chain_reach]
        )
        return ChainRun(self.stream, run.first, run.digests, self._order, vouchers)

    def _pump(self, broker: NodeId, progress: Progress, burst: int) -> list[Effect]:
        head = self._progress[self._order[0]]
        credit = self._chain_credit()
        effects: list[Effect] = []
        while head.connected and len(effects) < burst:
            run = self._runs.get(head.sent)
            if run is None or run.last > credit:
                break
            effects.append(Send((self._order[0],), self._message(run), run.bodies))
            head.sent = run.last + 1
        return effects

    def _held_by_enough(self) -> int:
        settled = sorted((p.settled for p in self._progress.values()), reverse=True)
        chain = min(self._progress[broker].acked for broker in self._order)
        return max(chain, settled[self._quorum - 1])

    def on_ack(self, broker: NodeId, ack: Ack) -> list[Effect]:
        effects = super().on_ack(broker, ack)
        if self.missed > self._missed:
            self._missed = self.missed
            effects += self._change_chain(self._order[-self._quorums.chain_reach :])
        return effects

    def tick(self) -> list[Effect]:
        effects: list[Effect] = []
        for broker, progress in self._progress.items():
            if progress.connected and progress.credit == 0:
                effects.append(Send((broker,), self._introduction(broker)))
        done = min(self._progress[broker].acked for broker in self._order)
        if done >= self.next - 1 or done != self._blamed:
            self._blamed = done
            self._stalls = 0
            return effects
        self._stalls += 1
        if self._stalls == 1:
            return effects + self._restart()
        self._stalls = 0
        suspects = self._break()
        return effects + self._change_chain(suspects) if suspects else effects

    def _break(self) -> tuple[NodeId, ...]:
        """Who is to blame: whoever does not answer or gives no credit, else two neighbours."""
        done = self._blamed
        members = {broker: self._progress[broker] for broker in self._order}
        for broker, progress in members.items():
            if not progress.connected:
                return (broker,)
        wanted = next(run.last for run in self._runs.values() if run.last > done)
        short = tuple(broker for broker, progress in members.items() if progress.credit < wanted)
        if short:
            # More than f of them: one is correct, so it is we who owe something (a history).
            return short if len(short) <= self._quorums.f else ()
        for place, (_, progress) in enumerate(members.items()):
            if progress.acked <= done:
                return self._order[max(0, place - 1) : place + 1]
        return self._order[-1:]

    def _change_chain(self, suspects: tuple[NodeId, ...]) -> list[Effect]:
        for broker in suspects:
            self._points[broker] += 1
        # The f with most points stand aside; of equals the one further down the present chain.
        rank = {broker: place for place, broker in enumerate(self._order)}
        standing = sorted(self._points, key=lambda b: (self._points[b], rank.get(b, -1)))
        chosen = standing[: self._quorums.chain_length]
        order = tuple(broker for broker in self._points if broker in chosen)
        effects: list[Effect] = [
            Suspect(broker, Suspicion.BROKEN_CHAIN, self.stream, self._blamed + 1)
            for broker in suspects
        ]
        self._order = order
        return effects + self._restart()

    def _restart(self) -> list[Effect]:
        """Send again whatever the whole chain has not acknowledged."""
        head = self._progress[self._order[0]]
        slowest = min((self._progress[b] for b in self._order), key=lambda p: p.acked)
        self._rewind(slowest)
        head.sent = slowest.sent
        # A broker new to the chain starts where our buffer does.
        behind = [b for b in self._order if self._progress[b].acked + 1 < self.base]
        effects: list[Effect] = [Send((b,), self._introduction(b)) for b in behind]
        return effects + self._pump(self._order[0], head, REPEAT_BURST)
