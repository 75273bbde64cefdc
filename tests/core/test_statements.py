"""Statements have one encoding, and bytes from a stranger never raise."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumcast.core.ids import Channel, Lane, NodeId, Stream, resumable, total_order
from quorumcast.core.quorum import Protection
from quorumcast.core.statements import (
    Basis,
    Claim,
    HistoryStatement,
    OfferStatement,
    SegmentStatement,
    Statement,
    StopStatement,
    canonical,
    contradict,
    outvotes,
    parse_statement,
    parse_stop,
)

STREAM = Stream(Channel("orders"), NodeId("alice"), 7)
SEGMENT = SegmentStatement(
    cell="demo",
    epoch=1,
    broker=NodeId("b1"),
    stream=STREAM,
    first=1,
    count=256,
    root=b"r" * 32,
    basis=Basis.SETTLED,
    life=b"l" * 32,
    log_id=b"b" * 32,
    peers=((NodeId("b2"), b"m" * 32),),
)
HISTORY = HistoryStatement(cell="demo", epoch=1, stream=STREAM, index=1, first=1, digests=b"d" * 64)
OFFER = OfferStatement(cell="demo", stream=STREAM, first=1, digests=b"d" * 64)
STOP = StopStatement(
    cell="demo",
    log=Protection.BYZANTINE,
    broker=NodeId("b1"),
    regency=2,
    decided=7,
    stable=4,
    blind=1,
    claims=(Claim(8, 1, b"v" * 32, ((b"v" * 32, 1), (b"w" * 32, 0))),),
    log_id=b"b" * 32,
)

OTHER_SEGMENTS = {
    "cell": "other",
    "epoch": 2,
    "broker": NodeId("b2"),
    "stream": STREAM.history,
    "first": 2,
    "count": 255,
    "root": b"s" * 32,
    "basis": Basis.FORWARDED,
    "life": b"m" * 32,
    "log_id": b"c" * 32,
    "peers": (),
}
OTHER_HISTORIES = {
    "cell": "other",
    "epoch": 2,
    "stream": Stream(Channel("orders"), NodeId("alice"), 8),
    "index": 2,
    "first": 2,
    "digests": b"d" * 32,
}
OTHER_OFFERS = {
    "cell": "other",
    "stream": Stream(Channel("orders"), NodeId("bob"), 7),
    "first": 2,
    "digests": b"d" * 32,
}
OTHER_STOPS = {
    "cell": "other",
    "log": Protection.CRASH,
    "broker": NodeId("b2"),
    "regency": 3,
    "decided": 8,
    "stable": 5,
    "blind": 0,
    "claims": (),
    "log_id": b"",
}


@pytest.mark.parametrize("statement", [SEGMENT, HISTORY])
def test_statement_parsed_and_encoded_again_has_the_same_bytes(statement: Statement) -> None:
    payload = canonical(statement)
    parsed = parse_statement(payload)
    assert parsed == statement
    assert canonical(parsed) == payload


@pytest.mark.parametrize(
    ("statement", "field", "value"),
    [(SEGMENT, *change) for change in OTHER_SEGMENTS.items()]
    + [(HISTORY, *change) for change in OTHER_HISTORIES.items()]
    + [(OFFER, *change) for change in OTHER_OFFERS.items()]
    + [(STOP, *change) for change in OTHER_STOPS.items()],
)
def test_canonical_one_field_changed_has_other_bytes(
    statement: Statement | OfferStatement | StopStatement, field: str, value: object
) -> None:
    changed = msgspec.structs.replace(statement, **{field: value})
    assert canonical(changed) != canonical(statement)


def test_changes_of_this_module_cover_every_field() -> None:
    assert set(OTHER_SEGMENTS) == set(SegmentStatement.__struct_fields__)
    assert set(OTHER_HISTORIES) == set(HistoryStatement.__struct_fields__)
    assert set(OTHER_OFFERS) == set(OfferStatement.__struct_fields__)
    assert set(OTHER_STOPS) == set(StopStatement.__struct_fields__)


def test_canonical_kinds_are_never_read_as_one_another() -> None:
    """A signature under one kind of statement says nothing under another."""
    assert parse_stop(canonical(STOP)) == STOP
    assert [parse_stop(canonical(other)) for other in (SEGMENT, HISTORY, OFFER)] == [None] * 3
    assert [parse_statement(canonical(other)) for other in (STOP, OFFER)] == [None] * 2
    assert canonical(SEGMENT) != canonical(HISTORY)


@pytest.mark.parametrize(
    "changes",
    [
        {"regency": 0},
        {"decided": -1},
        {"stable": 2**63},
        {"blind": -1},
        {"log": "gossip"},
        {"claims": (Claim(0),)},
        {"claims": (Claim(1, -1),)},
        {"claims": (Claim(1, 0, b"", ((b"v", -1),)),)},
    ],
)
def test_parse_stop_of_numbers_that_cannot_be_gives_none(changes: dict[str, Any]) -> None:
    assert parse_stop(canonical(msgspec.structs.replace(STOP, **changes))) is None


@given(st.binary(max_size=300))
def test_parse_stop_any_bytes_never_raises(payload: bytes) -> None:
    parsed = parse_stop(payload)
    assert parsed is None or parse_stop(canonical(parsed)) == parsed


@pytest.mark.parametrize(
    "changes",
    [
        {"first": 0},
        {"first": -1},
        {"count": 0},
        {"epoch": -1},
        {"epoch": 2**63},
        {"stream": msgspec.structs.replace(STREAM, incarnation=-1)},
        {"basis": "hearsay"},
    ],
)
def test_parse_numbers_that_would_overflow_later_gives_none(changes: dict[str, Any]) -> None:
    assert parse_statement(canonical(msgspec.structs.replace(SEGMENT, **changes))) is None


@given(st.binary(max_size=300))
def test_parse_any_bytes_never_raises(payload: bytes) -> None:
    parsed = parse_statement(payload)
    assert parsed is None or parse_statement(canonical(parsed)) == parsed


@given(st.integers(0, len(canonical(SEGMENT)) - 1), st.integers(0, 255))
def test_parse_mutated_statement_is_another_one_or_none(position: int, byte: int) -> None:
    payload = bytearray(canonical(SEGMENT))
    same = payload[position] == byte
    payload[position] = byte
    parsed = parse_statement(bytes(payload))
    assert same or parsed != SEGMENT


def test_parse_lane_of_a_history_survives() -> None:
    parsed = parse_statement(canonical(msgspec.structs.replace(SEGMENT, stream=STREAM.history)))
    assert isinstance(parsed, SegmentStatement)
    assert parsed.stream.lane is Lane.HISTORY


# ------------------------------------------------------------- what contradicts what

OTHER_ROOT = msgspec.structs.replace(SEGMENT, root=b"s" * 32)
WITNESS = msgspec.structs.replace(
    OTHER_ROOT, broker=NodeId("b2"), life=b"m" * 32, peers=((NodeId("b1"), b"l" * 32),)
)
RESUMED = msgspec.structs.replace(
    OFFER, stream=Stream(Channel("orders"), NodeId("alice"), resumable(1, 1))
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SEGMENT, OTHER_ROOT),
        (HISTORY, msgspec.structs.replace(HISTORY, digests=b"e" * 64)),
        (OFFER, msgspec.structs.replace(OFFER, digests=b"e" * 64)),
    ],
)
def test_contradict_same_subject_and_other_contents(first: Any, second: Any) -> None:
    assert contradict(first, second)
    assert not contradict(first, first)


@pytest.mark.parametrize("field", ["broker", "stream", "first", "count", "basis", "life", "log_id"])
def test_contradict_segments_about_different_things_do_not(field: str) -> None:
    other = msgspec.structs.replace(OTHER_ROOT, **{field: OTHER_SEGMENTS[field]})
    assert not contradict(SEGMENT, other)


def test_contradict_segments_of_unknown_lives_do_not() -> None:
    """Statements of earlier versions: their broker may have restarted in between."""
    one, other = (msgspec.structs.replace(said, life=b"") for said in (SEGMENT, OTHER_ROOT))
    assert not contradict(one, other)


def test_contradict_offers_of_a_resumed_stream_do_not() -> None:
    """Two lives may compute different contents: a mistake, and not a lie."""
    assert not contradict(RESUMED, msgspec.structs.replace(RESUMED, digests=b"e" * 64))


def test_outvotes_needs_the_life_that_the_accused_knew() -> None:
    assert outvotes(WITNESS, SEGMENT)
    assert not outvotes(msgspec.structs.replace(WITNESS, life=b"n" * 32), SEGMENT)
    assert not outvotes(WITNESS, msgspec.structs.replace(SEGMENT, peers=()))
    unknown = msgspec.structs.replace(WITNESS, life=b"")
    assert not outvotes(unknown, msgspec.structs.replace(SEGMENT, peers=((NodeId("b2"), b""),)))


@pytest.mark.parametrize("field", ["epoch", "stream", "first", "count", "basis", "log_id"])
def test_outvotes_a_statement_about_another_thing_does_not(field: str) -> None:
    other = msgspec.structs.replace(WITNESS, **{field: OTHER_SEGMENTS[field]})
    assert not outvotes(other, SEGMENT)


def test_outvotes_positions_of_a_log_without_an_id_do_not() -> None:
    log = {"stream": total_order(Channel("orders")), "log_id": b""}
    accused, witness = (msgspec.structs.replace(said, **log) for said in (SEGMENT, WITNESS))
    assert not outvotes(witness, accused)
    assert outvotes(
        msgspec.structs.replace(witness, log_id=b"b"), msgspec.structs.replace(accused, log_id=b"b")
    )
