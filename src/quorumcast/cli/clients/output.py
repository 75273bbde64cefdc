"""Tables that `quorumcast subscribe` and `quorumcast replay` write: CSV, Arrow and Parquet.

CSV and Arrow (the stream format) are written with each publication, so that a program behind a pipe
can follow. Parquet is written in groups of rows, and is complete when the command has ended.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from quorumcast.cli.clients.input import ARROW, CSV, PARQUET

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows and bytes of a group of rows in Parquet, about.
GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 26


class TableWriter(Protocol):
    """Writes the rows of record batches that have one schema."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""

    def close(self) -> None:
        """Write what is left, and the end of the table."""


def table_writer(format_: str, schema: pa.Schema, out: BinaryIO) -> TableWriter:
    """A writer of one of the formats that are tables."""
    writers: dict[str, Callable[[pa.Schema, BinaryIO], TableWriter]] = {
        CSV: CsvWriter,
        ARROW: ArrowWriter,
        PARQUET: ParquetWriter,
    }
    return writers[format_](schema, out)


class CsvWriter:
    """Writes CSV with a header; bytes are base64."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        import pyarrow as pa
        from pyarrow import csv

        self._out = out
        self._binary = [i for i, field in enumerate(schema) if pa.types.is_binary(field.type)]
        for index in self._binary:
            schema = schema.set(index, schema.field(index).with_type(pa.string()))
        self._schema = schema
        self._writer = csv.CSVWriter(_Sink(out), schema)
        out.flush()

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        columns = list(batch.columns)
        for index in self._binary:
            values = columns[index].to_pylist()
            texts = [None if v is None else base64.b64encode(v).decode() for v in values]
            columns[index] = pa.array(texts, pa.string())
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._out.flush()

    def close(self) -> None:
        self._writer.close()


class ArrowWriter:
    """Writes the stream format of Arrow."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        import pyarrow as pa

        self._out = out
        self._writer = pa.ipc.new_stream(_Sink(out), schema)
        out.flush()

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self._out.flush()

    def close(self) -> None:
        self._writer.close()
        self._out.flush()


class ParquetWriter:
    """Writes Parquet; rows wait until there are enough for a group."""

    def __init__(self, schema: pa.Schema, out: BinaryIO) -> None:
        from pyarrow import parquet

        self._out = out
        self._schema = schema
        self._writer = parquet.ParquetWriter(_Sink(out), schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
            self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()
        self._out.flush()


class _Sink:
    """Standard output as Arrow takes it: a file that knows its place, also if it is a pipe."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._place = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._out.write(data)
        self._place += len(data)
        return len(data)

    def tell(self) -> int:
        return self._place

    def flush(self) -> None:
        self._out.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
