"""What strangers must be able to believe: signed statements, evidence and receipts, as data.

MACs convince only the two nodes that share the key. A statement is signed with the Ed25519
identity of its author, once per segment or history and never per event; `quorumcast.crypto`
signs and verifies. Everything here is plain data in one canonical encoding.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from quorumcast.core.ids import CELL, DIGEST_SIZE, Count, NodeId, Positive, Stream
from quorumcast.core.limits import MAX_CHAIN, MAX_CLAIMS, MAX_MANIFEST_BYTES, MAX_WRITTEN
from quorumcast.core.quorum import Protection

Value = Annotated[bytes, Meta(max_length=DIGEST_SIZE)]
T = TypeVar("T")


class Signed(msgspec.Struct, frozen=True, array_like=True):
    """Bytes and the signature of one node over them."""

    signer: NodeId
    payload: bytes
    signature: bytes


class Basis(enum.Enum):
    """On what ground a broker vouches for a segment."""

    #: It forwarded this itself; another correct broker may have been told otherwise by a lying
    #: publisher, so only a conflict with the broker's *own* statements proves anything.
    FORWARDED = "forwarded"
    #: Reliable broadcast or its history delivered this: correct brokers cannot differ, so a broker
    #: that is contradicted by f+1 others has lied.
    SETTLED = "settled"


class SegmentStatement(msgspec.Struct, frozen=True, tag="segment", kw_only=True):
    """A broker says: the publications first … first+count-1 of this stream have these digests."""

    cell: str
    epoch: Count
    broker: NodeId
    stream: Stream
    first: Positive
    count: Positive
    root: bytes
    basis: Basis
    #: Drawn anew whenever the broker starts: in another life it may honestly have forgotten this.
    life: Value = b""
    #: Total order: the id of the log, which its brokers have decided (`ordering.genesis`).
    log_id: Value = msgspec.field(default=b"", name="birth")
    #: The lives in which this broker knew the others: when it began with the stream or, in total
    #: order and where a journal outlasts a life, when it signed.
    peers: Annotated[tuple[tuple[NodeId, Value], ...], Meta(max_length=MAX_CHAIN)] = ()


class HistoryStatement(msgspec.Struct, frozen=True, tag="history", kw_only=True):
    """A publisher says: these are the digests of my publications first, first+1, …"""

    cell: str
    epoch: Count
    stream: Stream
    index: Count
    first: Positive
    digests: bytes


class OfferStatement(msgspec.Struct, frozen=True, tag="offer", kw_only=True):
    """A publisher says: these are my publications first, first+1, … to be ordered."""

    cell: str
    stream: Stream
    first: Positive
    digests: bytes


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a broker did in one instance of consensus."""

    instance: Positive
    #: The last regency in which it accepted a value, and the value; b"": none.
    regency: Count = 0
    value: Value = b""
    #: Every value that it wrote, and the last regency in which it did.
    written: Annotated[tuple[tuple[Value, Count], ...], Meta(max_length=MAX_WRITTEN)] = ()


class StopStatement(msgspec.Struct, frozen=True, tag="stop", kw_only=True):
    """A broker says, as it enters a regency, how far it is and what it accepted and wrote."""

    cell: str
    log: Protection
    broker: NodeId
    regency: Positive
    #: Every instance up to this one is decided.
    decided: Count
    #: A quorum has a checkpoint here.
    stable: Count
    #: Up to this instance it has forgotten what it did, and says nothing about it.
    blind: Count
    claims: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLAIMS)]
    #: The id of the log; b"" from a broker that does not know it yet.
    log_id: Value = msgspec.field(default=b"", name="birth")


class EpochStatement(msgspec.Struct, frozen=True, tag="epoch", kw_only=True):
    """A broker says: this epoch has been decided, and I go by this manifest of it."""

    cell: str
    broker: NodeId
    epoch: Positive
    #: Stands for the manifest.
    digest: Value


#: What evidence and receipts are made of.
Statement = SegmentStatement | HistoryStatement


class EvidenceKind(enum.Enum):
    """Why the signed statements prove that the accused lied."""

    #: It signed two statements that cannot both be true.
    CONFLICT = "conflict"
    #: f+1 brokers signed otherwise about what correct brokers cannot differ on.
    OUTVOTED = "outvoted"


class Evidence(msgspec.Struct, frozen=True, tag="evidence", kw_only=True):
    """Signed statements that prove to a third party that `accused` lied."""

    kind: EvidenceKind
    accused: NodeId
    against: Annotated[tuple[Signed, ...], Meta(max_length=2)]
    witnesses: Annotated[tuple[Signed, ...], Meta(max_length=MAX_CHAIN)] = ()
    note: str = ""
    #: OUTVOTED: the manifest of the epoch of the statements, as its operator signed it, so that
    #: brokers can verify this in a later one. It is empty where a subscriber found this.
    manifest: Annotated[bytes, Meta(max_length=MAX_MANIFEST_BYTES)] = b""


class Receipt(msgspec.Struct, frozen=True, tag="receipt", kw_only=True):
    """Proof that a publication went through the cell: contents, digests of its segment, votes."""

    stream: Stream
    number: Positive
    contents: bytes
    first: Positive
    digests: bytes
    statements: tuple[Signed, ...]


def contradict(first: Statement | OfferStatement, second: Statement | OfferStatement) -> bool:
    """Whether no correct node could have signed both.

    A broker answers for what it said in one life, and in one log: in another life it may have
    forgotten, and another log has positions of its own. A publisher answers for a stream that it
    began itself. A resumed one may be written by two lives that computed different contents: that
    is a mistake, and not a lie.
    """
    if isinstance(first, OfferStatement) and isinstance(second, OfferStatement):
        # A correct publisher never cuts a run anew.
        return (first.stream, first.first) == (second.stream, second.first) and (
            first.stream.line is None and first.digests != second.digests
        )
    if isinstance(first, SegmentStatement) and isinstance(second, SegmentStatement):
        return (
            _subject(first) == _subject(second) and bool(first.life) and (first.root != second.root)
        )
    if isinstance(first, HistoryStatement) and isinstance(second, HistoryStatement):
        return (first.stream, first.index) == (second.stream, second.index) and (
            (first.first, first.digests) != (second.first, second.digests)
        )
    return False


def _subject(said: SegmentStatement) -> tuple[object, ...]:
    """What a broker's statement is about, and when and on which ground it was made."""
    span = (said.stream, said.first, said.count)
    return (said.broker, *span, said.basis, said.life, said.log_id)


def outvotes(witness: SegmentStatement, accused: SegmentStatement) -> bool:
    """Whether a broker's statement is one of the f+1 that prove another's to be false.

    Correct brokers cannot differ about what is settled, as long as they speak of the same log or
    stream and remember it: the log ids are equal, and the witness is in the life in which the
    accused knew it.
    """
    if witness.broker == accused.broker or witness.root == accused.root:
        return False
    if not witness.basis is accused.basis is Basis.SETTLED:
        return False
    subject = (accused.epoch, accused.stream, accused.log_id, accused.first, accused.count)
    if subject != (witness.epoch, witness.stream, witness.log_id, witness.first, witness.count):
        return False
    if accused.stream.publisher == CELL and not accused.log_id:
        return False
    return bool(witness.life) and dict(accused.peers).get(witness.broker) == witness.life


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_statements: msgspec.msgpack.Decoder[Statement] = msgspec.msgpack.Decoder(Statement)
_epochs = msgspec.msgpack.Decoder(EpochStatement)
_offers = msgspec.msgpack.Decoder(OfferStatement)
_stops = msgspec.msgpack.Decoder(StopStatement)


def canonical(statement: Statement | OfferStatement | StopStatement | EpochStatement) -> bytes:
    """The one encoding that is signed."""
    return _encoder.encode(statement)


def _decoded(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T | None:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def parse_statement(payload: bytes) -> Statement | None:
    """The statement in a signed payload, or None if these bytes are not one."""
    return _decoded(_statements, payload)


def parse_offer(payload: bytes) -> OfferStatement | None:
    """The offer statement in a signed payload, or None."""
    return _decoded(_offers, payload)


def parse_stop(payload: bytes) -> StopStatement | None:
    """The stop statement in a signed payload, or None."""
    return _decoded(_stops, payload)


def parse_epoch(payload: bytes) -> EpochStatement | None:
    """The epoch statement in a signed payload, or None."""
    return _decoded(_epochs, payload)
