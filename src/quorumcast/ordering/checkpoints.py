"""Checkpoints: brokers compare their states now and then, and let go of what lies before.

After so many decisions a broker makes an image of its state and tells the others its digest. Once a
quorum has the same, or is further, that checkpoint is *stable*: f+1 correct brokers have executed
everything up to it, and whatever was voted and decided up to the checkpoint before it may go. A
broker whose digest differs from a quorum's has lied, or is broken; a broker that fetched a state
goes on after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Effect, Record, Send, Suspect, Suspicion
from quorumcast.core.quorum import OrderQuorums
from quorumcast.ordering.catchup import CatchUp, StateImage
from quorumcast.ordering.consensus import Consensus
from quorumcast.ordering.execution import Decided, Execution, LogContext, Snapshot
from quorumcast.ordering.messages import LogQuery, Standing
from quorumcast.ordering.succession import Succession


class Checkpoints:
    """The checkpoints of one log."""

    __slots__ = (
        "_around",
        "_catch_up",
        "_consensus",
        "_every",
        "_execution",
        "_made",
        "_quorums",
        "_succession",
        "_wanted",
    )

    def __init__(
        self,
        around: LogContext,
        quorums: OrderQuorums,
        consensus: Consensus,
        execution: Execution,
        succession: Succession,
        catch_up: CatchUp,
        *,
        every: int,
    ) -> None:
        self._around = around
        self._quorums = quorums
        self._consensus = consensus
        self._execution = execution
        self._succession = succession
        self._catch_up = catch_up
        #: Decisions between two checkpoints.
        self._every = every
        #: What is to be written for the newest one.
        self._made: list[Effect] = []
        #: Whether somebody needs a state although no checkpoint is due.
        self._wanted = False

    def make(self) -> bool:
        """Make a checkpoint if one is due."""
        executed, state = self._execution.executed, self._execution.state
        if executed % self._every and state.since != executed:
            return False
        made, self._made = self._execution.checkpoint()
        self._catch_up.hold(made)
        return True

    def on_log_query(self, sender: NodeId, query: LogQuery) -> list[Effect]:
        """Somebody is behind, perhaps for want of contents that went when they had been ordered."""
        if query.stuck and query.first <= self._execution.executed:
            batch = self._consensus.batch(query.first)
            self._wanted |= batch is not None and self._execution.let_go(batch)
        return self._catch_up.on_log_query(sender, query)

    def provide(self) -> None:
        """Have a state for whoever cannot go on without one; not more often than the clock ticks.

        It is not announced and not kept on disk, so nothing is forgotten because of it.
        """
        wanted, self._wanted = self._wanted, False
        newest = max(self._catch_up.offered(), default=0)
        if wanted and newest < self._execution.executed:
            self._catch_up.spare = self._execution.present()

    def announce(self, standing: Standing) -> list[Effect]:
        """Tell the others of the newest checkpoint."""
        self._catch_up.standings[self._around.me] = standing
        return [*self._made, Send(self._around.peers, standing), *self.settle()]

    def settle(self) -> list[Effect]:
        """See whether a quorum has come so far: what lies before the checkpoint before can go."""
        for instance in sorted(self._catch_up.held, reverse=True):
            if instance <= self._succession.stable:
                break
            if self._supporters(self._catch_up.held[instance]) >= self._quorums.decide:
                return self._become_stable(self._catch_up.held[instance])
        return []

    def _others(self) -> list[tuple[NodeId, Standing]]:
        me = self._around.me
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
        self._succession.stable = instance
        self._catch_up.let_go(instance)
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

    def arrive(self) -> list[Effect]:
        """Go on from a state that was fetched, if all of it is here."""
        found = self._catch_up.fetched()
        if found is None or found[0] <= self._execution.executed:
            return []
        effects = self._execution.jump(*found)
        if effects is None:
            return []
        self._consensus.skip_to(found[0])
        self._catch_up.hold(StateImage(*found))
        self._catch_up.let_go(found[0])
        return effects + self._execution.forget(found[0], found[0])

    def restore(self, records: Sequence[Record]) -> None:
        """Go on from the newest state that the disk held; hand out the older ones as before.

        What was voted and decided before it is still needed as far back as the disk goes: perhaps
        nobody else has come as far as this state.
        """
        snapshots = sorted(
            (r for r in records if isinstance(r, Snapshot)), key=lambda record: record.instance
        )
        for snapshot in snapshots:
            self._catch_up.hold(StateImage(snapshot.instance, snapshot.image))
        if snapshots and self._execution.restore_snapshot(snapshots[-1]):
            self._execution.safe = snapshots[-1].instance
            decided = {r.instance for r in records if isinstance(r, Decided)}
            floor = snapshots[-1].instance
            while floor in decided:
                floor -= 1
            self._consensus.skip_to(floor)
