"""Rights change from one epoch to the next, and a log does not wait for it.

Whoever has lost the right to publish offers nothing any more, and no leader chooses what it offered
before. But a batch that is under way may name it, and brokers do not take an epoch at the same
moment: if some refused a batch that others have voted for, the log would stand still, or go from
one leader to the next. So a broker goes along with what it holds already, which it took while the
right was there, and with what must be decided because others may have decided it.
"""

from __future__ import annotations

from quorumcast.core.ids import BIRTH
from quorumcast.core.messages import Offer, Propose
from quorumcast.ordering.birth import Birth
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.epochs import epoch_item
from quorumcast.ordering.execution import Execution, Surroundings


class Rights:
    """What one broker lets into one log."""

    __slots__ = ("_around", "_birth", "_consensus", "_execution")

    def __init__(
        self, around: Surroundings, consensus: Consensus, execution: Execution, birth: Birth
    ) -> None:
        self._around = around
        self._birth = birth
        self._consensus = consensus
        self._execution = execution

    def may_offer(self, offer: Offer, *, direct: bool) -> bool:
        """Whether an offer may come in; from another broker also if it must be decided."""
        stream = offer.stream
        if self._execution.state.over(stream):
            return False
        return self._around.may_publish(stream) or (not direct and self._must_decide(offer))

    def _must_decide(self, offer: Offer) -> bool:
        bound = self._consensus.conclusion.values
        return any(
            offer.item in batch
            for instance, batch in self._consensus.waiting()
            if instance in bound
        )

    def may_propose(self, message: Propose) -> bool:
        """Whether a batch may be ordered."""
        if not self._birth.may_propose(message.batch):
            return False
        offers = self._execution.offers
        if epoch_item(message.batch) is not None:
            if self._execution.epochs.may_propose(message.batch):
                return True
        elif all(
            i.stream == BIRTH or self._around.may_publish(i.stream) or offers.holds(i)
            for i in message.batch
        ):
            return True
        bound = self._consensus.conclusion.values.get(message.instance)
        return bound == value_of(self._around.hash, message.batch)
