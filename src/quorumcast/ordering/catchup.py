"""For whoever is late, restarted, wiped or new: learn from others what was decided without it.

A broker that hears that others are ahead asks for the log from where it stands. What f+1 brokers
report alike was decided (crash: one suffices). Brokers keep the log back to the checkpoint before
the last; whoever is further behind gets the *state* at a checkpoint instead: the digests of its
chunks from f+1 brokers alike, the chunks from one of them after the other. A chunk that does not
match is its sender's lie, and the next one is asked.

A broker holds every checkpoint from the last stable one on, and offers all of them. Of the highest
checkpoint that any correct broker knows to be stable, f+1 correct brokers have got as far, and none
of them has let go of it: so there is always one that enough brokers offer alike, however far apart
they are otherwise.

What lies between two checkpoints is executed again by whoever is late, who needs the contents for
it. Where brokers retain little, those may be gone at everybody who has executed them; then these
brokers make a state out of turn, for nothing but to hand it out.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumcast.core.ids import NodeId
from quorumcast.core.limits import MAX_HEADER_BYTES
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums
from quorumcast.core.tally import Tally
from quorumcast.crypto.digest import Hasher
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.messages import (
    Batch,
    Chunk,
    ChunkQuery,
    LogPart,
    LogQuery,
    Standing,
    StateHead,
)
from quorumcast.ordering.state import cut, digest_of, root_of

#: Instances that one answer covers at most, and how far ahead reports are kept.
LOG_PART = 64
LOG_REACH = 2 * LOG_PART
#: Runs named in one answer at most, and bytes of their digests or one batch.
LOG_RUNS = 1024
LOG_BYTES = MAX_HEADER_BYTES // 4
#: States that a member may offer at once.
HEADS_KEPT = 32


class StateImage:
    """The state at an instance, ready to be handed out."""

    __slots__ = ("chunks", "digests", "instance", "root")

    def __init__(self, instance: int, image: bytes) -> None:
        self.instance = instance
        self.chunks = cut(image)
        self.digests = tuple(map(digest_of, self.chunks))
        self.root = root_of(self.digests)


class CatchUp:
    """Giving and taking of what was decided, in one log."""

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
        #: Up to which instance this broker has executed; what is decided may be further.
        self._executed = executed
        #: What was executed when it asked last.
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
        #: The newest state that was made out of turn, while nobody has got further in common.
        self.spare: StateImage | None = None

    @property
    def checkpoint(self) -> StateImage | None:
        """The newest state that this broker can hand out."""
        return self.held[max(self.held)] if self.held else None

    def hold(self, checkpoint: StateImage) -> None:
        """Hand out this state, too."""
        self.held[checkpoint.instance] = checkpoint

    def let_go(self, below: int) -> None:
        """Nobody needs an older state than this."""
        for stale in [instance for instance in self.held if instance < below]:
            del self.held[stale]
        if self.spare is not None and self.spare.instance <= below:
            self.spare = None

    def offered(self) -> dict[int, StateImage]:
        """Every state that others may have."""
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

    @property
    def forgotten(self) -> int:
        """Up to this instance it may have voted in a life that it does not remember; 0: nothing."""
        return self._consensus.blind

    def behind(self) -> bool:
        """Whether enough members are further than this broker."""
        return self.frontier() > self._consensus.decided

    def _starved(self) -> bool:
        """Whether it knows of decisions and gets no further with them.

        What it lacks nobody may hold any longer: others have forgotten that part of the log.
        """
        starved = self._asked_at == self._executed() < self._consensus.decided
        self._asked_at = self._executed()
        return starved

    def frontier(self) -> int:
        """A correct member has decided everything up to here."""
        told = sorted((s.decided for s in self.standings.values()), reverse=True)
        rank = self._quorums.believe
        return told[rank - 1] if len(told) >= rank else 0

    def ask(self) -> list[Effect]:
        """Ask again for whatever is missing."""
        if self.wanted is not None and self.wanted.checkpoint <= self._executed():
            self.wanted = None  # the log was faster
            self._chunks.clear()
        effects: list[Effect] = []
        if self.wanted is not None:
            self._source += 1
            effects += self._ask_chunks(self.wanted)
        starved = self._starved()
        if starved or self.behind():
            # Even while a state is under way: its holders may have gone on to the next one.
            known = self._executed() if starved else self._consensus.decided
            query = LogQuery(self._consensus.log, known + 1, starved)
            effects.append(Send(self._consensus.peers, query))
        return effects

    # -------------------------------------------------------------- answering

    def on_log_query(self, sender: NodeId, query: LogQuery) -> list[Effect]:
        """The log from an instance on, or the state if the log does not go back that far."""
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
        # Others may have forgotten this part of the log already, and can only offer a state.
        return [
            *([Send((sender,), part)] if batches else []),
            *(heads if query.stuck or len(later) > 1 else []),
        ]

    def on_chunk_query(self, sender: NodeId, query: ChunkQuery) -> list[Effect]:
        """One chunk of the state."""
        checkpoint = self.offered().get(query.checkpoint)
        if checkpoint is None:
            return [Drop(DropReason.NOT_HELD, sender)]
        if query.index >= len(checkpoint.chunks):
            return [Drop(DropReason.BAD_RUN, sender)]
        answer = Chunk(self._consensus.log, query.checkpoint, query.index)
        return [Send((sender,), answer, (checkpoint.chunks[query.index],))]

    # --------------------------------------------------------------- learning

    def on_log_part(self, sender: NodeId, part: LogPart) -> list[Effect]:
        """What a member knows to be decided."""
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
        """A member offers its state; one that enough of them offer alike is fetched."""
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
        """Part of the state, from one member."""
        wanted = self.wanted
        if wanted is None or wanted.checkpoint != message.checkpoint:
            return [Drop(DropReason.UNEXPECTED, sender)]
        if message.index >= len(wanted.chunks) or len(bodies) != 1:
            return [Drop(DropReason.BAD_RUN, sender)]
        if not self.genuine(bodies[0], wanted.chunks[message.index]):
            self._heads.pop(sender, None)
            return [
                Drop(DropReason.BAD_BODY, sender),
                Suspect(sender, Suspicion.FALSE_STATEMENT),
                *self._ask_chunks(wanted),
            ]
        self._chunks[message.index] = bodies[0]
        return []

    def genuine(self, chunk: bytes, digest: bytes) -> bool:
        """Whether a chunk is what enough members vouch for."""
        return digest_of(chunk) == digest

    def fetched(self) -> tuple[int, bytes] | None:
        """Instance and image of the state that was wanted, once all of it is here."""
        wanted = self.wanted
        if wanted is None or len(self._chunks) < len(wanted.chunks):
            return None
        image = b"".join([self._chunks[index] for index in range(len(wanted.chunks))])
        self.wanted = None
        self._chunks.clear()
        self._heads.clear()
        return wanted.checkpoint, image
