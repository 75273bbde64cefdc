"""The formats that `publish` reads: rows, their types, and errors that name row and column."""

import io
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from quorumcast.cli.clients import input as reading
from quorumcast.cli.clients.input import EventReader, Events, format_of
from quorumcast.core.errors import UsageError

COLUMNS = {
    "name": "string",
    "price": "float64",
    "size": "int32",
    "at": "timestamp[us, UTC]",
    "local": "timestamp[us]",
    "day": "date32",
    "blob": "binary",
    "sold": "bool",
}
ROW = {
    "name": "2026-11-01",
    "price": 1.5,
    "size": 7,
    "at": datetime(2026, 11, 1, 12, tzinfo=UTC),
    "local": datetime(2026, 11, 1, 12),
    "day": date(2026, 11, 1),
    "blob": b"\x00\n",
    "sold": True,
}
EMPTY = dict.fromkeys(ROW)
JSON_ROW = (
    b'{"name": "2026-11-01", "price": 1.5, "size": 7, "at": "2026-11-01T12:00:00Z", "sold": true,'
    b' "local": "2026-11-01 12:00:00", "day": "2026-11-01", "blob": "AAo="}\n'
)
CSV_HEADER = b"sold,blob,day,local,at,size,price,name\r\n"
CSV_ROW = b"true,AAo=,2026-11-01,2026-11-01 12:00:00,2026-11-01T12:00:00Z,7,1.5,2026-11-01\r\n"


class Pipe(io.BytesIO):
    """A source that cannot be rewound, and that brings a few bytes at a time."""

    def __init__(self, data: bytes, most: int = 7) -> None:
        super().__init__(data)
        self._most = most

    def seekable(self) -> bool:
        return False

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._most if size is None or size < 0 else min(size, self._most))

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def rows(blocks: list[Events]) -> list[Any]:
    found: list[Any] = []
    for block in blocks:
        found += block if isinstance(block, list) else block.to_pylist()
    return found


def read(format_: str, data: bytes, columns: dict[str, str] | None = None) -> list[Any]:
    """The rows; the same from a file and from a pipe."""
    found = []
    for source in (io.BufferedReader(io.BytesIO(data)), Pipe(data)):
        reader = EventReader("input", COLUMNS if columns is None else columns, format_)
        found.append(rows(list(reader.read(source))))
    assert found[0] == found[1]
    return found[0]


def wrong(format_: str, data: bytes, columns: dict[str, str] | None = None) -> tuple[int, str]:
    """How many rows are read before an error, and the error."""
    reader = EventReader("input", COLUMNS if columns is None else columns, format_)
    before: list[Events] = []
    with pytest.raises(UsageError) as caught:
        before.extend(reader.read(io.BufferedReader(io.BytesIO(data))))
    return len(rows(before)), str(caught.value)


# --------------------------------------------------------------------------- bytes


def test_lines_are_cut_at_newlines_alone() -> None:
    data = b"one\r\n\xff\x80\x0b\n\nlast"
    assert read("lines", data, {}) == [b"one\r", b"\xff\x80\x0b", b"", b"last"]
    assert read("", data, {}) == read("lines", data + b"\n", {})


def test_binary_input_is_one_event_and_never_cut_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"\x89PNG\r\n\x1a\n\x00\n\x00"
    assert read("binary", data, {}) == [data]
    assert read("binary", b"", {}) == [b""]
    assert read("lines", data, {}) == data.split(b"\n")
    before, error = wrong("", data, {})
    assert before == 0
    assert "input is not text: its byte 9 is 0" in error
    assert "publish it as one event with --format binary" in error
    monkeypatch.setattr(reading, "MAX_BODY_BYTES", 5)
    assert "an event of 11 bytes is too long" in wrong("binary", data, {})[1]
    assert "has a row of more than 5 bytes; publish" in wrong("lines", b"longer than that", {})[1]
    monkeypatch.setattr(reading, "MAX_ROW_BYTES", 40)
    assert wrong("arrow", arrow_stream(pa.table({"payload": [b"x", b"y" * 50]})), {}) == (
        1,
        "input: row 2 has 54 bytes, more than 40; split it",
    )
    assert "is a quote missing?" in wrong("csv", b'payload\n"longer than that', {})[1]


def test_payloads_of_tables_are_bytes() -> None:
    assert read("jsonl", b'{"payload": "t\xc3\xa9xt"}\n{"payload_base64": "AAo="}', {}) == [
        {"payload": "téxt".encode()},
        {"payload": b"\x00\n"},
    ]
    assert read("csv", b"payload\nAAo=\n", {}) == [{"payload": b"\x00\n"}]
    assert (
        "row 2, column payload: '?' is not a binary, such as aGVsbG8= (base64)"
        in (wrong("csv", b"payload\nAAo=\n?\n", {})[1])
    )
    expected = (1, "input: row 2: column 'payload' must have a value in every event")
    assert wrong("csv", b"payload\nAAo=\n\n", {}) == expected
    assert wrong("jsonl", b'{"payload": ""}\n{}', {}) == expected


# -------------------------------------------------------------------------- tables


def test_jsonl_values_are_read_by_type_and_blank_lines_are_none() -> None:
    assert read("jsonl", JSON_ROW + b"\n  \n{}\n" + JSON_ROW.rstrip()) == [ROW, EMPTY, ROW]


def test_csv_columns_are_found_by_name_and_quotes_hold_newlines() -> None:
    assert read("csv", CSV_HEADER + CSV_ROW + b",,,,,,,\r\n" + CSV_ROW) == [ROW, EMPTY, ROW]
    data = b'\xef\xbb\xbf"name",price\n"a\n""b"",",\n"",2\n,3'
    found = read("csv", data, {"price": "float64", "name": "string"})
    assert found == [
        {"price": None, "name": 'a\n"b",'},
        {"price": 2.0, "name": ""},
        {"price": 3.0, "name": None},
    ]
    assert read("csv", b"name\n\nx\n", {"name": "string"}) == [{"name": None}, {"name": "x"}]
    assert read("csv", b"name\n", {"name": "string"}) == []


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def arrow_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def parquet_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


BINARY_FORMATS = pytest.mark.parametrize(
    ("format_", "write"),
    [("arrow", arrow_stream), ("arrow", arrow_file), ("parquet", parquet_file)],
)


@BINARY_FORMATS
def test_arrow_and_parquet_columns_are_cast_and_completed(
    format_: str, write: Callable[[pa.Table], bytes]
) -> None:
    table = pa.table(
        {
            "size": pa.array([7, None], pa.int64()),
            "blob": [b"\x00\n", None],
            "at": pa.array([ROW["at"], None], pa.timestamp("ms", "Europe/Lisbon")),
        }
    )
    kept = {name: ROW[name] for name in ("size", "blob", "at")}
    assert read(format_, write(table)) == [EMPTY | kept, EMPTY]


@BINARY_FORMATS
def test_arrow_and_parquet_errors_name_row_and_column(
    format_: str, write: Callable[[pa.Table], bytes]
) -> None:
    table = pa.table({"size": pa.array([1, 2, 2**40], pa.int64())})
    assert wrong(format_, write(table)) == (
        2,
        f"input: row 3, column size: {2**40} is not an int32",
    )
    _, error = wrong(format_, write(pa.table({"weight": [1]})))
    assert error.startswith("input: column 'weight' is not in the channel's schema (name, price")
    assert error.endswith("rename or leave out the column")
    for damaged in (b"no such file", write(table)[:-20], b""):
        _, error = wrong(format_, damaged)
        assert "file that can be read" in error
        assert "\n" not in error


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("price", "abc", "'abc' is not a float64"),
        ("size", "1.5", "'1.5' is not an int32"),
        ("size", "3000000000", "'3000000000' is not an int32"),
        ("sold", "maybe", "'maybe' is not a bool"),
        ("at", "noon", "'noon' is not a timestamp[us, UTC], such as 2026-11-01T12:00:00Z"),
        ("at", "2026-11-01T12:00:00", "such as 2026-11-01T12:00:00Z"),
        ("local", "2026-11-01T12:00:00Z", "such as 2026-11-01T12:00:00"),
        ("day", "tomorrow", "'tomorrow' is not a date32, such as 2026-11-01"),
        ("blob", "?", "'?' is not a binary, such as aGVsbG8= (base64)"),
    ],
)
def test_values_of_a_wrong_type_are_told_with_row_and_column(
    column: str, value: str, said: str
) -> None:
    names = CSV_HEADER.decode().strip().split(",")
    bad = ",".join(value if name == column else "" for name in names).encode() + b"\n"
    before, error = wrong("csv", CSV_HEADER + CSV_ROW * 16 + bad + CSV_ROW)
    assert before == 16
    assert error.startswith(f"input: row 17, column {column}: {value!r} is not a")
    assert error.endswith(said)
    line = f'{{"{column}": "{value}"}}\n'.encode()
    assert wrong("jsonl", JSON_ROW * 16 + line + JSON_ROW) == (16, error)


@pytest.mark.parametrize(
    ("format_", "data", "before", "said"),
    [
        ("jsonl", b"ten apples", 0, "row 1: 'ten apples' is no JSON object; the columns of"),
        ("jsonl", JSON_ROW + b"[1]", 1, "row 2: '[1]' is no JSON object"),
        ("jsonl", JSON_ROW + b"{}\n" + b"[" * 99999, 2, "row 3: '[[[["),
        ("jsonl", JSON_ROW + b'{"x": 1}', 1, "row 2: column 'x' is not in the channel's schema"),
        ("jsonl", b'{}\n{"name": 5}\n[1]', 1, "row 2, column name: 5 is not a string"),
        ("jsonl", b'{"size": 1e99}', 0, "row 1, column size: 1e+99 is not an int32"),
        ("jsonl", b'{"name": "\\ud800"}', 0, "row 1, column name: "),
        ("csv", b"name,size\na,1\nb\n", 1, "row 2 has 1 fields, and the header has 2"),
        ("csv", b"name,size\na,1\nb,x\nc\n", 1, "row 2, column size: 'x' is not an int32"),
        ("csv", b"name\na\n\xff\n", 1, "row 2, column name: '\\\\xff' is not a string"),
        ("csv", b"apples,size\na,1\n", 0, "column 'apples' is not in the channel's schema"),
        ("csv", b"size,size\n1,1\n", 0, "input has two columns 'size'; rename one of them"),
    ],
)
def test_input_that_does_not_fit_is_told_behind_what_does(
    format_: str, data: bytes, before: int, said: str
) -> None:
    count, error = wrong(format_, data)
    assert (count, said in error) == (before, True), error


def test_years_that_python_does_not_know_are_told_with_their_row() -> None:
    table = pa.table({"day": pa.array([0, 10**9], pa.int32()).cast(pa.date32())})
    before, error = wrong("arrow", arrow_stream(table))
    assert (before, error) == (
        1,
        "input: row 2: column 'day' has a time outside the years 1 to 9999",
    )


def test_rows_are_numbered_over_blocks_and_cut_into_publications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 16)
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)
    data = b"name,size\n" + b'"a\nb",1\n' * 50 + b"x,y\n"
    before, error = wrong("csv", data, {"name": "string", "size": "int32"})
    assert (before, error) == (50, "input: row 51, column size: 'y' is not an int32")
    reader = EventReader("input", {"size": "int32"}, "arrow")
    table = pa.table({"size": pa.array(range(9), pa.int32())})
    source = io.BufferedReader(io.BytesIO(arrow_stream(table)))
    blocks = list(reader.read(source))
    assert max(map(len, blocks)) == 2
    assert [row["size"] for row in rows(blocks)] == list(range(9))


# -------------------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("given", "file", "columns", "expected"),
    [
        ("", None, {}, ""),
        ("", None, COLUMNS, "jsonl"),
        ("", "a.csv", COLUMNS, "csv"),
        ("", "a.CSV", {}, ""),
        ("", "a.parquet", {}, "parquet"),
        ("", "a.feather", COLUMNS, "arrow"),
        ("", "a.txt", COLUMNS, "jsonl"),
        ("csv", "a.parquet", COLUMNS, "csv"),
        ("lines", "a.parquet", {}, "lines"),
    ],
)
def test_format_is_given_or_known_by_extension_or_by_channel(
    given: str, file: str | None, columns: dict[str, str], expected: str
) -> None:
    assert format_of(given, Path(file) if file else None, columns) == expected


def test_format_without_columns_does_not_suit_a_channel_with_a_schema() -> None:
    with pytest.raises(UsageError, match="--format binary is for channels without a schema, and"):
        format_of("binary", None, COLUMNS)
