"""One log of a broker: offers in, consensus among the brokers, positions out.

Composes the other modules of this package and adds what belongs to none of them: when to propose,
when to execute, when to retransmit, and how to restart from disk.
"""

from __future__ import annotations

from collections.abc import Container

from quorumcast.broadcast.messages import Open
from quorumcast.core.ids import Channel, Millis, NodeId
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
from quorumcast.ordering.amnesia import AmnesiaGuard
from quorumcast.ordering.checkpoints import LOG_REACH, CatchUp, Checkpoints
from quorumcast.ordering.consensus import Consensus, Voted, value_of
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.epochs import epoch_item, first_regency
from quorumcast.ordering.execution import Decided, Execution, Snapshot
from quorumcast.ordering.genesis import Genesis, Lived
from quorumcast.ordering.intake import Fetching, Intake
from quorumcast.ordering.leader_change import LeaderChange, LeaderTimeout, Moved
from quorumcast.ordering.messages import (
    Accept,
    Batch,
    Chunk,
    ChunkQuery,
    Fetch,
    Fetched,
    Item,
    LogPart,
    LogQuery,
    Offer,
    Past,
    PastQuery,
    Propose,
    Standing,
    StateHead,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorumcast.ordering.past import Placed
from quorumcast.ordering.proposer import Proposer
from quorumcast.ordering.state import State

TICK_MS = 100
IDLE_TICK_MS = 500


class Tick(Timer, frozen=True, tag=True):
    """Retransmit, catch up, and check the leader timeout of a log."""

    log: Protection


class Sequencer:
    """The machine of one log."""

    __slots__ = (
        "_amnesia",
        "_change",
        "_checkpoints",
        "_consensus",
        "_context",
        "_execution",
        "_fetching",
        "_follows",
        "_genesis",
        "_intake",
        "_is_new_epoch",
        "_kept",
        "_life",
        "_log",
        "_proposer",
        "_restored",
        "_seen",
        "_terms",
        "_ticking",
        "_timeout",
        "catch_up",
    )

    def __init__(
        self,
        log: Protection,
        quorums: OrderQuorums,
        context: LogContext,
        *,
        durable: bool,
        window: int,
        checkpoint: int,
        follows: bool = False,
    ) -> None:
        self._log = log
        self._context = context
        #: Whether it is kept on disk, how far it runs ahead, decisions between two checkpoints.
        self._terms = (durable, window, checkpoint)
        #: Whether the log is older than the epoch in which this broker starts.
        self._follows = follows
        state = State()
        self._execution = Execution(log, context, state, signed=quorums.byzantine, durable=durable)
        #: The life of this broker in this log; only a disk keeps it longer than the process.
        self._life = context.life
        #: Whether it has been written.
        self._kept = not durable
        self._assemble(quorums)
        #: What the disk held, until the first event of the new life.
        self._restored: list[Record] | None = None
        self._ticking = False
        #: What was decided at the last tick.
        self._seen = 0

    def _assemble(self, quorums: OrderQuorums) -> None:
        """Make all parts that depend on the brokers of the epoch; what was executed stays."""
        context, execution = self._context, self._execution
        durable, window, checkpoint = self._terms
        execution.backfill.believe = quorums.believe
        consensus = self._consensus = Consensus(
            self._log,
            context.me,
            context.members,
            quorums,
            context.hash,
            durable=durable,
            window=window,
            kept=LOG_REACH + 2 * checkpoint,
            holds=lambda batch: not execution.missing(batch),
            first=first_regency(context.epoch),
        )
        self.catch_up = CatchUp(consensus, quorums, context.hash, lambda: execution.executed)
        genesis = Genesis(context, quorums, execution, self.catch_up, self._life)
        change = LeaderChange(consensus, quorums, context.keyring, genesis, durable=durable)
        self._genesis, self._change = genesis, change
        self._amnesia = AmnesiaGuard(context.me, quorums, consensus, self.catch_up)
        self._fetching = Fetching(context, consensus, execution, change)
        self._checkpoints = Checkpoints(
            context, quorums, consensus, execution, self.catch_up, every=checkpoint
        )
        self._timeout = LeaderTimeout(consensus, execution, change)
        self._intake = Intake(context, consensus, execution, genesis)
        self._proposer = Proposer(consensus, execution, self._amnesia, genesis)
        #: Whether the leader timeout is to be reset with the next event.
        self._is_new_epoch = False

    # ---------------------------------------------------------------- epochs

    def offer_epoch(self, data: bytes, now: Millis) -> list[Effect]:
        """Let this manifest be ordered to follow the present one."""
        return self._intake.on_epoch(self._execution.epochs.offer(data), (data,), now)

    @property
    def passed(self) -> bytes | None:
        """The manifest that was ordered to follow the present one, once it has been executed."""
        return self._execution.passed

    def begin_epoch(self, quorums: OrderQuorums, deleted: Container[Channel] = ()) -> list[Effect]:
        """Go on with the brokers of the epoch that the context names now.

        What was executed stays. Of what was decided beyond, only what is known to lie before the
        instance in which the epoch was ordered; this broker takes no part before it knows that one.
        """
        consensus, amnesia, held = self._consensus, self._amnesia, self.catch_up.held
        execution = self._execution
        effects = execution.begin_epoch(self._context.epoch, deleted)
        stands = execution.executed
        while stands < consensus.decided and not execution.reached:
            batch = consensus.batch(stands + 1)
            if batch is None or epoch_item(batch) is not None:
                break
            stands += 1
        self._assemble(quorums)
        self._consensus.follow(consensus, stands)
        self.catch_up.held = held
        self._amnesia.follow(amnesia)
        self._is_new_epoch = True
        self._consensus.late = True
        self._maybe_begin()
        return effects

    def _maybe_begin(self) -> None:
        """Take part in the epoch, once it is known in which instance it began."""
        if self._consensus.late and self._execution.reached:
            since = self._execution.state.since
            self._consensus.begin(since)
            # Nobody may decide anew what lies before: stop statements say so.
            self._consensus.stable = max(self._consensus.stable, since)

    # ------------------------------------------------------------- status

    def standing(self) -> Standing:
        """How far this broker is."""
        consensus, checkpoint = self._consensus, self.catch_up.checkpoint
        return Standing(
            self._log,
            consensus.regency,
            consensus.decided,
            max(consensus.slots, default=consensus.decided),
            consensus.synced,
            self._amnesia.listening,
            0 if checkpoint is None else checkpoint.instance,
            b"" if checkpoint is None else checkpoint.root,
            self._amnesia.awake,
            self._life,
            self._context.life,
        )

    @property
    def halted(self) -> bool:
        """Whether the log has ordered a later epoch than this broker is in."""
        return self._execution.halted

    @property
    def leader(self) -> NodeId:
        """Who leads, as far as this broker knows."""
        return self._consensus.leader

    @property
    def executed(self) -> int:
        """How many batches this broker has executed."""
        return self._execution.executed

    @property
    def blind(self) -> int:
        """Up to this instance this broker may have voted in a life that it does not remember."""
        return self._consensus.blind

    @property
    def is_behind(self) -> bool:
        """Whether this broker still has to learn what the others have ordered."""
        behind = self.catch_up.behind() or self._execution.executed < self._consensus.decided
        return behind or self._amnesia.listening or self._consensus.late

    @property
    def late(self) -> bool:
        """Whether this broker is behind, or fetches the past that the others retain."""
        return self.is_behind or bool(self._execution.backfill)

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            **self._consensus.sizes(),
            **self._execution.offers.sizes(),
            **self.catch_up.sizes(),
            "epochs": len(self._execution.epochs),
            "served_streams": len(self._execution.state.served),
            "ack_targets": len(self._execution.ack_targets),
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
            case Persisted(record=Placed() as placed):
                effects += self._execution.persisted(placed)
            case Persisted(record=Moved() as moved):
                effects += self._change.on_moved(moved, now)
            case Connected(peer=peer) if peer in self._context.members:
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
            case _ if sender not in self._context.members:
                return [Drop(DropReason.WRONG_SENDER, sender)]
            case Write() | Accept():
                return self._consensus.on_vote(sender, message)
            case Propose():
                return self._on_propose(sender, message)
            case Standing():
                return self._on_standing(sender, message, now)
            case Stop():
                return self._change.on_stop(sender, message, now)
            case StopData():
                return self._change.on_stop_data(sender, message, now)
            case Sync():
                return self._change.on_sync(sender, message, now)
            case Fetch():
                return self._fetching.on_fetch(sender, message)
            case Fetched():
                self._fetching.on_fetched(message)
                return [] if self._change.lacking() else self._change.maybe_lead(now)
            case PastQuery():
                return self._execution.backfill.on_query(sender, message, now)
            case Past():
                return self._execution.backfill.take(sender, message, event.bodies, now)
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
        """Execute what was decided, propose what waits, and keep the tick going."""
        if self._is_new_epoch:
            self._is_new_epoch = False
            self._timeout.reset(now)
        effects = self._execute(now)
        if not self._kept:
            self._kept = True
            effects.append(Persist(Lived(self._log, self._life), lazy=True))
        proposed = self._proposer.propose(now)
        while proposed and not self._consensus.peers:  # a broker alone has decided it already
            effects += proposed + self._execute(now)
            proposed = self._proposer.propose(now)
        effects += proposed
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

    def _on_propose(self, sender: NodeId, message: Propose) -> list[Effect]:
        if not self._intake.may_propose(message):
            return [Drop(DropReason.NO_RIGHT, sender)]
        effects = self._consensus.on_propose(sender, message)
        return effects + self._fetching.on_proposed(sender, message.batch)

    def _execute(self, now: Millis) -> list[Effect]:
        execution = self._execution
        effects = self._checkpoints.maybe_install()
        self._maybe_begin()
        while execution.executed < self._consensus.decided and not execution.halted:
            batch = self._consensus.batch(execution.executed + 1)
            if batch is None:
                break
            execution.recall(batch, now)
            if (taken := execution.taken(batch)) is None:
                break  # the next tick asks for what is lacking
            if taken:
                self._timeout.reset(now)
            effects += execution.apply(batch, now)
            self._maybe_begin()
            if self._checkpoints.maybe_make():
                effects += self._checkpoints.announce(self.standing())
        return effects

    def _on_standing(self, sender: NodeId, message: Standing, now: Millis) -> list[Effect]:
        self.catch_up.standings[sender] = message
        self._context.hear_life(sender, message.started)
        effects = self._change.on_standing(sender, message)
        effects += self._checkpoints.maybe_stabilise()
        return effects + self._maybe_take_part(now)

    def _maybe_take_part(self, now: Millis) -> list[Effect]:
        """Take part once enough others have been heard; a broker alone has none to hear."""
        if not self._amnesia.listen():
            return []
        self._timeout.reset(now)
        if self._consensus.blind:
            self._proposer.barred = max(self._amnesia.regency, self._consensus.regency)
        effects: list[Effect] = [Send(self._context.peers, self.standing())]
        if self._amnesia.regency > self._consensus.regency:
            effects += self._change.enter(self._amnesia.regency, now)
        return effects

    # --------------------------------------------------------------- the clock

    def _on_tick(self, now: Millis) -> list[Effect]:
        consensus = self._consensus
        effects: list[Effect] = []
        if self._seen == consensus.decided:
            effects.append(Send(self._context.peers, self.standing()))
            if self._busy:
                effects += consensus.retransmit()
                effects += self._change.retransmit(now)
            if not consensus.synced:
                self._execution.offers.unname(consensus.named())
        self._seen = consensus.decided
        self._checkpoints.provide()
        effects += self.catch_up.ask()
        effects += self._fetching.ask(now)
        effects += self._execution.backfill.ask(now)
        effects += self._execution.trim(now)
        effects += self._maybe_take_part(now)
        self._amnesia.maybe_take_part(now)
        executed, halted = self._execution.executed, self._execution.halted
        late = executed < consensus.decided or consensus.late or halted
        if self._amnesia.listening or late or consensus.decided < consensus.blind:
            return effects  # a broker that is late itself blames no leader
        return effects + self._timeout.check(now, behind=self.catch_up.behind())

    # --------------------------------------------------------------- the disk

    def _wake(self, now: Millis) -> list[Effect]:
        """The first event of a new life: what the disk held is complete."""
        records, self._restored = self._restored, None
        if records is None:
            return []
        self._amnesia.remember()
        self._timeout.reset(now)
        execution, consensus = self._execution, self._consensus
        # Votes of an earlier epoch count for nothing, and perhaps it began beyond what is here.
        consensus.late = self._follows
        effects = self._checkpoints.restore(records)
        execution.requeue(_named(records, execution.executed), now)
        for record in records:
            match record:
                case Voted():
                    consensus.restore(record)
                case Moved():
                    self._change.restore(record)
                case Lived(life=life):
                    self._life = self._genesis.life = life
                    self._kept = True
                case Decided(instance=instance, batch=batch):
                    consensus.decide(instance, value_of(self._context.hash, batch), batch)
                case _:
                    pass
        self._maybe_begin()
        self._proposer.barred = consensus.regency
        return effects + self._execute(now)


def _named(records: list[Record], executed: int) -> dict[Item, None]:
    """The runs in batches that were voted for or decided after an instance."""
    batches: list[Batch] = []
    for record in records:
        match record:
            case Voted(instance=instance, batches=voted) if instance > executed:
                batches += voted
            case Decided(instance=instance, batch=batch) if instance > executed:
                batches.append(batch)
            case _:
                pass
    return {item: None for batch in batches for item in batch}
