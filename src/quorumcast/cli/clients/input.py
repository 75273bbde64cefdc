"""Events that `quorumcast publish` reads from a file or standard input, in one of several formats.

    lines      one event per line, unchanged bytes; lines end with a newline character
    binary     the whole input is one event
    jsonl      one JSON object per line, whose fields are the columns
    csv        the names of the columns, then a row per event
    arrow      record batches in the stream or the file format of Arrow
    parquet    a Parquet file

Lines and binary are for channels without a schema. The others are tables. Their columns are found
by name, in any order; a column that is missing has no values. A channel without a schema has one
column, `payload`. Bytes are base64 in CSV and JSON lines; the payload of a channel without a schema
is text in JSON lines, or base64 in the field `payload_base64`, as `subscribe --json` prints it.

Input is read in blocks of whole records, so memory is bounded by the longest event. An error names
the row, counted from 1, and the column; all rows before that one are read first.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_BODY_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

LINES, BINARY, JSONL, CSV, ARROW, PARQUET = FORMATS = (
    "lines",
    "binary",
    "jsonl",
    "csv",
    "arrow",
    "parquet",
)
#: Formats by the extension of a file.
EXTENSIONS = {
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".csv": CSV,
    ".arrow": ARROW,
    ".arrows": ARROW,
    ".feather": ARROW,
    ".parquet": PARQUET,
}
#: The column of a channel without a schema, and its field in JSON for bytes that are not text.
PAYLOAD, PAYLOAD_BASE64 = "payload", "payload_base64"

#: The longest row; the rest of a publication is for Arrow's metadata.
MAX_ROW_BYTES = MAX_BODY_BYTES - 4096
CHUNK_BYTES = 1 << 20
#: Rows and bytes of one publication, about.
BATCH_ROWS, BATCH_BYTES = 4096, 1 << 20
#: Characters of an invalid value or row in an error.
SHOWN = 60

#: Events of a channel without a schema, or rows.
Events: TypeAlias = "list[bytes] | pa.RecordBatch"
#: The values of a column: Python values, or an Arrow array.
Column: TypeAlias = "list[Any] | pa.Array"
#: Converts a column to an Arrow type, which has this name in the schema; raises if a value misfits.
Converter: TypeAlias = "Callable[[Any, pa.DataType, str], pa.Array]"


class BadRow(Exception):
    """A row that cannot be published; `row` is its index in the present block."""

    def __init__(self, row: int, sentence: str) -> None:
        super().__init__(sentence)
        self.row = row


def check_format(text: str) -> None:
    """Check a format that the user named; empty for none."""
    if text and text not in FORMATS:
        raise UsageError(f"--format is {text!r}: choose one of {', '.join(FORMATS)}")


def format_of(given: str, file: Path | None, columns: Mapping[str, str]) -> str:
    """The format of an input: as given, by the extension of the file, or as the channel needs.

    It is empty for lines that must be text, because the user has not asked for lines.
    """
    if given in (LINES, BINARY) and columns:
        raise UsageError(
            f"--format {given} is for channels without a schema, and this one has the columns "
            f"{', '.join(columns)}: use {JSONL}, {CSV}, {ARROW} or {PARQUET}"
        )
    if given:
        return given
    by_name = EXTENSIONS.get(file.suffix.lower(), "") if file is not None else ""
    if columns:
        return by_name or JSONL
    # On a channel without a schema the lines of a text file are events, whatever they mean.
    return by_name if by_name in (ARROW, PARQUET) else ""


class EventReader:
    """Reads the events of one input for a channel with these columns and types."""

    def __init__(self, name: str, columns: Mapping[str, str], format_: str = "") -> None:
        from quorumcast.manifest.schema import arrow_schema

        #: The input in errors.
        self._name = name
        self._format = format_
        self._opaque = not columns
        self._types = dict(columns) or {PAYLOAD: "binary"}
        self._schema = arrow_schema(tuple(columns.items()))
        #: Rows before the present block.
        self._before = 0

    def read(self, source: BinaryIO) -> Iterator[Events]:
        """Yield all events in order; `UsageError` says what cannot be published."""
        read: dict[str, Callable[[BinaryIO], Iterator[Events]]] = {
            "": self._read_text,
            LINES: self._read_lines,
            BINARY: self._read_whole,
            JSONL: self._read_jsonl,
            CSV: self._read_csv,
            ARROW: self._read_arrow,
            PARQUET: self._read_parquet,
        }
        return read[self._format](source)

    # ------------------------------------------------------------------- bytes

    def _read_text(self, source: BinaryIO) -> Iterator[Events]:
        read = 0
        for block in self._blocks(source):
            if (place := block.find(b"\0")) >= 0:
                raise UsageError(
                    f"{self._name} is not text: its byte {read + place + 1:,} is 0, and lines "
                    "would cut it; publish it as one event with --format binary"
                )
            read += len(block)
            yield _lines(block)

    def _read_lines(self, source: BinaryIO) -> Iterator[Events]:
        for block in self._blocks(source):
            yield _lines(block)

    def _read_whole(self, source: BinaryIO) -> Iterator[Events]:
        from quorumcast.client.publishing.packing import too_long

        parts: list[bytes] = []
        size = 0
        while chunk := source.read(CHUNK_BYTES):
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise too_long(size)
        yield [b"".join(parts)]

    def _blocks(self, source: BinaryIO, *, quoted: bool = False) -> Iterator[bytes]:
        """Yield blocks of whole records; with `quoted`, newlines in quotes belong to a record."""
        rest = b""
        while chunk := source.read(CHUNK_BYTES):
            rest += chunk
            if end := _last_end(rest, quoted=quoted):
                yield rest[:end]
                rest = rest[end:]
            if len(rest) > MAX_BODY_BYTES:
                hint = "; is a quote missing?" if quoted else "; publish it in parts"
                raise UsageError(
                    f"{self._name} has a row of more than {MAX_BODY_BYTES:,} bytes{hint}"
                )
        if rest:
            yield rest

    # ------------------------------------------------------------------ tables

    def objects(self, lines: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of lines that are JSON objects."""
        rows: list[dict[str, Any]] = []
        bad: BadRow | None = None
        for line in lines:
            try:
                rows.append(self._object(len(rows), line))
            except BadRow as found:
                bad = found
                break
        columns = {name: [row.get(name) for row in rows] for name in self._types}
        yield from self._rows(columns, len(rows), _from_json, bad)

    def _object(self, index: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            shown = line[:SHOWN].decode(errors="replace")
            raise BadRow(
                index,
                f": {shown!r} is no JSON object; the columns of this channel are "
                f"{', '.join(self._types)}",
            )
        if self._opaque and row.keys() == {PAYLOAD_BASE64}:
            return {PAYLOAD: row[PAYLOAD_BASE64]}
        for name in row:
            self._check_known(name, index)
        if self._opaque and isinstance(row.get(PAYLOAD), str):
            text = row[PAYLOAD].encode(errors="surrogatepass")
            return {PAYLOAD: base64.b64encode(text).decode()}
        return row

    def _read_jsonl(self, source: BinaryIO) -> Iterator[Events]:
        for block in self._blocks(source):
            yield from self.objects([line for line in _lines(block) if line.strip()])

    def _read_csv(self, source: BinaryIO) -> Iterator[Events]:
        import csv

        names: list[str] = []
        for block in self._blocks(source, quoted=True):
            if not names:
                end = _first_end(block)
                header = block[:end].decode("utf-8-sig", "backslashreplace")
                names = next(csv.reader([header]), [])
                block = block[end:]
                self._check_names(names)
            if block.strip(b"\r\n") or (len(names) == 1 and block):
                yield from self._csv_block(names, block)

    def _csv_block(self, names: list[str], block: bytes) -> Iterator[Events]:
        import pyarrow as pa
        from pyarrow import csv

        bad: BadRow | None = None

        def skip(row: Any) -> str:
            nonlocal bad
            if bad is None:
                found = f" has {row.actual_columns} fields, and the header has {len(names)}"
                bad = BadRow(row.number - 1, found)
            return "skip"

        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(block) + 1
            ),
            parse_options=csv.ParseOptions(
                newlines_in_values=True,
                invalid_row_handler=skip,
                ignore_empty_lines=len(names) > 1,  # in a single column they are missing values
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        columns = {name: table.column(name).combine_chunks() for name in names}
        yield from self._rows(columns, table.num_rows, _from_csv, bad)

    def _read_arrow(self, source: BinaryIO) -> Iterator[Events]:
        import pyarrow as pa

        # Standard input has no buffer.
        buffered: Any = source if hasattr(source, "peek") else io.BufferedReader(source)
        try:
            if buffered.peek(1)[:1] != b"A":  # of ARROW1, with which the file format begins
                yield from self._batches(pa.ipc.open_stream(buffered))
                return
            with _seekable(buffered) as whole:
                file = pa.ipc.open_file(whole)
                yield from self._batches(map(file.get_batch, range(file.num_record_batches)))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable("Arrow", error) from None

    def _read_parquet(self, source: BinaryIO) -> Iterator[Events]:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with _seekable(source) as whole:
                file = parquet.ParquetFile(whole)
                yield from self._batches(file.iter_batches(BATCH_ROWS, use_threads=False))
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable("Parquet", error) from None

    def _unreadable(self, kind: str, error: Exception) -> UsageError:
        return UsageError(
            f"{self._name} is no {kind} file that can be read ({str(error).splitlines()[0]}); name "
            "another file or --format"
        )

    def _batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Events]:
        for batch in batches:
            self._check_names(batch.schema.names)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield from self._rows(columns, batch.num_rows, _from_arrow, None)

    # -------------------------------------------------------------- conversion

    def _check_known(self, name: str, row: int = 0) -> None:
        if name not in self._types:
            known = ", ".join(self._types)
            raise BadRow(row, f": column {name!r} is not in the channel's schema ({known})")

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse columns that the channel does not have, and two columns of one name."""
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"{self._name} has two columns {twice!r}; rename one of them")
        try:
            for name in names:
                self._check_known(name)
        except BadRow as bad:
            raise UsageError(f"{self._name}{bad}; rename or leave out the column") from None

    def _rows(
        self, columns: Mapping[str, Column], rows: int, convert: Converter, bad: BadRow | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows before the first bad one; then raise, if there is one."""
        while rows := rows if bad is None else bad.row:
            try:
                batch = self._batch(columns, rows, convert)
            except BadRow as earlier:
                bad = earlier
                continue
            yield from _pieces(batch)
            break
        if bad is not None:
            raise UsageError(f"{self._name}: row {self._before + bad.row + 1:,}{bad}")
        self._before += rows

    def _batch(
        self, columns: Mapping[str, Column], rows: int, convert: Converter
    ) -> pa.RecordBatch:
        import pyarrow as pa

        from quorumcast.core.publication import conform

        arrays = []
        for field in self._schema:
            kind = self._types[field.name]
            values = columns.get(field.name)
            if values is None:
                arrays.append(pa.nulls(rows, field.type))
                continue
            try:
                arrays.append(convert(values[:rows], field.type, kind))
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                raise _first_bad_value(values, field.name, field.type, kind, convert) from None
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if batch.nbytes > MAX_ROW_BYTES:
            for row in range(rows):
                if (size := batch.slice(row, 1).nbytes) > MAX_ROW_BYTES:
                    too_long = f" has {size:,} bytes, more than {MAX_ROW_BYTES:,}; split it"
                    raise BadRow(row, too_long)
        try:
            return conform(batch, self._schema)
        except UsageError:
            for row in range(rows):
                try:
                    conform(batch.slice(row, 1), self._schema)
                except UsageError as error:
                    raise BadRow(row, f": {error}") from None
            raise


def _first_bad_value(
    values: Column, name: str, kind: pa.DataType, type_name: str, convert: Converter
) -> BadRow:
    """The first value of a column that does not fit its type, as an error."""
    import pyarrow as pa

    for row in range(len(values)):
        try:
            convert(values[row : row + 1], kind, type_name)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            value: Any = values[row] if isinstance(values, list) else values[row].as_py()
            if isinstance(value, bytes) and convert is _from_csv:
                value = value.decode(errors="backslashreplace")
            break
    else:
        row, value = 0, "a value"
    a = "an" if type_name.startswith("int") else "a"
    example = f", such as {EXAMPLES[type_name]}" if type_name in EXAMPLES else ""
    return BadRow(row, f", column {name}: {value!r:.{SHOWN}} is not {a} {type_name}{example}")


def _from_csv(values: Any, kind: pa.DataType, type_name: str) -> pa.Array:
    import pyarrow as pa

    if type_name == "binary":
        texts = values.cast(pa.string()).to_pylist()
        return pa.array([None if text is None else _bytes(text) for text in texts], kind)
    return values.cast(pa.string()).cast(kind)


def _from_json(values: Any, kind: pa.DataType, type_name: str) -> pa.Array:
    import pyarrow as pa

    parse = PARSERS.get(type_name)
    if parse is not None:
        values = [parse(value) if isinstance(value, str) else value for value in values]
    return pa.array(values, kind)


def _from_arrow(values: Any, kind: pa.DataType, type_name: str) -> pa.Array:
    return values if values.type.equals(kind) else values.cast(kind)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _zoned(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.utcoffset() is None:
        raise ValueError("no time zone")
    return time


def _naive(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.utcoffset() is not None:
        raise ValueError("a time zone")
    return time


#: Parsers of the text form of values in JSON, by column type.
PARSERS: dict[str, Callable[[str], object]] = {
    "binary": _bytes,
    "date32": date.fromisoformat,
    "timestamp[us]": _naive,
    "timestamp[ms, UTC]": _zoned,
    "timestamp[us, UTC]": _zoned,
}
#: Examples of values, by column type, for errors.
EXAMPLES = {
    "binary": "aGVsbG8= (base64)",
    "date32": "2026-11-01",
    "timestamp[us]": "2026-11-01T12:00:00",
    "timestamp[ms, UTC]": "2026-11-01T12:00:00Z",
    "timestamp[us, UTC]": "2026-11-01T12:00:00Z",
}


# ------------------------------------------------------------------------ blocks


def _lines(block: bytes) -> list[bytes]:
    return block.removesuffix(b"\n").split(b"\n")


def _last_end(data: bytes, *, quoted: bool) -> int:
    """The end of the last whole record, behind its newline; 0 if there is none."""
    end = data.rfind(b"\n") + 1
    if not quoted:
        return end
    odd = data.count(b'"', 0, end) % 2
    while end and odd:
        before = data.rfind(b"\n", 0, end - 1) + 1
        odd = (odd - data.count(b'"', before, end)) % 2
        end = before
    return end


def _first_end(data: bytes) -> int:
    """The end of the first record of a CSV block, behind its newline."""
    end, odd = 0, 1
    while odd:
        newline = data.find(b"\n", end)
        if newline < 0:
            return len(data)
        odd = data.count(b'"', 0, newline + 1) % 2
        end = newline + 1
    return end


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in parts that make good publications."""
    rows = batch.num_rows
    if rows > 1 and (rows > BATCH_ROWS or batch.nbytes > BATCH_BYTES):
        yield from _pieces(batch.slice(0, rows // 2))
        yield from _pieces(batch.slice(rows // 2))
    elif rows:
        yield batch


@contextmanager
def _seekable(source: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the source, or a copy in a temporary file if it is a pipe."""
    import shutil
    import tempfile

    if source.seekable():
        yield source
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(source, copy, CHUNK_BYTES)
        copy.seek(0)
        yield copy
