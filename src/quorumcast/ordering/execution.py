"""Execution: decided batches become positions in the replicated state.

Everything here is deterministic in the decided batches, so that brokers which execute the same ones
agree byte for byte; checkpoints compare exactly that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Iterator

from quorumcast.broadcast.messages import Ack
from quorumcast.core.ids import CELL, EPOCHS, GENESIS, Channel, Millis, NodeId, Stream
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.core.machine import ArchiveReader, Bodies, Effect, Forget, Persist, Send
from quorumcast.core.quorum import Protection
from quorumcast.ordering.backfill import Backfill
from quorumcast.ordering.consensus import InstanceRecord, Voted
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.epochs import Epochs, epoch_item
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.messages import Batch, Item, Offer
from quorumcast.ordering.offers import DroppedOffer, Offers, Stored, stored_under
from quorumcast.ordering.past import Placed
from quorumcast.ordering.state import Head, State, StateImage

#: Streams that one seat publishes on; it finishes one before it begins the next.
STREAMS_OF_A_SEAT = 16


class AckTargets:
    """The seat of a client that is told how far a resumed stream is ordered.

    A resumed stream belongs to the client, not to one seat: each life may use another seat. Brokers
    answer the seat that sent something last.
    """

    __slots__ = ("_seats", "_streams")

    def __init__(self) -> None:
        #: The seat that last sent something of each stream; only streams that are in `_streams`.
        self._seats: dict[Stream, NodeId] = {}
        #: The streams of each seat, newest last; at most STREAMS_OF_A_SEAT.
        self._streams: dict[NodeId, deque[Stream]] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def note(self, sender: NodeId, stream: Stream) -> None:
        """A node has sent something as the publisher of a stream."""
        if sender == stream.publisher or self._seats.get(stream) == sender:
            return
        before = self._seats.pop(stream, None)
        if before is not None:
            self._streams[before].remove(stream)
        self._seats[stream] = sender
        streams = self._streams.setdefault(sender, deque())
        streams.append(stream)
        if len(streams) > STREAMS_OF_A_SEAT:
            del self._seats[streams.popleft()]

    def of(self, stream: Stream) -> NodeId:
        """The node that is told about a stream."""
        return self._seats.get(stream, stream.publisher)


class Decided(InstanceRecord, frozen=True, tag=True):
    """This batch was decided in this instance."""

    batch: Batch


class Snapshot(InstanceRecord, frozen=True, tag=True):
    """The state at a checkpoint."""

    image: bytes


class Execution:
    """What one log has ordered, and what waits for it."""

    __slots__ = (
        "_context",
        "_durable",
        "_editions",
        "_ends",
        "_log",
        "_unneeded",
        "ack_targets",
        "backfill",
        "epochs",
        "executed",
        "offers",
        "safe",
        "state",
    )

    def __init__(
        self, log: Protection, context: LogContext, state: State, *, signed: bool, durable: bool
    ) -> None:
        self._log = log
        self._context = context
        self._durable = durable
        self.state = state
        self.offers = Offers(
            context.keyring,
            context.hash,
            signed=signed,
            limits=context.limits,
            served=lambda stream: state.served.get(stream, 0),
            entitled=lambda stream: context.may_publish(stream),
        )
        self.epochs = Epochs(context.hash, lambda data: context.follows(data), context.epoch)
        self.backfill = Backfill(log, context, self.offers)
        self.ack_targets = AckTargets()
        #: Every instance up to this one has been executed; only grows.
        self.executed = 0
        #: The disk knows what was executed up to here.
        self.safe = 0
        #: What is not retained any more and leaves the disk with the next checkpoint: before that a
        #: restart executes again what came after the last one. Grows no further than that.
        self._unneeded: list[Effect] = []
        #: The next position of each channel at checkpoints that are not stable yet.
        self._ends: dict[int, dict[Channel, int]] = {}
        #: Runs of lines on disk that a restart may have to execute, and their editions: a line that
        #: began again has several runs of one name, and only one of them waits.
        self._editions: dict[Item, int] = {}

    def missing(self, batch: Batch) -> list[Item]:
        """Items of a batch that are neither here nor ordered already.

        Items of streams that have ended get no positions, and no broker keeps their contents: a
        leader may have proposed them behind the batch that ended their streams.
        """
        return [
            item
            for item in batch
            if (
                self.epochs.lacks(item)
                if item.stream == EPOCHS
                else item.stream != GENESIS
                and not self.offers.holds(item)
                and item.last > self.state.served.get(item.stream, 0)
                and not self.state.over(item.stream)
            )
        ]

    def lacking(self, batch: Batch) -> list[Item]:
        """Items that must come before the next batch can be executed."""
        named = epoch_item(batch)
        if named is not None:
            return [named] if self.epochs.lacks(named) else []
        return [item for item in self._placed(batch) if not self.offers.holds(item)]

    def _placed(self, batch: Batch) -> list[Item]:
        """Items that get positions on channels that still exist: their contents are needed."""
        taken = self.state.takes(batch)
        return [item for item in taken if self._context.log_of(item.stream.channel) is not None]

    def taken(self, batch: Batch) -> list[Item] | None:
        """Items of the next batch that get positions; None if some of them are not here."""
        named = epoch_item(batch)
        if named is not None and self.epochs.lacks(named):
            return None
        items = self.state.takes(batch)
        return items if all(map(self.offers.holds, self._placed(batch))) else None

    def recall(self, batch: Batch, now: Millis) -> None:
        """Read from disk what the next batch lacks because another run of its name waits."""
        archive = self._context.archive
        if archive is None or not self._editions:
            return
        for item in self.lacking(batch):
            edition = self._editions.get(item)
            if edition is None:
                continue
            stored = archive.get(Stored, stored_under(item.stream, edition), item.first)
            if stored is not None and stored.offer.item == item:
                self.offers.put_back(stored.offer, stored.bodies, now, edition, placed=True)

    def complete(self, batch: Batch, offer: Offer, bodies: Bodies, now: Millis) -> bool:
        """Take an offer that the next batch lacks: what is decided needs no other authority."""
        if offer.item not in self.lacking(batch) or self.offers.flaw(offer, bodies) is not None:
            return False
        self.offers.put_back(offer, bodies, now)
        return True

    def find(self, stream: Stream, first: int) -> tuple[Offer, Bodies] | None:
        """An offer, whether it waits or has been ordered."""
        held = self.offers.find(stream, first)
        if held is not None:
            return held.offer, held.bodies
        log = self._context.log_of(stream.channel)
        return None if log is None else log.find(stream, first)

    def has_dropped(self, batch: Batch) -> bool:
        """Whether this broker no longer holds all contents of a batch that it executed."""
        return any(
            item.stream.publisher != CELL
            and ((found := self.find(item.stream, item.first)) is None or found[0].item != item)
            for item in batch
        )

    def ack(self, stream: Stream, to: NodeId | None = None) -> Send:
        """How far a stream has been ordered, for the node that asks or published on it last."""
        served = self.state.served.get(stream, 0)
        credit = served + self._context.limits(stream).window
        if stream.line is not None and self.state.over(stream):
            credit = 0
        chain = self.state.chains.get(stream, b"")
        ack = Ack(stream, served, credit, served, chain=chain)
        return Send((to or self.ack_targets.of(stream),), ack)

    @property
    def oldest(self) -> Millis | None:
        """Since when something has waited that a leader could propose."""
        waiting = [self.offers.oldest(), None if self.halted else self.epochs.oldest]
        return min([since for since in waiting if since is not None], default=None)

    @property
    def halted(self) -> bool:
        """Whether the next epoch was ordered: this one executes nothing more."""
        return self.state.epoch > self.epochs.present

    @property
    def passed(self) -> bytes | None:
        """The manifest that was ordered to follow, once the disk knows that it was.

        Others count on this broker to tell them about it, also after a power cut.
        """
        if not self.halted or (self._durable and self.safe < self.state.since):
            return None
        return self.epochs.manifest(self.state.manifest)

    @property
    def unseen_epoch(self) -> bool:
        """Whether the next epoch came with a state, and its manifest did not."""
        return self.halted and self.epochs.manifest(self.state.manifest) is None

    def names(self, offer: Offer) -> bool:
        """Whether that manifest was ordered to follow."""
        return self.halted and offer.digests == self.state.manifest

    def begin_epoch(self, epoch: int, deleted: Container[Channel]) -> list[Effect]:
        """Go on in an epoch: some channels are deleted, and others may have had their names."""
        self.epochs.begin(epoch)
        self.offers.retire(lambda stream: stream.channel in deleted)
        effects = self._sweep()
        for log, head in self._channels():
            effects += log.begin_after(head.next, head.chain)
        return effects

    @property
    def reached(self) -> bool:
        """Whether the instance is known in which the present epoch was ordered."""
        return self.state.epoch >= self.epochs.present

    def apply(self, batch: Batch, now: Millis) -> list[Effect]:
        """Execute the next batch, everything of which is here."""
        self.executed += 1
        for item in batch if self._editions else ():
            self._editions.pop(item, None)
        self.state.begin(batch, self.executed)
        effects: list[Effect] = []
        served: dict[Stream, None] = {}
        for extent in self.state.apply(batch):
            served[extent.stream] = None
            held = self.offers.find(extent.stream, extent.first)
            log = self._context.log_of(extent.stream.channel)
            if held is not None and log is not None:
                log.log_id = self.state.log_id
                placed = log.append(extent, held.offer, held.bodies, now, held.edition or 0)
                effects += self._later(placed)
                held.placed = True
        named = epoch_item(batch)
        if named is not None:
            self.state.enter(named.first, self.executed, named.digests)
        for stream in served:
            self.offers.serve(stream, self.state.served.get(stream, 0))
            effects.append(self.ack(stream))
        for item in batch:
            if item.stream not in served:
                self.offers.reconsider(item.stream)
        self.offers.retire(self.state.over)
        if self._durable:
            decided = Decided(self._log, self.executed, batch)
            effects.append(Persist(decided, lazy=named is None))  # for an epoch everybody waits
        return effects + self._sweep()

    def _later(self, effects: list[Effect]) -> list[Effect]:
        """Leave what removes records from disk to the next checkpoint."""
        self._unneeded += [effect for effect in effects if isinstance(effect, Forget)]
        return [effect for effect in effects if not isinstance(effect, Forget)]

    def trim(self, now: Millis) -> list[Effect]:
        """Drop what is not retained any longer, of channels on which nothing happens as well.

        Limits may have changed, and publications grow old. All of it was executed before the last
        checkpoint, or leaves the disk with the next one.
        """
        effects: list[Effect] = []
        for channel in self.state.heads:
            log = self._context.log_of(channel)
            if log is not None:
                dropped = log.trim(now)
                effects += dropped if log.ledger.base <= log.spare else self._later(dropped)
                # At once: they may be fetched again, and lie before the state on disk.
                effects += log.clear_islands(now)
        return effects if self._durable else []

    def persisted(self, placed: Placed) -> list[Effect]:
        """The disk has a run."""
        log = self._context.log_of(placed.channel)
        return [] if log is None else log.persisted(placed)

    def keep(self, offer: Offer, bodies: Bodies) -> list[Effect]:
        """Write an offer to disk before any vote for it."""
        swept = self._sweep()  # before it is written: it may take the place of one that went
        if not self._durable:
            return []
        return [*swept, Persist(Stored(offer, bodies, self._edition(offer)), lazy=True)]

    def _edition(self, offer: Offer) -> int:
        """The edition in which an offer that waits is on disk."""
        stream, first = offer.stream, offer.first
        held = self.offers.find(stream, first)
        if held is None:
            return 0  # a manifest
        if held.edition is None:
            log = None if stream.line is None else self._context.log_of(stream.channel)
            held.edition = 0 if log is None else log.free_edition(stream, first, log.ledger.next)
        return held.edition

    def _sweep(self) -> list[Effect]:
        """Offers that were dropped without having been ordered leave the disk as well."""
        dropped, self.offers.dropped = self.offers.dropped, []
        if not self._durable:
            return []
        return [
            Forget(Stored, stored_under(gone.stream, gone.edition), gone.first + 1, gone.first)
            for gone in dropped
            if not self._stays(gone)
        ]

    def _stays(self, gone: DroppedOffer) -> bool:
        """Whether an offer that was dropped came again meanwhile, or was ordered after all."""
        stream, first, edition = gone.stream, gone.first, gone.edition
        log, again = self._context.log_of(stream.channel), self.offers.find(stream, first)
        by_clock = stream.line is None
        return (
            (again is not None and (by_clock or again.edition == edition))
            or (by_clock and first <= self.state.served.get(stream, 0))
            or (log is not None and log.has_in_memory(stream, first, edition))
        )

    def forget(self, upto: int, stable: int = 0) -> list[Effect]:
        """Remove from disk what was voted and decided up to an instance, and older states."""
        if not self._durable:
            return []
        owner = self._log.value
        effects: list[Effect] = []
        if upto > 0:
            effects += [Forget(Voted, owner, upto + 1), Forget(Decided, owner, upto + 1)]
        if stable > 0:
            effects.append(Forget(Snapshot, owner, stable))
        return effects

    # ------------------------------------------------------------ checkpoints

    def checkpoint(self) -> tuple[StateImage, list[Effect]]:
        """The state right now, and what is to be written for it."""
        image = self.state.image()
        return StateImage(self.executed, image), self._keep(image)

    def settle(self, instance: int) -> None:
        """A checkpoint is stable: nobody needs the contents of what lies before it."""
        for channel, end in self._ends.get(instance, {}).items():
            log = self._context.log_of(channel)
            if log is not None:
                log.spare = max(log.spare, end)
        self._ends = {made: ends for made, ends in self._ends.items() if made > instance}

    def _note_ends(self) -> None:
        heads = self.state.heads
        self._ends[self.executed] = {channel: head.next for channel, head in heads.items()}

    def _keep(self, image: bytes) -> list[Effect]:
        self._note_ends()
        unneeded, self._unneeded = self._unneeded, []
        if not self._durable:
            return []
        return [Persist(Snapshot(self._log, self.executed, image), lazy=True), *unneeded]

    def jump(self, instance: int, image: bytes) -> list[Effect] | None:
        """Continue from a state that others vouch for; None if it cannot be decoded."""
        if not self.state.load(image):
            return None
        self.executed = instance
        effects = self._keep(image)
        for log, head in self._channels():
            effects += log.skip_to(head.next, head.chain)
            self.backfill.want(log)
        for stream, upto in self.state.served.items():
            self.offers.serve(stream, upto)
            effects.append(self.ack(stream))
        return effects + self._sweep()  # before the same runs are fetched and written

    # -------------------------------------------------------------- the disk

    def restore(self, record: Snapshot) -> list[Effect] | None:
        """The state that the disk held; contents that it lacks are fetched. None if it is none."""
        if not self.state.load(record.image):
            return None
        self.executed = record.instance
        self._note_ends()
        effects: list[Effect] = []
        for log, head in self._channels():
            effects += log.restore(head.next, head.chain)
            self.backfill.want(log)
        return effects

    def _channels(self) -> list[tuple[OrderedLog, Head]]:
        """Every channel of the state that still exists, and where its order has got to."""
        found: list[tuple[OrderedLog, Head]] = []
        for channel, head in self.state.heads.items():
            log = self._context.log_of(channel)
            if log is not None:
                log.log_id = self.state.log_id
                found.append((log, head))
        return found

    def requeue(self, named: Collection[Item], now: Millis) -> None:
        """Offers on disk that the state does not know as ordered wait again.

        `named` are the runs in batches that this broker voted for since that state.
        """
        archive = self._context.archive
        if archive is None:
            return
        streams: dict[Stream, list[Item]] = {}
        for item in named:
            streams.setdefault(item.stream, []).append(item)
        for owner in archive.owners(Stored):
            self._note_editions(archive, owner, streams)
            for stored in self._unserved(archive, owner, streams):
                if stored.offer.stream == EPOCHS:
                    self.epochs.add(stored.offer, stored.bodies, now)
                elif self._context.log_of(stored.offer.stream.channel) is not None:
                    # Also without the right by now: it may be part of what must be decided.
                    self.offers.put_back(
                        stored.offer,
                        stored.bodies,
                        now,
                        stored.edition,
                        placed=self.state.may_have_forgotten(stored.offer.stream),
                    )

    def _note_editions(
        self, archive: ArchiveReader, owner: str, named: dict[Stream, list[Item]]
    ) -> None:
        """Note which of these runs are on disk under this owner, if it is a line."""
        newest = archive.last(Stored, owner, MAX_NUMBER)
        if newest is None or newest.offer.stream.line is None:
            return
        for item in named.get(newest.offer.stream, ()):
            stored = archive.get(Stored, owner, item.first)
            if stored is not None and stored.offer.item == item:
                self._editions[item] = max(stored.edition, self._editions.get(item, 0))

    def _unserved(
        self, archive: ArchiveReader, owner: str, named: Container[Stream]
    ) -> Iterator[Stored]:
        newest = archive.last(Stored, owner, MAX_NUMBER)
        if newest is None or self.state.over(newest.offer.stream):
            return
        stream = newest.offer.stream
        known = stream in self.state.served or stream in named
        if not known and self.state.may_have_forgotten(stream):
            return  # then all of this was ordered long ago
        following = self.state.served.get(stream, 0) + 1
        while (stored := archive.first(Stored, owner, following)) is not None:
            following = stored.place + 1
            yield stored
