"""Sessions between two nodes: authenticated packets that cannot be replayed.

Two nodes greet each other with fresh nonces (`Hello`, `Welcome`) and derive one key per direction
from their long-term pairwise key and both nonces, so a packet of one session is invalid in every
other. A packet carries all messages that waited for the peer:

    length(4) | header length(4) | mac(16) | header | bodies

The header is MessagePack: sequence number, messages, and the sizes of each message's bodies. The
MAC covers the header; the digests in the messages bind the bodies to it, so each body is hashed
once and never MACed. Sequence numbers only grow: a replayed packet is refused, a lost one leaves a
gap that the protocols repair.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from quorumcast.core import limits
from quorumcast.core.ids import NodeId
from quorumcast.core.machine import Bodies
from quorumcast.core.message import Displaced, Message
from quorumcast.crypto.identity import derive
from quorumcast.crypto.mac import MAC_SIZE, Mac, same

PROTOCOL = 1
NONCE_SIZE = 16
_PREFIX = 4 + MAC_SIZE
#: Bodies of this average size are written separately instead of being copied into one frame.
UNCOPIED_BODY_BYTES = 8192


class Refusal(enum.Enum):
    """Why a packet was dropped before any machine saw it."""

    TRUNCATED = "truncated"
    OVERSIZED = "oversized"
    BAD_MAC = "bad-mac"
    REPLAYED = "replayed"
    MALFORMED = "malformed"


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The greeting of the side that connected."""

    protocol: int
    #: The name of the system instance, of a cell for example.
    instance: str
    epoch: int
    sender: NodeId
    to: NodeId
    nonce: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer; `mac` authenticates the node that was called."""

    nonce: bytes
    mac: bytes


class Farewell(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The answer to a greeting that cannot be accepted, with the reason in a sentence."""

    reason: str
    epoch: int = 0
    #: For a caller in an older epoch: what proves the newer one (of a cell: the signed manifest and
    #: statements of brokers that adopted it).
    proof: bytes = b""


Said = TypeVar("Said")


class Packet(msgspec.Struct, Generic[Said], frozen=True, array_like=True):
    """The authenticated part of a frame."""

    sequence: int
    # Limited before anything is decoded: four million empty lists fit into a header.
    messages: Annotated[list[Said], Meta(max_length=limits.MAX_MESSAGES)]
    sizes: Annotated[
        list[Annotated[list[int], Meta(max_length=limits.MAX_RUN)]],
        Meta(max_length=limits.MAX_MESSAGES),
    ]


#: A message encoded once, with its bodies; what an outbox collects for each peer.
Parcel = tuple[msgspec.Raw, Bodies]

_encoder = msgspec.msgpack.Encoder()
_NO_SIZES: list[int] = []
Opened = list[tuple[Message, Bodies]]


class Family:
    """The messages of one system: a packet that holds anything else is malformed."""

    __slots__ = ("decode", "kinds", "name")

    def __init__(self, name: str, *kinds: type[Message]) -> None:
        self.name = name
        self.kinds = kinds
        # Links are displaced in every system.
        spoken: Any = reduce(or_, kinds, Displaced)
        decoder = msgspec.msgpack.Decoder(Packet[spoken])
        self.decode: Callable[[bytes], Packet[Message]] = decoder.decode


#: For sessions that carry no messages.
NO_MESSAGES = Family("none")


def encode_parcel(message: Message, bodies: Bodies = ()) -> Parcel:
    """Encode a message once, for any number of sessions."""
    return msgspec.Raw(_encoder.encode(message)), bodies


class Session:
    """One side of a session: a MAC and a sequence counter per direction."""

    __slots__ = ("_decode", "_incoming", "_outgoing", "_received", "_sent")

    def __init__(self, outgoing: Mac, incoming: Mac, family: Family) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._decode = family.decode
        #: Sequence number of the last packet sent; grows by one.
        self._sent = 0
        #: Highest sequence number received; only higher ones are accepted.
        self._received = 0

    @property
    def received(self) -> int:
        """The sequence number of the last packet that was opened."""
        return self._received

    def seal(self, parcels: Sequence[Parcel]) -> bytes:
        """One frame (without its length) with all these messages."""
        return b"".join(self.seal_in_pieces(parcels))

    def seal_in_pieces(self, parcels: Sequence[Parcel]) -> list[bytes]:
        """The same frame, for writers that take several buffers: large bodies are not copied."""
        self._sent += 1
        messages: list[msgspec.Raw] = []
        sizes: list[list[int]] = []
        contents: list[bytes] = []
        for raw, bodies in parcels:
            messages.append(raw)
            if bodies:
                sizes.append(list(map(len, bodies)))
                contents += bodies
            else:
                sizes.append(_NO_SIZES)
        # A plain tuple of the fields of `Packet`, whose messages are encoded already.
        header = _encoder.encode((self._sent, messages, sizes))
        mac = self._outgoing(header)
        head = (len(header).to_bytes(4, "big"), mac, header)
        if contents and sum(map(len, contents)) > len(contents) * UNCOPIED_BODY_BYTES:
            return [b"".join(head), *contents]
        return [b"".join((*head, *contents))]

    def open(self, frame: bytes | memoryview) -> Opened | Refusal:
        """The messages of a frame, or why there are none. Never raises on what a peer sent.

        The result holds copies: the frame's memory may be used again.
        """
        if len(frame) < _PREFIX:
            return Refusal.TRUNCATED
        end = _PREFIX + int.from_bytes(frame[:4], "big")
        if end > len(frame):
            return Refusal.TRUNCATED
        if end - _PREFIX > limits.MAX_HEADER_BYTES or len(frame) > limits.MAX_FRAME_BYTES:
            return Refusal.OVERSIZED
        header = bytes(frame[_PREFIX:end])
        if not self._authentic(bytes(frame[4:_PREFIX]), header):
            return Refusal.BAD_MAC
        try:
            packet = self._decode(header)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Refusal.MALFORMED
        if packet.sequence <= self._received:
            return Refusal.REPLAYED
        self._received = packet.sequence
        return self._unpack(packet, frame, end)

    def _authentic(self, mac: bytes, header: bytes) -> bool:
        return same(mac, self._incoming(header))

    def _unpack(
        self, packet: Packet[Message], frame: bytes | memoryview, offset: int
    ) -> Opened | Refusal:
        if len(packet.messages) != len(packet.sizes) or len(packet.messages) > limits.MAX_MESSAGES:
            return Refusal.MALFORMED
        opened: Opened = []
        for message, sizes in zip(packet.messages, packet.sizes, strict=True):
            if len(sizes) > limits.MAX_RUN:
                return Refusal.MALFORMED
            bodies = []
            for size in sizes:
                if size < 0 or size > limits.MAX_BODY_BYTES or offset + size > len(frame):
                    return Refusal.MALFORMED
                bodies.append(bytes(frame[offset : offset + size]))
                offset += size
            opened.append((message, tuple(bodies)))
        return opened if offset == len(frame) else Refusal.MALFORMED


def welcome_mac(hello: Hello, nonce: bytes, mac: Mac) -> bytes:
    """The MAC that authenticates the called node: over the hello, with the pairwise key."""
    return mac(b"quorumcast welcome" + _encoder.encode(hello) + nonce)


def make_session(
    secret: bytes,
    factory: Callable[[bytes], Mac],
    hello: Hello,
    nonce: bytes,
    family: Family,
    *,
    caller: bool,
) -> Session:
    """The session that follows from a greeting, for the caller or for the called node."""
    transcript = _encoder.encode(hello) + nonce
    forth = factory(derive(secret, b"quorumcast session forth" + transcript))
    back = factory(derive(secret, b"quorumcast session back" + transcript))
    return Session(forth, back, family) if caller else Session(back, forth, family)
