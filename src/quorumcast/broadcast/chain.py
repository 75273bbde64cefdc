"""Chain: 2f+1 brokers in a row, each vouching with MACs to the next f+1.

Guarantees: agreement always; progress while all brokers of the chain are correct (with `history`
what a faulty chain loses is repaired, and the publisher re-selects its chain).

    publisher ──▶ broker ──▶ broker ──▶ … ──▶ last broker ──Vote──▶ subscribers

Each broker verifies the MACs of its f+1 predecessors (as many as there are, the publisher among
them), adds MACs for its f+1 successors (the subscribers among them) and drops those that nobody
downstream reads. A subscriber accepts when the last f+1 brokers of the chain all vouch; or when
2f+1 brokers do, each by whatever chain (`acceptance`).

Why that is enough: one of the last f+1 is correct and has verified its f+1 predecessors, one of
whom is correct, and so on up the chain: every correct broker of the chain has vouched. Two chains
of 2f+1 out of 3f+1 brokers share f+1, hence a correct one, which vouches for one contents per
number. The MACs cover the order of the chain, so a chain cannot be claimed to be another.

Source: Freeman §3.3 (algorithms 7–9), §5.6; Jehl-Meling §3.1. Ours: runs, many of them in flight at
once (Freeman's bottleneck was one at a time), and chains that change with the publisher's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumcast.broadcast.contract import CarrierContext, Forwarder, Vouch, check_run, dropped
from quorumcast.broadcast.messages import ChainRun, Voucher
from quorumcast.core.ids import Millis, NodeId, Stream
from quorumcast.core.limits import MAX_VOUCHERS
from quorumcast.core.machine import (
    Drop,
    DropReason,
    Effect,
    Receive,
    Send,
    Suspect,
    Suspicion,
    TimerFired,
)
from quorumcast.core.quorum import Quorums


def predecessors(
    quorums: Quorums, order: tuple[NodeId, ...], place: int, publisher: NodeId
) -> tuple[NodeId, ...]:
    """Whose MACs the broker at a place in the chain must find valid."""
    row = (publisher, *order)
    return row[max(0, place + 1 - quorums.chain_reach) : place + 1]


def last_of_chain(quorums: Quorums, order: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """The brokers that a subscriber must hear."""
    return order[-quorums.chain_reach :]


def is_chain(quorums: Quorums, brokers: tuple[NodeId, ...], order: tuple[NodeId, ...]) -> bool:
    """Whether this is a chain that correct nodes take part in."""
    pool = brokers[: quorums.chain_pool]
    return (
        len(order) == quorums.chain_length
        and len(frozenset(order)) == len(order)
        and all(broker in pool for broker in order)
    )


class Chain(Forwarder):
    """The broker side of the chain protocol for one stream."""

    __slots__ = ("_readers", "_vouchers")

    def __init__(self, stream: Stream, context: CarrierContext) -> None:
        super().__init__(stream, context)
        self._readers = context.readers
        #: MACs that came with the newest run, for the subscribers; the last broker passes them on.
        self._vouchers: tuple[Voucher, ...] = ()

    def vouchers_for(self, reader: NodeId) -> tuple[Voucher, ...]:
        return tuple(voucher for voucher in self._vouchers if voucher.reader == reader)

    def handle(self, event: Receive | TimerFired, now: Millis) -> list[Effect]:
        match event:
            case Receive(message=ChainRun() as message):
                return self._on_run(event, message)
            case _:
                return super().handle(event, now)

    @property
    def spare(self) -> int:
        # Brokers further down may lack as much, and only what is still held is passed on again.
        return self.ledger.next - self._policy.limits.window

    def sizes(self) -> dict[str, int]:
        return {**super().sizes(), "vouchers": len(self._vouchers)}

    def _on_run(self, event: Receive, run: ChainRun) -> list[Effect]:
        view = self._view
        if not is_chain(view.quorums, view.brokers, run.order) or view.me not in run.order:
            return dropped(event, DropReason.BAD_CHAIN)
        place = run.order.index(view.me)
        if event.sender != (run.order[place - 1] if place else self.stream.publisher):
            return dropped(event, DropReason.WRONG_SENDER)
        if run.first > self.ledger.next:
            return dropped(event, DropReason.OUT_OF_TURN)
        if run.first < self.ledger.base:
            # What it said of forgotten numbers it cannot compare, so it says nothing again.
            return dropped(event, DropReason.NOT_HELD)
        if self.ledger.settles and self._crowded(run.first, event.bodies):
            return dropped(event, DropReason.OVER_LIMIT)
        unvouched = self._unvouched(run, place)
        if unvouched:
            # Its author made a MAC wrong or somebody after it broke it: nobody there could verify
            # it.
            path = (self.stream.publisher, *run.order[:place])
            among = path[path.index(unvouched[0]) :]
            return [
                Drop(DropReason.BAD_VOUCHER, event.sender),
                *(
                    Suspect(node, Suspicion.BAD_VOUCHER, self.stream, run.first, among)
                    for node in dict.fromkeys((*unvouched, event.sender))
                ),
            ]
        digests = check_run(view, event, run.digests)
        if isinstance(digests, DropReason):
            return dropped(event, digests)
        taken = self.ledger.take(run.first, digests, event.bodies, run.order)
        if taken.conflict:
            return [
                Drop(DropReason.CONFLICT, event.sender),
                Suspect(self.stream.publisher, Suspicion.EQUIVOCATION, self.stream, taken.conflict),
            ]
        return self._pass_on(event, run, place)

    def _unvouched(self, run: ChainRun, place: int) -> list[NodeId]:
        """Algorithm 8, lines 8–10: who of the f+1 predecessors, as many as there are, does not."""
        mine = {v.author: v.mac for v in run.vouchers if v.reader == self._view.me}
        return [
            author
            for author in self._must_vouch(run, place)
            if author not in mine
            or not self._view.keyring.vouched(
                author, mine[author], run.stream, run.first, run.digests, run.order
            )
        ]

    def _must_vouch(self, run: ChainRun, place: int) -> tuple[NodeId, ...]:
        return predecessors(self._view.quorums, run.order, place, self.stream.publisher)

    def _pass_on(self, event: Receive, run: ChainRun, place: int) -> list[Effect]:
        """Repeated runs are passed on as well: the publisher repeats what got lost further down."""
        view, order = self._view, run.order
        readers: list[NodeId] = list(order[place + 1 : place + 1 + view.quorums.chain_reach])
        subscribers = self._readers(self.stream.channel)
        if len(readers) < view.quorums.chain_reach:
            readers.extend(subscribers)
        kept = self._still_needed(run, place, subscribers)
        if place == len(order) - 1:
            self._vouchers = kept
            return [Vouch(self.stream, run.first, run.digests, order)]
        mine = tuple(
            Voucher(
                view.me,
                reader,
                view.keyring.vouch(reader, run.stream, run.first, run.digests, order),
            )
            for reader in readers
        )
        # A subscriber whose MAC no longer fits in asks the broker itself, by subscribing again.
        onward = ChainRun(run.stream, run.first, run.digests, order, (kept + mine)[:MAX_VOUCHERS])
        return [Send((order[place + 1],), onward, event.bodies)]

    def _still_needed(
        self, run: ChainRun, place: int, subscribers: Sequence[NodeId]
    ) -> tuple[Voucher, ...]:
        """MACs that somebody downstream reads, brokers' first; whatever else was stuffed in goes.

        Otherwise a lying predecessor could make us send more than our readers' decoders take.
        """
        quorums, publisher, order = self._view.quorums, self.stream.publisher, run.order
        read: dict[NodeId, tuple[NodeId, ...]] = {
            order[later]: predecessors(quorums, order, later, publisher)
            for later in range(place + 1, len(order))
        }
        read.update(dict.fromkeys(subscribers, last_of_chain(quorums, order)))
        kept = {(v.author, v.reader): v for v in run.vouchers if v.author in read.get(v.reader, ())}
        return tuple(sorted(kept.values(), key=lambda voucher: voucher.reader not in order))
