"""The fast path for one payload compared with the general path through Arrow."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.client.packing import MAX_TEMPLATE_BYTES, Packer, pack_payload, unpack_payload
from quorumcast.core.envelope import ENVELOPE_BYTES, Envelope, read_envelope, write_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD, batch_of_payloads, decode_batch, encode_batch

OPAQUE = Packer(PAYLOAD)
SCHEMA = pa.schema([("price", pa.float64()), ("name", pa.string())])
ROWS = Packer(SCHEMA)
STAMP = write_envelope(1_000_000)


@given(st.binary(max_size=300) | st.integers(4000, 5000).map(bytes))
def test_pack_payload_same_bytes_as_the_general_path(payload: bytes) -> None:
    assert pack_payload(payload, STAMP) == encode_batch(batch_of_payloads([payload]), STAMP)


@given(st.binary(max_size=300))
def test_unpack_payload_fast_and_general_path_agree(payload: bytes) -> None:
    body = encode_batch(batch_of_payloads([payload]), STAMP)
    for _ in range(2):  # the second time with the layout learnt
        unpacked = OPAQUE.unpack(body)
        assert unpacked is not None
        assert unpacked[1] == [payload]


@given(st.binary(min_size=1, max_size=64), st.data())
def test_unpack_altered_bytes_fast_path_accepts_no_more_than_the_general_path(
    payload: bytes, data: st.DataObject
) -> None:
    body = bytearray(pack_payload(payload, STAMP))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    fast = unpack_payload(bytes(body))
    if fast is not None:
        plain = decode_batch(bytes(body)[ENVELOPE_BYTES:], PAYLOAD)
        assert plain is not None
        assert plain.column(0).to_pylist() == [fast]


def payloads_in(body: bytes) -> list[bytes]:
    """What is in contents, whichever way they are unpacked."""
    unpacked = OPAQUE.unpack(body)
    assert unpacked is not None
    data, payloads = unpacked
    if payloads is None:
        assert data is not None
        return list(data.column(0).to_pylist())
    return payloads


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=50))
def test_unpack_batch_of_payloads_round_trip(payloads: list[bytes]) -> None:
    body = OPAQUE.pack(payloads)
    assert payloads_in(body) == payloads


def test_unpack_batch_of_payloads_makes_no_object_per_event() -> None:
    data, payloads = OPAQUE.unpack(OPAQUE.pack([b"one", b"two"])) or (None, [])
    assert data is not None
    assert data.num_rows == 2
    assert payloads is None


@pytest.mark.parametrize("junk", [b"", b"nonsense", bytes(1000), b"\xff" * 64])
def test_unpack_of_random_bytes_is_none(junk: bytes) -> None:
    assert OPAQUE.unpack(junk) is None
    assert ROWS.unpack(junk) is None


def test_pack_long_payload_takes_the_general_path() -> None:
    payload = bytes(MAX_TEMPLATE_BYTES + 1)
    assert unpack_payload(pack_payload(payload, STAMP)) is None
    unpacked = OPAQUE.unpack(pack_payload(payload, STAMP))
    assert unpacked is not None
    assert unpacked[1] == [payload]


def test_admit_event_of_a_wrong_type_is_refused() -> None:
    assert OPAQUE.admit(bytearray(b"x")) == b"x"
    assert OPAQUE.admit({"payload": b"x"}) == b"x"
    with pytest.raises(UsageError, match="not str: encode text first"):
        OPAQUE.admit("text")
    with pytest.raises(UsageError, match="takes mappings with the columns \\(price, name\\)"):
        ROWS.admit(b"bytes")


def test_pack_stamps_every_publication_once_by_the_clock_given() -> None:
    times = iter((5, 6, 7))
    packer = Packer(PAYLOAD, lambda: next(times), valid_ms=250, urgent=True)
    bodies = [
        packer.pack([b"one"]),
        packer.pack([b"one", b"two"]),
        packer.pack_batch(batch_of_payloads([b"one"])),
    ]
    assert [read_envelope(body) for body in bodies] == [Envelope(t, 250, True) for t in (5, 6, 7)]
    assert [payloads_in(body) for body in bodies] == [
        [b"one"],
        [b"one", b"two"],
        [b"one"],
    ]


def test_pack_aligns_arrow_buffers() -> None:
    batch, _ = ROWS.unpack(ROWS.pack([{"price": 1.5, "name": "a"}] * 9))  # type: ignore[misc]
    assert batch is not None
    assert batch.column(0).buffers()[1].address % 8 == 0
