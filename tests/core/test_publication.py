"""Batches come back as they went; what a malicious publisher writes gives None and never raises."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES
from quorumcast.core.publication import (
    PAYLOAD,
    batch_of_payloads,
    batch_of_rows,
    conform,
    decode_batch,
    decode_older,
    encode_batch,
)

TRADES = pa.schema(
    [
        pa.field("price", pa.float64()),
        pa.field("company", pa.string(), nullable=False),
        pa.field("sold", pa.bool_()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("due", pa.date32()),
    ]
)
TRADE = {
    "price": 9.5,
    "company": "CTT",
    "sold": True,
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "due": date(2026, 2, 3),
}
BODIES = [
    (encode_batch(batch_of_payloads([b"abc", b"", b"d" * 70])), PAYLOAD),
    (encode_batch(batch_of_rows([TRADE, {"company": "ÆØÅ"}], TRADES)), TRADES),
]


def compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    """The batch as `encode_batch` would write it, but with compressed buffers."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    body: bytes = reader.read_next_message().serialize().to_pybytes()
    return body


@given(st.lists(st.binary(max_size=100), max_size=20))
def test_payloads_encoded_decode_to_themselves(payloads: list[bytes]) -> None:
    batch = decode_batch(encode_batch(batch_of_payloads(payloads)), PAYLOAD)
    assert batch is not None
    assert batch.column("payload").to_pylist() == payloads


def test_rows_encoded_decode_to_themselves() -> None:
    batch = decode_batch(encode_batch(batch_of_rows([TRADE], TRADES)), TRADES)
    assert batch is not None
    assert batch.to_pylist() == [TRADE]


def test_rows_missing_nullable_columns_are_null() -> None:
    (row,) = batch_of_rows([{"company": "CTT"}], TRADES).to_pylist()
    assert row == dict.fromkeys(TRADES.names) | {"company": "CTT"}


MUTATION = st.tuples(st.integers(0, 2**16), st.binary(min_size=1, max_size=8))


@settings(max_examples=1_000)
@given(st.sampled_from(BODIES), st.lists(MUTATION, min_size=1, max_size=4), st.integers(0, 2**16))
def test_decode_mutated_body_is_none_or_a_sound_batch(
    original: tuple[bytes, pa.Schema], mutations: list[tuple[int, bytes]], cut: int
) -> None:
    body, schema = bytearray(original[0]), original[1]
    for position, patch in mutations:
        at = position % len(body)
        body[at : at + len(patch)] = patch
    for candidate in (bytes(body), bytes(body[: cut % len(body)])):
        batch = decode_batch(candidate, schema)
        if batch is not None:
            assert batch.schema.equals(schema)
            assert len(batch.to_pylist()) == batch.num_rows


@given(st.binary(max_size=300))
def test_decode_any_bytes_never_raises(body: bytes) -> None:
    assert decode_batch(body, PAYLOAD) is None


def test_decode_body_of_another_schema_is_none() -> None:
    assert decode_batch(BODIES[1][0], PAYLOAD) is None


def test_decode_schema_message_is_none() -> None:
    assert decode_batch(PAYLOAD.serialize().to_pybytes(), PAYLOAD) is None


def test_decode_null_where_none_may_be_is_none() -> None:
    batch = pa.record_batch([pa.array([b"x", None], pa.binary())], schema=PAYLOAD)
    assert decode_batch(encode_batch(batch), PAYLOAD) is None


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_decode_time_on_python_calendar_converts_and_beyond_is_none(unit: str) -> None:
    ticks = {"s": 1, "ms": 10**3, "us": 10**6}[unit]
    first, last = -62_135_596_800 * ticks, 253_402_300_800 * ticks - 1
    schema = pa.schema([pa.field("at", pa.timestamp(unit, tz="UTC"))])

    def decoded(*times: int) -> pa.RecordBatch | None:
        array = pa.array(times, pa.int64()).view(schema.field("at").type)
        return decode_batch(encode_batch(pa.record_batch([array], schema=schema)), schema)

    batch = decoded(first, last)
    assert batch is not None
    assert [row["at"].year for row in batch.to_pylist()] == [1, 9999]
    assert decoded(first - 1, 0) is None
    assert decoded(last + 1, 0) is None
    assert decoded(-(2**63)) is None


def test_decode_date_on_python_calendar_converts_and_beyond_is_none() -> None:
    schema = pa.schema([pa.field("due", pa.date32())])

    def decoded(*days: int) -> pa.RecordBatch | None:
        array = pa.array(days, pa.int32()).view(pa.date32())
        return decode_batch(encode_batch(pa.record_batch([array], schema=schema)), schema)

    first, last = ((edge - date(1970, 1, 1)).days for edge in (date.min, date.max))
    batch = decoded(first, last)
    assert batch is not None
    assert [row["due"] for row in batch.to_pylist()] == [date.min, date.max]
    assert decoded(first - 1) is None
    assert decoded(last + 1) is None


def test_conform_time_beyond_the_calendar_is_refused() -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us"))])
    batch = pa.record_batch([pa.array([2**62]).view(pa.timestamp("us"))], schema=schema)
    with pytest.raises(UsageError, match="'at' has a time outside the years 1 to 9999"):
        conform(batch, schema)


def test_decode_text_that_is_not_utf8_is_none() -> None:
    honest = encode_batch(batch_of_rows([{"company": "CTT"}], TRADES))
    assert decode_batch(honest.replace(b"CTT", b"C\xffT"), TRADES) is None


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_decode_small_body_that_unfolds_into_a_large_one_is_none(codec: str) -> None:
    bomb = compressed(batch_of_payloads([bytes(50_000_000)]), codec)
    assert len(bomb) < 1_000_000
    before = pa.default_memory_pool().bytes_allocated()
    assert decode_batch(bomb, PAYLOAD) is None
    assert pa.default_memory_pool().bytes_allocated() - before < 1_000_000


def test_encode_batch_beyond_the_limit_is_refused() -> None:
    assert len(encode_batch(batch_of_payloads([bytes(MAX_BODY_BYTES - 1024)]))) <= MAX_BODY_BYTES
    with pytest.raises(UsageError, match="publish smaller batches"):
        encode_batch(batch_of_payloads([bytes(MAX_BODY_BYTES)]))


def test_rows_with_an_unknown_column_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'colour' is not in .*\(price, company, sold, at, due\)"):
        batch_of_rows([{"company": "CTT", "colour": "red"}], TRADES)


def test_rows_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"does not fit the channel's schema: column '.*' takes .*, not "
    ):
        batch_of_rows([{"company": "CTT", "price": "much"}], TRADES)


def test_rows_without_a_required_column_are_refused() -> None:
    with pytest.raises(UsageError, match="'company' must have a value in every event"):
        batch_of_rows([{"price": 1.0}], TRADES)


@pytest.mark.parametrize("payload", [None, 3])
def test_payloads_that_are_no_bytes_are_refused(payload: object) -> None:
    with pytest.raises(UsageError, match=r"events of this channel are bytes|must have a value"):
        batch_of_payloads([b"x", payload])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="events of this channel are bytes"):
        batch_of_payloads([payload])  # type: ignore[list-item]


@pytest.mark.parametrize("payload", [b"", b"x", b"12345678", bytes(5000)])
def test_batch_of_one_payload_is_the_same_as_arrow_makes(payload: bytes) -> None:
    made = batch_of_payloads([payload])
    made.validate(full=True)
    plain = pa.RecordBatch.from_arrays([pa.array([payload], pa.binary())], schema=PAYLOAD)
    assert encode_batch(made) == encode_batch(plain)


def test_conform_batch_of_the_schema_passes_and_another_is_refused() -> None:
    batch = batch_of_payloads([b"x"])
    assert conform(batch, PAYLOAD) is batch
    with pytest.raises(UsageError, match=r"has the schema \(payload: binary\).* expects \(price"):
        conform(batch, TRADES)


# ----------------------------------------------------------- added columns

OLD = pa.schema([("symbol", pa.string()), ("price", pa.float64())])
NEW = pa.schema([*OLD, pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("lots", pa.int8())])


def test_decode_older_fills_added_columns_with_nulls() -> None:
    body = encode_batch(batch_of_rows([{"symbol": "CTT", "price": 9.5}, {}], OLD))
    assert decode_batch(body, NEW) is None
    batch = decode_older(body, NEW)
    assert batch is not None
    assert batch.schema.equals(NEW)
    assert batch.to_pylist() == [
        {"symbol": "CTT", "price": 9.5, "at": None, "lots": None},
        {"symbol": None, "price": None, "at": None, "lots": None},
    ]


def test_decode_older_is_for_fewer_columns_that_may_be_null_only() -> None:
    body = encode_batch(batch_of_rows([{"symbol": "CTT"}], OLD))
    assert decode_older(body, OLD) is None
    needed = pa.schema([*OLD, pa.field("lots", pa.int8(), nullable=False)])
    assert decode_older(body, needed) is None
    other = pa.schema([("price", pa.float64()), ("symbol", pa.string()), ("lots", pa.int8())])
    assert decode_older(encode_batch(batch_of_rows([{"symbol": "ÆØÅ"}], OLD)), other) is None


@given(st.binary(max_size=200))
def test_decode_older_any_bytes_never_raises(body: bytes) -> None:
    assert decode_older(b"\xff\xff\xff\xff" + body, NEW) is None


@given(st.data())
@settings(max_examples=300)
def test_decode_older_mutated_body_is_none_or_a_sound_batch(data: st.DataObject) -> None:
    body = bytearray(encode_batch(batch_of_rows([{"symbol": "CTT", "price": 9.5}] * 3, OLD)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    batch = decode_older(bytes(body), NEW)
    if batch is not None:
        batch.validate(full=True)
        assert batch.schema.equals(NEW)
        batch.to_pylist()


def test_conform_batch_of_fewer_columns_passes_and_of_others_is_refused() -> None:
    older = batch_of_rows([{"symbol": "CTT"}], OLD)
    assert conform(older, NEW) is older
    with pytest.raises(UsageError, match="the channel expects"):
        conform(batch_of_rows([{}], pa.schema([("price", pa.float64())])), NEW)
