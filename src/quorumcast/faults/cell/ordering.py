"""Faults in total order: leaders, voters and keepers of state that lie or hold back.

A liar's inner machine stays honest, so a lie about a batch must be kept up: whoever proposes
another batch than its machine did votes for that other batch as well (`Proposing`). Most of what is
said here is only MACed and leaves suspicion at best; the words of a leader change are signed by
each broker for itself, so a liar can change its own and nobody else's.

FIT-Broker §5.2.3 tries a replica that does not perform operations, misorders and misinforms
(`LieInOrdering`), §5.3 one that orders well and lies to subscribers (`LieToSubscribers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import Ack, Contents
from quorumcast.cell.messages import Checkpoint, Position, Positions, Vote
from quorumcast.core.ids import BIRTH, DIGEST_SIZE, Digest, Millis, NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.core.statements import Claim, Signed, StopStatement, canonical, parse_stop
from quorumcast.faults.cell.base import Tampering, other_body, other_digest, with_other_digests
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.statements import lying_checkpoint
from quorumcast.faults.contract import Later
from quorumcast.ordering.consensus import value_of
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
    Stop,
    StopData,
    Sync,
    Write,
)

#: Lies about batches that a liar keeps up; older ones are long decided.
KEPT_UP = 256
#: Absurdly far ahead.
FAR = 10**6


class SilentLeader(Tampering):
    """Does everything but propose."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [] if isinstance(send.message, Propose) and self.context.hits() else [send]


class SlowLeader(Tampering):
    """Proposes late, though never so late that it is certain to be replaced."""

    __slots__ = ("_delay_ms",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._delay_ms = context.rng.randrange(50, 550)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if isinstance(send.message, Propose) and self.context.hits():
            return [Later(send, self._delay_ms)]
        return [send]


class Proposing(Tampering):
    """Proposes another batch than its machine did, and votes for it: to its victims, or to all."""

    __slots__ = ("_kept", "_misled", "_told")

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._misled = self.choose_victims()
        #: The other value for each value that was lied about, and their order.
        self._told: dict[bytes, bytes] = {}
        self._kept: deque[bytes] = deque()

    def choose_victims(self) -> list[NodeId]:
        """Whom it tells the other batch; everybody, unless a fault says otherwise."""
        return self.context.brokers()

    def other(self, batch: Batch) -> Batch:
        """The batch that it proposes instead."""
        raise NotImplementedError

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        misled = tuple(peer for peer in send.to if peer in self._misled)
        lie: Propose | Write | Accept
        match message:
            case Propose() if misled and self.context.hits():
                batch = self.other(message.batch)
                if batch == message.batch:
                    return [send]
                self._keep_up(message.batch, batch)
                lie = replace(message, batch=batch)
            case Write() | Accept() if misled and message.value in self._told:
                lie = replace(message, value=self._told[message.value])
            case _:
                return [send]
        return [*self.without(send, self._misled), Send(misled, lie)]

    def _keep_up(self, batch: Batch, lie: Batch) -> None:
        hash_ = self.context.manifest.hash
        value = value_of(hash_, batch)
        if value not in self._told:
            self._kept.append(value)
        self._told[value] = value_of(hash_, lie)
        if len(self._kept) > KEPT_UP:
            self._told.pop(self._kept.popleft(), None)


class EquivocatingLeader(Proposing):
    """Half of the brokers are to decide one batch, the others another."""

    __slots__ = ()

    def choose_victims(self) -> list[NodeId]:
        return self.context.broker_victims((len(self.context.brokers()) + 1) // 2)

    def other(self, batch: Batch) -> Batch:
        return batch[:-1]


class UnfairLeader(Proposing):
    """Leaves one publisher's runs out of all its batches."""

    __slots__ = ("_ignored",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        clients = [client.id for client in context.manifest.clients]
        self._ignored = [client for client in clients if client in context.victims]

    def choose_victims(self) -> list[NodeId]:
        return self.context.brokers()

    def other(self, batch: Batch) -> Batch:
        offered = [item for item in batch if item.stream != BIRTH]
        if not self._ignored and offered:
            self._ignored = [offered[0].stream.publisher]
        return tuple(item for item in batch if item.stream.publisher not in self._ignored)


class UnfetchableLeader(Proposing):
    """Proposes runs that it alone could produce, and does not."""

    __slots__ = ()

    def other(self, batch: Batch) -> Batch:
        if not batch:
            return batch
        last = batch[-1]
        beyond = last.first + len(last.digests) // DIGEST_SIZE
        return (*batch[:-1], last, Item(last.stream, beyond, other_digest(last.digests)))


class WithholdOffers(Tampering):
    """Takes part in everything and never gives an offer, a batch, a log or a state to a broker."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        held_back = isinstance(send.message, Offer | Fetched | LogPart | StateHead | Chunk)
        return [] if held_back and self.context.hits() else [send]


class DoubleVote(Tampering):
    """Writes and accepts one value towards some brokers and another towards the rest."""

    __slots__ = ("_misled", "_values")

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        count = context.rng.randrange(1, len(context.brokers()) + 1)
        self._misled = context.broker_victims(count)
        #: Values that it has voted for, to be voted for elsewhere.
        self._values: deque[bytes] = deque(maxlen=8)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        misled = tuple(peer for peer in send.to if peer in self._misled)
        if not isinstance(message, Write | Accept) or not misled or not self.context.hits():
            return [send]
        others = [value for value in self._values if value != message.value]
        self._values.append(message.value)
        invented = other_digest(message.value)
        value = self.context.rng.choice([invented, *others])
        return [
            *self.without(send, self._misled),
            Send(misled, replace(message, value=value)),
            # A voter that is late with its own word hears both.
            Later(Send(misled, message), 30),
        ]


# ------------------------------------------------------------- leader changes


def _invented(word: StopStatement) -> StopStatement:
    regency = word.regency - 1
    value = bytes(other_digest(b"invented"))
    claims = tuple(
        Claim(word.decided + ahead, regency, value, ((value, regency),)) for ahead in (1, 2, 3)
    )
    return replace(word, claims=claims)


def _newer(word: StopStatement) -> StopStatement:
    """Whatever it once wrote it now accepted, and only just."""
    regency = word.regency - 1
    claims = tuple(
        replace(claim, regency=regency, value=claim.written[0][0], written=())
        if claim.written
        else claim
        for claim in word.claims
    )
    return replace(word, claims=claims)


#: What a broker may say of itself on the way into a regency, by the name that `victims` uses.
FALSE_WORDS: dict[str, Callable[[StopStatement], StopStatement]] = {
    "nothing": lambda word: replace(word, decided=0, stable=0, blind=0, claims=()),
    "invention": _invented,
    "newer": _newer,
    "blind": lambda word: replace(word, blind=word.decided + FAR),
    "far": lambda word: replace(word, decided=FAR, stable=FAR, claims=()),
}


def false_word(signed: Signed, how: str, context: FaultContext) -> Signed:
    """Our own word, signed again with something else in it."""
    word = parse_stop(signed.payload)
    if word is None or word.broker != context.node:
        return signed
    lie = FALSE_WORDS[how](word)
    return context.keyring.identity.sign(canonical(lie))


class FalseStopData(Tampering):
    """Says on the way into a regency what is not so: less, more, or something newer."""

    __slots__ = ("_how",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        named = [how for how in FALSE_WORDS if how in context.victims]
        self._how = named or [context.rng.choice(list(FALSE_WORDS))]

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, StopData) or not self.context.hits():
            return [send]
        how = self.context.rng.choice(self._how)
        lie = false_word(message.statement, how, self.context)
        return [replace(send, message=replace(message, statement=lie))]


class FalseSync(Tampering):
    """Leads a regency on words that are too few, doubled, altered, or false where they are its own.

    Different brokers are shown different lies.
    """

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Sync) or not self.context.hits():
            return [send]
        return [Send((peer,), self._lie(message)) for peer in send.to]

    def _lie(self, message: Sync) -> Sync:
        rng, words = self.context.rng, list(message.statements)
        match rng.choice(("fewer", "doubled", "altered", "own", "own")):
            case "fewer":
                del words[rng.randrange(len(words))]
            case "doubled":
                words[0] = words[-1]
            case "altered":
                at = rng.randrange(len(words))
                word = parse_stop(words[at].payload)
                if word is not None:
                    words[at] = replace(words[at], payload=canonical(replace(word, claims=())))
            case _:
                how = rng.choice(list(FALSE_WORDS))
                words = [false_word(signed, how, self.context) for signed in words]
        return replace(message, statements=tuple(words))


class Impatient(Tampering):
    """Asks for another leader all the time."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not isinstance(send.message, Standing | Write | Accept):
            return [send]
        regency = send.message.regency
        wanted = self.context.rng.choice((regency + 1, regency + 2, regency + FAR))
        return [send, Send(send.to, Stop(send.message.log, wanted))]


# ----------------------------------------------------------- state and standing


class FalseState(Tampering):
    """Gives whoever is late another log, another state or other chunks of it."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not self.context.hits():
            return [send]
        match message:
            case StateHead():
                chunks = tuple(other_digest(chunk) for chunk in message.chunks)
                ahead = self.context.rng.choice((0, 0, 6, FAR))
                lie = replace(message, checkpoint=message.checkpoint + ahead, chunks=chunks)
                return [replace(send, message=lie)]
            case Chunk():
                return [replace(send, bodies=tuple(other_body(body) for body in send.bodies))]
            case LogPart():
                batches = self.context.rng.choice(
                    (
                        tuple(reversed(message.batches)),
                        tuple(batch[:-1] for batch in message.batches),
                        message.batches[1:],
                    )
                )
                return [replace(send, message=replace(message, batches=batches))]
            case Fetched():
                return [replace(send, message=replace(message, batch=message.batch[:-1]))]
            case _:
                return [send]


def _other_root(standing: Standing) -> Standing:
    return replace(standing, root=other_digest(standing.root)) if standing.root else standing


#: What a broker may say of how far it is, by the name that `victims` uses.
FALSE_STANDINGS: dict[str, Callable[[Standing], Standing]] = {
    "ahead": lambda s: replace(s, decided=s.decided + FAR, heard=s.heard + FAR),
    "behind": lambda s: replace(s, decided=0, heard=0, checkpoint=0, root=b""),
    "root": _other_root,
    "regency": lambda s: replace(s, regency=s.regency + FAR),
    "fresh": lambda s: replace(s, fresh=True),
    "unsynced": lambda s: replace(s, synced=False),
}


class FalseStanding(Tampering):
    """Says that it is elsewhere: far ahead, far behind, at another checkpoint, just awake."""

    __slots__ = ("_how",)

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        named = [how for how in FALSE_STANDINGS if how in context.victims]
        self._how = named or [context.rng.choice(list(FALSE_STANDINGS))]

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not isinstance(send.message, Standing) or not self.context.hits():
            return [send]
        lie = FALSE_STANDINGS[self.context.rng.choice(self._how)](send.message)
        return [replace(send, message=lie)]


# ------------------------------------------------------------------ FIT-Broker


class LieToSubscribers(Tampering):
    """Orders like everybody else; votes, contents, positions and statements are false (§5.3)."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not self.context.hits():
            return [send]
        match message:
            case Vote() | Contents():
                shifted = self.context.rng.randrange(4) == 0
                lie = replace(message, first=message.first + 1) if shifted else message
                return [Send(send.to, with_other_digests(lie), send.bodies)]
            case Positions():
                positions = tuple(
                    Position(p.stream, base=p.base, next=p.next + FAR) for p in message.positions
                )
                return [replace(send, message=replace(message, positions=positions))]
            case Checkpoint():
                return [replace(send, message=lying_checkpoint(message, self.context))]
            case _:
                return [send]


class LieInOrdering(LieToSubscribers):
    """Performs nothing, misorders, misinforms brokers and subscribers (§5.2.3)."""

    __slots__ = ()

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        match message:
            case Ack() | Offer() | Fetched():
                return []
            case Propose():
                batch = tuple(reversed(message.batch))
                return [replace(send, message=replace(message, batch=batch))]
            case Write() | Accept():
                value = bytes(Digest(other_digest(message.value)))
                return [replace(send, message=replace(message, value=value))]
            case _:
                return super().rewrite(send, now)
