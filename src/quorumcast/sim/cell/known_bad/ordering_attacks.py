"""Attacks on total order that aim at one mistake each; see `order_variants`.

As in `attacks`, each acts with the keys of its own node only.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import Contents
from quorumcast.cell.messages import Vote
from quorumcast.core.ids import BIRTH, Millis, total_order
from quorumcast.core.labels import label
from quorumcast.core.machine import Effect, Persist, Send
from quorumcast.core.statements import Claim, canonical, parse_stop
from quorumcast.faults.cell.base import Tampering
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.ordering import FAR, EquivocatingLeader, Proposing, false_word
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


def proper(batch: Batch) -> Batch:
    """What publishers offered, of a batch that may begin with the birth of the log."""
    return tuple(item for item in batch if item.stream != BIRTH)


def lives_in(batch: Batch) -> Batch:
    """The birth of the log, of a batch that may begin with it."""
    return tuple(item for item in batch if item.stream == BIRTH)


class Undo(Tampering):
    """Denies towards its victims what was done in the first instance, and leads to another end.

    When it shows its words as the new leader it has one of its own among them that says nothing,
    and it proposes to its victims, and votes for, the batch that its machine has in mind next. What
    it accepts it tells the last of its victims among the brokers alone.
    """

    __slots__ = ("_confidant", "_told")

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
                    result += self._lead(proposal, (self._lives(), *proper(proposal.batch)))
        return result

    def _lives(self) -> Item:
        """What every batch begins with, until the log has begun."""
        lives = [life_of(broker) for broker in self.context.manifest.broker_ids]
        return Item(BIRTH, self.context.manifest.epoch, b"".join(lives))

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
        for item in proper(batch):
            order = total_order(item.stream.channel)
            lies.append(Later(Send(readers, Vote(order, position, item.digests)), 60))
            position += 1
        return lies

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message, context = send.message, self.context
        hidden = [peer for peer in send.to if peer in context.victims]
        match message:
            case Sync():
                words = tuple(false_word(w, "nothing", context) for w in message.statements)
                return [Send(tuple(hidden), replace(message, statements=words))] if hidden else []
            case StopData():
                word = false_word(message.statement, "nothing", context)
                return [replace(send, message=replace(message, statement=word))]
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
    """Hands out a state in which everything lies further on than it does, with digests to match.

    Where `victims` say "chunks" the digests are the true ones, and only the chunks are false. It
    reads its own true states off its disk, so its log must be durable.
    """

    __slots__ = ("_images",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._images: dict[int, bytes] = {}

    def tamper(self, effects: list[Effect], now: Millis) -> list[Effect | Later]:
        for effect in effects:
            if isinstance(effect, Persist) and isinstance(effect.record, Snapshot):
                self._images[effect.record.instance] = self._falsified(effect.record.image)
        return super().tamper(effects, now)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
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
        state = State(lambda channel: FAR)
        state.load(image)
        state.heads = {channel: Head(head.next + 8) for channel, head in state.heads.items()}
        return state.image()


class SplitFirst(EquivocatingLeader):
    """Proposes two batches in the first instance only."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if isinstance(message, Propose) and message.instance > 1:
            return [send]
        return super().rewrite(send, now)


class Invent(Undo):
    """Never leads, and tells the next leader that it accepted a batch of nothing only just now."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if isinstance(message, Sync | Propose):
            return []
        word = parse_stop(message.statement.payload) if isinstance(message, StopData) else None
        if word is None or not isinstance(message, StopData) or word.regency < 2:
            return super().rewrite(send, now)
        nothing, regency = value_of(self.context.manifest.hash, ()), word.regency - 1
        claim = Claim(1, regency, nothing, ((nothing, regency),))
        lie = replace(word, decided=0, stable=0, blind=0, claims=(claim,))
        signed = self.context.keyring.identity.sign(canonical(lie))
        return [
            Send(send.to, replace(message, statement=signed)),
            Later(Send(send.to, Fetched(message.log, ())), 50),
        ]


class ProposeAgain(Proposing):
    """A leader that, after a while, proposes once more what was ordered long ago."""

    __slots__ = ("_first",)
    #: The moment, in milliseconds of the world.
    WHEN = 1750

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._first: list[Item] = []

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Propose):
            self._first = self._first or list(proper(send.message.batch)[:1])
            if now < self.WHEN:
                return [send]
        return super().rewrite(send, now)

    def other(self, batch: Batch) -> Batch:
        return (*lives_in(batch), *self._first, *proper(batch))


class ForgeOffer(Tampering):
    """A leader that orders what a publisher never offered, signed by nobody."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Propose) or not proper(message.batch):
            return [send]
        last = proper(message.batch)[0]
        body = label(last.stream, last.first) + b"forged"
        digests = self.context.manifest.hash(body)
        forged = (*lives_in(message.batch), Item(last.stream, last.first, digests))
        value = value_of(self.context.manifest.hash, forged)
        offer = Offer(last.stream, last.first, digests, bytes(64))
        log, regency, instance = message.log, message.regency, message.instance
        return [
            Send(send.to, offer, (body,)),
            Send(send.to, replace(message, batch=forged)),
            Send(send.to, Write(log, regency, instance, value)),
            Send(send.to, Accept(log, regency, instance, value)),
        ]
