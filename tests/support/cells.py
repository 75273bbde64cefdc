"""Builders that tests of machines share: a small cell, its nodes, runs, and statements."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Sequence
from functools import cache

import msgspec

from quorumcast.broadcast.application import Deliver
from quorumcast.broadcast.contract import CarrierContext
from quorumcast.broadcast.messages import ChainRun, Contents, Publish, Voucher
from quorumcast.broadcast.signed_history import history_body
from quorumcast.cell.messages import CellMessage, Vote
from quorumcast.cell.publishing.publisher import Publisher
from quorumcast.cell.serving.broker import Broker
from quorumcast.cell.subscribing.subscriber import Subscriber
from quorumcast.core.ids import Channel, Digest, Millis, NodeId, Stream
from quorumcast.core.limits import Limits
from quorumcast.core.machine import Accuse, Drop, Effect, Receive, Send, Suspect
from quorumcast.core.message import Message
from quorumcast.core.statements import (
    Basis,
    Evidence,
    HistoryStatement,
    SegmentStatement,
    Signed,
    canonical,
)
from quorumcast.crypto.digest import root
from quorumcast.crypto.evidence import Court
from quorumcast.crypto.identity import Identity
from quorumcast.crypto.keyring import Keyring
from quorumcast.manifest.build import make_cell, repeatable_seeds
from quorumcast.manifest.manifest import EVERYONE, ChannelEntry, Manifest
from quorumcast.manifest.policy import Policy
from quorumcast.manifest.view import View

ORDERS = Channel("orders")
ALICE, BOB, CAROL = NodeId("alice"), NodeId("bob"), NodeId("carol")
B1, B2, B3, B4 = (NodeId(f"b{i}") for i in (1, 2, 3, 4))
B5, B6, B7 = (NodeId(f"b{i}") for i in (5, 6, 7))
#: What alice publishes in most tests, and the histories about it.
STREAM = Stream(ORDERS, ALICE, 1)
LANE = STREAM.history
T0 = Millis(0)


@cache
def identity_of(name: str) -> Identity:
    """The identity of a node in every cell of these tests."""
    return Identity(NodeId(name), repeatable_seeds("cells")(name))


def life_of(name: str, number: int = 1) -> bytes:
    """What tells the lives of a broker apart."""
    return hashlib.sha256(f"life {number} of {name}".encode()).digest()


class Cell:
    """A manifest with one channel, and the keys of everybody."""

    def __init__(
        self,
        policy: Policy,
        n: int = 4,
        f: int = 1,
        publishers: tuple[str, ...] = (EVERYONE,),
        subscribers: tuple[str, ...] = (EVERYONE,),
        clients: tuple[str, ...] = (ALICE, BOB, CAROL),
        schema: tuple[tuple[str, str], ...] = (),
    ) -> None:
        names = [f"b{i}" for i in range(1, n + 1)]
        self.policy = policy
        self.manifest: Manifest
        self.manifest, _ = make_cell(
            "demo",
            [(name, "localhost", 7000 + i) for i, name in enumerate(names)],
            f,
            clients,
            [ChannelEntry(ORDERS, policy, publishers, subscribers, schema)],
            operator=identity_of("operator"),
            identities={NodeId(name): identity_of(name) for name in (*names, *clients)},
        )
        self._keyrings: dict[NodeId, Keyring] = {}

    def keyring(self, name: NodeId) -> Keyring:
        if name not in self._keyrings:
            self._keyrings[name] = self.manifest.keyring(identity_of(name))
        return self._keyrings[name]

    def broker(self, name: NodeId = B1, life: int = 1) -> Broker:
        return Broker(self.manifest, self.keyring(name), life=life_of(name, life))

    def publisher(self, name: NodeId = ALICE, incarnation: int = 1) -> Publisher:
        return Publisher(self.manifest, self.keyring(name), incarnation)

    def subscriber(self, name: NodeId = BOB) -> Subscriber:
        return Subscriber(self.manifest, self.keyring(name))

    def around(self, me: NodeId = B1, readers: Sequence[NodeId] = ()) -> CarrierContext:
        return CarrierContext(self.view(me), self.policy, lambda _: readers)

    def view(self, me: NodeId) -> View:
        return View(self.manifest, self.keyring(me))

    @property
    def court(self) -> Court:
        m = self.manifest
        return Court(m.cell, m.broker_ids, m.quorums, m.keys, m.hash)

    def lives(self, broker: NodeId) -> tuple[tuple[NodeId, bytes], ...]:
        """What a broker knows of the others, all of which are in their first lives."""
        return tuple((b, life_of(b)) for b in self.manifest.broker_ids if b != broker)

    # -------------------------------------------------------- what is said

    def segment(
        self,
        broker: NodeId,
        first: int,
        *bodies: bytes,
        basis: Basis = Basis.SETTLED,
        signer: NodeId | None = None,
        stream: Stream = STREAM,
        cell: str = "demo",
        epoch: int = 1,
        life: int = 1,
        log_id: bytes = b"",
        peers: tuple[tuple[NodeId, bytes], ...] | None = None,
    ) -> tuple[SegmentStatement, Signed]:
        """A broker's word on a segment, signed (perhaps by somebody else)."""
        statement = SegmentStatement(
            cell=cell,
            epoch=epoch,
            broker=broker,
            stream=stream,
            first=first,
            count=len(bodies),
            root=root(first, digests(*bodies)),
            basis=basis,
            life=life_of(broker, life),
            log_id=log_id,
            peers=self.lives(broker) if peers is None else peers,
        )
        return statement, identity_of(signer or broker).sign(canonical(statement))

    def history(
        self,
        index: int,
        first: int,
        *bodies: bytes,
        signer: NodeId = ALICE,
        stream: Stream = STREAM,
        cell: str = "demo",
        epoch: int = 1,
    ) -> bytes:
        """The body of a history."""
        statement = HistoryStatement(
            cell=cell,
            epoch=epoch,
            stream=stream,
            index=index,
            first=first,
            digests=digests(*bodies),
        )
        return history_body(identity_of(signer).sign(canonical(statement)))

    def vouchers(
        self,
        author: NodeId,
        readers: Sequence[NodeId],
        first: int,
        bodies: Sequence[bytes],
        order: tuple[NodeId, ...],
        stream: Stream = STREAM,
    ) -> tuple[Voucher, ...]:
        """An author's MACs over a run, one per reader."""
        ring = self.keyring(author)
        run = digests(*bodies)
        return tuple(
            Voucher(author, reader, ring.vouch(reader, stream, first, run, order))
            for reader in readers
        )


AB = Policy.named("ab")
BRB = Policy.named("brb")
CHAIN = Policy.named("chain")


def limited(name: str, alpha: int = 2, **limits: int) -> Policy:
    """A policy with small limits; those that must be no larger than these follow them."""
    usual = Limits()
    retained = limits.get("retained_publications", usual.retained_publications)
    window = min(usual.window, retained, limits.get("vote_window", usual.vote_window))
    company = {"window": window, "segment": min(usual.segment, retained)}
    return Policy.named(name, alpha=alpha, limits=Limits(**{**company, **limits}))


# ------------------------------------------------------------------- runs


def digest(body: bytes) -> Digest:
    return Digest(hashlib.sha256(body).digest())


def digests(*bodies: bytes) -> bytes:
    return b"".join(digest(body) for body in bodies)


def bodies(first: int, count: int) -> tuple[bytes, ...]:
    """Contents of consecutive publications: "p1", "p2", …"""
    return tuple(f"p{number}".encode() for number in range(first, first + count))


def publish(
    first: int, *contents: bytes, sender: NodeId = ALICE, stream: Stream = STREAM
) -> Receive:
    return Receive(sender, Publish(stream, first, digests(*contents)), contents)


def contents(
    sender: NodeId, first: int, *pulled: bytes, stream: Stream = STREAM, named: bytes | None = None
) -> Receive:
    """An answer to a pull; `named` are the digests it claims, if they are not the right ones."""
    return Receive(sender, Contents(stream, first, named or digests(*pulled)), pulled)


def vote(
    sender: NodeId,
    first: int,
    *voted: bytes,
    full: bool = False,
    stream: Stream = STREAM,
    order: tuple[NodeId, ...] = (),
    vouchers: tuple[Voucher, ...] = (),
) -> Receive:
    message = Vote(stream, first, digests(*voted), order, vouchers)
    return Receive(sender, message, voted if full else ())


def chain_run(
    sender: NodeId,
    first: int,
    run: tuple[bytes, ...],
    order: tuple[NodeId, ...],
    vouchers: tuple[Voucher, ...],
    stream: Stream = STREAM,
) -> Receive:
    return Receive(sender, ChainRun(stream, first, digests(*run), order, vouchers), run)


# ---------------------------------------------------------------- effects


def sent(effects: Sequence[Effect], kind: type | None = None) -> list[Send]:
    """The messages among effects, of one kind if one is named."""
    return [
        e for e in effects if isinstance(e, Send) and (kind is None or isinstance(e.message, kind))
    ]


def messages(effects: Sequence[Effect], kind: type) -> list[Message]:
    return [send.message for send in sent(effects, kind)]


def reasons(effects: Sequence[Effect]) -> list[enum.Enum]:
    return [e.reason for e in effects if isinstance(e, Drop)]


def suspects(effects: Sequence[Effect]) -> list[NodeId]:
    return [e.node for e in effects if isinstance(e, Suspect)]


def accused(effects: Sequence[Effect]) -> list[Evidence]:
    return [e.evidence for e in effects if isinstance(e, Accuse)]


def delivered(effects: Sequence[Effect]) -> list[tuple[int, bytes]]:
    return [(e.number, e.body) for e in effects if isinstance(e, Deliver)]


def feed(
    handle: Callable[[Receive, Millis], list[Effect]], *events: Receive, now: int = 0
) -> list[Effect]:
    """The effects of several events in a row."""
    return [effect for event in events for effect in handle(event, Millis(now))]


def is_sendable(message: Message) -> bool:
    """Whether the reader's decoder would take it."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=CellMessage)
    except msgspec.ValidationError:
        return False
    return True
