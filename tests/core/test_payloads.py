"""Payloads in Arrow's layout compared with the general way, through Arrow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.core.envelope import write_envelope
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES, MAX_ROWS
from quorumcast.core.payloads import (
    KEPT_BYTES,
    _layouts,
    decode_payload,
    encode_payload,
    encode_payloads,
)
from quorumcast.core.publication import PAYLOAD, batch_of_payloads, decode_batch, encode_batch

STAMP = write_envelope(1_000_000)
EVENTS = st.lists(st.binary(max_size=50), min_size=2, max_size=50)


def through_arrow(payloads: list[bytes]) -> bytes:
    return encode_batch(batch_of_payloads(payloads), STAMP)


@given(st.binary(max_size=300) | st.integers(4000, 5000).map(bytes))
def test_encode_payload_same_bytes_as_through_arrow(payload: bytes) -> None:
    assert encode_payload(payload, STAMP) == through_arrow([payload])


@given(EVENTS)
def test_encode_payloads_same_bytes_as_through_arrow(payloads: list[bytes]) -> None:
    assert encode_payloads(payloads, STAMP) == through_arrow(payloads)


def test_encode_payload_that_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="16,777,400 bytes; at most 16,777,216 fit"):
        encode_payload(bytes(MAX_BODY_BYTES), STAMP)


def test_encode_many_and_long_payloads_same_bytes_as_through_arrow() -> None:
    for payloads in ([b"x"] * 70_000, [bytes(1 << 20), b"", bytes((1 << 20) + 1)]):
        assert encode_payloads(payloads, STAMP) == through_arrow(payloads)


@pytest.mark.parametrize("payloads", [[b""] * (MAX_ROWS + 1), [b"", bytes(MAX_BODY_BYTES)]])
def test_encode_too_much_for_a_publication_is_refused(payloads: list[bytes]) -> None:
    with pytest.raises(UsageError) as expected:
        through_arrow(payloads)
    with pytest.raises(UsageError) as found:
        encode_payloads(payloads, STAMP)
    assert str(found.value).split(";")[1:] == str(expected.value).split(";")[1:]


@given(st.binary(max_size=300) | st.integers(4000, 5000).map(bytes))
def test_decode_payload_reads_what_arrow_writes(payload: bytes) -> None:
    assert decode_payload(through_arrow([payload])) == payload


@given(EVENTS)
def test_decode_of_several_payloads_is_left_to_arrow(payloads: list[bytes]) -> None:
    assert decode_payload(through_arrow(payloads)) is None


@given(st.binary(max_size=64), st.data())
def test_decode_altered_bytes_accepts_no_more_than_arrow(
    payload: bytes, data: st.DataObject
) -> None:
    body = bytearray(encode_payload(payload, STAMP))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    found = decode_payload(bytes(body))
    if found is not None:
        batch = decode_batch(bytes(body)[len(STAMP) :], PAYLOAD)
        assert batch is not None
        assert batch.column(0).to_pylist() == [found]


def test_decode_of_every_beginning_is_none() -> None:
    body = encode_payload(b"nine char", STAMP)
    assert decode_payload(body) == b"nine char"
    for end in range(len(body)):
        assert decode_payload(body[:end]) is None


def test_layouts_of_long_payloads_are_not_kept() -> None:
    for length in range(KEPT_BYTES + 10):
        assert decode_payload(encode_payload(bytes(length), STAMP)) == bytes(length)
    assert sorted(_layouts) == list(range(KEPT_BYTES + 1))
