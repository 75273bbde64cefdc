"""Attacks on total order, each of which only code with one mistake falls for (see `ordering`).

As in `attacks`, each acts with the keys of its own node only.
"""

from __future__ import annotations

from msgspec.structs import replace

from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import GENESIS, Millis, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Persist, Send
from quorumcast.core.statements import Claim, canonical, parse_stop
from quorumcast.faults.cell.base import Tampering
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.ordering import EquivocatingLeader, Proposing, false_statement
from quorumcast.faults.contract import Later
from quorumcast.ordering.consensus import value_of
from quorumcast.ordering.execution import Snapshot
from quorumcast.ordering.messages import (
    Accept,
    Batch,
    Chunk,
    Fetched,
    Item,
    LogPart,
    Offer,
    Propose,
    Standing,
    StateHead,
    StopData,
    Sync,
    Write,
)
from quorumcast.ordering.state import Head, State, cut, digest_of
from quorumcast.sim.cell.cells import life_of
from quorumcast.sim.cell.known_bad.plans import Rewritten

#: Time from which `ProposeAgain` lies, in milliseconds of virtual time.
PROPOSE_AGAIN_AT = 1750


def offered(batch: Batch) -> Batch:
    """The items of a batch that publishers offered."""
    return tuple(item for item in batch if item.stream != GENESIS)


def log_start(batch: Batch) -> Batch:
    """The item that starts the log, with the lives of its brokers, if the batch has it."""
    return tuple(item for item in batch if item.stream == GENESIS)


class UndoFirst(Tampering):
    """Denies towards its victims what the first instance decided, and leads to another decision.

    As the new leader it shows its victims stop statements of which its own claims nothing. It
    proposes to them, and votes for, its machine's next batch as that of the first instance. Only
    the last broker among its victims gets its ACCEPT.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        brokers = [broker for broker in context.brokers() if broker in context.victims]
        self._confidant = tuple(brokers[-1:])
        self._told = False

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        result = super().tamper(effects, now)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Propose):
                proposal = effect.message
                if proposal.regency == 1 and proposal.instance == 2 and not self._told:
                    self._told = True
                    result += self._lead(proposal, (self._start(), *offered(proposal.batch)))
        return result

    def _start(self) -> Item:
        """The item that starts the log."""
        lives = [life_of(broker) for broker in self.context.manifest.broker_ids]
        return Item(GENESIS, self.context.manifest.epoch, b"".join(lives))

    def _lead(self, proposal: Propose, batch: Batch) -> list[Effect | Later]:
        log, regency = proposal.log, proposal.regency
        value = value_of(self.context.manifest.hash, batch)
        victims = tuple(b for b in self.context.brokers() if b in self.context.victims)
        readers = tuple(c.id for c in self.context.manifest.clients if c.id in self.context.victims)
        lies: list[Effect | Later] = [
            Send(victims, Propose(log, regency, 1, batch)),
            Send(victims, Write(log, regency, 1, value)),
            Send(self._confidant, Accept(log, regency, 1, value)),
        ]
        position = 1
        for item in offered(batch):
            order = total_order(item.stream.channel)
            lies.append(Later(Send(readers, Vote(order, position, item.digests)), 60))
            position += 1
        return lies

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        message, context = send.message, self.context
        hidden = [peer for peer in send.to if peer in context.victims]
        match message:
            case Sync():
                false = tuple(false_statement(w, "nothing", context) for w in message.statements)
                return [Send(tuple(hidden), replace(message, statements=false))] if hidden else []
            case StopData():
                statement = false_statement(message.statement, "nothing", context)
                return [replace(send, message=replace(message, statement=statement))]
            case Accept(regency=0, instance=1):
                return self.without(send, hidden)
            case Propose(instance=1) | Write(instance=1) | Accept(instance=1):
                return self.without(send, hidden) if message.regency < 2 else [send]
            case Vote() | Contents() | LogPart() | Fetched():
                return self.without(send, hidden)
            case Standing(regency=regency) if regency < 2:
                lie = replace(message, decided=0, heard=0, checkpoint=0, root=b"")
                return [replace(send, message=lie)]
            case _:
                return [send]


class FalseTransfer(Tampering):
    """Transfers a state in which every position is too high, with matching digests.

    If `victims` has "chunks", the digests are true and only the chunks are false. It takes its own
    true states from its snapshots, so its log must be durable.
    """

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._images: dict[int, bytes] = {}

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        for effect in effects:
            if isinstance(effect, Persist) and isinstance(effect.record, Snapshot):
                self._images[effect.record.instance] = self._falsified(effect.record.image)
        return super().tamper(effects, now)

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        message = send.message
        match message:
            case StateHead(checkpoint=checkpoint) if checkpoint in self._images:
                image = self._images[checkpoint]
                digests = tuple(map(digest_of, cut(image)))
                if "chunks" in self.context.victims:
                    digests = message.chunks
                pushed = Send(send.to, Chunk(message.log, checkpoint, 0), (image,))
                lie = replace(message, chunks=digests)
                return [Send(send.to, lie), *(Later(pushed, delay) for delay in (1, 4, 8))]
            case Chunk():
                return []
            case _:
                return [send]

    def _falsified(self, image: bytes) -> bytes:
        state = State()
        state.load(image)
        state.heads = {channel: Head(head.next + 8) for channel, head in state.heads.items()}
        return state.image()


class SplitFirst(EquivocatingLeader):
    """Equivocates in the first instance only."""

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        message = send.message
        if isinstance(message, Propose) and message.instance > 1:
            return [send]
        return super().rewrite(send, now)


class InventAccepted(UndoFirst):
    """Never leads, and claims to the next leader that it just accepted an empty batch."""

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        message = send.message
        if isinstance(message, Sync | Propose):
            return []
        stop = parse_stop(message.statement.payload) if isinstance(message, StopData) else None
        if stop is None or not isinstance(message, StopData) or stop.regency < 2:
            return super().rewrite(send, now)
        nothing, regency = value_of(self.context.manifest.hash, ()), stop.regency - 1
        claim = Claim(1, regency, nothing, ((nothing, regency),))
        lie = replace(stop, decided=0, stable=0, blind=0, claims=(claim,))
        signed = self.context.keyring.identity.sign(canonical(lie))
        return [
            Send(send.to, replace(message, statement=signed)),
            Later(Send(send.to, Fetched(message.log, ())), 50),
        ]


class ProposeAgain(Proposing):
    """A leader that, after a while, proposes again what was ordered long ago."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._first: list[Item] = []

    def rewrite(self, send: Send, now: Millis) -> Rewritten:
        if isinstance(send.message, Propose):
            self._first = self._first or list(offered(send.message.batch)[:1])
            if now < PROPOSE_AGAIN_AT:
                return [send]
        return super().rewrite(send, now)

    def other(self, batch: Batch) -> Batch:
        return (*log_start(batch), *self._first, *offered(batch))


def forge_offer(fault: Tampering, send: Send, now: Millis) -> Rewritten:
    """A leader that orders what a publisher never offered, signed by nobody."""
    message = send.message
    if not isinstance(message, Propose) or not offered(message.batch):
        return [send]
    first = offered(message.batch)[0]
    body = label(first.stream, first.first) + b"forged"
    digests = fault.context.manifest.hash(body)
    forged = (*log_start(message.batch), Item(first.stream, first.first, digests))
    value = value_of(fault.context.manifest.hash, forged)
    log, regency, instance = message.log, message.regency, message.instance
    return [
        Send(send.to, Offer(first.stream, first.first, digests, bytes(64)), (body,)),
        Send(send.to, replace(message, batch=forged)),
        Send(send.to, Write(log, regency, instance, value)),
        Send(send.to, Accept(log, regency, instance, value)),
    ]
