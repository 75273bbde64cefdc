"""Whom to ask for what a batch names and this broker lacks, and what to give to those who ask.

One broker after the other is asked: the leader has what it proposes, those who wrote a value hold
everything in it, and whoever is asked in vain is not the last.
"""

from __future__ import annotations

from quorumcast.broadcast.messages import Cursor
from quorumcast.core.ids import EPOCHS, NodeId
from quorumcast.core.limits import MAX_FETCH
from quorumcast.core.machine import Effect, Send
from quorumcast.ordering.consensus import Consensus, value_of
from quorumcast.ordering.execution import Execution, LogContext
from quorumcast.ordering.messages import Batch, Fetch, Fetched, Item, Offer
from quorumcast.ordering.succession import Succession

#: Offers given to whoever asks at a time, and decisions looked ahead when asking.
GIVEN = 256
AHEAD = 128


class Fetching:
    """Giving and taking of batches and offers, in one log."""

    __slots__ = ("_around", "_asked", "_consensus", "_execution", "_succession")

    def __init__(
        self,
        around: LogContext,
        consensus: Consensus,
        execution: Execution,
        succession: Succession,
    ) -> None:
        self._around = around
        self._consensus = consensus
        self._execution = execution
        self._succession = succession
        #: Whose turn it is to be asked.
        self._asked = 0

    def on_fetch(self, sender: NodeId, message: Fetch) -> list[Effect]:
        """Give what is here."""
        wanted = set(message.values)
        effects: list[Effect] = [
            Send((sender,), Fetched(message.log, batch))
            for slot in self._consensus.slots.values()
            for value, batch in slot.batches.items()
            if value in wanted
        ]
        for cursor in message.offers[:GIVEN]:
            if cursor.stream == EPOCHS:
                stories = self._execution.epochs.stories(cursor.next)
                effects += [Send((sender,), *story) for story in stories]
                continue
            found = self._execution.find(cursor.stream, cursor.next)
            if found is not None:
                effects.append(Send((sender,), *found))
        return effects

    def stands_by_another(self, offer: Offer) -> bool:
        """Whether this broker voted for another story of a run, and may have to produce it.

        Two stories of a lying publisher are both signed. If one that was voted for gave way to the
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

    def on_fetched(self, message: Fetched) -> None:
        """A batch, if it is one that was asked for."""
        value = value_of(self._around.hash, message.batch)
        for instance, slot in list(self._consensus.slots.items()):
            if slot.decided == value or value in self._succession.lacking_at(instance):
                slot.keep(value, message.batch)

    def on_proposed(self, leader: NodeId, batch: Batch) -> list[Effect]:
        """Ask the leader at once for runs of which their publisher told it another story.

        What has not come yet comes from its publisher in a moment; this never does.
        """
        if not any(batch is waiting for _, waiting in self._consensus.waiting()):
            return []
        missing = self._execution.missing(batch)
        torn = self._execution.offers.told_otherwise(missing)
        wanted = [Cursor(item.stream, item.first) for item in missing if item.stream in torn]
        if not wanted:
            return []
        return [Send((leader,), Fetch(self._consensus.log, (), tuple(wanted[:MAX_FETCH])))]

    def ask(self) -> list[Effect]:
        """Ask for what keeps this broker from writing or executing."""
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
        offers = execution.backfill.wanted()
        if execution.unseen_epoch:
            offers.append(Cursor(EPOCHS, execution.state.epoch))
        offers += [Cursor(item.stream, item.first) for item in items]
        peers = self._around.peers
        if not peers or not (values or offers):
            return []
        request = Fetch(consensus.log, tuple(values[:MAX_FETCH]), tuple(offers[:MAX_FETCH]))
        # The leader every other time: it has what it proposed, unless it lies.
        turn, other = divmod(self._asked, 2)
        self._asked += 1
        asked = consensus.leader
        if other or asked not in peers:
            asked = peers[turn % len(peers)]
        return [Send((asked,), request)]
