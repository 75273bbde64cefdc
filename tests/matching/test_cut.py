"""Cuts depend on values alone, a cut of a cut is the cut, and nonsense gives None."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumcast.core.cuts import digest_of_cut, head_of, is_result, looks_cut, publication_of
from quorumcast.core.envelope import write_envelope
from quorumcast.core.ids import NOTHING, Channel, NodeId, Stream
from quorumcast.core.labels import label
from quorumcast.core.limits import MAX_MATCHED_ROWS
from quorumcast.core.publication import PAYLOAD, batch_of_payloads, encode_batch
from quorumcast.crypto.digest import hasher
from quorumcast.manifest.schema import ARROW_TYPES
from quorumcast.matching import cut as cutting
from quorumcast.matching.cut import OpenedBody, RowCut, cut_out, decode_cut, open_body
from quorumcast.matching.evaluate import Rows
from quorumcast.matching.normal_form import NormalRows

ENVELOPE = write_envelope(1_700_000_000_000_000)
ALL = pa.schema([pa.field(f"c{index}", kind) for index, kind in enumerate(ARROW_TYPES.values())])
digest_of = hasher("sha256")


def column(kind: pa.DataType, rows: int, draw: random.Random, nulls: float) -> pa.Array:
    """Any values of a type, of which null slots contain anything, too."""
    buffers: list[object]
    bitmap = None
    if nulls:
        bitmap = np.packbits([draw.random() >= nulls for _ in range(rows)], bitorder="little")
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = [draw.choice([b"", b"a", "Å".encode(), b"long" * 9]) for _ in range(rows)]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        buffers = [bitmap, ends, b"".join(texts)]
    elif pa.types.is_boolean(kind):
        buffers = [bitmap, draw.randbytes(rows // 8 + 1)]
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        buffers = [bitmap, draw.randbytes(rows * kind.bit_width // 8)]
    else:  # times stay on the calendar
        numbers = np.array([draw.randrange(-10_000, 10_000) for _ in range(rows)])
        buffers = [bitmap, numbers.astype(np.int32 if kind.bit_width == 32 else np.int64)]
    kept = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, rows, kept)


def random_batch(seed: int, rows: int, schema: pa.Schema = ALL) -> pa.RecordBatch:
    draw = random.Random(seed)
    columns = [column(field.type, rows, draw, draw.choice([0, 0, 0.4, 1])) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def opened(batch: pa.RecordBatch, schema: pa.Schema = ALL) -> OpenedBody:
    body = encode_batch(batch, ENVELOPE)
    found = open_body(schema, digest_of(body), body)
    assert found is not None
    return found


def places(*numbers: int) -> Rows:
    return np.array(numbers, np.uint32)


def cut_of(body: OpenedBody, rows: Rows) -> RowCut:
    (found,) = cut_out(body, [rows])
    assert found is not None
    return found


rows_and_cuts = st.tuples(st.integers(0, 2**32), st.integers(40, 90)).flatmap(
    lambda drawn: st.tuples(
        st.just(random_batch(*drawn)),
        st.sets(st.integers(0, drawn[1] - 1), min_size=1, max_size=drawn[1] // 2).map(sorted),
        st.randoms(use_true_random=False),
    )
)


@given(rows_and_cuts)
@settings(max_examples=60, deadline=None)
def test_cut_of_all_column_types_decodes_to_its_rows(
    drawn: tuple[pa.RecordBatch, list[int], random.Random],
) -> None:
    batch, rows, _ = drawn
    cut = cut_of(opened(batch), places(*rows))
    back = decode_cut(cut.encode(), ALL)
    assert back is not None
    assert (back.publication, back.head, back.total) == (cut.publication, ENVELOPE, batch.num_rows)
    assert back.rows.tolist() == rows
    assert back.digest == cut.digest == digest_of_cut(cut.encode())
    for ours, theirs in zip(back.batch.columns, batch.columns, strict=True):
        assert bits(ours) == bits(theirs.take(pa.array(rows)))


def bits(column: pa.Array) -> list[object]:
    """Values that compare by their bits, so that NaN is NaN."""
    if pa.types.is_floating(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    found: list[object] = column.to_pylist()
    return found


@given(rows_and_cuts)
@settings(max_examples=60, deadline=None)
def test_cut_of_a_cut_is_the_cut(
    drawn: tuple[pa.RecordBatch, list[int], random.Random],
) -> None:
    batch, wide, draw = drawn
    narrow = sorted(draw.sample(range(len(wide)), draw.randint(1, len(wide))))
    whole = opened(batch)
    wider = cut_of(whole, places(*wide))
    body = wider.encode()
    for digest in (whole.publication, wider.digest):
        cut = open_body(ALL, digest, body)
        assert cut is not None
        again = cut_of(cut, places(*narrow))
        assert again.encode() == cut_of(whole, places(*(wide[i] for i in narrow))).encode()


@given(rows_and_cuts, st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_cut_does_not_depend_on_the_layout(
    drawn: tuple[pa.RecordBatch, list[int], random.Random], before: int
) -> None:
    """Slices, bitmaps without nulls, what is in null slots, and joined batches."""
    batch, rows, _ = drawn
    body = opened(batch)
    wanted = cut_of(body, places(*rows)).encode()
    joined = pa.concat_batches([random_batch(7, before), batch, random_batch(8, 3)])
    copied = pa.RecordBatch.from_arrays(
        [column.take(pa.array(range(batch.num_rows))) for column in batch.columns], schema=ALL
    )
    for same in (joined.slice(before, batch.num_rows), copied):
        layout = OpenedBody(body.publication, body.head, body.total, same, body.size)
        assert cut_of(layout, places(*rows)).encode() == wanted


@given(rows_and_cuts, st.data())
@settings(max_examples=60, deadline=None)
def test_nonsense_of_a_broker_gives_none_or_another_cut(
    drawn: tuple[pa.RecordBatch, list[int], random.Random], data: st.DataObject
) -> None:
    batch, rows, _ = drawn
    cut = cut_of(opened(batch), places(*rows))
    body = bytearray(cut.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    size = data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))
    wrong = bytes(body[:size])
    found = decode_cut(wrong, ALL)
    if wrong != cut.encode():
        assert found is None or found.digest != cut.digest
    if found is not None:
        assert found.encode() == wrong
        found.batch.validate(full=True)
        found.batch.to_pylist()
    if looks_cut(wrong):
        assert len(publication_of(wrong)) == 32
        assert len(head_of(wrong)) <= len(wrong)


@given(rows_and_cuts, st.integers(1, 40_000))
@settings(max_examples=60, deadline=None)
def test_cuts_that_are_made_at_once_are_those_made_alone(
    drawn: tuple[pa.RecordBatch, list[int], random.Random], together: int
) -> None:
    batch, rows, draw = drawn
    body = opened(batch)
    several = [rows, rows[:1], list(range(batch.num_rows)), rows[len(rows) // 2 :], rows[-1:]]
    wanted = [places(*one) for one in draw.sample(several, 5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "_TAKEN_BYTES", together)
        found = cut_out(body, wanted)
    for one, numbers in zip(found, wanted, strict=True):
        (alone,) = cut_out(body, [numbers])
        assert (one and one.encode()) == (alone and alone.encode())
        assert one is None or one.batch.equals(batch.take(pa.array(numbers)))


INTS = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.string())])


def ints(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"a": n, "b": str(n)} for n in range(rows)], schema=INTS)


@pytest.mark.parametrize("length", [0, 1, 5, 31, 33, 200])
def test_short_and_long_texts_are_cut_alike(length: int) -> None:
    texts = [None if row % 7 == 3 else "Åb"[row % 2] * (length + row % 3) for row in range(60)]
    batch = pa.record_batch([pa.array(texts)], names=["text"])
    body = encode_batch(batch, ENVELOPE)
    opened = open_body(batch.schema, digest_of(body), body)
    assert opened is not None
    places = np.array([1, 3, 4, 10, 17, 30, 59], np.uint32)
    cut = RowCut(opened.publication, opened.head, 60, places, batch, places)
    decoded = decode_cut(cut.encode(), batch.schema)
    assert decoded is not None
    assert decoded.batch.column(0).to_pylist() == [texts[place] for place in places]


def test_cut_says_whose_rows_it_has() -> None:
    body = opened(ints(100), INTS)
    cut = cut_of(body, places(3, 50))
    wire = cut.encode()
    assert looks_cut(wire)
    assert publication_of(wire) == body.publication
    assert head_of(wire) == ENVELOPE
    assert cut.batch.to_pylist() == [{"a": 3, "b": "3"}, {"a": 50, "b": "50"}]


@pytest.mark.parametrize("differing", ["publication", "head", "total", "rows", "values"])
def test_digest_covers_every_field(differing: str) -> None:
    body = opened(ints(100), INTS)
    cut = cut_of(body, places(3, 50))
    fields = {
        "publication": cut.publication,
        "head": cut.head,
        "total": cut.total,
        "rows": cut.rows,
        "batch": cut.batch,
    }
    other = {
        "publication": digest_of(b"another"),
        "head": write_envelope(1),
        "total": 101,
        "rows": places(3, 51),
        "batch": ints(2),
    }
    key = "batch" if differing == "values" else differing
    assert RowCut(**fields).digest == cut.digest
    assert RowCut(**{**fields, key: other[key]}).digest != cut.digest


def test_more_than_half_of_the_rows_go_whole() -> None:
    body = opened(ints(100), INTS)
    fifty, more, again = cut_out(body, [np.arange(n, dtype=np.uint32) for n in (50, 51, 50)])
    assert more is None
    assert fifty is not None
    assert again is not None
    assert again.encode() == fifty.encode()


def test_cut_that_is_no_shorter_than_the_publication_goes_whole() -> None:
    """Row numbers take 32 times as much as bits: a cut must not cost more than what it cuts."""
    schema = pa.schema([pa.field("flag", pa.bool_())])
    batch = pa.RecordBatch.from_arrays([pa.array([True, False] * 5000)], schema=schema)
    body = opened(batch, schema)
    half = np.arange(0, 5000, 2, dtype=np.uint32)
    few, many = cut_out(body, [np.arange(100, dtype=np.uint32), half])
    assert few is not None
    assert len(few.encode()) < body.size
    assert many is None


def test_all_rows_of_a_cut_are_the_cut() -> None:
    wider = cut_of(opened(ints(20), INTS), places(*range(10)))
    cut = open_body(INTS, wider.digest, wider.encode())
    assert cut is not None
    assert cut_of(cut, places(*range(10))).encode() == wider.encode()


def test_cut_of_a_cut_is_the_cut_though_padding_makes_it_no_shorter() -> None:
    """Three numbers take as many bytes as four: compared by size, it would go whole."""
    schema = pa.schema([pa.field("small", pa.int8())])
    batch = pa.record_batch([pa.array(range(60), pa.int8())], schema=schema)
    body = opened(batch, schema)
    wider, narrow = cut_of(body, places(1, 2, 3, 4)), cut_of(body, places(1, 2, 3))
    assert len(wider.encode()) == len(narrow.encode())
    cut = open_body(schema, wider.digest, wider.encode())
    assert cut is not None
    assert cut_of(cut, places(0, 1, 2)).encode() == narrow.encode()


def test_columns_that_came_later_change_no_cut() -> None:
    """Brokers that know the new columns vote as those that cut the same rows before."""
    later = pa.schema([*INTS, pa.field("c", pa.int64()), pa.field("d", pa.string())])
    body = encode_batch(ints(30), ENVELOPE)
    older, newer = (open_body(schema, digest_of(body), body) for schema in (INTS, later))
    assert older is not None
    assert newer is not None
    assert newer.batch.num_columns == 4
    wire = cut_of(older, places(1, 2)).encode()
    assert cut_of(newer, places(1, 2)).encode() == wire
    read = decode_cut(wire, later)
    assert read is not None
    assert read.batch.to_pylist()[0] == {"a": 1, "b": "1", "c": None, "d": None}


def test_accepted_cut_may_have_more_columns_than_are_known() -> None:
    """A parent cell may get a column before its child does."""
    known = pa.schema([ALL.field(0)])
    body = opened(random_batch(5, 9))
    cut = cut_of(body, places(1, 3, 4))
    found = decode_cut(cut.encode(), known, accepted=True)
    assert found is not None
    assert found.batch.equals(cut.batch.select([0]))
    assert (found.rows.tolist(), found.encode(), found.digest) == (
        [1, 3, 4],
        cut.encode(),
        cut.digest,
    )
    there = open_body(known, cut.digest, cut.encode())
    assert there is not None
    narrow = cut_of(there, places(0, 2))
    assert narrow.batch.equals(cut.batch.select([0]).take([0, 2]))
    assert decode_cut(narrow.encode(), known) is not None
    # Without votes for its own digest a cut may have anything behind the columns that are known.
    assert open_body(known, cut.publication, cut.encode()) is None


def test_cut_without_a_column_that_must_have_values_is_nonsense() -> None:
    wire = cut_of(opened(ints(30), INTS), places(1, 2)).encode()
    needed = pa.schema([*INTS, pa.field("c", pa.int64(), nullable=False)])
    assert decode_cut(wire, needed) is None
    assert decode_cut(wire, pa.schema([INTS.field(0)])) is None


def test_rows_that_are_null_in_all_columns_are_cut() -> None:
    nothing = pa.RecordBatch.from_arrays([pa.nulls(50, f.type) for f in INTS], schema=INTS)
    cut = cut_of(opened(nothing, INTS), places(3, 5))
    back = decode_cut(cut.encode(), INTS)
    assert back is not None
    assert back.batch.to_pylist() == [{"a": None, "b": None}] * 2


def test_cut_of_a_labelled_publication_has_its_label() -> None:
    head = label(Stream(Channel("orders"), NodeId("alice"), 8), 5) + ENVELOPE
    body = encode_batch(ints(40), head)
    found = open_body(INTS, digest_of(body), body, labelled=True)
    assert found is not None
    assert head_of(cut_of(found, places(1, 2)).encode()) == head


def test_payloads_without_a_schema_are_cut() -> None:
    batch = batch_of_payloads([bytes(20) + bytes([n]) for n in range(50)])
    cut = cut_of(opened(batch, PAYLOAD), places(4))
    assert cut.batch.column(0).to_pylist() == [bytes(20) + b"\x04"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        ENVELOPE + b"nonsense",
        encode_batch(ints(3), write_envelope(-5)),
        encode_batch(ints(MAX_MATCHED_ROWS + 1), ENVELOPE),
        b"\xff\xff\xff\xffcut\x01" + bytes(100),
    ],
)
def test_body_that_cannot_be_cut_is_not_opened(body: bytes) -> None:
    assert open_body(INTS, digest_of(body), body) is None
    assert open_body(INTS, digest_of(body), body, labelled=True) is None


@pytest.mark.parametrize("size", [120, 124])  # of the numbers, and of the ends of the texts
def test_publication_with_a_buffer_that_ends_inside_a_number_is_cut(size: int) -> None:
    body = bytearray(encode_batch(ints(30), ENVELOPE))
    struct.pack_into("<q", body, body.index(struct.pack("<q", size)), size + 1)
    odd = bytes(body)
    found = open_body(INTS, digest_of(odd), odd)
    assert found is not None
    assert size + 1 in [buffer.size for column in found.batch for buffer in column.buffers()[1:]]
    wire = cut_of(found, places(1, 2)).encode()
    cut = decode_cut(wire, INTS)
    assert cut is not None
    assert cut.batch.to_pylist() == [{"a": 1, "b": "1"}, {"a": 2, "b": "2"}]


def test_cut_of_another_publication_is_not_opened() -> None:
    wire = cut_of(opened(ints(30), INTS), places(1, 2)).encode()
    assert open_body(INTS, digest_of(wire), wire) is None


def test_nothing_has_no_contents() -> None:
    assert is_result(b"", NOTHING)
    assert not is_result(b"x", NOTHING)


def test_columns_that_are_not_flat_go_whole() -> None:
    nested = pa.schema([pa.field("a", pa.list_(pa.int32()))])
    body = encode_batch(pa.RecordBatch.from_pylist([{"a": [1]}] * 9, schema=nested), ENVELOPE)
    assert open_body(nested, digest_of(body), body) is None


@pytest.mark.parametrize(
    ("offset", "number"),
    [
        (40, 0),  # rows of the publication
        (40, 3),  # more than half of them
        (40, MAX_MATCHED_ROWS + 1),
        (44, 0),  # rows of the cut
        (44, 2**32 - 1),
        (48, 2**32 - 1),  # length of the head
        (52, 2**32 - 1),  # columns
        (72, 1),  # the first row comes after the second
        (72, 2),  # both are one
        (76, 100),  # there is no such row
        (108, 2**31),  # the last end of the texts
    ],
)
def test_cut_with_a_wrong_number_is_nonsense(offset: int, number: int) -> None:
    body = bytearray(cut_of(opened(ints(100), INTS), places(1, 2)).encode())
    if offset == 72 and number == 1:
        struct.pack_into("<II", body, offset, 2, 1)
    else:
        struct.pack_into("<I", body, offset, number)
    assert decode_cut(bytes(body), INTS) is None


@pytest.mark.parametrize("schema", [INTS, ALL, PAYLOAD])
def test_every_single_wrong_byte_is_noticed(schema: pa.Schema) -> None:
    """Each other byte is nonsense or another digest: nothing in the form is without a meaning."""
    batch = random_batch(3, 40, schema) if schema is not PAYLOAD else batch_of_payloads([b"a"] * 40)
    body = cut_of(opened(batch, schema), places(2, 9, 11)).encode()
    for place in range(len(body)):
        wrong = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        found = decode_cut(wrong, schema)
        assert found is None or found.encode() == wrong


@pytest.mark.parametrize(
    ("kind", "buffers", "plain"),
    [
        (pa.string(), [np.array([0, 1, 3, 4], np.int32).tobytes(), b"axxb"], ["a", None, "b"]),
        (pa.int32(), [np.array([1, 77, 2], np.int32).tobytes()], [1, None, 2]),
        (pa.float64(), [np.array([1.5, np.nan, 2.5]).tobytes()], [1.5, None, 2.5]),
        (pa.bool_(), [b"\x07"], [True, None, True]),
    ],
    ids=["string", "int32", "float64", "bool"],
)
def test_what_is_null_has_no_bytes_in_the_normal_form(
    kind: pa.DataType, buffers: list[bytes], plain: list[object]
) -> None:
    """Of three values the second is null, and has bytes all the same."""
    given = [pa.py_buffer(buffer) for buffer in (b"\x05", *buffers)]
    odd = pa.Array.from_buffers(kind, 3, given)
    written = [
        NormalRows(pa.RecordBatch.from_arrays([column], ["name"])).written(0, 3)
        for column in (odd, pa.array(plain, kind))
    ]
    assert odd.to_pylist() == plain
    assert written[0] == written[1]
