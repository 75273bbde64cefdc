"""`quorumcast replay`: prints the retained publications of a channel, and ends.

It reads up to the end that the channel had when the command began, so it ends although others keep
publishing. Publications that brokers no longer hold are reported as a gap. If publications that
brokers claim to hold do not arrive, they are reported and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.clients.printing import FORMAT_CHOICE, FORMAT_HELP, Printer, gap_fields
from quorumcast.cli.clients.subscribe import MEANING, begin_output, check_end, join, parse_start
from quorumcast.cli.common import console, run_client
from quorumcast.cli.options import ClientOptions, JsonOption
from quorumcast.client.arguments import EARLIEST
from quorumcast.client.options import SubscriptionOptions
from quorumcast.core.errors import UsageError
from quorumcast.manifest.patterns import is_pattern

if TYPE_CHECKING:
    from quorumcast.client.events import Batch, Gap
    from quorumcast.client.subscription import Subscription

EXAMPLE = "replay trades -m cell -i bob --from 1000 --to 1999 --json"

#: Interval of progress lines on standard error.
PROGRESS_S = 2.0


def replay(
    channel: Annotated[str, typer.Argument(help="The channel, or a pattern in quotes.")],
    where: ClientOptions,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|TIME|AGO|POSITION",
            help="Begin with the oldest that is held, at a time such as 2026-11-01T12:00:00Z, "
            "some time ago (30s, 5m, 2h, 1d), or at a position.",
        ),
    ] = EARLIEST,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TIME|AGO|POSITION",
            help="Leave out what was published after this time, or end after this position.",
        ),
    ] = "",
    predicate: Annotated[
        list[str] | None, typer.Option("--where", metavar="PREDICATE", help=MEANING["where"])
    ] = None,
    count: Annotated[int, typer.Option(help="End after this many events; 0 is no limit.")] = 0,
    idle: Annotated[
        float, typer.Option(help="Give up when nothing arrives for this many seconds.")
    ] = 30.0,
    format_: Annotated[str, typer.Option("--format", metavar=FORMAT_CHOICE, help=FORMAT_HELP)] = "",
    json_: JsonOption = False,
) -> None:
    """Print the publications that brokers hold of a channel, and end.

    It ends where the channel ended when it began. Positions are for channels with total order.
    Expired publications are printed too; the summary counts them, and --json marks them.
    A summary goes to standard error. Exit code 1 if publications that brokers hold did not arrive.
    """
    first = parse_start(start, words=(EARLIEST,))
    until = parse_start(to, option="--to", words=("",)) if to else None
    last = until if isinstance(until, int) else None
    latest = until if isinstance(until, datetime) else None
    check_end(count, idle)
    if last is not None and isinstance(first, int) and last < first:
        raise UsageError(f"--to {last} lies before --from {first}; swap them")
    if latest is not None and isinstance(first, datetime) and latest < first:
        raise UsageError(f"--to {to} lies before --from {start}; swap them")
    printer = Printer(json_, format_, pattern=is_pattern(channel))
    reader = _Reader(last, latest, count, idle, json_, printer)
    options = SubscriptionOptions(
        channel, start=first, overflow="wait", expired=True, where=predicate or None
    )
    run_client(reader.read(where, options))
    reader.report(channel)
    if reader.lacking:
        raise typer.Exit(1)


class _Reader:
    """Reads and prints one range of a channel, and counts."""

    def __init__(
        self,
        last: int | None,
        latest: datetime | None,
        count: int,
        idle_s: float,
        json_: bool,
        printer: Printer,
    ) -> None:
        self._last = last
        self._latest = latest
        self._count = count
        self._idle_s = idle_s
        self._json = json_
        self._printer = printer
        self._events = 0
        self._publications = 0
        #: The first and the last publication of which events were printed.
        self._first: Batch | None = None
        self._final: Batch | None = None
        self._gaps: list[Gap] = []
        self._undecodable = 0
        #: Printed publications that had expired.
        self._expired = 0
        self._progress_at = time.monotonic()
        #: Streams that did not arrive completely, with the last number that brokers hold.
        self.lacking: dict[str, int] = {}
        #: Which brokers were connected then.
        self._overdue = ""

    async def read(self, where: ClientOptions, options: SubscriptionOptions) -> None:
        """Connect, and print the requested publications."""
        channel, start = options.channel, options.start
        from quorumcast.manifest.rights import to_subscribe

        async with await where.connect() as node:
            to_subscribe(node.manifest, node.name, channel)  # raises if no channel matches
            entry = node.manifest.channel(channel)
            if self._last is not None and is_pattern(channel):
                raise UsageError(
                    "--to names a position of one channel; leave it out, or say a time"
                )
            positions = self._last is not None or isinstance(start, int)
            if positions and entry is not None and not entry.policy.total:
                raise UsageError(
                    f"channel {channel!r} has no positions, because it has no total order; "
                    "give --from and --to as times, such as 2026-11-01T12:00:00Z, or leave them out"
                )
            subscription = await join(where, node, options)
            self._check_last(subscription, channel)
            begin_output(self._printer, node, channel)
            try:
                self._gaps += subscription.dropped
                self._printer.print_dropped(subscription.dropped)
                await self._read_all(subscription)
            finally:
                self._printer.close()
            self._undecodable = subscription.undecodable

    def _check_last(self, subscription: Subscription, channel: str) -> None:
        end = max(subscription.ends.values(), default=0)
        if self._last is not None and self._last > end:
            there = f"the last is {end}" if end else "nothing has been published"
            raise UsageError(
                f"position {self._last} of {channel!r} does not exist yet, {there}; leave --to out "
                "to read up to the end"
            )

    async def _read_all(self, subscription: Subscription) -> None:
        found = subscription.held()
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    item = await anext(found, None)
            except TimeoutError:
                self.lacking = {str(s): number for s, number in subscription.unread.items()}
                self._overdue = subscription.overdue(self._idle_s)
                return
            if item is None or not self._take(item):
                return
            self._print_progress(subscription)

    def _take(self, item: Batch | Gap) -> bool:
        """Print an item; return False if it is the last requested one."""
        from quorumcast.client.events import Gap

        if isinstance(item, Gap):
            self._gaps.append(item)
            self._printer.print(item)
            return True
        if self._last is not None and (item.position or 0) > self._last:
            return False
        if self._latest is not None and item.published_at > self._latest:
            return True  # times are claims and need not grow, so an earlier one may follow
        self._publications += 1
        self._expired += item.expired
        left = self._count - self._events if self._count else None
        self._events += self._printer.print(item, left)
        self._first = item if self._first is None else self._first
        self._final = item
        if self._count and self._events >= self._count:
            return False
        return self._last is None or (item.position or 0) < self._last

    def _print_progress(self, subscription: Subscription) -> None:
        now = time.monotonic()
        if now - self._progress_at < PROGRESS_S:
            return
        self._progress_at = now
        place = self._final.position if self._final is not None else None
        end = self._last or max(subscription.unread.values(), default=0)
        where = f", at position {place:,} of {max(place, end):,}" if place else ""
        console(stderr=True).print(f"{_count(self._events, 'event')} so far{where}", markup=False)

    # ------------------------------------------------------------------ summary

    def report(self, channel: str) -> None:
        """Print a summary on standard error."""
        err = console(stderr=True)
        if self._json:
            err.print(json.dumps(self._facts(channel)), markup=False, soft_wrap=True)
            return
        gaps = f", {len(self._gaps)} gaps" if len(self._gaps) > 1 else ""
        if len(self._gaps) == 1:
            gaps = f", a gap from {self._gaps[0].first:,} to {self._gaps[0].upto:,}"
        odd = f", {self._undecodable:,} undecodable" if self._undecodable else ""
        old = f", {self._expired:,} of them expired" if self._expired else ""
        err.print(
            f"{_count(self._events, 'event')} in {_count(self._publications, 'publication')} on "
            f"{channel}{self._span()}{gaps}{odd}{old}",
            markup=False,
            soft_wrap=True,
        )
        for stream, number in self.lacking.items():
            err.print(
                f"{stream} up to {number:,} did not come: {self._overdue}; see 'quorumcast doctor'",
                markup=False,
                soft_wrap=True,
            )

    def _span(self) -> str:
        first, final = self._first, self._final
        if first is None or final is None or first.position is None or final.position is None:
            return ""
        return f", position {first.position:,} to {final.position:,}"

    def _facts(self, channel: str) -> dict[str, Any]:
        first, final = self._first, self._final
        return {
            "channel": channel,
            "events": self._events,
            "publications": self._publications,
            "from": first.position if first is not None else None,
            "to": final.position if final is not None else None,
            "gaps": [gap_fields(gap) for gap in self._gaps],
            "expired": self._expired,
            "undecodable": self._undecodable,
            "lacking": self.lacking,
        }


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
