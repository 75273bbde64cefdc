"""Accepted events as `quorumcast subscribe` and `quorumcast replay` print them.

Without a format events are lines: payloads as they are, rows as JSON objects. A format (see
`clients.input`) has nothing but the events, so that `quorumcast publish` reads it. With --json each
event is a line with its origin and votes. Gaps are lines of JSON too, or go to standard error.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from quorumcast.cli.clients.input import (
    BINARY,
    CSV,
    FORMATS,
    JSONL,
    LINES,
    PAYLOAD,
    PAYLOAD_BASE64,
    check_format,
    format_of,
)
from quorumcast.cli.clients.output import TableWriter, table_writer
from quorumcast.cli.common import console, print_json
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumcast.client.events import Batch, Event, Gap

FORMAT_HELP = (
    "Print nothing but the events, as 'publish' reads them. lines and binary: payloads with and "
    "without a newline behind each; the others: rows. Redirect it: > FILE."
)
FORMAT_CHOICE = "|".join(FORMATS)


class Printer:
    """Prints events on standard output."""

    def __init__(self, json_: bool, format_: str = "", *, pattern: bool = False) -> None:
        check_format(format_)
        if format_ and json_:
            raise UsageError("--json and --format do not go together: leave one of them out")
        if format_ and pattern:
            raise UsageError(
                "--format needs a single channel, because those of a pattern may have different "
                "columns; name one channel, or use --json"
            )
        if format_ not in ("", LINES, JSONL, CSV) and sys.stdout.isatty():
            raise UsageError(f"--format {format_} is not for a terminal: redirect it, > FILE")
        self._json = json_
        self._format = format_
        self._out = _whole_writes(sys.stdout.buffer)
        #: Whether lines begin with the channel; JSON always has it.
        self._pattern = pattern
        #: The schema of the table that is written, and its writer.
        self._schema: pa.Schema | None = None
        self._writer: TableWriter | None = None
        #: What was told once on standard error.
        self._told: set[str] = set()

    def open(self, columns: Mapping[str, str]) -> None:
        """Begin with a channel of these columns; none if it has no schema."""
        format_of(self._format, None, columns)  # raises if they do not suit each other
        if self._format not in ("", LINES, BINARY, JSONL):
            from quorumcast.manifest.schema import arrow_schema

            self._schema = arrow_schema(tuple(columns.items()))
            self._writer = table_writer(self._format, self._schema, self._out)

    def close(self) -> None:
        """End the output; a table is complete then."""
        if self._writer is not None:
            self._writer.close()

    def print(self, item: Batch | Gap, most: int | None = None) -> int:
        """Print a gap, or the events of a publication, at most so many; return their number."""
        from quorumcast.client.events import Gap

        if isinstance(item, Gap):
            if self._json:
                print_json({"gap": gap_fields(item)})
            else:
                console(stderr=True).print(f"gap: {item}", markup=False, soft_wrap=True)
            return 0
        count = len(item) if most is None else min(most, len(item))
        if self._writer is not None:
            try:
                self._writer.write(self._columns(item.data.slice(0, count)))
            except OSError:
                self._writer = None  # a table that cannot be written cannot be ended either
                raise
        elif self._json:
            for event in item.events()[:count]:
                self._print_json(event)
        else:
            self._out.write(self._text(item, count))
            self._out.flush()
        return count

    def print_dropped(self, gaps: Sequence[Gap]) -> None:
        """Print what is gone before the beginning; as text, one line for each publisher.

        Every start of a publisher is a stream of its own, so there may be hundreds of gaps.
        """
        lines: dict[tuple[str, str], list[Gap]] = {}
        for gap in gaps:
            lines.setdefault((gap.stream.channel, gap.publisher), []).append(gap)
        for (channel, publisher), found in lines.items():
            if self._json or len(found) == 1:
                for gap in found:
                    self.print(gap)
                continue
            last, count = found[-1], sum(gap.upto - gap.first + 1 for gap in found)
            text = (
                f"gap: {count:,} publications in {len(found):,} streams of {publisher} on "
                f"{channel}, the last {last.first} to {last.upto} of {last.stream}, are gone: "
                f"{last.retention}; --json names all of them"
            )
            console(stderr=True).print(text, markup=False, soft_wrap=True)

    def _text(self, batch: Batch, count: int) -> bytes:
        """The first events of a publication as lines, or as bytes."""
        if self._format == JSONL or not _is_opaque(batch):
            lines = [json.dumps(row, default=str).encode() for row in _rows(batch, count)]
        else:
            lines = batch.payloads[:count]
        if self._format == BINARY:
            return b"".join(lines)
        before = f"{batch.channel}\t".encode() if self._pattern else b""
        text = b"".join([before + line + b"\n" for line in lines])
        if not self._format and text.count(b"\n") > len(lines):
            self._tell("an event contains a newline, so a line may be a part of one; use --json")
        return text

    def _columns(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that the table has: a channel may get more of them."""
        names = [] if self._schema is None else self._schema.names
        if more := data.schema.names[len(names) :]:
            self._tell(f"the new columns {', '.join(more)} are left out; start again to get them")
            data = data.select(names)
        return data

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            print(sentence, file=sys.stderr)

    def _print_json(self, event: Event) -> None:
        batch = event.batch
        opaque = _is_opaque(batch)
        print_json(
            {
                "channel": event.channel,
                "publisher": event.publisher,
                "number": event.number,
                "index": event.index,
                **({} if event.position is None else {"position": event.position}),
                "published_at": event.published_at.isoformat(),
                **({"expired": True} if batch.expired else {}),
                **({"urgent": True} if batch.urgent else {}),
                **(payload_fields(event.payload) if opaque else {"row": _row(event.row)}),
                "votes": event.votes,
                "dissent": event.dissent,
            }
        )


def _whole_writes(out: BinaryIO) -> BinaryIO:
    """Standard output with a buffer: without one (PYTHONUNBUFFERED) it may write only a part."""
    return open(out.fileno(), "wb", closefd=False) if isinstance(out, io.RawIOBase) else out


def gap_fields(gap: Gap) -> dict[str, Any]:
    """The JSON fields of a gap."""
    return {
        "channel": gap.stream.channel,
        "publisher": gap.publisher,
        "from": gap.first,
        "to": gap.upto,
        "reason": gap.reason.value,
        "text": str(gap),
    }


def _is_opaque(batch: Batch) -> bool:
    return bool(batch.data.schema.names == [PAYLOAD])


def _rows(batch: Batch, count: int) -> list[dict[str, Any]]:
    if _is_opaque(batch):
        return [payload_fields(payload) for payload in batch.payloads[:count]]
    return [_row(row) for row in batch.data.slice(0, count).to_pylist()]


def _row(row: Mapping[str, object]) -> dict[str, Any]:
    """A row as JSON, in the form that 'quorumcast publish' reads: bytes are base64."""
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in row.items()
    }


def payload_fields(payload: bytes) -> dict[str, Any]:
    """The JSON field of a payload: text if it is UTF-8, base64 otherwise."""
    try:
        return {PAYLOAD: payload.decode()}
    except UnicodeDecodeError:
        return {PAYLOAD_BASE64: base64.b64encode(payload).decode()}
