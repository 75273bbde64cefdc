"""Aimed attacks: faults that only the simulator commits, by name, so that plans can be stored.

Unlike those of the catalogue (`faults.cell.catalogue`), each aims at one moment of one protocol: a
restart, a leader change, an `Open`. Each acts with the keys of its own node only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import Cursor, Open, Publish, Pull
from quorumcast.cell.messages import Accusation, Attest, Missed, Regain, Subscribe, Survey
from quorumcast.core.ids import Lane, Millis, NodeId, Stream, total_order
from quorumcast.core.machine import Effect, Send
from quorumcast.core.message import Message
from quorumcast.core.statements import (
    Basis,
    Evidence,
    EvidenceKind,
    SegmentStatement,
    Signed,
    canonical,
)
from quorumcast.faults.cell.base import Tampering
from quorumcast.faults.cell.catalogue import ALL, CRASH_LIVE, FIFO, TOTAL
from quorumcast.faults.cell.clients import EquivocatingPublisher
from quorumcast.faults.cell.entry import CatalogueEntry, FaultContext, Footprint, Role
from quorumcast.faults.contract import Later
from quorumcast.manifest.manifest import Manifest
from quorumcast.ordering.messages import (
    Accept,
    ChunkQuery,
    Fetch,
    LogQuery,
    PastQuery,
    Propose,
    Standing,
    Stop,
    StopData,
    Sync,
    Write,
)
from quorumcast.sim.cell.mangling import Mangle

#: Number of runs that `Retell` remembers.
REMEMBERED = 64
#: The name of the fault `Mangle`, by role.
MANGLE = {
    Role.BROKER: "mangle",
    Role.PUBLISHER: "mangling-publisher",
    Role.SUBSCRIBER: "mangling-subscriber",
}


class Retell(EquivocatingPublisher):
    """Sends other contents, from the first number on, to brokers that reconnect.

    Such a broker was cut off or has restarted. If it has forgotten what it vouched for, it believes
    the other contents.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._misled: list[NodeId] = []
        self._introduced: dict[tuple[NodeId, Stream], None] = {}
        self._runs: deque[Send] = deque(maxlen=REMEMBERED)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if isinstance(message, Publish) and send not in self._runs:
            self._runs.append(send)
        if not isinstance(message, Open):
            return super().rewrite(send, now)
        told: list[Effect | Later] = []
        for peer in send.to:
            if (peer, message.stream) not in self._introduced:
                self._introduced[peer, message.stream] = None
                told.append(replace(send, to=(peer,)))
                continue
            if peer not in self._misled:
                self._misled.append(peer)
            told.append(Send((peer,), Open(message.stream, 1, 1)))
            for run in self._runs:
                if isinstance(run.message, Publish) and run.message.stream == message.stream:
                    told += super().rewrite(replace(run, to=(peer,)), now)
        return told


class OpenAhead(Tampering):
    """Opens its stream far ahead, to some brokers or to all, and continues there.

    A broker that follows and drops what it holds fails subscribers that were cut off.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        rng = context.rng
        self._from = rng.randrange(2, 60)
        self._ahead = rng.choice((1, 8, 40, 1000))
        self._misled = context.broker_victims(rng.randrange(1, len(context.manifest.brokers) + 1))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        to = tuple(peer for peer in send.to if peer in self._misled)
        if not to or not isinstance(message, Publish) or message.stream.lane is Lane.HISTORY:
            return [send]
        if message.first < self._from:
            return [send]
        first = message.first + self._ahead
        shifted = replace(message, first=first)
        return [
            *self.without(send, self._misled),
            Send(to, Open(message.stream, first, first)),
            Send(to, shifted, send.bodies),
        ]


class ShowToSome(Tampering):
    """Sends its proposals and votes to some brokers only."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        others = context.brokers()
        self._shown = context.broker_victims(context.rng.randrange(1, len(others)))

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not isinstance(send.message, Propose | Write | Accept):
            return [send]
        return self.without(send, [peer for peer in send.to if peer not in self._shown])


class LateMessages(Tampering):
    """Delays the messages of a leader change."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._delay_ms = context.rng.randrange(100, 1200)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Stop | StopData | Sync | Standing) and self.context.hits():
            return [Later(send, self._delay_ms)]
        return [send]


class Trespass(Tampering):
    """Asks for everything on every channel, in every way that a message allows, and slanders."""

    __slots__ = ("_number",)
    #: Limit of requests: otherwise each answer would cause another.
    MOST = 40

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._number = 0

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if self._number >= self.MOST or not self.context.hits():
            return [send]
        self._number += 1
        rng, manifest = self.context.rng, self.context.manifest
        channel = rng.choice(manifest.channels)
        publisher = rng.choice(manifest.clients).id
        stream = Stream(
            channel.name, publisher, 1, rng.choice((Lane.DATA, Lane.DATA, Lane.HISTORY))
        )
        if channel.policy.total:
            stream = rng.choice((stream, total_order(channel.name), total_order(channel.name)))
        first, log = rng.randrange(1, 20), channel.policy.protection
        requests: list[Message] = [
            Subscribe(channel.name, (Cursor(stream, 1),), bodies=True),
            Subscribe(channel.name, (), bodies=True),
            Subscribe(rng.choice(manifest.channels).name, (Cursor(stream, 1),), bodies=True),
            Pull(stream, first, 8),
            Attest(stream, first),
            Missed(stream, first, 4),
            Survey(channel.name),
            Regain(stream, first, 8, bodies=True),
            Fetch(log, (), (Cursor(stream, first),)),
            LogQuery(log, 1, stuck=True),
            ChunkQuery(log, 6, 0),
            PastQuery(log, channel.name, first),
            Accusation(_slander(manifest, stream)),
        ]
        return [send, *(Send(manifest.broker_ids, request) for request in requests)]


def _slander(manifest: Manifest, stream: Stream) -> Evidence:
    """Two contradictory statements of a broker, which it has not signed."""
    accused = manifest.broker_ids[0]
    said = SegmentStatement(
        cell=manifest.cell,
        epoch=manifest.epoch,
        broker=accused,
        stream=stream,
        first=1,
        count=1,
        root=b"a",
        basis=Basis.SETTLED,
        life=b"life",
    )
    against = tuple(
        Signed(accused, canonical(replace(said, root=root)), bytes(64)) for root in (b"a", b"b")
    )
    return Evidence(kind=EvidenceKind.CONFLICT, accused=accused, against=against)


def _aimed(
    name: str,
    role: Role,
    fault: type[Tampering],
    description: str,
    only_under: tuple[str, ...] = (),
    *,
    benign: bool = False,
) -> CatalogueEntry:
    valid_under = CRASH_LIVE if role is Role.BROKER else ALL
    return CatalogueEntry(
        name, role, fault, Footprint.NOTHING, description, (), valid_under, benign, only_under
    )


_ENTRIES = (
    _aimed("retell", Role.PUBLISHER, Retell,
           "tells brokers that were away another story, from the first number on", FIFO),
    _aimed("open-ahead", Role.PUBLISHER, OpenAhead,
           "opens its stream far ahead, and goes on there", FIFO),
    _aimed("show-to-some", Role.BROKER, ShowToSome,
           "shows proposals and votes to some brokers only", TOTAL, benign=True),
    _aimed("late-words", Role.BROKER, LateMessages,
           "says late what a leader change needs", TOTAL, benign=True),
    _aimed("trespass", Role.SUBSCRIBER, Trespass,
           "asks for everything on every channel, with or without the right"),
    *(_aimed(name, role, Mangle,
             "repeats what it says and hears with one thing altered, in its own name")
      for role, name in MANGLE.items()),
)  # fmt: skip

#: Every aimed attack by its name.
AIMED: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
