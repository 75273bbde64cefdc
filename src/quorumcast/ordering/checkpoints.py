"""Checkpoints, catching up and state transfer.

After so many decisions a broker makes an image of its state and tells the others its digest. Once a
quorum has the same, or is further, that checkpoint is *stable*: f+1 correct brokers have executed
everything up to it, and what was voted and decided up to the checkpoint before it may go.

A broker that hears that others are ahead asks for the log from where it is. What f+1 brokers report
alike was decided (crash: one suffices). A broker that is further behind than the log goes back gets
the *state* at a checkpoint: the digests of its chunks from f+1 brokers alike, the chunks from one
of them after the other. A chunk that does not match is its sender's lie, and the next one is asked.

A broker offers every checkpoint from the last stable one on. f+1 correct brokers have reached the
highest checkpoint that any correct broker knows to be stable, and none of them has dropped it: so
there is always one that enough brokers offer alike, however far apart they are otherwise.

To execute what lies between two checkpoints a late broker needs the contents. Where brokers retain
little, all that executed them may have dropped them; then these brokers make a state out of turn,
only to hand it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_HEADER_BYTES
from quorumcast.core.machine import (
    Bodies,
    Drop,
    DropReason,
    Effect,
    Record,
    Send,
    Suspect,
    Suspicion,
)
from quorumcast.core.quorum import OrderQuorums
from quorumcast.core.tally import Tally, reached_by
from quorumcast.crypto.digest import Hasher
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.execution import Decided, Execution, Snapshot
from quorumcast.ordering.messages import (
    Batch,
    Chunk,
    ChunkQuery,
    LogPart,
    LogQuery,
    Standing,
    StateHead,
)
from quorumcast.ordering.state import StateImage, digest_of

#: Instances that one answer covers at most, and how far ahead reports are kept.
LOG_PART = 64
LOG_REACH = 2 * LOG_PART
#: Runs named in one answer at most, and bytes of their digests or one batch.
LOG_RUNS = 1024
LOG_BYTES = MAX_HEADER_BYTES // 4
#: States that a member may offer at once.
HEADS_KEPT = 32


class CatchUp:
    """Sending and fetching of decided batches and of states, in one log."""

    __slots__ = (
        "_asked_at",
        "_chunks",
        "_consensus",
        "_executed",
        "_hash",
        "_heads",
        "_quorums",
        "_reports",
        "_source",
        "held",
        "spare",
        "standings",
        "wanted",
    )

    def __init__(
        self,
        consensus: Consensus,
        quorums: OrderQuorums,
        hash_: Hasher,
        executed: Callable[[], int],
    ) -> None:
        #: Up to which instance this broker has executed, now and when it asked last.
        self._executed = executed
        self._asked_at = -1
        self._consensus = consensus
        self._quorums = quorums
        self._hash = hash_
        #: What each member last said of itself.
        self.standings: dict[NodeId, Standing] = {}
        #: Who reported which value for instances that are not decided here; LOG_REACH of them.
        self._reports: dict[int, Tally[bytes]] = {}
        #: The states that each member offers, by instance; the newest HEADS_KEPT of them.
        self._heads: dict[NodeId, dict[int, StateHead]] = {}
        #: The state that is being fetched, and the chunks that have come.
        self.wanted: StateHead | None = None
        self._chunks: dict[int, bytes] = {}
        self._source = 0
        #: The states that this broker can hand out, by instance: from the last stable one on.
        self.held: dict[int, StateImage] = {}
        #: The newest state that was made out of turn, until a later checkpoint is stable.
        self.spare: StateImage | None = None

    @property
    def checkpoint(self) -> StateImage | None:
        """The newest state that this broker can hand out."""
        return self.held[max(self.held)] if self.held else None

    def hold(self, checkpoint: StateImage) -> None:
        """Offer this state as well."""
        self.held[checkpoint.instance] = checkpoint

    def drop(self, below: int) -> None:
        """Offer no older state than this."""
        for stale in [instance for instance in self.held if instance < below]:
            del self.held[stale]
        if self.spare is not None and self.spare.instance <= below:
            self.spare = None

    def offered(self) -> dict[int, StateImage]:
        """Every state that others may fetch."""
        return self.held if self.spare is None else {self.spare.instance: self.spare, **self.held}

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        return {
            "reports": len(self._reports),
            "chunks": len(self._chunks),
            "heads": max(map(len, self._heads.values()), default=0),
            "held": len(self.held),
        }

    # ------------------------------------------------------------------ asking

    def behind(self) -> bool:
        """Whether enough members are further than this broker."""
        return self.frontier() > self._consensus.decided

    def _starved(self) -> bool:
        """Whether it knows of decisions that it cannot execute: others may have dropped them."""
        starved = self._asked_at == self._executed() < self._consensus.decided
        self._asked_at = self._executed()
        return starved

    def frontier(self) -> int:
        """A correct member has decided everything up to here."""
        return reached_by((s.decided for s in self.standings.values()), self._quorums.believe)

    def ask(self) -> list[Effect]:
        """Ask again for what is missing."""
        if self.wanted is not None and self.wanted.checkpoint <= self._executed():
            self.wanted = None  # the log was faster
            self._chunks.clear()
        effects: list[Effect] = []
        if self.wanted is not None:
            self._source += 1
            effects += self._ask_chunks(self.wanted)
        starved = self._starved()
        if starved or self.behind():
            # Even during a state transfer: its holders may have moved on to the next checkpoint.
            known = self._executed() if starved else self._consensus.decided
            query = LogQuery(self._consensus.log, known + 1, starved)
            effects.append(Send(self._consensus.peers, query))
        return effects

    # -------------------------------------------------------------- answering

    def on_log_query(self, sender: NodeId, query: LogQuery) -> list[Effect]:
        """Send the log from an instance on, or states if the log does not go back that far."""
        consensus, log = self._consensus, self._consensus.log
        if query.first > consensus.decided:
            return [Drop(DropReason.NOT_HELD, sender)]
        later = [held for held in self.offered().values() if held.instance >= query.first]
        heads: list[Effect] = [
            Send((sender,), StateHead(log, held.instance, held.digests)) for held in later
        ]
        if query.first <= consensus.forgotten:
            return heads or [Drop(DropReason.NOT_HELD, sender)]
        batches: list[Batch] = []
        runs = size = 0
        for instance in range(query.first, consensus.decided + 1):
            batch = consensus.batch(instance)
            if batch is None or len(batches) >= LOG_PART or runs + len(batch) > LOG_RUNS:
                break
            size += sum(len(item.digests) for item in batch)
            if batches and size > LOG_BYTES:
                break
            batches.append(batch)
            runs += len(batch)
        part = LogPart(log, query.first, tuple(batches))
        # Others may have dropped this part of the log already, and can only offer a state.
        return [
            *([Send((sender,), part)] if batches else []),
            *(heads if query.stuck or len(later) > 1 else []),
        ]

    def on_chunk_query(self, sender: NodeId, query: ChunkQuery) -> list[Effect]:
        """Send one chunk of a state."""
        checkpoint = self.offered().get(query.checkpoint)
        if checkpoint is None:
            return [Drop(DropReason.NOT_HELD, sender)]
        if query.index >= len(checkpoint.chunks):
            return [Drop(DropReason.BAD_RUN, sender)]
        answer = Chunk(self._consensus.log, query.checkpoint, query.index)
        return [Send((sender,), answer, (checkpoint.chunks[query.index],))]

    # --------------------------------------------------------------- learning

    def on_log_part(self, sender: NodeId, part: LogPart) -> list[Effect]:
        """A member reports what was decided."""
        consensus = self._consensus
        for instance, batch in enumerate(part.batches, part.first):
            if not self._executed() < instance <= consensus.decided + LOG_REACH:
                continue
            value = value_of(self._hash, batch)
            if instance <= consensus.decided:
                consensus.decide(instance, value, batch)
                continue
            reports = self._reports.setdefault(instance, Tally())
            reports.revote(sender, value)
            if reports.count(value) >= self._quorums.believe:
                consensus.decide(instance, value, batch)
        for stale in [i for i in self._reports if i <= consensus.decided]:
            del self._reports[stale]
        return []

    def on_state_head(self, sender: NodeId, head: StateHead) -> list[Effect]:
        """A member offers a state; one that enough of them offer alike is fetched."""
        if head.checkpoint <= self._executed():
            return [Drop(DropReason.DUPLICATE, sender)]
        heads = self._heads.setdefault(sender, {})
        heads[head.checkpoint] = head
        for stale in sorted(heads)[:-HEADS_KEPT]:
            del heads[stale]
        newer = self.wanted is None or self.wanted.checkpoint < head.checkpoint
        if len(self._holders(head)) < self._quorums.believe or not newer:
            return []
        self.wanted = head
        self._chunks.clear()
        return self._ask_chunks(head)

    def _holders(self, head: StateHead) -> list[NodeId]:
        return [m for m, heads in self._heads.items() if heads.get(head.checkpoint) == head]

    def _ask_chunks(self, head: StateHead) -> list[Effect]:
        holders = self._holders(head)
        if not holders:
            return []
        holder = holders[self._source % len(holders)]
        return [
            Send((holder,), ChunkQuery(head.log, head.checkpoint, index))
            for index in range(len(head.chunks))
            if index not in self._chunks
        ]

    def on_chunk(self, sender: NodeId, message: Chunk, bodies: Bodies) -> list[Effect]:
        """A chunk of the state that is being fetched."""
        wanted = self.wanted
        if wanted is None or wanted.checkpoint != message.checkpoint:
            return [Drop(DropReason.UNEXPECTED, sender)]
        if message.index >= len(wanted.chunks) or len(bodies) != 1:
            return [Drop(DropReason.BAD_RUN, sender)]
        if not self.genuine(bodies[0], wanted.chunks[message.index]):
            self._heads.pop(sender, None)
            return [
                Drop(DropReason.BAD_BODY, sender),
                Suspect(sender, Suspicion.BAD_BODY),
                *self._ask_chunks(wanted),
            ]
        self._chunks[message.index] = bodies[0]
        return []

    def genuine(self, chunk: bytes, digest: bytes) -> bool:
        """Whether a chunk has the digest that enough members vouch for."""
        return digest_of(chunk) == digest

    def fetched(self) -> tuple[int, bytes] | None:
        """Instance and image of the state that was being fetched, once all of it is here."""
        wanted = self.wanted
        if wanted is None or len(self._chunks) < len(wanted.chunks):
            return None
        image = b"".join([self._chunks[index] for index in range(len(wanted.chunks))])
        self.wanted = None
        self._chunks.clear()
        self._heads.clear()
        return wanted.checkpoint, image


class Checkpoints:
    """The checkpoints of one log: made, compared, fetched, restored."""

    __slots__ = (
        "_catch_up",
        "_consensus",
        "_context",
        "_every",
        "_execution",
        "_made",
        "_quorums",
        "_wanted",
    )

    def __init__(
        self,
        context: LogContext,
        quorums: OrderQuorums,
        consensus: Consensus,
        execution: Execution,
        catch_up: CatchUp,
        *,
        every: int,
    ) -> None:
        self._context = context
        self._quorums = quorums
        self._consensus = consensus
        self._execution = execution
        self._catch_up = catch_up
        #: Decisions between two checkpoints.
        self._every = every
        #: Records of the newest one, to be written.
        self._made: list[Effect] = []
        #: Whether a member needs a state although no checkpoint is due.
        self._wanted = False

    def maybe_make(self) -> bool:
        """Make a checkpoint if one is due."""
        executed, state = self._execution.executed, self._execution.state
        if executed % self._every and state.since != executed:
            return False
        made, self._made = self._execution.checkpoint()
        self._catch_up.hold(made)
        return True

    def on_log_query(self, sender: NodeId, query: LogQuery) -> list[Effect]:
        """A member is behind, perhaps for want of contents that were dropped after execution."""
        if query.stuck and query.first <= self._execution.executed:
            batch = self._consensus.batch(query.first)
            self._wanted |= batch is not None and self._execution.has_dropped(batch)
        return self._catch_up.on_log_query(sender, query)

    def provide(self) -> None:
        """Make a state for members that cannot go on without one, at most once per tick.

        It is not announced and not kept on disk, so nothing is forgotten because of it.
        """
        wanted, self._wanted = self._wanted, False
        newest = max(self._catch_up.offered(), default=0)
        if wanted and newest < self._execution.executed:
            image = self._execution.state.image()
            self._catch_up.spare = StateImage(self._execution.executed, image)

    def announce(self, standing: Standing) -> list[Effect]:
        """Tell the others of the newest checkpoint."""
        self._catch_up.standings[self._context.me] = standing
        return [*self._made, Send(self._context.peers, standing), *self.maybe_stabilise()]

    def maybe_stabilise(self) -> list[Effect]:
        """Find the newest checkpoint that a quorum has reached, and drop what lies before it."""
        for instance in sorted(self._catch_up.held, reverse=True):
            if instance <= self._consensus.stable:
                break
            if self._supporters(self._catch_up.held[instance]) >= self._quorums.decide:
                return self._become_stable(self._catch_up.held[instance])
        return []

    def _others(self) -> list[tuple[NodeId, Standing]]:
        me = self._context.me
        return [(m, s) for m, s in self._catch_up.standings.items() if m != me]

    def _supporters(self, checkpoint: StateImage) -> int:
        """Brokers that have this checkpoint, this one among them, or a later one."""
        return 1 + sum(
            standing.checkpoint > checkpoint.instance
            or (standing.checkpoint, standing.root) == (checkpoint.instance, checkpoint.root)
            for _, standing in self._others()
        )

    def _become_stable(self, checkpoint: StateImage) -> list[Effect]:
        instance = checkpoint.instance
        self._consensus.stable = instance
        self._catch_up.drop(instance)
        self._execution.settle(instance)
        upto = instance - self._every
        self._consensus.forget(upto)
        return [
            *self._execution.forget(upto, instance),
            *(
                Suspect(member, Suspicion.FALSE_STATEMENT)
                for member, standing in self._others()
                if standing.checkpoint == instance and standing.root != checkpoint.root
            ),
        ]

    def maybe_install(self) -> list[Effect]:
        """Install the state that was fetched, if all of it is here."""
        found = self._catch_up.fetched()
        if found is None or found[0] <= self._execution.executed:
            return []
        effects = self._execution.jump(*found)
        if effects is None:
            return []
        self._consensus.skip_to(found[0])
        self._catch_up.hold(StateImage(*found))
        self._catch_up.drop(found[0])
        return effects + self._execution.forget(found[0], found[0])

    def restore(self, records: Sequence[Record]) -> list[Effect]:
        """Install the newest state that the disk held, and offer the older ones as before.

        What was voted and decided before it is still needed as far back as the disk goes: perhaps
        nobody else has reached this state.
        """
        snapshots = sorted(
            (r for r in records if isinstance(r, Snapshot)), key=lambda record: record.instance
        )
        for snapshot in snapshots:
            self._catch_up.hold(StateImage(snapshot.instance, snapshot.image))
        effects = self._execution.restore(snapshots[-1]) if snapshots else None
        if effects is None:
            return []
        self._execution.safe = snapshots[-1].instance
        decided = {r.instance for r in records if isinstance(r, Decided)}
        floor = snapshots[-1].instance
        while floor in decided:
            floor -= 1
        self._consensus.skip_to(floor)
        return effects
