"""`quorumcast demo`: a cell on this machine with a lying broker, in about half a minute.

There are four broker processes; publishers and subscribers run in this process. After a while
broker-3 tells a subscriber with a predicate that nothing matches (`trades`); then it alters what it
forwards and signs it; later it also drops messages. Subscribers are not disturbed. They suspect
broker-3 because its votes differ, and its signatures convict it. Then the demonstration prints a
summary, the evidence and the receipt of one event, both checked by the code of `quorumcast verify`.
If Spark is installed, it ends with a table, an evaluation and an audit (`finale`).
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.common import console, print_json, this_command
from quorumcast.cli.lab.trades import CHANNEL as TRADES
from quorumcast.cli.lab.trades import ENTRY, WHERE, Trades
from quorumcast.cli.lab.trades import PUBLISHER as TRADER
from quorumcast.cli.lab.trades import SUBSCRIBER as SEEKER
from quorumcast.cli.options import JsonOption
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from quorumcast.cli.lab.finale import Finale
    from quorumcast.client.events import Event
    from quorumcast.client.node import Node
    from quorumcast.testing.cluster import LocalCluster

EXAMPLE = "demo --seconds 30"

CHANNEL = "orders"
LIAR = "broker-3"
PUBLISHERS = ("alice", "bob")
SUBSCRIBERS = ("carol", "dave", "erin")
#: The client that reads the stream into a table.
READER = "spark"
TICK_S = 0.5
#: Interval of lines if there is no terminal.
LINE_S = 2.0
CONNECT_S = 60.0
DRAIN_S = 60.0
EVIDENCE_S = 60.0
#: Start of each fault, as a share of the duration.
OMITS_AT, ALTERS_AT, DROPS_AT = 0.15, 0.35, 0.65


def demo(
    seconds: Annotated[float, typer.Option(help="How long to publish.")] = 20.0,
    rate: Annotated[int, typer.Option(help="Events per second and publisher.")] = 1500,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the cell and the proofs go.")
    ] = None,
    spark: Annotated[
        bool, typer.Option(help="End with a table, an evaluation and an audit on Spark.")
    ] = True,
    json_: JsonOption = False,
) -> None:
    """Watch a broker lie and be found out, while nothing is lost."""
    from quorumcast.cli.lab.finale import Finale
    from quorumcast.client import run
    from quorumcast.manifest.policy import Policy
    from quorumcast.testing.cluster import LocalCluster

    if not 1 <= seconds <= 600 or not 1 <= rate <= 20_000:
        raise UsageError("--seconds is 1 to 600 and --rate 1 to 20000")
    place = directory or Path(tempfile.mkdtemp(prefix="quorumcast-demo-"))
    finale = Finale(place, CHANNEL) if spark and find_spec("pyspark") is not None else None
    cluster = LocalCluster(
        clients=[*PUBLISHERS, *SUBSCRIBERS, READER, TRADER, SEEKER],
        channels={CHANNEL: Policy.named("total"), TRADES: ENTRY},
        directory=place,
        trace=None if finale is None else finale.traces,
        observe=None if finale is None else finale.observations,
    )
    if finale is not None:
        finale.open(PUBLISHERS, SUBSCRIBERS, LIAR)
    with _named_when_interrupted(place), cluster:
        live = sys.stdout.isatty() and not json_
        show = Show(cluster, seconds, rate, finale, live=live, json_=json_)
        summary = run(show.run())
        if not json_:
            _print_account(summary)
        if finale is not None:
            cluster.make_honest(LIAR)
            # It answers requests for contents again, with altered contents.
            cluster.make_lie(LIAR, "alter", victims=["contents"])
            cluster.wait_executed()
            summary["spark"] = finale.run(cluster, READER, _say_nothing if json_ else _say)
            summary["ok"] &= _sound(summary)
            if not json_:
                _print_finale(summary["spark"])
    if json_:
        print_json(summary)
    if not summary["ok"]:
        raise typer.Exit(1)


@contextlib.contextmanager
def _named_when_interrupted(place: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted: what the demo has written is in {place}", file=sys.stderr)
        raise


def _sound(summary: dict[str, Any]) -> bool:
    """Whether the table has every event once, and the audit names the liar and nobody else."""
    table, named = summary["spark"]["table"], summary["spark"]["audit"]["named"]
    return table["rows"] == table["distinct"] == summary["published"] and set(named) == {LIAR}


class Show:
    """The demonstration while it runs."""

    def __init__(
        self,
        cluster: LocalCluster,
        seconds: float,
        rate: int,
        finale: Finale | None,
        *,
        live: bool,
        json_: bool,
    ) -> None:
        self._cluster = cluster
        self._finale = finale
        self._seconds = seconds
        self._rate = rate
        self._live = live
        self._quiet = json_
        self._start = 0.0
        self._scene = "starting"
        #: Set once a subscriber has evidence.
        self._proven = asyncio.Event()
        self._published: Counter[str] = Counter()
        #: By subscriber: the next number of each publisher, events, repeated and missing ones.
        self._expected: dict[str, Counter[str]] = {name: Counter() for name in SUBSCRIBERS}
        self._accepted: Counter[str] = Counter()
        self._duplicated: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        self._rates: dict[str, float] = dict.fromkeys(SUBSCRIBERS, 0.0)
        self._last: Event | None = None
        self._nodes: dict[str, Node] = {}
        self._trades = Trades(rate)
        self._statuses: dict[str, dict[str, Any]] = {}

    async def run(self) -> dict[str, Any]:
        """Run the demonstration; return its summary."""
        for name in (*PUBLISHERS, *SUBSCRIBERS, TRADER, SEEKER):
            self._nodes[name] = await self._connect(name)
        try:
            listening = [await self._subscribe(name) for name in SUBSCRIBERS]
            listening.append(await self._trades.subscribe(self._nodes[SEEKER], CONNECT_S))
            self._start = time.monotonic()
            viewing = asyncio.create_task(self._view())
            async with asyncio.TaskGroup() as group:
                for name in PUBLISHERS:
                    group.create_task(self._publish(name))
                group.create_task(self._trades.publish(self._nodes[TRADER], self._goes_on))
                group.create_task(self._misbehave())
            await self._drain()
            evidence = await self._evidence()
            receipt = await self._receipt()
            for task in (*listening, viewing):
                task.cancel()
            await asyncio.gather(*listening, viewing, return_exceptions=True)
            return self._summary(evidence, receipt)
        finally:
            for node in self._nodes.values():
                await node.close()
            if self._finale is not None:
                self._finale.close(self._published.total())

    async def _connect(self, name: str) -> Node:
        """Connect a client that records traces and observations for the finale."""
        from quorumcast.bench.worker import instrumented_node
        from quorumcast.manifest.files import read_identity

        cluster, finale = self._cluster, self._finale
        node = instrumented_node(
            cluster.manifest,
            read_identity(cluster.identity_path(name)),
            cluster.manifest_path,
            "publisher" if name in PUBLISHERS else "subscriber",
            trace=None if finale is None or name in (TRADER, SEEKER) else finale.traces,
            observe=None if finale is None else finale.observations,
        )
        node.on_evidence = lambda evidence: self._proven.set()
        await node.start(CONNECT_S)
        return node

    # ------------------------------------------------------------------- acting

    async def _publish(self, name: str) -> None:
        async with self._nodes[name].publisher(CHANNEL) as publisher:
            while self._goes_on():
                upto = int(self._elapsed() * self._rate)
                for number in range(self._published[name] + 1, upto + 1):
                    publisher.post(f"{name} {number}".encode())
                    self._published[name] = number
                await asyncio.sleep(0.01)

    def _goes_on(self) -> bool:
        """Whether to continue: until the time is up and, on a slow machine, the liar has lied."""
        return self._elapsed() < self._seconds + (0 if self._proven.is_set() else EVIDENCE_S)

    async def _subscribe(self, name: str) -> asyncio.Task[None]:
        subscription = self._nodes[name].subscribe(CHANNEL)
        await subscription.wait_joined(CONNECT_S)

        async def listen() -> None:
            async for event in subscription:
                self._check(name, event)

        return asyncio.create_task(listen())

    def _check(self, name: str, event: Event) -> None:
        """Count missing and repeated events, by the publisher and number that each contains."""
        author, _, number = event.payload.decode(errors="replace").partition(" ")
        if author != event.publisher or not number.isdecimal():
            self._wrong[name] += 1
            return
        expected = self._expected[name][author] + 1
        if int(number) < expected:
            self._duplicated[name] += 1
            return
        self._wrong[name] += int(number) > expected
        self._expected[name][author] = int(number)
        self._accepted[name] += 1
        self._last = event

    async def _misbehave(self) -> None:
        self._scene = "all brokers are honest"
        await self._sleep_until(OMITS_AT)
        await asyncio.to_thread(self._cluster.make_lie, LIAR, "omit-matches")
        self._scene = f"{LIAR} tells {SEEKER} that nothing matches {WHERE!r}"
        await self._sleep_until(ALTERS_AT)
        await asyncio.to_thread(self._cluster.make_lie, LIAR, "alter")
        self._scene = f"{LIAR} also alters what it forwards, and signs for it"
        await self._sleep_until(DROPS_AT)
        await self._wait_for_proof()
        await asyncio.to_thread(self._cluster.make_lie, LIAR, "drop")
        self._scene = f"{LIAR} omits, alters and drops"

    async def _wait_for_proof(self) -> None:
        """Wait for evidence; on a slow machine the liar may not have signed a lie yet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVIDENCE_S):
                await self._proven.wait()

    async def _sleep_until(self, share: float) -> None:
        await asyncio.sleep(self._start + share * self._seconds - time.monotonic())

    async def _drain(self) -> None:
        self._scene = "waiting for the last events"
        total = self._published.total()
        deadline = time.monotonic() + DRAIN_S
        while (
            min(self._accepted[name] for name in SUBSCRIBERS) < total or not self._trades.complete
        ):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.05)

    async def _evidence(self) -> Path | None:
        """Save the first evidence that a subscriber found; return its path."""
        import msgspec

        await self._wait_for_proof()
        for evidence in [one for node in self._nodes.values() for one in node.evidence]:
            path = self._cluster.directory / f"{evidence.accused}.evidence.json"
            path.write_bytes(msgspec.json.encode(evidence) + b"\n")
            return path
        return None

    async def _receipt(self) -> Path | None:
        import msgspec

        if self._last is None:
            return None
        path = self._cluster.directory / "receipt.json"
        path.write_bytes(msgspec.json.encode(await self._last.receipt()) + b"\n")
        return path

    # ------------------------------------------------------------------ showing

    async def _view(self) -> None:
        if not self._live:
            await self._view_plainly()
            return
        from rich.live import Live

        with Live(console=console(), auto_refresh=False) as live:
            while True:
                await self._look(TICK_S)
                live.update(self._picture(), refresh=True)

    async def _view_plainly(self) -> None:
        while True:
            await self._look(LINE_S)
            if not self._quiet:
                rates = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in self._rates.items())
                named = "; ".join(self._named())
                print(f"{self._elapsed():4.0f} s  {self._scene}; {rates}; {named}", flush=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    async def _look(self, seconds: float) -> None:
        """Update the display for some seconds."""
        before, at = self._accepted.copy(), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - at
        for name in SUBSCRIBERS:
            self._rates[name] = (self._accepted[name] - before[name]) / took
        for broker in self._cluster.brokers:
            self._statuses[broker] = await asyncio.to_thread(self._status, broker)

    def _status(self, broker: str) -> dict[str, Any]:
        try:
            return self._cluster.status(broker)
        except UsageError:
            return {}

    def _suspicions(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for name in (*SUBSCRIBERS, SEEKER):
            for suspect, reasons in self._nodes[name].suspicions.items():
                found.setdefault(suspect, Counter()).update(reasons)
        return found

    def _convicted(self) -> set[str]:
        return {proof.accused for node in self._nodes.values() for proof in node.evidence}

    def _named(self) -> list[str]:
        convicted = self._convicted()
        names = [f"{node} LIED (proven)" for node in sorted(convicted)]
        for suspect, reasons in self._suspicions().items():
            why = ", ".join(f"{reason} {count:,}×" for reason, count in reasons.items())
            names.append(f"{suspect} suspected of {why}")
        return names or ["nobody is suspected"]

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table

        brokers = Table(title=f"{self._elapsed():.0f} s: {self._scene}", title_justify="left")
        for column in ("broker", "state", "publications/s", "verdict of the subscribers"):
            brokers.add_column(column, min_width=14)
        convicted, suspicions = self._convicted(), self._suspicions()
        for broker in self._cluster.brokers:
            status = self._statuses.get(broker) or {}
            faults = ", ".join(status.get("faults", []))
            verdict = "[green]trusted[/]"
            if broker in convicted:
                verdict = "[bold red]lied, proven[/]"
            elif broker in suspicions:
                verdict = f"[yellow]suspected ({', '.join(suspicions[broker])})[/]"
            brokers.add_row(
                broker,
                f"[yellow]{faults}[/]" if faults else "[green]honest[/]" if status else "down",
                f"{status.get('rates', {}).get('publications', 0):,.0f}",
                verdict,
            )
        clients = Table()
        for column in ("subscriber", "events/s", "accepted", "duplicated", "altered or missing"):
            clients.add_column(column, min_width=12)
        for name in SUBSCRIBERS:
            clients.add_row(
                name,
                f"{self._rates[name]:,.0f}",
                f"{self._accepted[name]:,}",
                str(self._duplicated[name]),
                str(self._wrong[name]),
            )
        trades = self._trades
        clients.add_row(
            f"{SEEKER} ({WHERE})",
            "",
            f"{trades.accepted:,} of {trades.published:,}",
            str(trades.duplicated),
            str(trades.wrong),
        )
        return Group(brokers, clients)

    # ------------------------------------------------------------------ account

    def _summary(self, evidence: Path | None, receipt: Path | None) -> dict[str, Any]:
        from quorumcast.cli.clients.verify import judge, read_document

        manifest = self._cluster.manifest
        published = self._published.total()
        lost = {name: published - self._accepted[name] for name in SUBSCRIBERS}
        proofs = {
            kind: {"file": str(path), **judge(read_document(path), manifest)}
            for kind, path in (("evidence", evidence), ("receipt", receipt))
            if path is not None
        }
        liars = sorted(self._convicted())
        trades = self._trades.summary()
        return {
            "ok": bool(
                published
                and not any(lost.values())
                and not self._duplicated.total()
                and not self._wrong.total()
                and trades["published"]
                and not trades["lost"] + trades["duplicated"] + trades["irrelevant"]
                and liars == [LIAR]
                and len(proofs) == 2
                and all(proof["valid"] for proof in proofs.values())
            ),
            "published": published,
            "accepted": dict(self._accepted),
            "lost": sum(lost.values()),
            "duplicated": self._duplicated.total(),
            "altered": self._wrong.total(),
            "trades": trades,
            "liars": liars,
            "suspicions": {node: dict(why) for node, why in self._suspicions().items()},
            "manifest": str(self._cluster.manifest_path),
            **proofs,
        }


def _say(what: str) -> None:
    console().print(f"… {what}", highlight=False)


def _say_nothing(what: str) -> None:
    pass


def _print_account(summary: dict[str, Any]) -> None:
    """Print what was published and accepted, the liar, and how to verify it."""
    out = console()
    out.print()
    out.print(f"[bold]published[/]   {summary['published']:,} events")
    for name, count in summary["accepted"].items():
        out.print(f"[bold]accepted[/]    {count:,} by {name}")
    trades = summary["trades"]
    out.print(
        f"[bold]accepted[/]    {trades['accepted']:,} of {trades['published']:,} trades by "
        f"{SEEKER}, who wants {trades['where']}; missing {trades['lost']}, "
        f"irrelevant {trades['irrelevant']}"
    )
    out.print(
        f"[bold]lost[/] {summary['lost']}, [bold]duplicated[/] {summary['duplicated']}, "
        f"[bold]altered[/] {summary['altered']}"
    )
    out.print(f"[bold]liar[/]        {', '.join(summary['liars']) or 'nobody was convicted'}")
    for kind in ("evidence", "receipt"):
        if proof := summary.get(kind):
            verdict = f"[red]not valid: {proof['reason']}[/]"
            if proof["valid"]:
                verdict = f"[green]valid[/]: {proof['says']}"
            out.print(f"[bold]{kind:11}[/] {verdict}", soft_wrap=True)
            file, manifest = shlex.quote(proof["file"]), shlex.quote(summary["manifest"])
            command = f"{this_command()} verify {file} -m {manifest}"
            out.print(f"            {command}", markup=False, soft_wrap=True)


def _print_finale(found: dict[str, Any]) -> None:
    """Print the table, the evaluation and the audit."""
    out = console()
    table, evaluation, audit = found["table"], found["evaluation"], found["audit"]
    dissent = ", ".join(f"{node} on {rows:,}" for node, rows in sorted(table["dissent"].items()))
    out.print(
        f"[bold]table[/]       {table['rows']:,} rows, {table['distinct']:,} different ones, each "
        f"with {table['fewest_votes']} votes or more; dissent: {dissent or 'none'}",
        soft_wrap=True,
    )
    out.print(f"            {table['file']}", markup=False, soft_wrap=True)
    out.print(
        f"[bold]evaluation[/]  {evaluation['coverage']:.2%} of what was owed arrived, half of it "
        f"within {evaluation['latency_p50_ms']:.1f} ms",
        soft_wrap=True,
    )
    out.print(f"            {evaluation['file']}", markup=False, soft_wrap=True)
    for node, deeds in sorted(audit["named"].items()):
        said = ", ".join(f"{deed} ({standing})" for deed, standing in sorted(deeds.items()))
        out.print(f"[bold]audit[/]       {node}: {said}", soft_wrap=True)
    out.print(f"            {audit['file']}", markup=False, soft_wrap=True)
