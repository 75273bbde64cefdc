"""The fast way of packing one payload against the plain way through Arrow."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.client.packing import MOST_TEMPLATE_BYTES, Packer, pack_payload, unpack_payload
from quorumcast.core.errors import UsageError
from quorumcast.core.publication import PAYLOAD, batch_of_payloads, decode_batch, encode_batch

OPAQUE = Packer(PAYLOAD)
SCHEMA = pa.schema([("price", pa.float64()), ("name", pa.string())])
ROWS = Packer(SCHEMA)


@given(st.binary(max_size=300) | st.integers(4000, 5000).map(bytes))
def test_pack_payload_same_bytes_as_the_plain_way(payload: bytes) -> None:
    assert pack_payload(payload) == encode_batch(batch_of_payloads([payload]))


@given(st.binary(max_size=300))
def test_unpack_payload_fast_and_plain_way_agree(payload: bytes) -> None:
    body = encode_batch(batch_of_payloads([payload]))
    for _ in range(2):  # the second time with the layout learnt
        unpacked = OPAQUE.unpack(body)
        assert unpacked is not None
        assert unpacked[1] == [payload]


@given(st.binary(min_size=1, max_size=64), st.data())
def test_unpack_altered_bytes_fast_way_never_accepts_what_the_plain_way_refuses(
    payload: bytes, data: st.DataObject
) -> None:
    body = bytearray(pack_payload(payload))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    fast = unpack_payload(bytes(body))
    if fast is not None:
        plain = decode_batch(bytes(body), PAYLOAD)
        assert plain is not None
        assert plain.column(0).to_pylist() == [fast]


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=50))
def test_unpack_batch_of_payloads_round_trip(payloads: list[bytes]) -> None:
    unpacked = OPAQUE.unpack(OPAQUE.pack(payloads))
    assert unpacked is not None
    assert unpacked[1] == payloads


@pytest.mark.parametrize("junk", [b"", b"nonsense", bytes(1000), b"\xff" * 64])
def test_unpack_nonsense_is_none(junk: bytes) -> None:
    assert OPAQUE.unpack(junk) is None
    assert ROWS.unpack(junk) is None


def test_pack_payload_long_ones_go_the_plain_way() -> None:
    payload = bytes(MOST_TEMPLATE_BYTES + 1)
    assert unpack_payload(pack_payload(payload)) is None
    unpacked = OPAQUE.unpack(pack_payload(payload))
    assert unpacked is not None
    assert unpacked[1] == [payload]


def test_admit_what_a_channel_does_not_take_is_one_sentence() -> None:
    assert OPAQUE.admit(bytearray(b"x")) == b"x"
    assert OPAQUE.admit({"payload": b"x"}) == b"x"
    with pytest.raises(UsageError, match="not str: encode text first"):
        OPAQUE.admit("text")
    with pytest.raises(UsageError, match="takes mappings with the columns \\(price, name\\)"):
        ROWS.admit(b"bytes")
