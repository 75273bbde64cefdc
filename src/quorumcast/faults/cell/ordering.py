"""Faults in total order: brokers that lie or withhold as leaders, voters or sources of state.

The machine of a faulty broker stays honest, so a lie about a batch must be kept up: a broker that
proposes another batch than its machine did also votes for that other batch (`Proposing`). Most
messages here only have MACs and leave suspicion at best. Statements of a leader change are signed,
so a liar can change only its own.

`LieInOrdering` is the replica of FIT-Broker §5.2.3, `LieToSubscribers` the one of §5.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from quorumcast.broadcast.messages import Ack, Contents, Matches
from quorumcast.cell.messages import Checkpoint, Position, Positions, Vote
from quorumcast.core.ids import DIGEST_SIZE, GENESIS, Digest, Millis, NodeId
from quorumcast.core.machine import Effect, Send
from quorumcast.core.statements import Claim, Signed, StopStatement, canonical, parse_stop
from quorumcast.faults.cell.base import (
    Misleading,
    Tampering,
    other_body,
    other_digest,
    with_other_digests,
    with_other_results,
)
from quorumcast.faults.cell.entry import FaultContext
from quorumcast.faults.cell.omission import Slow
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
    Past,
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

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return [] if isinstance(send.message, Propose) and self.context.hits() else [send]


class SlowLeader(Slow):
    """Proposes late, though never so late that it is certain to be replaced."""

    DELAYS_MS = (50, 550)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        return super().rewrite(send, now) if isinstance(send.message, Propose) else [send]


class Proposing(Misleading):
    """Proposes another batch than its machine did, and votes for it: to its victims, or to all."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        #: The other value for each value that was lied about, oldest first; at most KEPT_UP.
        self._told: dict[bytes, bytes] = {}

    def choose_victims(self) -> Sequence[NodeId]:
        """The brokers that get the other batch; all of them, unless a fault says otherwise."""
        return self.context.brokers()

    def other(self, batch: Batch) -> Batch:
        """The batch that it proposes instead."""
        raise NotImplementedError

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        match send.message:
            case Propose() as message if self.context.hits():
                batch = self.other(message.batch)
                if batch == message.batch:
                    return None
                self._keep_up(message.batch, batch)
                return [Send(send.to, replace(message, batch=batch))]
            case Write() | Accept() as vote if vote.value in self._told:
                return [Send(send.to, replace(vote, value=self._told[vote.value]))]
            case _:
                return None

    def _keep_up(self, batch: Batch, lie: Batch) -> None:
        hash_ = self.context.manifest.hash
        self._told[value_of(hash_, batch)] = value_of(hash_, lie)
        if len(self._told) > KEPT_UP:
            del self._told[next(iter(self._told))]


class EquivocatingLeader(Proposing):
    """Half of the brokers are to decide one batch, the others another."""

    def choose_victims(self) -> Sequence[NodeId]:
        return self.context.broker_victims((len(self.context.brokers()) + 1) // 2)

    def other(self, batch: Batch) -> Batch:
        return batch[:-1]


class UnfairLeader(Proposing):
    """Leaves one publisher's runs out of all its batches."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        clients = [client.id for client in context.manifest.clients]
        self._ignored = [client for client in clients if client in context.victims]

    def other(self, batch: Batch) -> Batch:
        offered = [item for item in batch if item.stream != GENESIS]
        if not self._ignored and offered:
            self._ignored = [offered[0].stream.publisher]
        return tuple(item for item in batch if item.stream.publisher not in self._ignored)


class UnfetchableLeader(Proposing):
    """Proposes runs that it alone could produce, and does not."""

    def other(self, batch: Batch) -> Batch:
        if not batch:
            return batch
        last = batch[-1]
        beyond = last.first + len(last.digests) // DIGEST_SIZE
        return (*batch[:-1], last, Item(last.stream, beyond, other_digest(last.digests)))


class WithholdOffers(Tampering):
    """Takes part in everything and never gives an offer, a batch, a log or a state to a broker."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        held_back = isinstance(send.message, Offer | Fetched | LogPart | StateHead | Chunk | Past)
        return [] if held_back and self.context.hits() else [send]


class DoubleVote(Misleading):
    """Writes and accepts one value towards some brokers and another towards the rest."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        #: Values that it has voted for, to be voted for elsewhere.
        self._values: deque[bytes] = deque(maxlen=8)

    def choose_victims(self) -> Sequence[NodeId]:
        count = self.context.rng.randrange(1, len(self.context.brokers()) + 1)
        return self.context.broker_victims(count)

    def lie(self, send: Send) -> Sequence[Effect | Later] | None:
        message = send.message
        if not isinstance(message, Write | Accept) or not self.context.hits():
            return None
        others = [value for value in self._values if value != message.value]
        self._values.append(message.value)
        value = self.context.rng.choice([other_digest(message.value), *others])
        # Its victims get the true vote too, a little late.
        truth = Later(Send(send.to, message), 30)
        return [Send(send.to, replace(message, value=value)), truth]


# ------------------------------------------------------------- leader changes


def _invented(statement: StopStatement) -> StopStatement:
    regency = statement.regency - 1
    value = bytes(other_digest(b"invented"))
    claims = tuple(
        Claim(statement.decided + ahead, regency, value, ((value, regency),)) for ahead in (1, 2, 3)
    )
    return replace(statement, claims=claims)


def _newer(statement: StopStatement) -> StopStatement:
    """Claims to have accepted, in the last regency, everything that it ever wrote."""
    regency = statement.regency - 1
    claims = tuple(
        replace(claim, regency=regency, value=claim.written[0][0], written=())
        if claim.written
        else claim
        for claim in statement.claims
    )
    return replace(statement, claims=claims)


#: Lies in a broker's own statement at a leader change, by the name that `victims` uses.
FALSE_STATEMENTS: dict[str, Callable[[StopStatement], StopStatement]] = {
    "nothing": lambda statement: replace(statement, decided=0, stable=0, blind=0, claims=()),
    "invention": _invented,
    "newer": _newer,
    "blind": lambda statement: replace(statement, blind=statement.decided + FAR),
    "far": lambda statement: replace(statement, decided=FAR, stable=FAR, claims=()),
}


def false_statement(signed: Signed, how: str, context: FaultContext) -> Signed:
    """This node's own statement, signed again with something else in it."""
    statement = parse_stop(signed.payload)
    if statement is None or statement.broker != context.node:
        return signed
    lie = FALSE_STATEMENTS[how](statement)
    return context.keyring.identity.sign(canonical(lie))


class FalseStopData(Tampering):
    """Lies at a leader change about what it decided, wrote and accepted."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._how = context.aims(FALSE_STATEMENTS)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, StopData) or not self.context.hits():
            return [send]
        how = self.context.rng.choice(self._how)
        lie = false_statement(message.statement, how, self.context)
        return [replace(send, message=replace(message, statement=lie))]


class FalseSync(Tampering):
    """Leads a regency on statements that are too few, doubled, altered or false.

    Different brokers get different lies.
    """

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not isinstance(message, Sync) or not self.context.hits():
            return [send]
        return [Send((peer,), self._lie(message)) for peer in send.to]

    def _lie(self, message: Sync) -> Sync:
        rng, shown = self.context.rng, list(message.statements)
        match rng.choice(("fewer", "doubled", "altered", "own", "own")):
            case "fewer":
                del shown[rng.randrange(len(shown))]
            case "doubled":
                shown[0] = shown[-1]
            case "altered":
                at = rng.randrange(len(shown))
                statement = parse_stop(shown[at].payload)
                if statement is not None:
                    shown[at] = replace(shown[at], payload=canonical(replace(statement, claims=())))
            case _:
                how = rng.choice(list(FALSE_STATEMENTS))
                shown = [false_statement(signed, how, self.context) for signed in shown]
        return replace(message, statements=tuple(shown))


class Impatient(Tampering):
    """Asks for another leader all the time."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not isinstance(send.message, Standing | Write | Accept):
            return [send]
        regency = send.message.regency
        wanted = self.context.rng.choice((regency + 1, regency + 2, regency + FAR))
        return [send, Send(send.to, Stop(send.message.log, wanted))]


# ----------------------------------------------------------- state and standing


class FalseState(Tampering):
    """Gives brokers that are behind another log, another state or other chunks of it."""

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


#: Lies about how far a broker is, by the name that `victims` uses.
FALSE_STANDINGS: dict[str, Callable[[Standing], Standing]] = {
    "ahead": lambda s: replace(s, decided=s.decided + FAR, heard=s.heard + FAR),
    "behind": lambda s: replace(s, decided=0, heard=0, checkpoint=0, root=b""),
    "root": _other_root,
    "regency": lambda s: replace(s, regency=s.regency + FAR),
    "fresh": lambda s: replace(s, fresh=True),
    "unsynced": lambda s: replace(s, synced=False),
}


class FalseStanding(Tampering):
    """Says that it is far ahead, far behind, at another checkpoint, or just restarted."""

    def __init__(self, name: str, context: FaultContext) -> None:
        super().__init__(name, context)
        self._how = context.aims(FALSE_STANDINGS)

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        if not isinstance(send.message, Standing) or not self.context.hits():
            return [send]
        lie = FALSE_STANDINGS[self.context.rng.choice(self._how)](send.message)
        return [replace(send, message=lie)]


# ------------------------------------------------------------------ FIT-Broker


class LieToSubscribers(Tampering):
    """Orders like everybody else; votes, contents, positions and statements are false (§5.3)."""

    def rewrite(self, send: Send, now: Millis) -> Sequence[Effect | Later]:
        message = send.message
        if not self.context.hits():
            return [send]
        match message:
            case Vote() | Contents() | Matches():
                shifted = self.context.rng.randrange(4) == 0
                lie = replace(message, first=message.first + 1) if shifted else message
                if isinstance(lie, Matches):
                    return [Send(send.to, with_other_results(lie), send.bodies)]
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
    """Withholds, misorders, misinforms brokers and subscribers (§5.2.3)."""

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
