"""Sealed packets open once, in one session, in one direction, unaltered; nothing else opens."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.broadcast.messages import Open, Publish
from quorumcast.cell.messages import CELL_FAMILY, Unsubscribe
from quorumcast.core import limits
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.machine import Bodies
from quorumcast.core.message import Message
from quorumcast.crypto.mac import MAC_SIZE, MACS, mac_factory
from quorumcast.crypto.session import (
    NONCE_SIZE,
    PROTOCOL,
    Hello,
    Refusal,
    Session,
    encode_parcel,
    make_session,
    welcome_mac,
)

SECRET = b"s" * 32
STREAM = Stream(Channel("orders"), NodeId("alice"), 7)
HELLO = Hello(PROTOCOL, "demo", 1, NodeId("alice"), NodeId("b1"), b"n" * NONCE_SIZE)
NONCE = b"m" * NONCE_SIZE
PREFIX = 4 + MAC_SIZE

MAIL: list[tuple[Message, Bodies]] = [
    (Open(STREAM, 1, 1), ()),
    (Publish(STREAM, 1, b"d" * 64), (b"first body", b"")),
    (Publish(STREAM, 3, b"e" * 32), (b"third body",)),
]


def pair(
    secret: bytes = SECRET, hello: Hello = HELLO, nonce: bytes = NONCE, mac: str = "blake2b"
) -> tuple[Session, Session]:
    """Both ends of a session: the caller's and the called's."""
    factory = mac_factory(mac)
    caller = make_session(secret, factory, hello, nonce, CELL_FAMILY, caller=True)
    return caller, make_session(secret, factory, hello, nonce, CELL_FAMILY, caller=False)


def sealed(session: Session, mail: list[tuple[Message, Bodies]] = MAIL) -> bytes:
    return session.seal([encode_parcel(message, bodies) for message, bodies in mail])


def framed(*packet: object, bodies: bytes = b"") -> bytes:
    """A frame that the caller did authenticate, with whatever packet a liar likes."""
    header = msgspec.msgpack.encode(packet)
    # The MAC under the caller's key, taken from a session that seals with it.
    outgoing = pair()[0]._outgoing
    return len(header).to_bytes(4, "big") + outgoing(header) + header + bodies


@pytest.mark.parametrize("mac", MACS)
def test_session_sealed_mail_opens_with_its_bodies_in_both_directions(mac: str) -> None:
    caller, called = pair(mac=mac)
    assert called.open(sealed(caller)) == MAIL
    assert caller.open(sealed(called)) == MAIL


@given(st.lists(st.lists(st.binary(max_size=50), max_size=3), max_size=4))
def test_session_any_bodies_open_as_they_were_sealed(bodies: list[list[bytes]]) -> None:
    caller, called = pair()
    mail: list[tuple[Message, Bodies]] = [
        (Unsubscribe(Channel("c")), tuple(each)) for each in bodies
    ]
    assert called.open(sealed(caller, mail)) == mail


def test_session_many_packets_open_in_order() -> None:
    caller, called = pair()
    for _ in range(5):
        assert called.open(sealed(caller)) == MAIL


FRAME = sealed(pair()[0])
HEADER_END = PREFIX + int.from_bytes(FRAME[:4], "big")


@pytest.mark.parametrize("byte", range(HEADER_END))
def test_session_any_bit_flipped_before_the_bodies_is_refused(byte: int) -> None:
    for bit in range(8):
        flipped = bytearray(FRAME)
        flipped[byte] ^= 1 << bit
        refusal = pair()[1].open(bytes(flipped))
        if byte < 4:
            assert refusal in (Refusal.BAD_MAC, Refusal.TRUNCATED)
        else:
            assert refusal is Refusal.BAD_MAC


def test_session_body_altered_opens_with_the_same_messages() -> None:
    """Bodies are bound by the digests in the messages, which are what the MAC covers."""
    altered = FRAME[:-1] + b"X"
    opened = pair()[1].open(altered)
    assert opened == [*MAIL[:2], (MAIL[2][0], (b"third bodX",))]


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.integers(0, len(FRAME) - 1), st.integers(0, 255)), max_size=4),
    st.integers(0, len(FRAME)),
    st.binary(max_size=8),
)
def test_session_mutated_frame_is_refused_or_has_the_messages(
    changes: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    frame = bytearray(FRAME)
    for position, value in changes:
        frame[position] = value
    for candidate in (bytes(frame), bytes(frame[:cut]), bytes(frame) + tail):
        opened = pair()[1].open(candidate)
        if isinstance(opened, list):
            assert [message for message, _ in opened] == [message for message, _ in MAIL]


@given(st.binary(max_size=200))
def test_session_any_bytes_are_refused(frame: bytes) -> None:
    assert isinstance(pair()[1].open(frame), Refusal)


def test_session_replayed_packet_is_refused() -> None:
    caller, called = pair()
    frame = sealed(caller)
    assert called.open(frame) == MAIL
    assert called.open(frame) is Refusal.REPLAYED


def test_session_older_packet_after_a_newer_one_is_refused() -> None:
    caller, called = pair()
    older, newer = sealed(caller), sealed(caller)
    assert called.open(newer) == MAIL
    assert called.open(older) is Refusal.REPLAYED


def test_session_forged_packet_does_not_move_the_sequence() -> None:
    caller, called = pair()
    forged = bytearray(sealed(pair(secret=b"t" * 32)[0]))
    assert called.open(bytes(forged)) is Refusal.BAD_MAC
    assert called.open(sealed(caller)) == MAIL


def test_session_reflected_packet_is_refused() -> None:
    caller, _ = pair()
    assert caller.open(sealed(caller)) is Refusal.BAD_MAC


@pytest.mark.parametrize(
    "other",
    [
        {"secret": b"t" * 32},
        {"nonce": b"o" * NONCE_SIZE},
        {"mac": "hmac-sha256"},
        *(
            {"hello": msgspec.structs.replace(HELLO, **{field: value})}
            for field, value in [
                ("protocol", PROTOCOL + 1),
                ("instance", "other"),
                ("epoch", 2),
                ("sender", NodeId("bob")),
                ("to", NodeId("b2")),
                ("nonce", b"o" * NONCE_SIZE),
            ]
        ),
    ],
    ids=str,
)
def test_session_packet_of_another_session_is_refused(other: dict[str, Any]) -> None:
    caller, _ = pair()
    _, called = pair(**other)
    assert called.open(sealed(caller)) is Refusal.BAD_MAC


def test_welcome_depends_on_the_whole_greeting() -> None:
    mac = mac_factory("blake2b")(SECRET)
    macs = {
        welcome_mac(HELLO, NONCE, mac),
        welcome_mac(HELLO, b"o" * NONCE_SIZE, mac),
        *(
            welcome_mac(msgspec.structs.replace(HELLO, **{field: value}), NONCE, mac)
            for field, value in [("instance", "x"), ("epoch", 2), ("nonce", b"o" * NONCE_SIZE)]
        ),
    }
    assert len(macs) == 5


@pytest.mark.parametrize("length", range(PREFIX + 1))
def test_session_truncated_frame_is_refused(length: int) -> None:
    assert pair()[1].open(FRAME[:length]) is Refusal.TRUNCATED


def test_session_missing_or_superfluous_body_bytes_are_refused() -> None:
    assert pair()[1].open(FRAME[:-1]) is Refusal.MALFORMED
    assert pair()[1].open(FRAME + b"x") is Refusal.MALFORMED


def test_session_header_beyond_the_limit_is_refused_before_its_mac() -> None:
    size = limits.MAX_HEADER_BYTES + 1
    frame = size.to_bytes(4, "big") + bytes(MAC_SIZE + size)
    assert pair()[1].open(frame) is Refusal.OVERSIZED


def test_session_frame_beyond_the_limit_is_refused() -> None:
    assert pair()[1].open(bytes(limits.MAX_FRAME_BYTES + 1)) is Refusal.OVERSIZED


WORD = ["Unsubscribe", "c"]


def test_session_authentic_packet_opens() -> None:
    """The frames below differ from this one only in what they are refused for."""
    mail = (Unsubscribe(Channel("c")), (b"x",))
    assert pair()[1].open(framed(1, [WORD], [[1]], bodies=b"x")) == [mail]


@pytest.mark.parametrize(
    ("packet", "refusal"),
    [
        ((1, [WORD], []), Refusal.MALFORMED),
        ((1, [], [[]]), Refusal.MALFORMED),
        ((1, [WORD], [[-1]]), Refusal.MALFORMED),
        ((1, [WORD], [[2]]), Refusal.MALFORMED),
        ((1, [WORD], [[2**63]]), Refusal.MALFORMED),
        ((1, [WORD], [[limits.MAX_BODY_BYTES + 1]]), Refusal.MALFORMED),
        ((1, [WORD], [[1, *[0] * limits.MAX_RUN]]), Refusal.MALFORMED),
        ((1, [WORD] * (limits.MAX_MESSAGES + 1), [[]] * (limits.MAX_MESSAGES + 1)), None),
        ((1, [["Overthrow", "c"]], [[1]]), Refusal.MALFORMED),
        ((1,), Refusal.MALFORMED),
        ((0, [WORD], [[1]]), Refusal.REPLAYED),
        ((-1, [WORD], [[1]]), Refusal.REPLAYED),
    ],
)
def test_session_authentic_nonsense_is_refused(
    packet: tuple[object, ...], refusal: Refusal | None
) -> None:
    assert pair()[1].open(framed(*packet, bodies=b"x")) is (refusal or Refusal.MALFORMED)


def test_session_most_messages_and_bodies_that_fit_are_accepted() -> None:
    full = framed(1, [WORD] * limits.MAX_MESSAGES, [[]] * limits.MAX_MESSAGES)
    opened = pair()[1].open(full)
    assert isinstance(opened, list)
    assert len(opened) == limits.MAX_MESSAGES
    assert isinstance(pair()[1].open(framed(1, [WORD], [[0] * limits.MAX_RUN])), list)


def test_open_header_of_millions_of_empty_lists_is_refused_before_it_is_built() -> None:
    caller, called = pair()
    sizes = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x90" * 1_000_000
    header = b"\x93\x01\x90" + sizes
    mac = caller._outgoing(header)
    tracemalloc.start()
    assert called.open(len(header).to_bytes(4, "big") + mac + header) is Refusal.MALFORMED
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(header)
