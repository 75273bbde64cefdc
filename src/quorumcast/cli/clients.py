"""`quorumcast publish` and `quorumcast subscribe`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.common import (
    IdentityOption,
    JsonOption,
    ManifestOption,
    console,
    identity_path,
    manifest_path,
    print_json,
)
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.client.events import Batch, Event, Gap
    from quorumcast.client.node import Node
    from quorumcast.client.subscription import Subscription
    from quorumcast.core.statements import Evidence

PUBLISH_EXAMPLE = "Example:  quorumcast publish orders 'ten apples' -m cell -i alice"
SUBSCRIBE_EXAMPLE = "Example:  quorumcast subscribe orders -m cell -i bob --count 10 --json"

STANDARD_INPUT = "-"
CHUNK_BYTES = 1 << 16
#: How far reading may run ahead of publishing.
CHUNKS_AHEAD = 4

TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds to wait for enough brokers.")
]


def publish(
    channel: Annotated[str, typer.Argument(help="Where to publish.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Events; '-' reads one per line from standard input."),
    ] = None,
    manifest: ManifestOption = Path(),
    identity: IdentityOption = "",
    file: Annotated[Path | None, typer.Option(help="Publish the lines of this file.")] = None,
    rate: Annotated[float, typer.Option(help="Events per second; 0 is no limit.")] = 0.0,
    count: Annotated[int, typer.Option(help="Publish everything so often.")] = 1,
    timeout: TimeoutOption = 10.0,
    json_: JsonOption = False,
) -> None:
    """Publish events and wait until enough brokers hold them.

    On a channel with a schema each event is a JSON object.
    """
    from quorumcast.client import run

    if rate < 0 or count < 1:
        raise UsageError("--rate is 0 or more and --count 1 or more")
    texts = text or []
    if not texts and file is None:
        raise UsageError("nothing to publish; give texts, '-' for standard input, or --file")
    if texts.count(STANDARD_INPUT) * count > 1:
        raise UsageError("standard input can be read once only; leave --count out, or use --file")
    path = manifest_path(manifest)
    started = time.monotonic()
    published = run(
        _publish(
            path,
            identity_path(identity, path),
            channel,
            _chunks(texts, file, count),
            rate,
            timeout,
        )
    )
    seconds = time.monotonic() - started
    if json_:
        print_json({"channel": channel, "published": published, "seconds": round(seconds, 3)})
    else:
        console(stderr=True).print(f"published {published:,} on {channel}", markup=False)


async def _chunks(texts: list[str], file: Path | None, count: int) -> AsyncIterator[list[bytes]]:
    """The events that the command line names, as they come; bytes as they were given."""
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
    """Lines of standard input.

    A thread reads them, so that the loop goes on sending and one Ctrl-C ends everything; nobody
    waits for that thread, which may sit in a read for ever.
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
    manifest: Path,
    identity: Path,
    channel: str,
    chunks: AsyncIterator[list[bytes]],
    rate: float,
    timeout_s: float,
) -> int:
    from quorumcast.client import BufferFull, connect

    published = 0
    async with await connect(manifest, identity, timeout_s=timeout_s) as node:
        entry = node.manifest.channel(channel)
        columns = bool(entry and entry.schema)
        async with node.publisher(channel) as publisher:
            start = time.monotonic()
            async for chunk in chunks:
                for line in chunk:
                    event = _row(line) if columns else line
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


def _row(line: bytes) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise UsageError(f"{line[:60]!r} is no JSON object, which this channel's schema asks for")
    return row


def subscribe(
    channel: Annotated[str, typer.Argument(help="What to subscribe to.")],
    manifest: ManifestOption = Path(),
    identity: IdentityOption = "",
    count: Annotated[int, typer.Option(help="End after so many events; 0 is no end.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end when idle.")
    ] = True,
    idle: Annotated[float, typer.Option(help="With --no-follow: end after so many seconds.")] = 2.0,
    receipt: Annotated[
        Path | None, typer.Option(help="Save the receipt of the last event here.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save proofs that a broker lied here.")
    ] = None,
    timeout: TimeoutOption = 10.0,
    json_: JsonOption = False,
) -> None:
    """Print accepted events, one per line, from now on.

    Says on standard error when the subscription stands. With --receipt, which needs --count or
    --no-follow, the last event's receipt is saved for 'quorumcast verify', and with --evidence
    every proof of a lie. Payloads are printed as they are; with --json those that are not UTF-8
    are "payload_base64".
    """
    from quorumcast.client import run

    if count < 0 or idle <= 0:
        raise UsageError("--count is 0 or more and --idle more than 0")
    if receipt is not None and follow and not count:
        raise UsageError("--receipt needs an end: say how many events with --count")
    path = manifest_path(manifest)
    who = identity_path(identity, path)
    if receipt is not None and (receipt.is_dir() or not receipt.parent.is_dir()):
        wrong = "is a directory" if receipt.is_dir() else f"has no directory {receipt.parent}"
        raise UsageError(f"the receipt {receipt} {wrong}; name a file in a directory that exists")
    if evidence is not None:
        try:
            evidence.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{evidence} cannot be used ({error.strerror}); choose another directory"
            ) from None
    listener = _Listener(count, None if follow else idle, receipt, evidence, json_)
    run(listener.listen(path, who, channel, timeout))


class _Listener:
    def __init__(
        self,
        count: int,
        idle_s: float | None,
        receipt: Path | None,
        evidence: Path | None,
        json_: bool,
    ) -> None:
        #: How many events are still wanted; None for no end.
        self._left: int | None = count or None
        self._idle_s = idle_s
        self._receipt = receipt
        self._evidence = evidence
        self._json = json_

    async def listen(self, manifest: Path, identity: Path, channel: str, timeout_s: float) -> None:
        from quorumcast.client import connect

        async with await connect(manifest, identity, timeout_s=timeout_s) as node:
            self._report_lies(node)
            subscription = node.subscribe(channel)
            try:
                await subscription.wait_joined(timeout_s)
            except TimeoutError:
                raise UsageError(
                    f"too few brokers answered on {channel!r} within {timeout_s} s; "
                    "see 'quorumcast status'"
                ) from None
            console(stderr=True).print(f"subscribed to {channel}", markup=False)
            last = await self._print_all(subscription)
            if self._receipt is not None:
                await self._save_receipt(last, self._receipt)

    async def _print_all(self, subscription: Subscription) -> Event | None:
        last: Event | None = None
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    items: list[Batch | Gap] = await subscription.take()
            except TimeoutError:
                return last
            for item in items:
                for event in self._events(item):
                    self._print(event)
                    last = event
                    if self._left is not None:
                        self._left -= 1
                        if not self._left:
                            return last
            if not items:
                return last

    def _events(self, item: Batch | Gap) -> list[Event]:
        from quorumcast.client.events import Gap

        if not isinstance(item, Gap):
            return item.events()
        if self._json:
            print_json({"gap": {"publisher": item.publisher, "from": item.first, "to": item.upto}})
        else:
            console(stderr=True).print(f"gap: {item}", markup=False)
        return []

    def _print(self, event: Event) -> None:
        opaque = event.batch.data.schema.names == ["payload"]
        if self._json:
            print_json(
                {
                    "channel": event.channel,
                    "publisher": event.publisher,
                    "number": event.number,
                    "index": event.index,
                    **(payload_fields(event.payload) if opaque else {"row": event.row}),
                    "votes": event.votes,
                    "dissent": event.dissent,
                }
            )
        elif opaque:
            sys.stdout.buffer.write(event.payload + b"\n")
            sys.stdout.buffer.flush()
        else:
            print(json.dumps(event.row, default=str), flush=True)

    async def _save_receipt(self, last: Event | None, path: Path) -> None:
        import msgspec

        if last is None:
            raise UsageError("no event came, so there is no receipt to save")
        data = msgspec.json.encode(await last.receipt()) + b"\n"
        await asyncio.to_thread(path.write_bytes, data)
        console(stderr=True).print(f"receipt saved to {path}", markup=False)

    def _report_lies(self, node: Node) -> None:
        err = console(stderr=True)

        def report(evidence: Evidence) -> None:
            where = "save it with --evidence DIR"
            if self._evidence is not None:
                where = f"saved to {save_evidence(evidence, self._evidence)}"
            err.print(
                f"{evidence.accused} lied, and there is proof ({evidence.kind.value}); {where}",
                markup=False,
                soft_wrap=True,
            )

        node.on_evidence = report


def payload_fields(payload: bytes) -> dict[str, Any]:
    """A payload in JSON: text if it is any, and otherwise nothing that alters it."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def save_evidence(evidence: Evidence, directory: Path) -> Path:
    """Write a proof for 'quorumcast verify', beside those that are there."""
    import msgspec

    path = directory / f"{evidence.accused}.evidence.json"
    data = msgspec.json.encode(evidence) + b"\n"
    number = 1
    while path.exists() and path.read_bytes() != data:
        number += 1
        path = directory / f"{evidence.accused}-{number}.evidence.json"
    path.write_bytes(data)
    return path
