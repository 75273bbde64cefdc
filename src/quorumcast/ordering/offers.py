"""What publishers want ordered, and the leader's fair choice among it.

A publication to be ordered is *labelled* by its publisher: stream and number come before its
contents and are covered by the same digest. What brokers decide on and vote for therefore says who
published what, and nobody hashes contents twice.

An offer is signed by its publisher, so a broker that was left out can take it from another broker;
one that has it from the publisher itself need not check the signature, except the leader: its
proposal must be acceptable to everybody. Offers are bounded per stream by the channel's window, and
beyond it by what proposals name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from typing import ClassVar

import msgspec

from quorumcast.broadcast.contract import match
from quorumcast.core.ids import DIGEST_SIZE, Lane, Millis, NodeId, Stream, split_digests
from quorumcast.core.labels import label
from quorumcast.core.limits import MAX_BATCH, Limits
from quorumcast.core.machine import Bodies, DropReason, Record
from quorumcast.core.statements import OfferStatement, Signed, canonical
from quorumcast.crypto.digest import Hasher
from quorumcast.crypto.keyring import Keyring
from quorumcast.ordering.messages import Batch, Item, Offer

#: Publications and bytes that one batch holds at most, or one run more.
BATCH_PUBLICATIONS = 4096
BATCH_BYTES = 16 * 1024 * 1024
#: Bytes that are kept beyond what publishers may have waiting, because proposals name them.
NAMED_BYTES = 256 * 1024 * 1024
#: Streams of one publisher on one channel of which a sender may speak while they wait.
OFFERED_STREAMS = 4


def sign_offer(keyring: Keyring, stream: Stream, first: int, digests: bytes) -> bytes:
    """The publisher's signature."""
    return keyring.identity.sign(_payload(keyring.instance, stream, first, digests)).signature


def _payload(cell: str, stream: Stream, first: int, digests: bytes) -> bytes:
    return canonical(OfferStatement(cell=cell, stream=stream, first=first, digests=digests))


def offer_holds(keyring: Keyring, offer: Offer) -> bool:
    """Whether the publisher signed this."""
    payload = _payload(keyring.instance, offer.stream, offer.first, offer.digests)
    return keyring.signature_holds(Signed(offer.stream.publisher, payload, offer.signature))


class Stored(Record, frozen=True, tag=True, omit_defaults=True):
    """An offer on disk: a broker that votes for it can produce it after a restart."""

    archived: ClassVar[bool] = True

    offer: Offer
    bodies: Bodies
    #: Tells it from earlier runs of the same name, of a line that the state forgot and that began
    #: again; 0 for nearly all.
    edition: int = 0

    @property
    def owner(self) -> str:
        """Whose record it is."""
        return stored_under(self.offer.stream, self.edition)

    @property
    def place(self) -> int:
        """Later records at the same place replace earlier ones."""
        return self.offer.first


def stored_under(stream: Stream, edition: int) -> str:
    """The owner of the offers of a stream on disk, in one edition."""
    return f"{stream}.{edition}" if edition else str(stream)


class DroppedOffer(msgspec.Struct, frozen=True):
    """Where the disk may have an offer that was dropped."""

    stream: Stream
    first: int
    edition: int


class WaitingOffer:
    """An offer that waits to be ordered."""

    __slots__ = ("arrived", "bodies", "edition", "named", "offer", "placed", "proven", "size")

    def __init__(self, offer: Offer, bodies: Bodies, arrived: Millis, *, proven: bool) -> None:
        self.offer = offer
        self.bodies = bodies
        #: The edition in which the disk has it; None before it is written.
        self.edition: int | None = None
        #: Whether retention removes its record from disk, as that of a position. Also true where a
        #: restart found it, and it may be an earlier run of its name that has a position.
        self.placed = False
        self.arrived = arrived
        #: Whether the signature has been checked.
        self.proven = proven
        #: Whether it is kept because a proposal names it.
        self.named = False
        self.size = sum(map(len, bodies))

    @property
    def last(self) -> int:
        """The number of its last publication."""
        return self.offer.first + len(self.bodies) - 1

    @property
    def dropped(self) -> DroppedOffer:
        """What is remembered of it when it is dropped."""
        return DroppedOffer(self.offer.stream, self.offer.first, self.edition or 0)


class Queue:
    """What waits of one stream."""

    __slots__ = ("bytes", "introducer", "proposed", "runs", "served")

    def __init__(self, served: int, introducer: NodeId) -> None:
        #: The node that sent the first offer of the stream.
        self.introducer = introducer
        #: Runs by first number; all end beyond `served`, within the window.
        self.runs: dict[int, WaitingOffer] = {}
        self.bytes = 0
        #: Everything up to here has been ordered.
        self.served = served
        #: Everything up to here has been proposed by this broker in its regency.
        self.proposed = served


class Offers:
    """Everything that waits to be ordered in one log."""

    __slots__ = (
        "_changed",
        "_entitled",
        "_hash",
        "_keyring",
        "_limits",
        "_named_bytes",
        "_queues",
        "_served",
        "_signed",
        "_turn",
        "dropped",
    )

    def __init__(
        self,
        keyring: Keyring,
        hash_: Hasher,
        *,
        signed: bool,
        limits: Callable[[Stream], Limits],
        served: Callable[[Stream], int],
        entitled: Callable[[Stream], bool] = lambda stream: True,
    ) -> None:
        self._keyring = keyring
        self._hash = hash_
        #: Whether offers must be signed.
        self._signed = signed
        self._limits = limits
        self._served = served
        #: Whether a stream's publisher still has the right to it.
        self._entitled = entitled
        #: One queue per stream that waits; emptied queues go.
        self._queues: dict[Stream, Queue] = {}
        #: Whose turn it is when the leader fills a batch.
        self._turn: deque[Stream] = deque()
        #: Whether there may be something to choose that was not there the last time.
        self._changed = False
        #: Bytes that are kept because proposals name them; at most NAMED_BYTES.
        self._named_bytes = 0
        #: What was dropped without having been ordered, and may still be on disk; emptied whenever
        #: something is ordered or written.
        self.dropped: list[DroppedOffer] = []

    def sizes(self) -> dict[str, int]:
        """How much each container fed by peers holds."""
        named = {s: sum(held.named for held in q.runs.values()) for s, q in self._queues.items()}
        return {
            "offers": max((len(q.runs) - named[s] for s, q in self._queues.items()), default=0),
            "named_offers": sum(named.values()),
            "offered_bytes": max((queue.bytes for queue in self._queues.values()), default=0),
            "queues": len(self._queues),
        }

    def __bool__(self) -> bool:
        return any(queue.runs for queue in self._queues.values())

    # ------------------------------------------------------------------ in

    def add(
        self, sender: NodeId, offer: Offer, bodies: Bodies, now: Millis, *, named: bool = False
    ) -> DropReason | WaitingOffer:
        """Keep an offer until it is ordered.

        One that the leader's proposal names is kept whatever its publisher has waiting: what a
        correct leader proposes must not fail because a publisher tells everybody something else.
        """
        stream, limits = offer.stream, self._limits(offer.stream)
        queue = self._queues.get(stream) or Queue(self._served(stream), sender)
        if offer.first <= queue.served:
            # Also one that goes further: a correct publisher never cuts a run anew.
            return DropReason.DUPLICATE
        beyond = offer.first > queue.served + limits.window or len(queue.runs) >= limits.window
        if beyond and not named:
            return DropReason.OUT_OF_WINDOW
        known = queue.runs.get(offer.first)
        if known is not None and known.offer.digests == offer.digests:
            return DropReason.DUPLICATE
        size = sum(map(len, bodies))
        if not named and queue.bytes + size > min(limits.retained_bytes, limits.publisher_bytes):
            return DropReason.OVER_LIMIT
        if self._named_bytes + size > NAMED_BYTES if named else self._crowded(sender, stream):
            return DropReason.OVER_LIMIT
        flaw = self.flaw(offer, bodies)
        if flaw is not None:
            return flaw
        direct = stream.spoken_by(sender)
        if self._signed and not direct and not offer_holds(self._keyring, offer):
            return DropReason.BAD_SIGNATURE
        if known is not None and direct:
            # The publisher equivocates; the first version stays until a batch needs this one.
            return DropReason.CONFLICT
        held = WaitingOffer(offer, bodies, now, proven=not self._signed or not direct)
        held.named = named
        self._keep(held, sender)
        return held

    def _crowded(self, sender: NodeId, stream: Stream) -> bool:
        """Whether this sender has introduced as many incarnations of the publisher as it may.

        Counted by sender: a publisher that tells every broker of other streams must not keep a
        leader from hearing of those that brokers pass on to it.

        An older one gives way if something before it is lacking: nothing of it can be ordered, and
        its publisher has restarted. Others stay: a batch that brokers voted for may name them.
        """
        if stream in self._queues:
            return False
        owner = (stream.channel, stream.publisher)
        known = sorted(
            other
            for other, queue in self._queues.items()
            if (other.channel, other.publisher) == owner and queue.introducer == sender
        )
        if len(known) < min(OFFERED_STREAMS, self._limits(stream).streams_per_publisher):
            return False
        for other in known:
            queue = self._queues[other]
            older = other < stream or stream.line is not None
            if older and not any(first <= queue.served + 1 for first in queue.runs):
                self._drop_queue(other)
                return False
        return True

    def _drop_queue(self, stream: Stream) -> None:
        queue = self._queues.pop(stream)
        for held in queue.runs.values():
            self._note_dropped(held)
        self._named_bytes -= sum(held.size for held in queue.runs.values() if held.named)
        self._turn.remove(stream)

    def retire(self, over: Callable[[Stream], bool]) -> None:
        """Streams that have ended wait for nothing any more."""
        for stream in [stream for stream in self._queues if over(stream)]:
            self._drop_queue(stream)

    def put_back(
        self,
        offer: Offer,
        bodies: Bodies,
        now: Millis,
        edition: int | None = None,
        *,
        placed: bool = False,
    ) -> None:
        """An offer that was checked before this broker restarted, or that was decided on."""
        held = WaitingOffer(offer, bodies, now, proven=not self._signed)
        held.edition, held.placed = edition, placed
        if held.last > self._served(offer.stream):
            # Beyond the window it was kept before, or is wanted now, because a proposal names it.
            queue = self._queues.get(offer.stream)
            room = self._limits(offer.stream).window
            held.named = queue is not None and len(queue.runs) >= room
            self._keep(held, offer.stream.publisher)

    def flaw(self, offer: Offer, bodies: Bodies) -> DropReason | None:
        """What is wrong with an offer, whoever sent it."""
        digests = split_digests(offer.digests)
        if offer.stream.lane is not Lane.DATA:
            # A label names no lane: the same numbers would be ordered once for each.
            return DropReason.BAD_RUN
        if len(offer.digests) % DIGEST_SIZE or len(digests) != len(bodies):
            return DropReason.BAD_RUN
        if not match(digests, bodies, self._hash):
            # Before the labels: one that was altered on the wire is not its publisher's mistake.
            return DropReason.BAD_BODY
        labels = [label(offer.stream, offer.first + place) for place in range(len(bodies))]
        return None if all(map(bytes.startswith, bodies, labels)) else DropReason.BAD_RUN

    def _keep(self, held: WaitingOffer, sender: NodeId) -> None:
        queue = self._queue(held.offer.stream, sender)
        replaced = self._drop(queue, held.offer.first)
        if replaced is not None and held.edition is None:
            held.edition = replaced.edition  # it takes its place on disk as well
        queue.runs[held.offer.first] = held
        queue.bytes += held.size
        self._changed = True
        self._named_bytes += held.size if held.named else 0

    def _note_dropped(self, held: WaitingOffer) -> None:
        """Note that an offer was dropped that the disk may hold for no position."""
        if not held.placed:
            self.dropped.append(held.dropped)

    def _drop(self, queue: Queue, first: int) -> WaitingOffer | None:
        held = queue.runs.pop(first, None)
        if held is not None:
            queue.bytes -= held.size
            self._named_bytes -= held.size if held.named else 0
        return held

    def _queue(self, stream: Stream, introducer: NodeId) -> Queue:
        queue = self._queues.get(stream)
        if queue is None:
            queue = self._queues[stream] = Queue(self._served(stream), introducer)
            self._turn.append(stream)
        return queue

    # ------------------------------------------------------------- looking up

    def find(self, stream: Stream, first: int) -> WaitingOffer | None:
        """The offer of a stream that begins there."""
        queue = self._queues.get(stream)
        return None if queue is None else queue.runs.get(first)

    def holds(self, item: Item) -> bool:
        """Whether this very run is here."""
        held = self.find(item.stream, item.first)
        return held is not None and held.offer.digests == item.digests

    def differing(self, missing: Iterable[Item]) -> set[Stream]:
        """Streams of which this broker holds other runs than those that are missing."""
        spans: dict[Stream, tuple[int, int]] = {}
        for item in missing:
            low, high = spans.get(item.stream, (item.first, 0))
            spans[item.stream] = (min(low, item.first), max(high, item.last))
        return {
            stream
            for stream, (low, high) in spans.items()
            if (queue := self._queues.get(stream)) is not None
            and any(held.offer.first <= high and held.last >= low for held in queue.runs.values())
        }

    def oldest(self) -> Millis | None:
        """Since when the oldest offer that could be ordered has waited."""
        return min([held.arrived for held in self.waiting()], default=None)

    def waiting(self) -> Iterator[WaitingOffer]:
        """Everything that could be ordered: whatever has no gap before it.

        No leader can be blamed for the rest: its publisher left something out, or has lost the
        right. What was offered before that stays: a batch that brokers have voted for may name it.
        """
        for stream, queue in list(self._queues.items()):
            if not self._entitled(stream):
                continue
            following = queue.served + 1
            while (held := queue.runs.get(following)) is not None:
                yield held
                following = held.last + 1

    def genuine(self, most: int) -> list[WaitingOffer]:
        """The oldest of what could be ordered, its signatures checked; forged ones are dropped."""
        oldest = sorted(self.waiting(), key=lambda held: held.arrived)[:most]
        return [held for held in oldest if self._acceptable(held)]

    # ---------------------------------------------------------------- choosing

    def begin(self, under_way: list[Batch]) -> None:
        """This broker leads now: what is under way already is not proposed again."""
        self._changed = True
        for queue in self._queues.values():
            queue.proposed = queue.served
        for batch in under_way:
            for item in batch:
                queue = self._queue(item.stream, item.stream.publisher)
                queue.proposed = max(queue.proposed, item.last)

    def reconsider(self, stream: Stream) -> None:
        """What was proposed of a stream got no positions: it may be proposed again."""
        queue = self._queues.get(stream)
        if queue is not None:
            queue.proposed = queue.served
            self._changed = True

    def unname(self, under_way: Container[Item]) -> None:
        """What was kept only because a proposal named it goes, unless one still does."""
        for stream, queue in list(self._queues.items()):
            for first, held in list(queue.runs.items()):
                if held.named and held.offer.item not in under_way:
                    self._drop(queue, first)
                    self._note_dropped(held)
            self._tidy(stream)

    def choose(self, most: int = MAX_BATCH) -> Batch:
        """The next batch: from every stream in turn, so that nobody crowds out the others.

        Whose turn has not come when a batch is full is the first in the next one.
        """
        if not self._changed:
            return ()
        batch: list[Item] = []
        room, space = BATCH_PUBLICATIONS, BATCH_BYTES
        streams = max(1, len(self._turn))
        share = max(1, BATCH_PUBLICATIONS // streams)
        runs = max(1, most // streams)
        for stream in list(self._turn):
            if len(batch) >= most or room <= 0 or space <= 0:
                break
            taken = self._take(stream, share, min(runs, most - len(batch)), space // streams)
            batch += [held.offer.item for held in taken]
            room -= sum(len(held.bodies) for held in taken)
            space -= sum(held.size for held in taken)
            if stream in self._queues:
                self._turn.rotate(-1)
        self._changed = bool(batch)
        return tuple(batch)

    def _take(self, stream: Stream, publications: int, runs: int, space: int) -> list[WaitingOffer]:
        """The next offers of one stream, within these limits or one run more."""
        queue = self._queues[stream]
        taken: list[WaitingOffer] = []
        if not self._entitled(stream):
            return taken
        while publications > 0 and space >= 0 and len(taken) < runs:
            held = queue.runs.get(queue.proposed + 1)
            if held is None or not self._acceptable(held):
                break
            taken.append(held)
            queue.proposed = held.last
            publications -= len(held.bodies)
            space -= held.size
        return taken

    def _acceptable(self, held: WaitingOffer) -> bool:
        """Whether the publisher signed it; what it did not sign is dropped."""
        if not held.proven and not offer_holds(self._keyring, held.offer):
            stream = held.offer.stream
            self._drop(self._queues[stream], held.offer.first)
            self._note_dropped(held)
            self._tidy(stream)
            return False
        held.proven = True
        return True

    def serve(self, stream: Stream, upto: int) -> None:
        """Everything of a stream up to a number has been ordered."""
        queue = self._queues.get(stream)
        if queue is None:
            return
        self._changed = True
        queue.served = max(queue.served, upto)
        queue.proposed = max(queue.proposed, queue.served)
        for held in [held for held in queue.runs.values() if held.last <= upto]:
            self._drop(queue, held.offer.first)
            if stream.line is not None:
                # Retention removes the runs of a line one by one, and only those with positions.
                self._note_dropped(held)
        self._tidy(stream)

    def _tidy(self, stream: Stream) -> None:
        """A queue that holds nothing and remembers nothing goes."""
        queue = self._queues[stream]
        if not queue.runs and queue.proposed <= queue.served:
            del self._queues[stream]
            self._turn.remove(stream)
