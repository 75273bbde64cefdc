"""What tests of total order are made of: offers, consensus by hand, and a hall of sequencers.

The *hall* is a cell in memory without clients: sequencers, a clock, messages that arrive after
`HOP_MS`, disks that keep what they are told after `DISK_MS`. Brokers can be cut off, stopped,
restarted from their disks, or replaced by new ones without a memory.
"""

from __future__ import annotations

from typing import cast

from tests.support.cells import BOB, ORDERS, STREAM, Cell, digests, life_of
from tests.support.network import Disk, Network

from quorumcast.broadcast.contract import Vouch
from quorumcast.core.ids import GENESIS, NodeId, Stream, split_digests, total_order
from quorumcast.core.labels import label
from quorumcast.core.limits import Limits
from quorumcast.core.machine import (
    Bodies,
    Effect,
    Receive,
    Send,
    Suspect,
)
from quorumcast.core.quorum import OrderQuorums, Protection
from quorumcast.core.statements import Claim, StopStatement
from quorumcast.manifest.policy import Policy
from quorumcast.ordering.context import LogContext
from quorumcast.ordering.log import OrderedLog
from quorumcast.ordering.messages import Batch, Item, Offer
from quorumcast.ordering.offers import sign_offer
from quorumcast.ordering.sequencer import Sequencer
from quorumcast.ordering.state import State

TOTAL = Policy.named("total")
TOTAL_CRASH = Policy.named("total-crash")

BOBS = Stream(ORDERS, BOB, 1)


# ------------------------------------------------------------------ offers


def labelled(first: int, *contents: bytes, stream: Stream = STREAM) -> Bodies:
    """Contents as they travel: stream and number come first."""
    return tuple(label(stream, number) + body for number, body in enumerate(contents, first))


def offer(
    cell: Cell,
    first: int,
    *contents: bytes,
    stream: Stream = STREAM,
    signer: NodeId | None = None,
) -> tuple[Offer, Bodies]:
    """An offer as its publisher makes it, perhaps signed by somebody else."""
    bodies = labelled(first, *contents, stream=stream)
    keyring = cell.keyring(signer or stream.publisher)
    signature = sign_offer(keyring, stream, first, digests(*bodies))
    return Offer(stream, first, digests(*bodies), signature), bodies


def item(first: int, *contents: bytes, stream: Stream = STREAM) -> Item:
    """A run by name."""
    return Item(stream, first, digests(*labelled(first, *contents, stream=stream)))


def batch(*contents: bytes) -> Batch:
    """A batch that differs from others by what is in it."""
    return tuple(item(number, body) for number, body in enumerate(contents, 1))


def begun() -> State:
    """The state of a log that has begun."""
    state = State()
    state.begin((Item(GENESIS, 1, bytes(32)),), 0)
    return state


# ------------------------------------------------------------------- words


def word(
    broker: str,
    *claims: Claim,
    decided: int = 0,
    stable: int = 0,
    blind: int = 0,
    regency: int = 9,
    log_id: bytes = b"",
) -> StopStatement:
    """What a broker stands by, before it is signed."""
    return StopStatement(
        cell="demo",
        log=Protection.BYZANTINE,
        broker=NodeId(broker),
        regency=regency,
        decided=decided,
        stable=stable,
        blind=blind,
        claims=claims,
        log_id=log_id,
    )


def accepted(value: bytes, regency: int = 0, instance: int = 1) -> Claim:
    """Wrote and accepted a value in one regency."""
    return Claim(instance, regency, value, ((value, regency),))


def wrote(value: bytes, regency: int = 0, instance: int = 1) -> Claim:
    """Wrote a value and accepted nothing."""
    return Claim(instance, 0, b"", ((value, regency),))


# -------------------------------------------------------------------- hall


class Hall(Network):
    """Sequencers of one log, connected in memory."""

    def __init__(
        self,
        policy: Policy = TOTAL,
        n: int = 4,
        f: int = 1,
        *,
        durable: bool = False,
        window: int = 4,
        checkpoint: int = 4,
        kind: type[Sequencer] = Sequencer,
    ) -> None:
        super().__init__(lambda now, node, effect: self.seen.append((node, effect)))
        self.cell = Cell(policy, n=n, f=f)
        self.policy = policy
        self.members = self.cell.manifest.broker_ids
        #: Every effect of every broker, in order.
        self.seen: list[tuple[NodeId, Effect]] = []
        self.logs: dict[NodeId, OrderedLog] = {}
        self._kind = kind
        self._durable = durable
        self._window = window
        self._checkpoint = checkpoint
        #: How often each broker has started.
        self._lives: dict[NodeId, int] = {}
        for member in self.members:
            self._found(member)

    def _found(self, me: NodeId) -> None:
        byzantine = self.policy.protection is Protection.BYZANTINE
        self._lives[me] = self._lives.get(me, 0) + 1
        log = self.logs[me] = OrderedLog(total_order(ORDERS), self.cell.around(me))
        around = LogContext(
            self.members,
            self.cell.keyring(me),
            self.cell.manifest.hash,
            limits=self._limits,
            may_publish=lambda stream: stream.channel == ORDERS,
            log_of=lambda channel: log if channel == ORDERS else None,
            life=life_of(me, self._lives[me]),
            archive=self.disks[me] if self._durable else None,
        )
        log.ledger.archive = around.archive
        quorums = OrderQuorums(len(self.members), self.cell.manifest.quorums.f, byzantine)
        self.machines[me] = self._kind(
            self.policy.protection,
            quorums,
            around,
            durable=self._durable,
            window=self._window,
            checkpoint=self._checkpoint,
        )

    def _limits(self, stream: Stream) -> Limits:
        return self.policy.limits

    def sequencer(self, member: NodeId) -> Sequencer:
        return cast(Sequencer, self.machines[member])

    # ------------------------------------------------------------- the world

    def begin(self) -> Hall:
        """Connect everybody, and wait until all have listened."""
        for index, one in enumerate(self.members):
            for other in self.members[index + 1 :]:
                self.connect(one, other)
        self.run(1000)
        return self

    def offer(
        self, first: int, *contents: bytes, stream: Stream = STREAM, to: tuple[NodeId, ...] = ()
    ) -> None:
        """A publisher offers a run to some brokers, by default to all that are not stopped."""
        message, bodies = offer(self.cell, first, *contents, stream=stream)
        for member in to or self.members:
            if member in self.machines:
                self.happen(member, Receive(stream.publisher, message, bodies))

    def rejoin(self, member: NodeId) -> None:
        for other in self.members:
            if other != member and other in self.machines:
                self.connect(member, other)

    def start(self, member: NodeId, *, wiped: bool = False) -> None:
        """A broker comes back, with its disk or with a new one."""
        if wiped:
            self.disks[member] = Disk()
        self._found(member)
        self.restore(member)
        self.rejoin(member)

    def restart_all(self) -> None:
        """All brokers stop, and come back with their disks."""
        for member in self.members:
            self.stop(member)
        for member in self.members:
            self.start(member)

    # ------------------------------------------------------------- judgement

    def order(self, member: NodeId) -> list[bytes]:
        """The contents that a broker has in order, without their labels."""
        held = self.logs[member].ledger
        found = []
        for position in range(held.base, held.next):
            run = held.read(position, 1, 1 << 30)
            if run is not None:
                body = run.bodies[0]
                found.append(body[2 + int.from_bytes(body[:2], "big") :])
        return found

    def vouched(self, member: NodeId) -> list[tuple[int, bytes]]:
        """Every position that a broker ever vouched for, with its digest."""
        return [
            (effect.first + offset, digest)
            for node, effect in self.seen
            if node == member and isinstance(effect, Vouch)
            for offset, digest in enumerate(split_digests(effect.digests))
        ]

    def suspected(self) -> set[NodeId]:
        return {effect.node for _, effect in self.seen if isinstance(effect, Suspect)}


def said(hall: Hall, kind: type, by: NodeId | None = None) -> list[object]:
    """Every message of a kind that was ever sent."""
    return [
        effect.message
        for node, effect in hall.seen
        if by in (None, node) and isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def publish(hall: Hall, first: int, count: int, *, each_ms: int = 60) -> list[bytes]:
    """Alice offers single publications, one after the other."""
    contents = [b"a%d" % number for number in range(first, first + count)]
    for number, body in enumerate(contents, first):
        hall.offer(number, body)
        hall.run(each_ms)
    return contents


def agree(hall: Hall, *members: NodeId) -> list[bytes]:
    """The order that all of these brokers have."""
    orders = [hall.order(member) for member in members]
    assert all(order == orders[0] for order in orders)
    assert len({hall.sequencer(member).standing().decided for member in members}) == 1
    return orders[0]
