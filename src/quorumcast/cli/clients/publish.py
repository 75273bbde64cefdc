"""`quorumcast publish`: publish events from the command line, a file or standard input."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer

from quorumcast.cli.common import console, print_json
from quorumcast.cli.options import ClientOptions, JsonOption, ObserveOption
from quorumcast.client.options import PublisherOptions, meanings
from quorumcast.core.errors import UsageError

EXAMPLE = "publish orders 'ten apples' -m cell -i alice"

MEANING = meanings(PublisherOptions)
STANDARD_INPUT = "-"
CHUNK_BYTES = 1 << 16
#: Bytes of an invalid row or value in an error.
SHOWN_BYTES = 60
#: Chunks of standard input that are read ahead of publishing.
CHUNKS_AHEAD = 4


def publish(
    channel: Annotated[str, typer.Argument(help=MEANING["channel"])],
    where: ClientOptions,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Events; '-' reads one per line from standard input."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Publish the lines of this file.")] = None,
    rate: Annotated[float, typer.Option(help="Events per second; 0 is no limit.")] = 0.0,
    count: Annotated[int, typer.Option(help="How many times to publish everything.")] = 1,
    valid_for: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help=MEANING["valid_for_s"]),
    ] = None,
    urgent: Annotated[bool, typer.Option("--urgent", help=MEANING["urgent"])] = False,
    observe: ObserveOption = None,
    json_: JsonOption = False,
) -> None:
    """Publish events and wait until enough brokers hold them.

    On a channel with a schema each event is a JSON object; times and dates in it are written
    as in 2026-11-01T12:00:00Z, and binary columns in base64.
    """
    from quorumcast.client.arguments import check_validity
    from quorumcast.runtime.loop import run

    if not 0 <= rate < math.inf or count < 1:
        raise UsageError("--rate is 0 or more and --count 1 or more")
    check_validity(valid_for, "--valid-for")
    texts = text or []
    if not texts and file is None:
        raise UsageError("nothing to publish; give texts, '-' for standard input, or --file")
    if texts.count(STANDARD_INPUT) * count > 1:
        raise UsageError("standard input can be read once only; leave --count out, or use --file")
    options = PublisherOptions(channel, valid_for_s=valid_for, urgent=urgent)
    started = time.monotonic()
    published = run(_publish(where, options, _chunks(texts, file, count), rate, observe))
    seconds = time.monotonic() - started
    if json_:
        print_json({"channel": channel, "published": published, "seconds": round(seconds, 3)})
    else:
        print(f"published {published:,} on {channel}", file=sys.stderr)


async def _chunks(texts: list[str], file: Path | None, count: int) -> AsyncIterator[list[bytes]]:
    """Yield the events that the command line names, as unchanged bytes."""
    for _ in range(count):
        for text in texts:
            if text != STANDARD_INPUT:
                yield [os.fsencode(text)]
                continue
            if sys.stdin.isatty():
                console(stderr=True).print("type events, one per line; Ctrl-D ends")
            async for chunk in _standard_input():
                yield chunk
        if file is not None:
            try:
                lines = await asyncio.to_thread(file.read_bytes)
            except OSError as error:
                raise UsageError(
                    f"{file} cannot be read ({error.strerror}); name another file"
                ) from None
            yield lines.splitlines()


async def _standard_input() -> AsyncIterator[list[bytes]]:
    """Yield lines of standard input.

    A daemon thread reads them, so that the event loop keeps sending and Ctrl-C ends the program
    even while a read blocks.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(CHUNKS_AHEAD)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        data: bytes | OSError = b"?"
        while data and isinstance(data, bytes):
            try:
                data = os.read(descriptor, CHUNK_BYTES)
            except OSError as error:
                data = error
            if loop.is_closed():
                return
            asyncio.run_coroutine_threadsafe(chunks.put(data), loop).result()

    threading.Thread(target=read, daemon=True).start()
    rest: list[bytes] = []
    while data := await chunks.get():
        if isinstance(data, OSError):
            raise UsageError(f"standard input cannot be read ({data.strerror}); use --file")
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield b"".join([*rest, head]).split(b"\n")
            rest = []
        rest.append(tail)
    if last := b"".join(rest):
        yield [last]


async def _publish(
    where: ClientOptions,
    options: PublisherOptions,
    chunks: AsyncIterator[list[bytes]],
    rate: float,
    observe: Path | None,
) -> int:
    from quorumcast.client.events import BufferFull

    published = 0
    async with await where.connect(observe=observe) as node:
        entry = node.manifest.channel(options.channel)
        columns = dict(entry.schema) if entry is not None else {}
        async with options.call(node.publisher) as publisher:
            start = time.monotonic()
            async for chunk in chunks:
                for line in chunk:
                    event = read_row(line, columns) if columns else line
                    while True:
                        try:
                            publisher.post(event)
                            break
                        except BufferFull:
                            await publisher.ready()
                    published += 1
                    if rate:
                        await asyncio.sleep(start + published / rate - time.monotonic())
    return published


# ------------------------------------------------------------------------- rows


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


#: By column type: the parser of its text form, and a description of the form.
_READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "binary": (_bytes, "base64"),
    "date32": (date.fromisoformat, "a date such as 2026-11-01"),
    "timestamp[us]": (_naive, "a time without a zone, such as 2026-11-01T12:00:00"),
    "timestamp[ms, UTC]": (_zoned, "a time such as 2026-11-01T12:00:00Z"),
    "timestamp[us, UTC]": (_zoned, "a time such as 2026-11-01T12:00:00Z"),
}


def read_row(line: bytes, columns: Mapping[str, str]) -> dict[str, object]:
    """Parse a line as a row with these columns and types."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise UsageError(
            f"{line[:SHOWN_BYTES]!r} is no JSON object, which this channel's schema asks for; its "
            f"columns are {', '.join(columns)}"
        )
    for name, value in row.items():
        reader = _READERS.get(columns.get(name, ""))
        if reader is None or not isinstance(value, str):
            continue
        read, looks = reader
        try:
            row[name] = read(value)
        except ValueError:
            raise UsageError(
                f"column {name!r} is {columns[name]}: write {looks}, not {value[:SHOWN_BYTES]!r}"
            ) from None
    return row
