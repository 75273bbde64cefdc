"""`quorumcast publish`: publish events from the command line, a file or standard input."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from quorumcast.cli.clients.input import FORMATS, EventReader, Events, check_format, format_of
from quorumcast.cli.clients.misbehaving import MisbehaviourOptions
from quorumcast.cli.common import print_json, run_client
from quorumcast.cli.options import ClientOptions, JsonOption, ObserveOption
from quorumcast.client.options import PublisherOptions, meanings
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumcast.client.publishing.publisher import Publisher

EXAMPLE = "publish orders 'ten apples' -m cell -i alice"

MEANING = meanings(PublisherOptions)
STANDARD_INPUT = "-"
#: Blocks of events that are read ahead of publishing.
BLOCKS_AHEAD = 4
#: With --rate, parts of a second in which rows are published together.
PARTS_PER_SECOND = 50


def publish(
    channel: Annotated[str, typer.Argument(help=MEANING["channel"])],
    where: ClientOptions,
    misbehaviour: MisbehaviourOptions,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Events; '-' reads them from standard input."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Publish the events of this file.")] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Format of --file and '-'; by the extension of the file if not given.",
        ),
    ] = "",
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

    On a channel without a schema an event is a line (lines, the default) or the whole input
    (binary). On a channel with a schema it is a row: a JSON object (jsonl, the default), a row of
    CSV with a header, of Arrow or of Parquet. Times are written as in 2026-11-01T12:00:00Z, and
    bytes in CSV and JSON in base64.

    Input that does not fit ends the command with its row and column; what was published before it
    is said.
    """
    from quorumcast.client.arguments import check_counts, check_validity

    if not 0 <= rate < math.inf:
        raise UsageError(f"--rate is {rate:g}: give events per second, or 0 for no limit")
    check_counts(**{"--count": count})
    check_validity(valid_for, "--valid-for")
    texts = text or []
    if not texts and file is None:
        raise UsageError("nothing to publish; give texts, '-' for standard input, or --file")
    if texts.count(STANDARD_INPUT) * count > 1:
        raise UsageError("standard input can be read once only; leave --count out, or use --file")
    check_format(format_)
    if format_ and any(one != STANDARD_INPUT for one in texts):
        raise UsageError("--format is for --file and '-'; leave it out, or leave out the texts")
    if file is not None:
        _open(file).close()  # raises if it cannot be read
    misbehaviour.check("publisher", where)
    options = PublisherOptions(channel, valid_for_s=valid_for, urgent=urgent)
    started = time.monotonic()
    inputs = _Inputs(texts, file, count, format_)
    published = run_client(_publish(where, misbehaviour, options, inputs, rate, observe))
    seconds = time.monotonic() - started
    if json_:
        print_json({"channel": channel, "published": published, "seconds": round(seconds, 3)})
    else:
        print(f"published {published:,} on {channel}", file=sys.stderr)


class _Inputs:
    """What the command line asks to publish."""

    def __init__(self, texts: list[str], file: Path | None, count: int, format_: str) -> None:
        self._texts = texts
        self._file = file
        self._count = count
        self._format = format_

    def read(self, columns: Mapping[str, str]) -> Iterator[Events]:
        """Yield all events, for a channel with these columns."""
        for _ in range(self._count):
            texts: list[bytes] = []
            for text in self._texts:
                if text != STANDARD_INPUT:
                    texts.append(os.fsencode(text))
                    continue
                yield from _given(texts, columns)
                texts = []
                yield from self._read(None, columns)
            yield from _given(texts, columns)
            if self._file is not None:
                yield from self._read(self._file, columns)

    def _read(self, file: Path | None, columns: Mapping[str, str]) -> Iterator[Events]:
        name = "standard input" if file is None else str(file)
        reader = EventReader(name, columns, format_of(self._format, file, columns))
        if file is None and sys.stdin.isatty():
            print("type events, one per line; Ctrl-D ends", file=sys.stderr)
        try:
            with _open(file) as source:
                yield from reader.read(source)
        except OSError as error:
            raise _unreadable(name, error) from None


def _given(texts: list[bytes], columns: Mapping[str, str]) -> Iterator[Events]:
    """Yield events of the command line."""
    if texts and columns:
        yield from EventReader("the command line", columns).objects(texts)
    elif texts:
        yield texts


def _open(file: Path | None) -> BinaryIO:
    """Open a file, or standard input without a buffer, so that lines are published as they come."""
    if file is None:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    try:
        return file.open("rb")
    except OSError as error:
        raise _unreadable(str(file), error) from None


def _unreadable(name: str, error: OSError) -> UsageError:
    return UsageError(f"{name} cannot be read ({error.strerror}); name another file")


async def _in_thread(events: Iterator[Events]) -> AsyncIterator[Events]:
    """Yield events that a thread reads.

    The event loop keeps sending meanwhile. The thread is a daemon, so Ctrl-C ends the program even
    while a read blocks.
    """
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[Events | Exception | None] = asyncio.Queue(BLOCKS_AHEAD)

    def put(block: Events | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(blocks.put(block), loop).result()

    def read() -> None:
        end: Exception | None = None
        try:
            for block in events:
                if loop.is_closed():
                    return
                put(block)
        except Exception as error:
            end = error
        if not loop.is_closed():
            put(end)

    threading.Thread(target=read, daemon=True).start()
    while (block := await blocks.get()) is not None:
        if isinstance(block, Exception):
            raise block
        yield block


async def _publish(
    where: ClientOptions,
    misbehaviour: MisbehaviourOptions,
    options: PublisherOptions,
    inputs: _Inputs,
    rate: float,
    observe: Path | None,
) -> int:
    async with await where.connect(observe=observe) as node:
        misbehaviour.begin(node)
        entry = node.manifest.channel(options.channel)
        columns = dict(entry.schema) if entry is not None else {}
        publisher = options.call(node.publisher)
        poster = _Poster(publisher, rate)
        wrong: UsageError | None = None
        try:
            async with publisher:
                try:
                    async for events in _in_thread(inputs.read(columns)):
                        await poster.post(events)
                except UsageError as error:
                    wrong = error  # leaving the block waits for what was published before
        except asyncio.CancelledError:
            fate = _published(poster.published)
            if publisher.pending:
                fate = (
                    f"{publisher.pending:,} of {poster.published:,} events are not acknowledged "
                    "and may or may not arrive"
                )
            print(f"interrupted: {fate}", file=sys.stderr)
            raise
    if wrong is not None:
        raise UsageError(f"{wrong}; {_published(poster.published, ' before it')}")
    return poster.published


def _published(events: int, which: str = "") -> str:
    """How many events are published, as a clause; `which` stands behind their number."""
    if not events:
        return "nothing is published"
    noun, verb = ("event", "is") if events == 1 else ("events", "are")
    return f"{events:,} {noun}{which} {verb} published"


class _Poster:
    """Posts events at a rate, and counts them."""

    def __init__(self, publisher: Publisher, rate: float) -> None:
        self._publisher = publisher
        self._rate = rate
        self._started = time.monotonic()
        self.published = 0

    async def post(self, events: Events) -> None:
        """Post events without a schema one by one, and rows as one publication or by the rate."""
        if isinstance(events, list):
            for event in events:
                while not self._accepts(event):
                    await self._publisher.ready()
                await self._count(1)
            return
        step = max(1, int(self._rate / PARTS_PER_SECOND)) if self._rate else len(events)
        for first in range(0, len(events), step):
            rows = events.slice(first, step)
            while not self._accepts(rows):
                await self._publisher.ready()
            await self._count(len(rows))

    def _accepts(self, event: bytes | pa.RecordBatch) -> bool:
        from quorumcast.client.events import BufferFull

        try:
            if isinstance(event, bytes):
                self._publisher.post(event)
            else:
                self._publisher.post_batch(event)
        except BufferFull:
            return False
        return True

    async def _count(self, events: int) -> None:
        self.published += events
        if self._rate:
            due = self._started + self.published / self._rate
            await asyncio.sleep(due - time.monotonic())
