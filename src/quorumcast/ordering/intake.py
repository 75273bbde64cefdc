"""What comes into a log: offers by publishers, offers that brokers pass on, and manifests."""

from __future__ import annotations

from quorumcast.broadcast.messages import Open, Outlived
from quorumcast.core.ids import BIRTH, EPOCHS, Lane, Millis, NodeId
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Send, Suspect, Suspicion
from quorumcast.ordering.birth import Birth
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.epochs import epoch_item
from quorumcast.ordering.execution import Execution, LogContext
from quorumcast.ordering.fetching import Fetching
from quorumcast.ordering.messages import Offer, Propose


class Rights:
    """Which publishers may be ordered, while rights change from one epoch to the next.

    A publisher that lost its right offers nothing more, and no leader chooses its earlier offers.
    But brokers enter an epoch at different moments. If some refused a batch that others have voted
    for, the log would stop or change leaders for ever. So a broker accepts an offer that it took
    while the publisher had the right, and whatever must be decided because others may have decided
    it.
    """

    __slots__ = ("_around", "_birth", "_consensus", "_execution")

    def __init__(
        self, around: LogContext, consensus: Consensus, execution: Execution, birth: Birth
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


class Intake:
    """What one broker takes into one log."""

    __slots__ = ("_around", "_consensus", "_execution", "_fetching", "_rights")

    def __init__(
        self,
        around: LogContext,
        consensus: Consensus,
        execution: Execution,
        rights: Rights,
        fetching: Fetching,
    ) -> None:
        self._around = around
        self._consensus = consensus
        self._execution = execution
        self._rights = rights
        self._fetching = fetching

    def on_open(self, sender: NodeId, message: Open) -> list[Effect]:
        """A publisher asks how far it has been ordered."""
        stream = message.stream
        if not stream.spoken_by(sender) or stream.lane is not Lane.DATA:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        state = self._execution.state
        if stream.line is None and stream not in state.served:
            newest = state.newest(stream)
            if newest >> 1 > stream.life:
                told = Send((sender,), Outlived(stream, newest))
                return [Drop(DropReason.OUTLIVED, sender), told]
        self._execution.voices.hear(sender, stream)
        return [self._execution.ack(stream, sender)]

    def on_offer(self, sender: NodeId, offer: Offer, bodies: Bodies, now: Millis) -> list[Effect]:
        """A run to be ordered, from its publisher or from another broker."""
        stream = offer.stream
        direct = stream.spoken_by(sender)
        if not direct and sender not in self._around.members:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        if stream == EPOCHS:
            return self.on_epoch(offer, bodies, now, sender)
        if not direct and self._was_decided(offer, bodies, now):
            return self._execution.keep(offer, bodies)
        if not self._rights.may_offer(offer, direct=direct):
            # Whoever goes on with a stream that has ended meanwhile is told so.
            told = direct and stream.line is not None
            ended = [self._execution.ack(stream, sender)] if told else []
            over = self._execution.state.over(stream)
            return [Drop(DropReason.OUTLIVED if over else DropReason.NO_RIGHT, sender), *ended]
        if not direct and self._fetching.stands_by_another(offer):
            return [Drop(DropReason.CONFLICT, sender)]
        if direct:
            self._execution.voices.hear(sender, stream)
        named = not direct and self._consensus.awaits(offer)
        held = self._execution.offers.add(sender, offer, bodies, now, named=named)
        if not isinstance(held, DropReason):
            return [*self._execution.keep(offer, bodies), *self._reconsider()]
        effects: list[Effect] = [Drop(held, sender)]
        if held is DropReason.CONFLICT:
            effects.append(Suspect(sender, Suspicion.EQUIVOCATION, stream, offer.first))
        if held is DropReason.DUPLICATE and direct:
            effects.append(self._execution.ack(stream, sender))
        return effects

    def on_epoch(
        self, offer: Offer, bodies: Bodies, now: Millis, sender: NodeId | None = None
    ) -> list[Effect]:
        """A manifest to be ordered: from the operator's file, or from another broker."""
        named = sender is not None and self._is_named(offer)
        flaw = self._execution.epochs.add(offer, bodies, now, named=named)
        if flaw is not None:
            return [] if sender is None else [Drop(flaw, sender)]
        return [*self._execution.keep(offer, bodies), *self._reconsider()]

    def _is_named(self, offer: Offer) -> bool:
        """Whether a manifest was proposed or decided."""
        execution = self._execution
        batch = self._consensus.batch(execution.executed + 1) or ()
        return offer.item in batch or execution.names(offer) or self._consensus.awaits(offer)

    def _was_decided(self, offer: Offer, bodies: Bodies, now: Millis) -> bool:
        """Whether this broker lacks it for what was decided, now or while it was away."""
        execution = self._execution
        batch = self._consensus.batch(execution.executed + 1)
        return execution.lacked(offer, bodies) or (
            batch is not None and execution.complete(batch, offer, bodies, now)
        )

    def _reconsider(self) -> list[Effect]:
        effects: list[Effect] = []
        for instance, _ in self._consensus.waiting():
            effects += self._consensus.consider(instance)
        return effects
