"""The leader's proposals: first what the leader change requires, then what waits."""

from __future__ import annotations

from quorumcast.core.ids import GENESIS, Millis
from quorumcast.core.limits import MAX_BATCH
from quorumcast.core.machine import Effect
from quorumcast.ordering.amnesia import AmnesiaGuard
from quorumcast.ordering.consensus import Consensus
from quorumcast.ordering.epochs import epoch_item
from quorumcast.ordering.execution import Execution
from quorumcast.ordering.genesis import Genesis
from quorumcast.ordering.messages import Batch


class Proposer:
    """What one broker proposes in one log, while it leads."""

    __slots__ = ("_amnesia", "_consensus", "_execution", "_genesis", "_led", "_next", "barred")

    def __init__(
        self, consensus: Consensus, execution: Execution, amnesia: AmnesiaGuard, genesis: Genesis
    ) -> None:
        self._consensus = consensus
        self._execution = execution
        self._amnesia = amnesia
        self._genesis = genesis
        #: The next instance that this broker proposes while it leads, and the regency it leads in.
        self._next = 1
        self._led = -1
        #: The regency in which an earlier life of this broker may have proposed what it no longer
        #: knows: it does not lead there again, or it would seem to equivocate.
        self.barred = -1

    def propose(self, now: Millis) -> list[Effect]:
        """Propose whatever there is room for."""
        consensus = self._consensus
        if (
            not consensus.leads
            or consensus.late
            or consensus.regency == self.barred
            or not self._amnesia.may_lead(now)
        ):
            return []
        bound = consensus.conclusion.values
        if self._led != consensus.regency:
            self._led = consensus.regency
            self._next = consensus.conclusion.low + 1
            self._execution.offers.begin(self._under_way())
        effects: list[Effect] = []
        while self._next <= consensus.horizon:
            if self._next in bound and self._next > consensus.forgotten:
                batch = consensus.slot(self._next).batches.get(bound[self._next], ())
            elif self._next <= consensus.decided:
                self._next += 1
                continue
            else:
                batch = self._choose()
                if not batch:
                    break
            effects += consensus.propose(self._next, batch)
            self._next += 1
        return effects

    def _choose(self) -> Batch:
        """The next manifest alone, and nothing behind it: that would be void; else what waits."""
        consensus, execution = self._consensus, self._execution
        waiting = execution.epochs.waiting
        if execution.halted:
            return ()
        if waiting is None:
            return self._waiting()
        under_way = any(
            epoch_item(slot.batches.get(slot.decided or slot.proposed[1], ())) is not None
            and (slot.decided or slot.proposed[0] == consensus.regency)
            for instance, slot in consensus.slots.items()
            if instance > execution.executed
        )
        return () if under_way else (waiting[0].item,)

    def _waiting(self) -> Batch:
        """Offers that wait; until the log has begun, behind its genesis item."""
        offers = self._execution.offers
        if self._genesis.log_id:
            return offers.choose()
        genesis = self._genesis.item()
        chosen = () if genesis is None else offers.choose(MAX_BATCH - 1)
        return (genesis, *chosen) if genesis is not None and chosen else ()

    def _under_way(self) -> list[Batch]:
        """Batches that are decided and not executed, or must be proposed: chosen already."""
        consensus = self._consensus
        values = dict(consensus.conclusion.values)
        values |= {i: slot.decided for i, slot in consensus.slots.items() if slot.decided}
        return [
            tuple(item for item in slot.batches[value] if item.stream != GENESIS)
            for instance, value in values.items()
            if instance > self._execution.executed
            and (slot := consensus.slots.get(instance)) is not None
            and value in slot.batches
            and epoch_item(slot.batches[value]) is None
        ]
