"""`quorumcast subscribe`: prints accepted events; also functions shared with `replay`."""

from __future__ import annotations

import asyncio
import math
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.clients.input import PARQUET
from quorumcast.cli.clients.misbehaving import MisbehaviourOptions
from quorumcast.cli.clients.printing import FORMAT_CHOICE, FORMAT_HELP, Printer
from quorumcast.cli.common import console, run_client
from quorumcast.cli.options import ClientOptions, JsonOption, ObserveOption
from quorumcast.client.arguments import EARLIEST, LATEST, Start
from quorumcast.client.options import SubscriptionOptions, meanings
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import MAX_NUMBER
from quorumcast.manifest.patterns import is_pattern
from quorumcast.traces.drafts import directory_at

if TYPE_CHECKING:
    from quorumcast.client.events import Batch, Gap
    from quorumcast.client.named.subscription import NamedSubscription
    from quorumcast.client.node import Node
    from quorumcast.client.subscription import Subscription
    from quorumcast.core.statements import Evidence

EXAMPLE = "subscribe orders -m cell -i bob --from earliest --count 10 --json"

MEANING = meanings(SubscriptionOptions)
#: Units of times in the past that are given relative to now, such as 5m.
UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
AGO = re.compile(f"([0-9]+)([{''.join(UNITS)}])")
#: Default of --idle.
IDLE_S = 2.0


def subscribe(
    channel: Annotated[
        str, typer.Argument(help="What to subscribe to: a channel, or a pattern in quotes.")
    ],
    where: ClientOptions,
    misbehaviour: MisbehaviourOptions,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME|AGO|POSITION",
            help="Begin with what comes now, with the oldest that is held, at a time such as "
            "2026-11-01T12:00:00Z, some time ago (30s, 5m, 2h, 1d), or at a position.",
        ),
    ] = LATEST,
    name: Annotated[
        str,
        typer.Option(help="Use the named subscription of this name (total order)."),
    ] = "",
    anew: Annotated[
        bool, typer.Option("--anew", help="With --name: begin it again, from --from on.")
    ] = False,
    predicate: Annotated[
        list[str] | None, typer.Option("--where", metavar="PREDICATE", help=MEANING["where"])
    ] = None,
    count: Annotated[int, typer.Option(help="End after this many events; 0 is no limit.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or end when idle.")
    ] = True,
    idle: Annotated[
        float | None,
        typer.Option(help="With --no-follow: end after this many seconds without an event; 2."),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(help=MEANING["queue"]),
    ] = None,
    overflow: Annotated[
        str | None,
        typer.Option(metavar="wait|oldest|newest", help=MEANING["overflow"]),
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option(help="Save the receipt of the last event here.")
    ] = None,
    evidence: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Save proofs that a broker lied here.")
    ] = None,
    observe: ObserveOption = None,
    format_: Annotated[str, typer.Option("--format", metavar=FORMAT_CHOICE, help=FORMAT_HELP)] = "",
    json_: JsonOption = False,
) -> None:
    """Print accepted events, one per line, new ones or from a point in the past on.

    A line on standard error says when the subscription is established. --receipt saves the receipt
    of the last event for 'quorumcast verify', and needs --count or --no-follow; --evidence saves
    every proof of a lie. In a pattern '*' is one level of a channel name and '**' any number of
    levels: 'plant/*/temp', 'plant/**'; each line then begins with the channel and a tab. Channels
    that are created later join by themselves.
    With --where, brokers send the rows that match and vote on them, so that none is left out.
    Payloads are printed unchanged; with --json those that are not UTF-8 are "payload_base64".
    Tables (--format csv, arrow or parquet) are complete when the command ends, also by a signal.

    With --name the cell keeps the state of the subscription: printed events are acknowledged, and
    the next run continues after them. --from applies to its first use only. Publications are
    printed whole, so there may be more events than --count.
    """
    from quorumcast.client.arguments import check_counts, check_overflow

    if queue is not None:
        check_counts(**{"--queue": queue})
    if overflow is not None:
        check_overflow(overflow, "--overflow")
    check_end(count, idle)
    if idle is not None and follow:
        raise UsageError("--idle needs --no-follow: without it a subscription waits forever")
    if receipt is not None and follow and not count:
        raise UsageError("--receipt needs an end: say how many events with --count")
    if name:
        _check_named(queue, overflow, predicate, receipt, format_)
    if anew and not name:
        raise UsageError("--anew needs --name: only a named subscription can begin again")
    beginning = parse_start(start)
    where.identity_file()  # raises if there is none
    if receipt is not None:
        _check_receipt(receipt)
    if evidence is not None:
        directory_at(evidence)
    misbehaviour.check("subscriber", where)
    printer = Printer(json_, format_, pattern=is_pattern(channel))
    idle_s = None if follow else idle or IDLE_S
    listener = _Listener(where, misbehaviour, count, idle_s, receipt, evidence, observe, printer)
    if name:
        run_client(listener.consume(channel, name, beginning, anew))
    else:
        options = SubscriptionOptions(
            channel, start=beginning, queue=queue, overflow=overflow, where=predicate or None
        )
        run_client(listener.listen(options))


def check_end(count: int, idle: float | None) -> None:
    """Refuse values of --count and --idle with which no command could end."""
    if count < 0:
        raise UsageError(f"--count is {count}: give a whole number of 1 or more, or 0 for no limit")
    if idle is not None and not 0 < idle < math.inf:
        raise UsageError(f"--idle is {idle:g}: give a number of seconds above 0")


def _check_receipt(path: Path) -> None:
    """Refuse a place for a receipt before events arrive that would be lost with it."""
    wrong = ""
    if path.is_dir():
        wrong = "is a directory"
    elif not path.parent.is_dir():
        wrong = f"has no directory {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        wrong = "may not be written by this user"
    if wrong:
        raise UsageError(f"the receipt {path} {wrong}; name a file in a directory that it may use")


def _check_named(
    queue: int | None,
    overflow: str | None,
    predicate: list[str] | None,
    receipt: Path | None,
    format_: str,
) -> None:
    """Refuse options that do not go with --name."""
    if queue is not None or overflow is not None:
        raise UsageError(
            "--queue and --overflow do not go with --name: a named subscription takes what it can "
            "handle, and nothing is discarded"
        )
    if predicate:
        raise UsageError(
            "--where and --name do not go together, because a named subscription acknowledges "
            "whole publications: leave out one of them"
        )
    if receipt is not None:
        raise UsageError("--receipt and --name do not go together: subscribe without a name")
    if format_ == PARQUET:
        raise UsageError(
            "--format parquet and --name do not go together, because events would be acknowledged "
            "before they are written; use --format arrow"
        )


class _Listener:
    """Prints the events of one subscription."""

    def __init__(
        self,
        where: ClientOptions,
        misbehaviour: MisbehaviourOptions,
        count: int,
        idle_s: float | None,
        receipt: Path | None,
        evidence: Path | None,
        observe: Path | None,
        printer: Printer,
    ) -> None:
        self._where = where
        self._misbehaviour = misbehaviour
        #: Events still to print; None for no limit.
        self._left: int | None = count or None
        self._idle_s = idle_s
        self._receipt = receipt
        self._evidence = evidence
        self._observe = observe
        self._printer = printer

    async def listen(self, options: SubscriptionOptions) -> None:
        async with await self._where.connect(observe=self._observe) as node:
            self._report_lies(node)
            self._misbehaviour.begin(node)
            subscription = await join(self._where, node, options)
            begin_output(self._printer, node, options.channel)
            channel, matching = options.channel, subscription.channels
            none = "no channel matches yet; waiting until one is created"
            which = "" if channel in matching else f": {', '.join(matching) or none}"
            console(stderr=True).print(
                f"subscribed to {channel}{which}", markup=False, soft_wrap=True
            )
            try:
                self._printer.print_dropped(subscription.dropped)
                last = await self._print_all(subscription)
            finally:
                self._printer.close()
            _print_skipped(subscription)
            if self._receipt is not None:
                await self._save_receipt(last, self._receipt)

    async def consume(self, channel: str, name: str, start: Start, anew: bool) -> None:
        async with await self._where.connect(observe=self._observe) as node:
            self._report_lies(node)
            self._misbehaviour.begin(node)
            named = node.subscribe_as(channel, name, start=start, anew=anew)
            try:
                await asyncio.wait_for(named.open(), self._where.timeout)
            except TimeoutError:
                raise self._where.too_few(channel, node) from None
            try:
                begin_output(self._printer, node, channel)
                console(stderr=True).print(f"subscribed to {channel} as {name}", markup=False)
                self._printer.print_dropped(named.dropped)
                await self._print_named(named)
            finally:
                self._printer.close()
                await named.close()

    async def _print_named(self, named: NamedSubscription) -> None:
        from quorumcast.client import Delivery

        while self._left is None or self._left > 0:
            try:
                async with asyncio.timeout(self._idle_s):
                    item = await named.next()
            except TimeoutError:
                return
            printed = self._printer.print(item.batch if isinstance(item, Delivery) else item)
            if isinstance(item, Delivery):
                await item.ack()
            if self._left is not None:
                self._left -= printed

    async def _print_all(self, subscription: Subscription) -> Batch | None:
        """Print events until the end; return the last publication of which there were some."""
        from quorumcast.client.events import Gap

        last: Batch | None = None
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    items: list[Batch | Gap] = await subscription.take()
            except TimeoutError:
                return last
            for item in items:
                printed = self._printer.print(item, self._left)
                last = last if isinstance(item, Gap) else item
                if self._left is not None:
                    self._left -= printed
                    if not self._left:
                        return last
            if not items:
                return last

    async def _save_receipt(self, last: Batch | None, path: Path) -> None:
        import msgspec

        if last is None:
            raise UsageError("no event came, so there is no receipt to save")
        data = msgspec.json.encode(await last.receipt()) + b"\n"
        await asyncio.to_thread(path.write_bytes, data)
        console(stderr=True).print(f"receipt saved to {path}", markup=False)

    def _report_lies(self, node: Node) -> None:
        from quorumcast.runtime.broker.misbehaviour import save_evidence

        err = console(stderr=True)

        def report(evidence: Evidence) -> None:
            where = "save it with --evidence DIR"
            if self._evidence is not None:
                try:
                    path = save_evidence(
                        evidence, self._evidence, evidence.accused, ".evidence.json"
                    )
                    where = f"saved to {path}"
                except OSError as error:
                    # A full disk must not end the subscription.
                    where = f"it could not be saved to {self._evidence} ({error.strerror})"
            err.print(
                f"{evidence.accused} lied, and there is proof ({evidence.kind.value}); {where}",
                markup=False,
                soft_wrap=True,
            )

        node.on_evidence = report


def _print_skipped(subscription: Subscription) -> None:
    skipped = {
        "had expired": subscription.expired,
        "were discarded": subscription.discarded,
        "could not be read": subscription.undecodable,
    }
    told = [f"{count:,} {what}" for what, count in skipped.items() if count]
    if told:
        console(stderr=True).print(f"publications not printed: {', '.join(told)}", markup=False)


# ------------------------------------------------------------------- shared


def parse_start(text: str, *, option: str = "--from", words: tuple[str, ...] = ()) -> Start:
    """Parse a start or end of the command line."""
    words = words or (EARLIEST, LATEST)
    if text in words:
        return text
    try:
        if text.isdecimal() and 1 <= (position := int(text)) <= MAX_NUMBER:
            return position
        if ago := AGO.fullmatch(text):
            return datetime.now(UTC) - int(ago[1]) * UNITS[ago[2]]
        time = None if text.isdecimal() else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        time = None
    if time is None:
        known = "".join(f"{word!r}, " for word in words if word)
        raise UsageError(
            f"{option} is {known}a time such as 2026-11-01T12:00:00Z, some time ago such as 5m "
            f"(s, m, h and d are units), or a position of 1 or more, not {text!r:.60}"
        )
    if time.utcoffset() is None:
        raise UsageError(f"{option} {text} has no time zone; write {text}Z for UTC")
    return time


def begin_output(printer: Printer, node: Node, channel: str) -> None:
    """Begin to print events of a channel."""
    entry = node.manifest.channel(channel)
    printer.open(dict(entry.schema) if entry is not None else {})


async def join(where: ClientOptions, node: Node, options: SubscriptionOptions) -> Subscription:
    """Subscribe, and wait until the subscription is established."""
    subscription = options.call(node.subscribe)
    try:
        await subscription.wait_joined(where.timeout)
    except TimeoutError as error:
        raise UsageError(f"{error}; see 'quorumcast status'") from None
    return subscription
