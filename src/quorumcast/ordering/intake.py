"""How offers, manifests and batches reach a log: from publishers, and from other brokers.

Rights change with epochs, and brokers enter an epoch at different moments. A publisher that lost
its right offers nothing more, and no leader chooses its earlier offers. But if some brokers refused
a batch that others have voted for, the log would stop or change leaders for ever. So a broker still
votes for an offer that it took while the publisher had the right, and for whatever must be decided
because others may have decided it.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Cursor, Open, Outlived
from quorumcast.core.ids import EPOCHS, GENESIS, Lane, Millis, NodeId
from quorumcast.core.limits import MAX_FETCH
from quorumcast.core.machine import Bodies, Drop, DropReason, Effect, Send, Suspect, Suspicion
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.epochs import epoch_item
from quorumcast.ordering.execution import Execution
from quorumcast.ordering.genesis import Genesis
from quorumcast.ordering.leader_change import LeaderChange
from quorumcast.ordering.messages import Batch, Fetch, Fetched, Item, Offer, Propose

#: Bytes after which an answer to a Fetch ends, and decisions looked ahead when fetching.
FETCHED_BYTES = 1024 * 1024
AHEAD = 128
#: How long one broker may take for its whole answer.
ANSWER_MS = 500
#: How long to wait for the next part of an answer. The wait for the first part is doubled, up to
#: the maximum, with each broker that sends nothing: all of them may be busy.
PART_MS, MAX_PART_MS = 100, 400


class Intake:
    """What one broker takes into one log."""

    __slots__ = ("_consensus", "_context", "_execution", "_genesis")

    def __init__(
        self, context: LogContext, consensus: Consensus, execution: Execution, genesis: Genesis
    ) -> None:
        self._context = context
        self._consensus = consensus
        self._execution = execution
        self._genesis = genesis

    # ---------------------------------------------------------------- rights

    def _may_offer(self, offer: Offer, *, direct: bool) -> bool:
        """Whether an offer may come in; from another broker also if it must be decided."""
        stream = offer.stream
        if self._execution.state.over(stream):
            return False
        return self._context.may_publish(stream) or (not direct and self._must_decide(offer))

    def _must_decide(self, offer: Offer) -> bool:
        bound = self._consensus.conclusion.values
        return any(
            offer.item in batch
            for instance, batch in self._consensus.waiting()
            if instance in bound
        )

    def may_propose(self, message: Propose) -> bool:
        """Whether a batch may be ordered."""
        if not self._genesis.may_propose(message.batch):
            return False
        offers = self._execution.offers
        if epoch_item(message.batch) is not None:
            if self._execution.epochs.may_propose(message.batch):
                return True
        elif all(
            i.stream == GENESIS or self._context.may_publish(i.stream) or offers.holds(i)
            for i in message.batch
        ):
            return True
        bound = self._consensus.conclusion.values.get(message.instance)
        return bound == value_of(self._context.hash, message.batch)

    # ---------------------------------------------------------------- offers

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
        self._execution.ack_targets.note(sender, stream)
        return [self._execution.ack(stream, sender)]

    def on_offer(self, sender: NodeId, offer: Offer, bodies: Bodies, now: Millis) -> list[Effect]:
        """A run to be ordered, from its publisher or from another broker."""
        stream = offer.stream
        direct = stream.spoken_by(sender)
        if not direct and sender not in self._context.members:
            return [Drop(DropReason.WRONG_SENDER, sender)]
        if stream == EPOCHS:
            return self.on_epoch(offer, bodies, now, sender)
        if not direct and self._was_decided(offer, bodies, now):
            return self._execution.keep(offer, bodies)
        if not self._may_offer(offer, direct=direct):
            # A publisher that resumes a stream which has ended meanwhile is told so.
            told = direct and stream.line is not None
            ended = [self._execution.ack(stream, sender)] if told else []
            over = self._execution.state.over(stream)
            return [Drop(DropReason.OUTLIVED if over else DropReason.NO_RIGHT, sender), *ended]
        if not direct and self._voted_for_another(offer):
            return [Drop(DropReason.CONFLICT, sender)]
        if direct:
            self._execution.ack_targets.note(sender, stream)
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

    def _voted_for_another(self, offer: Offer) -> bool:
        """Whether this broker voted for another version of a run, and may have to produce it.

        Two versions by a lying publisher are both signed. If one that was voted for gave way to the
        other at every broker, a batch could be decided that nobody could execute.
        """
        consensus = self._consensus
        for instance, slot in consensus.slots.items():
            regency, value = slot.proposed
            if regency != consensus.regency or not consensus.synced:
                value = slot.accepted[1] or next(reversed(slot.written), b"")
            elif not slot.wrote(regency):
                value = b""  # what was voted for before was not decided
            if instance > self._execution.executed and any(
                (item.stream, item.first) == (offer.stream, offer.first)
                and item.digests != offer.digests
                for item in slot.batches.get(slot.decided or value, ())
            ):
                return True
        return False

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
        """Whether this broker lacks it for what was decided."""
        execution = self._execution
        batch = self._consensus.batch(execution.executed + 1)
        return batch is not None and execution.complete(batch, offer, bodies, now)

    def _reconsider(self) -> list[Effect]:
        effects: list[Effect] = []
        for instance, _ in self._consensus.waiting():
            effects += self._consensus.consider(instance)
        return effects


class Fetching:
    """Asks other brokers for batches and offers that decisions and proposals name, and answers.

    One broker after the other is asked: the leader has what it proposes, and brokers that wrote a
    value hold everything in it. While an answer comes, nobody else is asked: offers are large, and
    several brokers that send the same ones have less time for consensus.
    """

    __slots__ = (
        "_awaited",
        "_change",
        "_consensus",
        "_context",
        "_due",
        "_execution",
        "_part_ms",
        "_turn",
        "_until",
    )

    def __init__(
        self, context: LogContext, consensus: Consensus, execution: Execution, change: LeaderChange
    ) -> None:
        self._context = context
        self._consensus = consensus
        self._execution = execution
        self._change = change
        #: Counts requests: whose turn it is to be asked.
        self._turn = 0
        #: What the last request named and what has not come; at most 2 MAX_FETCH.
        self._awaited: set[Cursor | bytes] = set()
        #: When another broker is asked if no further part has come; and in any case.
        self._due = self._until = Millis(0)
        #: How long the first part of the next answer may take.
        self._part_ms = PART_MS

    def on_fetch(self, sender: NodeId, message: Fetch) -> list[Effect]:
        """Send what is here."""
        wanted = set(message.values)
        effects: list[Effect] = [
            Send((sender,), Fetched(message.log, batch))
            for slot in self._consensus.slots.values()
            for value, batch in slot.batches.items()
            if value in wanted
        ]
        size = 0
        for cursor in message.offers:
            if size >= FETCHED_BYTES:
                break
            if cursor.stream == EPOCHS:
                manifests = self._execution.epochs.versions(cursor.next)
                effects += [Send((sender,), *manifest) for manifest in manifests]
                continue
            found = self._execution.find(cursor.stream, cursor.next)
            if found is not None:
                effects.append(Send((sender,), *found))
                size += sum(map(len, found[1]))
        return effects

    def on_fetched(self, message: Fetched) -> None:
        """A batch, if it is one that was asked for."""
        value = value_of(self._context.hash, message.batch)
        for instance, slot in list(self._consensus.slots.items()):
            if slot.decided == value or value in self._change.lacking_at(instance):
                slot.keep(value, message.batch)

    def on_proposed(self, leader: NodeId, batch: Batch) -> list[Effect]:
        """Ask the leader at once for runs of which their publisher sent this broker other versions.

        What has not come yet comes from its publisher in a moment; this never does.
        """
        if not any(batch is waiting for _, waiting in self._consensus.waiting()):
            return []
        missing = self._execution.missing(batch)
        differing = self._execution.offers.differing(missing)
        wanted = [Cursor(item.stream, item.first) for item in missing if item.stream in differing]
        if not wanted:
            return []
        return [Send((leader,), Fetch(self._consensus.log, (), tuple(wanted[:MAX_FETCH])))]

    def ask(self, now: Millis) -> list[Effect]:
        """Ask for what keeps this broker from writing or executing."""
        values, offers = self._wanted()
        lacking: set[Cursor | bytes] = {*values, *offers}
        self._note_parts(lacking, now)
        is_coming = self._awaited and now < min(self._due, self._until)
        peers = self._context.peers
        if not peers or not lacking or is_coming:
            return []
        self._awaited = lacking
        self._due, self._until = Millis(now + self._part_ms), Millis(now + ANSWER_MS)
        self._part_ms = min(2 * self._part_ms, MAX_PART_MS)
        # The leader every other time: it has what it proposed, unless it lies.
        turn, other = divmod(self._turn, 2)
        self._turn += 1
        asked = self._consensus.leader
        if other or asked not in peers:
            asked = peers[turn % len(peers)]
        return [Send((asked,), Fetch(self._consensus.log, values, offers))]

    def _wanted(self) -> tuple[tuple[bytes, ...], tuple[Cursor, ...]]:
        """Values of decided batches and names of offers that are lacking, most urgent first."""
        consensus, execution = self._consensus, self._execution
        values: list[bytes] = []
        items: list[Item] = []
        for instance in range(execution.executed + 1, consensus.decided + 1)[:AHEAD]:
            if len(items) >= MAX_FETCH:
                break
            slot = consensus.slots.get(instance)
            batch = consensus.batch(instance)
            if batch is not None:
                # Only of the next one is it known what it needs; of the others, what it names.
                nearest = instance == execution.executed + 1
                items += execution.lacking(batch) if nearest else execution.missing(batch)
            elif slot is not None:
                values.append(slot.decided)
        for _, batch in consensus.waiting():
            items += execution.missing(batch)
        offers = [Cursor(item.stream, item.first) for item in items]
        if execution.unseen_epoch:
            offers.insert(0, Cursor(EPOCHS, execution.state.epoch))
        return tuple(values[:MAX_FETCH]), tuple(offers[:MAX_FETCH])

    def _note_parts(self, lacking: set[Cursor | bytes], now: Millis) -> None:
        """Note which part of the last request has come, and wait for the next part."""
        left = self._awaited & lacking
        if len(left) < len(self._awaited):
            self._part_ms = PART_MS
            self._due = Millis(now + PART_MS)
        self._awaited = left
