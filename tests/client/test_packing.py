"""Packing events into contents, and unpacking them."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.client.publishing.packing import Packer
from quorumcast.client.unpacking import unpack
from quorumcast.core.envelope import Envelope, read_envelope, write_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD, batch_of_payloads

OPAQUE = Packer(None)
SCHEMA = pa.schema([("price", pa.float64()), ("name", pa.string())])
ROWS = Packer(SCHEMA)
STAMP = write_envelope(1_000_000)


def payloads_in(body: bytes) -> list[bytes]:
    """What is in contents, whichever way they are unpacked."""
    unpacked = unpack(body, PAYLOAD)
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
    data, payloads = unpack(OPAQUE.pack([b"one", b"two"]), PAYLOAD) or (None, [])
    assert data is not None
    assert data.num_rows == 2
    assert payloads is None


@pytest.mark.parametrize("junk", [b"", b"nonsense", bytes(1000), b"\xff" * 64])
def test_unpack_of_random_bytes_is_none(junk: bytes) -> None:
    assert unpack(junk, PAYLOAD) is None
    assert unpack(junk, SCHEMA) is None


def test_unpack_one_payload_in_another_layout_takes_the_general_path() -> None:
    body = OPAQUE.pack([b"eight by"]) + bytes(8)  # Arrow ignores what is behind the message
    data, payloads = unpack(body, PAYLOAD) or (None, None)
    assert payloads is None
    assert data is not None
    assert payloads_in(body) == [b"eight by"]


def test_admit_event_of_a_wrong_type_is_refused() -> None:
    assert OPAQUE.admit(bytearray(b"x")) == b"x"
    assert OPAQUE.admit({"payload": b"x"}) == b"x"
    with pytest.raises(UsageError, match="not str: encode text first"):
        OPAQUE.admit("text")
    with pytest.raises(UsageError, match="takes mappings with the columns \\(price, name\\)"):
        ROWS.admit(b"bytes")


def test_pack_stamps_every_publication_once_by_the_clock_given() -> None:
    times = iter((5, 6, 7))
    packer = Packer(None, lambda: next(times), valid_ms=250, urgent=True)
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
    batch, _ = unpack(ROWS.pack([{"price": 1.5, "name": "a"}] * 9), SCHEMA)  # type: ignore[misc]
    assert batch is not None
    assert batch.column(0).buffers()[1].address % 8 == 0
