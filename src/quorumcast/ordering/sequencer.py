"""One log of a broker: offers in, consensus among the brokers, positions out.

Composes the rest of this room and adds what belongs to none of it: when to propose, when to
execute, when to say something again, and how to go on with what the disk held.
"""

from __future__ import annotations

from quorumcast.core.ids import Lane, Millis, NodeId
from quorumcast.core.machine import (
    Bodies,
    Connected,
    Drop,
    DropReason,
    Effect,
    Event,
    Persisted,
    Receive,
    Record,
    Restored,
    Send,
    SetTimer,
    Suspect,
    Suspicion,
    Timer,
    TimerFired,
)
from quorumcast.core.messages import (
    Accept,
    AnyMessage,
    Batch,
    Chunk,
    ChunkQuery,
    Fetch,
    Fetched,
    LogPart,
    LogQuery,
    Offer,
    Open,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.ordering.catchup import LOG_REACH, CatchUp
from quorumcast.ordering.caution import Caution
from quorumcast.ordering.checkpoints import Checkpoints
from quorumcast.ordering.consensus import Consensus, Voted, value_of
from quorumcast.ordering.execution import Decided, Execution, Surroundings
from quorumcast.ordering.fetching import Fetching
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.patience import Patience
from quorumcast.ordering.rights import Rights
from quorumcast.ordering.state import State
from quorumcast.ordering.succession import Moved, Succession

TICK_MS = 100
IDLE_TICK_MS = 500


class Tick(Timer, frozen=True, tag=True):
    """Look after a log."""

    log: Protection


class Sequencer:
    """The machine of one log."""

    __slots__ = (
        "_around",
        "_caution",
        "_checkpoints",
        "_consensus",
        "_execution",
        "_fetching",
        "_former",
        "_led",
        "_log",
        "_next",
        "_patience",
        "_quorums",
        "_restored",
        "_rights",
        "_seen",
        "_succession",
        "_ticking",
        "catch_up",
    )

    #: The parts; a test of the checkers may put in worse ones.
    consensus: type[Consensus] = Consensus
    succession: type[Succession] = Succession
    catching_up: type[CatchUp] = CatchUp
    state: type[State] = State

    def __init__(
        self,
        log: Protection,
        quorums: OrderQuorums,
        around: Surroundings,
        *,
        durable: bool,
        window: int,
        checkpoint: int,
    ) -> None:
        self._log = log
        self._quorums = quorums
        self._around = around
        kind = type(self)
        self._execution = Execution(
            log, around, kind.state(around.retained), signed=quorums.byzantine, durable=durable
        )
        self._consensus = kind.consensus(
            log,
            around.me,
            around.members,
            quorums,
            around.hash,
            durable=durable,
            window=window,
            kept=LOG_REACH + 2 * checkpoint,
            holds=lambda batch: not self._execution.missing(batch),
        )
        self._succession = kind.succession(
            self._consensus, quorums, around.keyring, durable=durable
        )
        self.catch_up = kind.catching_up(
            self._consensus, quorums, around.hash, lambda: self._execution.executed
        )
        self._caution = Caution(around, quorums, self._consensus, self.catch_up)
        self._rights = Rights(around, self._consensus, self._execution)
        self._fetching = Fetching(around, self._consensus, self._execution, self._succession)
        self._checkpoints = Checkpoints(
            around,
            quorums,
            self._consensus,
            self._execution,
            self._succession,
            self.catch_up,
            every=checkpoint,
        )
        self._patience = Patience(around, self._consensus, self._execution, self._succession)
        #: The next instance that this broker proposes while it leads, and the regency it leads in.
        self._next = 1
        self._led = -1
        #: The regency in which an earlier life of this broker may have proposed what it no longer
        #: knows: it does not lead there again, or it would look like a liar.
        self._former = -1
        #: What the disk held, until the first event of the new life.
        self._restored: list[Record] | None = None
        self._ticking = False
        #: What was decided at the last tick.
        self._seen = 0

    # ------------------------------------------------------------- for people

    def standing(self) -> Standing:
        """How far this broker is."""
        consensus, checkpoint = self._consensus, self.catch_up.checkpoint
        return Standing(
            self._log,
            consensus.regency,
            consensus.decided,
            max(consensus.slots, default=consensus.decided),
            consensus.synced,
            self._caution.fresh,
            0 if checkpoint is None else checkpoint.instance,
            b"" if checkpoint is None else checkpoint.root,
            self._caution.awake,
        )

    @property
    def leader(self) -> NodeId:
        """Who leads, as far as this broker knows."""
        return self._consensus.leader

    @property
    def executed(self) -> int:
        """How many batches this broker has executed."""
        return self._execution.executed

    @property
    def late(self) -> bool:
        """Whether this broker still listens, executes or fetches what the others have."""
        behind = self.catch_up.behind() or self._execution.executed < self._consensus.decided
        return self._caution.fresh or behind or bool(self._execution.backfill)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            **self._consensus.sizes(),
            **self._execution.offers.sizes(),
            **self.catch_up.sizes(),
            "served_streams": len(self._execution.state.served),
        }

    # ---------------------------------------------------------------- events

    def handle(self, event: Event, now: Millis) -> list[Effect]:
        """Take one event that concerns this log."""
        if isinstance(event, Restored):
            self._restored = [*(self._restored or ()), event.record]
            return []
        effects = self._wake(now)
        match event:
            case Receive(sender=sender, message=message):
                effects += self._receive(event, sender, message, now)
            case TimerFired(timer=Tick()):
                self._ticking = False
                effects += self._on_tick(now)
            case Persisted(record=Voted() as record):
                effects += self._consensus.on_persisted(record)
            case Persisted(record=Moved() as moved):
                effects += self._succession.on_moved(moved, now)
            case Connected(peer=peer) if peer in self._around.members:
                effects.append(Send((peer,), self.standing()))
            case _:
                return effects
        return effects + self._go_on(now)

    def _receive(
        self, event: Receive, sender: NodeId, message: AnyMessage, now: Millis
    ) -> list[Effect]:
        match message:
            case Offer():
                return self._on_offer(sender, message, event.bodies, now)
            case Open():
                return self._on_open(sender, message)
            case _ if sender not in self._around.members:
                return [Drop(DropReason.WRONG_SENDER, sender)]
            case Write() | Accept():
                return self._consensus.on_vote(sender, message)
            case Propose():
                return self._on_propose(sender, message)
            case Standing():
                return self._on_standing(sender, message, now)
            case Stop():
                return self._succession.on_stop(sender, message, now)
            case StopData():
                return self._succession.on_stop_data(sender, message, now)
            case Sync():
                return self._succession.on_sync(sender, message, now)
            case Fetch():
                return self._fetching.on_fetch(sender, message)
            case Fetched():
                self._fetching.on_fetched(message)
                return [] if self._succession.lacking() else self._succession.begin(now)
            case LogQuery():
                return self.catch_up.on_log_query(sender, message)
            case LogPart():
                return self.catch_up.on_log_part(sender, message)
            case StateHead():
                return self.catch_up.on_state_head(sender, message)
            case ChunkQuery():
                return self.catch_up.on_chunk_query(sender, message)
            case Chunk():
                return self.catch_up.on_chunk(sender, message, event.bodies)
            case _:
                return [Drop(DropReason.UNEXPECTED, sender)]

    def _go_on(self, now: Millis) -> list[Effect]:
        """Execute what was decided, propose what waits, keep looking after it all."""
        effects = self._execute(now)
        effects += self._propose(now)
        if not self._ticking:
            self._ticking = True
            effects.append(SetTimer(Tick(self._log), TICK_MS if self._busy else IDLE_TICK_MS))
        return effects

    @property
    def _busy(self) -> bool:
        consensus = self._consensus
        return (
            bool(self._execution.offers)
            or self.late
            or not consensus.synced
            or max(consensus.slots, default=0) > self._execution.executed
        )

    # ---------------------------------------------------------------- offers

    def _on_open(self, sender: NodeId, message: Open) -> list[Effect]:
        stream = message.stream
        if sender != stream.publisher or stream.lane is not Lane.DATA:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        return [self._execution.ack(stream)]

    def _on_offer(self, sender: NodeId, offer: Offer, bodies: Bodies, now: Millis) -> list[Effect]:
        stream = offer.stream
        direct = sender == stream.publisher
        if not direct and sender not in self._around.members:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        if not direct and self._was_decided(offer, bodies, now):
            return self._execution.keep(offer, bodies)
        if not self._rights.may_offer(offer, direct=direct):
            return [Drop(DropReason.NO_RIGHT, sender)]
        if not direct and self._fetching.stands_by_another(offer):
            return [Drop(DropReason.CONFLICT, sender)]
        named = not direct and self._consensus.awaits(offer)
        held = self._execution.offers.add(sender, offer, bodies, now, named=named)
        if not isinstance(held, DropReason):
            return [*self._execution.keep(offer, bodies), *self._reconsider()]
        effects: list[Effect] = [Drop(held, sender)]
        if held is DropReason.CONFLICT:
            effects.append(Suspect(sender, Suspicion.EQUIVOCATION, stream, offer.first))
        if held is DropReason.DUPLICATE and direct:
            effects.append(self._execution.ack(stream))
        return effects

    def _was_decided(self, offer: Offer, bodies: Bodies, now: Millis) -> bool:
        """Whether this broker lacks it for what was decided, now or while it was away."""
        execution = self._execution
        batch = self._consensus.batch(execution.executed + 1)
        return execution.lacked(offer, bodies) or (
            batch is not None and execution.complete(batch, offer, bodies, now)
        )

    def _reconsider(self) -> list[Effect]:
        return [e for i, _ in self._consensus.waiting() for e in self._consensus.consider(i)]

    # --------------------------------------------------------------- consensus

    def _propose(self, now: Millis) -> list[Effect]:
        """The leader: first what must be proposed, then what waits."""
        consensus, offers = self._consensus, self._execution.offers
        if not consensus.leads or consensus.regency == self._former or not self._caution.quorate():
            return []
        bound = consensus.conclusion.values
        if self._led != consensus.regency:
            self._led = consensus.regency
            self._next = consensus.conclusion.low + 1
            offers.begin(self._under_way())
        effects: list[Effect] = []
        while self._next <= consensus.horizon:
            if self._next in bound and self._next > consensus.forgotten:
                batch = consensus.slot(self._next).batches.get(bound[self._next], ())
            elif self._next <= consensus.decided:
                self._next += 1
                continue
            else:
                batch = offers.choose()
                if not batch:
                    break
            effects += consensus.propose(self._next, batch)
            self._next += 1
        return effects

    def _under_way(self) -> list[Batch]:
        """Batches that are decided and not executed, or must be proposed: chosen already."""
        consensus = self._consensus
        values = dict(consensus.conclusion.values)
        values |= {i: slot.decided for i, slot in consensus.slots.items() if slot.decided}
        return [
            slot.batches[value]
            for instance, value in values.items()
            if instance > self._execution.executed
            and (slot := consensus.slots.get(instance)) is not None
            and value in slot.batches
        ]

    def _on_propose(self, sender: NodeId, message: Propose) -> list[Effect]:
        if not self._rights.may_propose(message):
            return [Drop(DropReason.NO_RIGHT, sender)]
        return self._consensus.on_propose(sender, message)

    # --------------------------------------------------------------- executing

    def _execute(self, now: Millis) -> list[Effect]:
        execution = self._execution
        effects = self._checkpoints.arrive()
        while execution.executed < self._consensus.decided:
            batch = self._consensus.batch(execution.executed + 1)
            if batch is None or (taken := execution.taken(batch)) is None:
                break  # the next tick asks for what is lacking
            if taken:
                self._patience.regain(now)
            effects += execution.apply(batch)
            if self._checkpoints.make():
                effects += self._checkpoints.announce(self.standing())
        return effects

    # ------------------------------------------------------------ being late

    def _on_standing(self, sender: NodeId, message: Standing, now: Millis) -> list[Effect]:
        self.catch_up.standings[sender] = message
        effects = self._succession.on_standing(sender, message)
        effects += self._checkpoints.settle()
        if self._caution.listen():
            self._patience.regain(now)
            if self._consensus.blind:
                self._former = max(self._caution.regency, self._consensus.regency)
            effects.append(Send(self._around.peers, self.standing()))
            if self._caution.regency > self._consensus.regency:
                effects += self._succession.enter(self._caution.regency, now)
        return effects

    # --------------------------------------------------------------- the clock

    def _on_tick(self, now: Millis) -> list[Effect]:
        consensus = self._consensus
        effects: list[Effect] = []
        if self._seen == consensus.decided:
            effects.append(Send(self._around.peers, self.standing()))
            if self._busy:
                effects += consensus.repeat()
                effects += self._succession.repeat(now)
            if not consensus.synced:
                self._execution.offers.unname(consensus.named())
        self._seen = consensus.decided
        effects += self.catch_up.ask()
        effects += self._fetching.ask()
        self._caution.relent(now)
        late = self._execution.executed < consensus.decided or self.catch_up.behind()
        if self._caution.fresh or late or consensus.decided < consensus.blind:
            return effects  # whoever is late itself blames nobody
        return effects + self._patience.lose(now)

    # --------------------------------------------------------------- the disk

    def _wake(self, now: Millis) -> list[Effect]:
        """The first event of a new life: what the disk held is complete."""
        records, self._restored = self._restored, None
        if records is None:
            return []
        self._caution.remember()
        self._patience.regain(now)
        execution, consensus = self._execution, self._consensus
        for record in records:
            if isinstance(record, Stored):
                execution.restore_offer(record)
        self._checkpoints.restore(records)
        execution.requeue(now)
        for record in records:
            match record:
                case Voted():
                    consensus.restore(record)
                case Moved():
                    self._succession.restore(record)
                case Decided(instance=instance, batch=batch):
                    consensus.decide(instance, value_of(self._around.hash, batch), batch)
                case _:
                    pass
        self._former = consensus.regency
        return self._execute(now)
