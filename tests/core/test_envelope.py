"""The first bytes of every publication: when, for how long, how urgent."""

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.core.envelope import (
    ENVELOPE_BYTES,
    MAX_EVENTS,
    MAX_US,
    MAX_VALID_MS,
    URGENT,
    Envelope,
    events_of,
    microseconds_of,
    read_envelope,
    time_of,
    write_envelope,
)
from quorumcast.core.ids import Channel, NodeId, Stream
from quorumcast.core.labels import label


@given(st.integers(0, MAX_US), st.integers(0, MAX_VALID_MS), st.booleans(), st.binary(max_size=9))
def test_envelope_written_and_read_back(us: int, valid: int, urgent: bool, rest: bytes) -> None:
    header = write_envelope(us, valid, URGENT if urgent else 0)
    assert len(header) == ENVELOPE_BYTES
    assert read_envelope(header + rest) == Envelope(us, valid, urgent)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_events_of_a_body_are_those_of_its_record_batch(count: int, labelled: bool) -> None:
    batch = pa.record_batch({"n": pa.array(range(count), pa.int64()), "s": ["x"] * count})
    before = label(Stream(Channel("orders"), NodeId("alice"), 1), 70_000) if labelled else b""
    body = before + write_envelope(1) + batch.serialize().to_pybytes()
    assert events_of(body, labelled) == count
    for cut in range(len(before) + ENVELOPE_BYTES + 40):
        assert events_of(body[:cut], labelled) == 0


@given(st.binary(max_size=200), st.booleans())
def test_events_of_nonsense_are_a_number(body: bytes, labelled: bool) -> None:
    assert 0 <= events_of(body, labelled) <= MAX_EVENTS


def test_envelope_layout_is_what_the_docs_say() -> None:
    assert write_envelope(1, 2, 1).hex() == "01000000000000000200000001000000"


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        write_envelope(1)[:-1],
        write_envelope(1, 0, 2),
        write_envelope(-1),
        write_envelope(MAX_US + 1),
        write_envelope(1)[:-1] + b"\1",
    ],
)
def test_envelope_that_breaks_a_rule_is_none(odd: bytes) -> None:
    assert read_envelope(odd) is None


def test_envelope_expires_at_the_end_of_its_validity_or_never() -> None:
    assert Envelope(5_000_000, 250).expires_us == 5_250_000
    assert Envelope(5_000_000).expires_us == 0


@given(st.integers(0, MAX_US))
def test_times_are_exact_to_the_microsecond(us: int) -> None:
    assert microseconds_of(time_of(us)) == us


def test_times_know_their_zone() -> None:
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    assert microseconds_of(noon) == microseconds_of(noon.astimezone(timezone(timedelta(hours=2))))
    assert time_of(microseconds_of(noon)) == noon
    assert time_of(MAX_US + 10**15).year == 9999
