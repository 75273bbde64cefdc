"""One log of a broker: offers in, consensus among the brokers, positions out.

Composes the rest of this room and adds what belongs to none of it: when to propose, when to
execute, when to say something again, and how to go on with what the disk held.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Open
from quorumcast.core.ids import Millis, NodeId
from quorumcast.core.machine import (
    Connected,
    Drop,
    DropReason,
    Effect,
    Event,
    Persist,
    Persisted,
    Receive,
    Record,
    Restored,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)
from quorumcast.core.message import Message
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.ordering.birth import Birth, Lived
from quorumcast.ordering.catchup import LOG_REACH, CatchUp
from quorumcast.ordering.caution import Caution
from quorumcast.ordering.checkpoints import Checkpoints
from quorumcast.ordering.consensus import Consensus, Voted, value_of
from quorumcast.ordering.epochs import epoch_item, first_regency
from quorumcast.ordering.execution import Decided, Execution, LogContext, Snapshot
from quorumcast.ordering.fetching import Fetching
from quorumcast.ordering.intake import Intake, Rights
from quorumcast.ordering.leading import Leading
from quorumcast.ordering.messages import (
    Accept,
    Chunk,
    ChunkQuery,
    Fetch,
    Fetched,
    LogPart,
    LogQuery,
    Offer,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorumcast.ordering.offers import Stored
from quorumcast.ordering.patience import Patience
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
        "_birth",
        "_caution",
        "_checkpoints",
        "_consensus",
        "_execution",
        "_fetching",
        "_follows",
        "_intake",
        "_kept",
        "_leading",
        "_life",
        "_log",
        "_patience",
        "_patient",
        "_restored",
        "_rights",
        "_seen",
        "_succession",
        "_terms",
        "_ticking",
        "catch_up",
    )

    #: The parts; a test of the checkers may put in worse ones.
    consensus: type[Consensus] = Consensus
    succession: type[Succession] = Succession
    catching_up: type[CatchUp] = CatchUp
    state: type[State] = State
    birth: type[Birth] = Birth

    def __init__(
        self,
        log: Protection,
        quorums: OrderQuorums,
        around: LogContext,
        *,
        durable: bool,
        window: int,
        checkpoint: int,
        follows: bool = False,
    ) -> None:
        self._log = log
        self._around = around
        #: Whether it is kept on disk, how far it runs ahead, decisions between two checkpoints.
        self._terms = (durable, window, checkpoint)
        #: Whether the log is older than the epoch in which this broker starts.
        self._follows = follows
        state = type(self).state(around.retained)
        self._execution = Execution(log, around, state, signed=quorums.byzantine, durable=durable)
        #: The life of this broker in this log; only a disk keeps it longer than the process.
        self._life = around.life
        #: Whether it has been written.
        self._kept = not durable
        self._assemble(quorums)
        #: What the disk held, until the first event of the new life.
        self._restored: list[Record] | None = None
        self._ticking = False
        #: What was decided at the last tick.
        self._seen = 0

    def _assemble(self, quorums: OrderQuorums) -> None:
        """Everything that depends on who the brokers are, around what has been executed."""
        kind, around, execution = type(self), self._around, self._execution
        durable, window, checkpoint = self._terms
        consensus = self._consensus = kind.consensus(
            self._log,
            around.me,
            around.members,
            quorums,
            around.hash,
            durable=durable,
            window=window,
            kept=LOG_REACH + 2 * checkpoint,
            holds=lambda batch: not execution.missing(batch),
            first=first_regency(around.epoch),
        )
        self.catch_up = kind.catching_up(
            consensus, quorums, around.hash, lambda: execution.executed
        )
        self._birth = kind.birth(around, quorums, execution, self.catch_up, self._life)
        self._succession = kind.succession(
            consensus, quorums, around.keyring, self._birth, durable=durable
        )
        self._caution = Caution(around, quorums, consensus, self.catch_up)
        self._rights = Rights(around, consensus, execution, self._birth)
        self._fetching = Fetching(around, consensus, execution, self._succession)
        self._checkpoints = Checkpoints(
            around,
            quorums,
            consensus,
            execution,
            self._succession,
            self.catch_up,
            every=checkpoint,
        )
        self._patience = Patience(around, consensus, execution, self._succession)
        self._intake = Intake(around, consensus, execution, self._rights, self._fetching)
        #: Whether patience with a new leader begins with the next event.
        self._patient = False
        self._leading = Leading(consensus, execution, self._caution, self._birth)

    # ---------------------------------------------------------------- epochs

    def offer_epoch(self, data: bytes, now: Millis) -> list[Effect]:
        """The operator wants this manifest to follow."""
        return self._intake.on_epoch(self._execution.epochs.offer(data), (data,), now)

    @property
    def passed(self) -> bytes | None:
        """The manifest that was ordered to follow the present one, once it has been executed."""
        return self._execution.passed

    def begin_epoch(self, quorums: OrderQuorums) -> None:
        """Go on with the brokers of the epoch that `around` speaks of now.

        What was executed stays. Of what was decided beyond, only what is known to lie before the
        instance in which the epoch was ordered; this broker takes no part before it knows that one.
        """
        consensus, caution, held = self._consensus, self._caution, self.catch_up.held
        execution = self._execution
        execution.epochs.begin(self._around.epoch)
        stands = execution.executed
        while stands < consensus.decided and not execution.reached:
            batch = consensus.batch(stands + 1)
            if batch is None or epoch_item(batch) is not None:
                break
            stands += 1
        self._assemble(quorums)
        self._consensus.follow(consensus, stands)
        self.catch_up.held = held
        self._caution.follow(caution)
        self._patient = True
        self._consensus.late = True
        self._maybe_begin()

    def _maybe_begin(self) -> None:
        """Take part, once it is known in which instance the epoch began."""
        if self._consensus.late and self._execution.reached:
            since = self._execution.state.since
            self._consensus.begin(since)
            # Nobody may decide anew what lies before: whoever gives its word says so.
            self._succession.stable = max(self._succession.stable, since)

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
            self._life,
            self._around.life,
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
        waits = self._caution.fresh or self._consensus.late
        return waits or behind or bool(self._execution.backfill)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            **self._consensus.sizes(),
            **self._execution.offers.sizes(),
            **self.catch_up.sizes(),
            "epochs": len(self._execution.epochs),
            "served_streams": len(self._execution.state.served),
            "voices": len(self._execution.voices),
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
            case Persisted(record=Decided(instance=safe) | Snapshot(instance=safe)):
                self._execution.safe = max(self._execution.safe, safe)
            case Persisted(record=Moved() as moved):
                effects += self._succession.on_moved(moved, now)
            case Connected(peer=peer) if peer in self._around.members:
                effects.append(Send((peer,), self.standing()))
            case _:
                return effects
        return effects + self._go_on(now)

    def _receive(
        self, event: Receive, sender: NodeId, message: Message, now: Millis
    ) -> list[Effect]:
        match message:
            case Offer():
                return self._intake.on_offer(sender, message, event.bodies, now)
            case Open():
                return self._intake.on_open(sender, message)
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
                return self._checkpoints.on_log_query(sender, message)
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
        if self._patient:
            self._patient = False
            self._patience.regain(now)
        effects = self._execute(now)
        if not self._kept:
            self._kept = True
            effects.append(Persist(Lived(self._log, self._life), lazy=True))
        effects += self._leading.propose(now)
        if not self._ticking:
            self._ticking = True
            effects.append(SetTimer(Tick(self._log), TICK_MS if self._busy else IDLE_TICK_MS))
        return effects

    @property
    def _busy(self) -> bool:
        consensus = self._consensus
        return (
            bool(self._execution.offers)
            or self._execution.oldest is not None
            or self.late
            or not consensus.synced
            or max(consensus.slots, default=0) > self._execution.executed
        )

    # --------------------------------------------------------------- consensus

    def _on_propose(self, sender: NodeId, message: Propose) -> list[Effect]:
        if not self._rights.may_propose(message):
            return [Drop(DropReason.NO_RIGHT, sender)]
        effects = self._consensus.on_propose(sender, message)
        return effects + self._fetching.on_proposed(sender, message.batch)

    # --------------------------------------------------------------- executing

    def _execute(self, now: Millis) -> list[Effect]:
        execution = self._execution
        effects = self._checkpoints.arrive()
        self._maybe_begin()
        while execution.executed < self._consensus.decided and not execution.halted:
            batch = self._consensus.batch(execution.executed + 1)
            if batch is None or (taken := execution.taken(batch)) is None:
                break  # the next tick asks for what is lacking
            if taken:
                self._patience.regain(now)
            effects += execution.apply(batch)
            self._maybe_begin()
            if self._checkpoints.make():
                effects += self._checkpoints.announce(self.standing())
        return effects

    # ------------------------------------------------------------ being late

    def _on_standing(self, sender: NodeId, message: Standing, now: Millis) -> list[Effect]:
        self.catch_up.standings[sender] = message
        self._around.hear_life(sender, message.started)
        effects = self._succession.on_standing(sender, message)
        effects += self._checkpoints.settle()
        if self._caution.listen():
            self._patience.regain(now)
            if self._consensus.blind:
                self._leading.former = max(self._caution.regency, self._consensus.regency)
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
        self._checkpoints.provide()
        effects += self.catch_up.ask()
        effects += self._fetching.ask()
        self._caution.relent(now)
        late = self._execution.executed < consensus.decided or self.catch_up.behind()
        late = late or consensus.late or self._execution.halted
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
        # Votes of an earlier epoch count for nothing, and perhaps it began beyond what is here.
        consensus.late = self._follows
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
                case Lived(life=life):
                    self._life = self._birth.life = life
                    self._kept = True
                case Decided(instance=instance, batch=batch):
                    consensus.decide(instance, value_of(self._around.hash, batch), batch)
                case _:
                    pass
        self._maybe_begin()
        self._leading.former = consensus.regency
        return self._execute(now)
