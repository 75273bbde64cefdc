"""`quorumcast pipeline monitor …`: monitoring of hosts: channels, probes and the Spark job."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.cell.advancing import advance, wait_until_taken
from quorumcast.cli.cell.channels import LimitOption, check_disks, check_size, with_limits
from quorumcast.cli.cell.init import parse_rights
from quorumcast.cli.common import console, print_json
from quorumcast.cli.options import (
    ClientOptions,
    Commands,
    IdentityOptions,
    JsonOption,
    MasterOption,
    OperatorOptions,
    WaitForRunningOption,
)
from quorumcast.cli.pipeline.sentences import sentences
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from quorumcast.manifest.manifest import Manifest
    from quorumcast.monitoring.channels import Names
    from quorumcast.monitoring.engine import AlarmEngine
    from quorumcast.monitoring.job import MonitoringJob
    from quorumcast.monitoring.probes import HostProbe, ProbeSettings

app = Commands(
    no_args_is_help=True,
    help="Watch hosts through a cell: probes, a store, alarms and a report.",
    epilog="Start here:  quorumcast pipeline monitor init -m cell",
)

PrefixOption = Annotated[
    str, typer.Option(help="Before the channels' names: 'plant' makes plant/metrics and so on.")
]
#: Interval of the status lines of a probe.
TELL_S = 5.0
#: In the job: interval of checks of hosts, alarms and the page, and of status lines.
TICK_S = 1.0
STATUS_S = 10.0
#: Rows and bytes per micro-batch and channel, which bound the memory of the driver.
MOST_EVENTS = 200_000
MOST_BYTES = 64 * 1024 * 1024


@app.command(example="pipeline monitor init -m cell --probes alice --consoles bob")
def init(
    where: OperatorOptions,
    probes: Annotated[
        str, typer.Option(help="Who may publish measurements and lines: names with commas.")
    ] = "",
    consoles: Annotated[
        str, typer.Option(help="Who may read them and publish alarms: names with commas.")
    ] = "",
    prefix: PrefixOption = "",
    policy: Annotated[
        str, typer.Option(help="A policy with total order; on disk where the brokers have one.")
    ] = "",
    limit: LimitOption = None,
    wait: WaitForRunningOption = True,
    json_: JsonOption = False,
) -> None:
    """Create the channels metrics, logs and alarms in a cell; existing ones stay as they are.

    Everyone may do everything unless --probes and --consoles say otherwise; everyone may read
    alarms.
    """
    from msgspec.structs import replace

    from quorumcast.manifest.build import next_epoch
    from quorumcast.manifest.policy import Policy
    from quorumcast.monitoring.channels import Names, missing_entries

    cell = where.read()
    urls = where.urls(cell)
    chosen = Policy.parse(policy or _policy(cell, where))
    chosen = replace(chosen, limits=with_limits(chosen, limit))
    names = Names.under(prefix)
    rights = (parse_rights(probes), parse_rights(consoles), parse_rights(""))
    made = missing_entries(cell, names, chosen, *rights)
    for entry in made:
        check_size(cell, entry)
        if chosen.needs_store:
            check_disks(entry, where.ask(cell))

    def add(old: Manifest) -> Manifest:
        more = missing_entries(old, names, chosen, *rights)
        return next_epoch(old, channels=(*old.channels, *more))

    new = advance(where.path, where.operator, add) if made else cell
    taken = wait_until_taken(new, urls) if wait and made else {}
    late = [broker for broker, done in taken.items() if not done]
    if json_:
        channels = {name: _title(new, name) for name in names.columns}
        facts = {"made": [entry.name for entry in made], "channels": channels, "taken": taken}
        print_json({"cell": new.cell, "epoch": new.epoch, **facts})
    else:
        what = ", ".join(entry.name for entry in made) or "nothing: all three are there"
        console().print(f"made {what} ({chosen.title}) in epoch {new.epoch}", markup=False)
    if late:
        raise UsageError(
            f"{', '.join(late)} has not taken epoch {new.epoch}; its log says why; where it has a "
            "manifest of its own, copy the new one there"
        )


def _policy(cell: Manifest, where: OperatorOptions) -> str:
    """The policy of the cell's other ordered channels; else durable, if all brokers have disks."""
    for channel in cell.channels:
        if channel.policy.total and not channel.policy.crash_only:
            return channel.policy.title
    running = [row for row in where.ask(cell).values() if row["up"]]
    return "total+durable" if all(row.get("disk") for row in running) else "total"


def _title(cell: Manifest, name: str) -> str:
    entry = cell.channel(name)
    return "" if entry is None else entry.policy.title


@app.command("rules", example="pipeline monitor rules > rules.toml")
def show_rules(
    file: Annotated[
        Path | None, typer.Argument(help="Check this file instead and say what is in it.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Print the built-in rules, as a start for your own; or check a rules file."""
    from quorumcast.monitoring.rules import default_rules, read_rules

    rules = read_rules(file)
    if json_:
        print_json(rules)
    elif file is None:
        print(default_rules(), end="")
    else:
        console().print(f"{file}: {len(rules.rule)} rules, no mistakes", markup=False)


# ------------------------------------------------------------------------------ probe


@app.command(
    example="pipeline monitor probe -m cell -i alice --metrics "
    "--logs /var/log/syslog --syslog 127.0.0.1:5514"
)
def probe(
    where: ClientOptions,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Measure this host: processor, memory, disks, network."),
    ] = False,
    logs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Follow a log file, like tail -F; may be repeated."),
    ] = None,
    syslog: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Listen to syslog here, over UDP and TCP.")
    ] = "",
    interval: Annotated[float, typer.Option(help="Seconds between two measurements.")] = 5.0,
    host: Annotated[str, typer.Option(help="The name of this host; the system's if none.")] = "",
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Read files from the beginning the first time.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="Where to keep how far files have been read.")
    ] = None,
    buffer: Annotated[int, typer.Option(help="Rows that may wait for the cell.")] = 10_000,
    prefix: PrefixOption = "",
    seconds: Annotated[float, typer.Option(help="Stop after so many; 0 runs on.")] = 0.0,
    json_: JsonOption = False,
) -> None:
    """Publish what this host measures and logs, until Ctrl-C.

    After a restart, reading of files continues where it stopped. While the cell is unreachable and
    the buffer is full, rows are dropped and counted, except lines of files, which are read later.
    """
    from quorumcast.client import run
    from quorumcast.monitoring.channels import Names
    from quorumcast.monitoring.probes import ProbeSettings
    from quorumcast.monitoring.syslog import parse_address

    settings = ProbeSettings(
        host=host or socket.gethostname(),
        names=Names.under(prefix),
        metrics=metrics,
        interval_s=interval,
        files=tuple(logs or ()),
        from_start=from_start,
        state=state or _state_path(where),
        syslog=parse_address(syslog) if syslog else None,
        buffer=buffer,
    )
    settings.check()
    run(_probe(where, settings, seconds, json_))


def _state_path(where: ClientOptions) -> Path:
    """The default file for the read positions of log files, one per cell and identity."""
    from quorumcast.manifest.files import read_identity

    name = read_identity(where.identity_file()).name
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "quorumcast" / f"probe-{where.read().cell}-{name}.json"


async def _probe(
    where: ClientOptions, settings: ProbeSettings, seconds: float, json_: bool
) -> None:
    from quorumcast.monitoring.probes import HostProbe

    async with await where.connect() as node:
        probe = HostProbe(node, settings)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, probe.stop)
        loop.add_signal_handler(signal.SIGINT, probe.stop)
        if seconds > 0:
            loop.call_later(seconds, probe.stop)
        telling = asyncio.create_task(_tell(probe, settings, json_))
        try:
            await probe.run()
        finally:
            telling.cancel()
    if json_:
        print_json({"host": settings.host, "published": probe.published, "dropped": probe.dropped})
    else:
        console(stderr=True).print(_counts(probe), markup=False)


async def _tell(probe: HostProbe, settings: ProbeSettings, json_: bool) -> None:
    await probe.ready.wait()
    listening = "{}:{}".format(*probe.address) if settings.syslog else None
    if json_:
        print_json({"event": "ready", "host": settings.host, "syslog": listening})
        return
    where = f", syslog on {listening}" if listening else ""
    out = console(stderr=True)
    out.print(f"probing {settings.host}{where}; Ctrl-C stops", markup=False)
    while sys.stderr.isatty():
        await asyncio.sleep(TELL_S)
        out.print(_counts(probe), markup=False)


def _counts(probe: HostProbe) -> str:
    published = ", ".join(f"{count:,} {kind}" for kind, count in probe.published.items())
    lost = ", ".join(f"{count:,} {kind}" for kind, count in probe.dropped.items() if count)
    return f"published {published or 'nothing'}; dropped {lost or 'nothing'}"


# -------------------------------------------------------------------------------- run


@app.command(
    "run",
    example="pipeline monitor run -m cell -i bob --store monitoring --report report.html",
)
def run_job(
    store: Annotated[Path, typer.Option(metavar="DIR", help="Where everything is kept.")],
    where: IdentityOptions,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What raises alarms; built-in rules if none."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page here, again and again.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what there is now, and stop.")] = False,
    seconds: Annotated[float, typer.Option(help="Stop after so many; 0 runs on.")] = 0.0,
    trigger: Annotated[float, typer.Option(help="Seconds between two looks at the cell.")] = 5.0,
    prefix: PrefixOption = "",
    master: MasterOption = None,
    json_: JsonOption = False,
) -> None:
    """Clean, store, watch and report what probes publish; raise alarms on the channel 'alarms'.

    A run with the same --store continues where the last one stopped. Prints each alarm.
    """
    if once and seconds:
        raise UsageError("--once and --seconds contradict each other; leave one out")
    if not 0.1 <= trigger < 3600 or not 0 <= seconds < float("inf"):
        raise UsageError("--trigger is 0.1 to 3600 seconds and --seconds 0 or more")
    _watch_cell(
        where,
        store,
        rules_file=rules,
        report=report,
        until=None if once else (time.monotonic() + seconds if seconds else float("inf")),
        trigger_s=trigger,
        prefix=prefix,
        master=master,
        json_=json_,
    )


def _watch_cell(
    where: IdentityOptions,
    store: Path,
    *,
    rules_file: Path | None,
    report: Path | None,
    until: float | None,
    trigger_s: float,
    prefix: str,
    master: str | None,
    json_: bool,
) -> None:
    """Run the job until a time; once, if there is none."""
    from quorumcast.monitoring.channels import Names, check_channel
    from quorumcast.monitoring.rules import read_rules

    # Check arguments before Java starts, as far as that is possible without it.
    identity = where.identity_file()
    rules = read_rules(rules_file)
    cell, names = where.read(), Names.under(prefix)
    for name, columns in names.columns.items():
        check_channel(cell, name, columns)
    with _alone(store), ProgressDisplay("starting Spark") as shown, sentences():
        _claim(store, f"{cell.cell} {names.metrics}")
        from quorumcast.pipeline.session import ROCKSDB, spark_session

        spark = spark_session(
            "quorumcast-monitor",
            master=master,
            settings=ROCKSDB,
            brief=until is None,
            stateful=True,
        )
        from quorumcast.monitoring.job import MonitoringJob, MonitorSettings
        from quorumcast.monitoring.signals import check_patterns

        check_patterns(spark, rules)
        options = {"manifest": str(where.path.absolute()), "identity": str(identity.absolute())}
        monitor = MonitoringJob(
            spark,
            MonitorSettings(directory=store.absolute(), rules=rules, trigger_s=trigger_s),
            (_source(spark, options, names.metrics), _source(spark, options, names.logs)),
            lambda alarms: _sink(alarms, options, names),
        )
        run = _Run(monitor, cell, report, json_)
        if until is None:
            shown("reading what there is")
            monitor.once()
            run.tell_alarms()
        else:
            shown(f"watching {cell.cell}; Ctrl-C stops")
            run.watch(until, shown)
        run.end()


def _source(spark: SparkSession, options: dict[str, str], channel: str) -> DataFrame:
    return (
        spark.readStream.format("quorumcast")
        .options(**options, channel=channel, startingOffsets="earliest")
        # A monitor should continue although old data was dropped.
        .options(failOnDataLoss="false")
        .options(maxEventsPerTrigger=MOST_EVENTS, maxBytesPerTrigger=MOST_BYTES)
        .load()
    )


def _sink(alarms: DataFrame, options: dict[str, str], names: Names) -> DataStreamWriter:
    return (
        alarms.coalesce(1)
        .writeStream.format("quorumcast")
        .options(**options, channel=names.alarms, publishedAt="time")
    )


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """Lock the directory: two jobs would overwrite each other's files."""
    try:
        store.mkdir(parents=True, exist_ok=True)
        lock = os.open(store / ".lock", os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise UsageError(
            f"{store} cannot be used ({error.strerror}); choose another directory"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError(
            f"another process is at work in {store}; stop it, or choose another directory"
        ) from None
    try:
        yield
    finally:
        os.close(lock)


def _claim(store: Path, whose: str) -> None:
    """Refuse a directory of another cell, whose positions would be meaningless here."""
    note = store / ".cell"
    if not note.exists():
        note.write_text(whose)
    elif note.read_text() != whose:
        raise UsageError(
            f"{store} is of another cell or prefix ({note.read_text()}); choose another directory"
        )


class _Run:
    """The output of one run for people."""

    def __init__(
        self, monitor: MonitoringJob, cell: Manifest, report: Path | None, json_: bool
    ) -> None:
        self._monitor = monitor
        self._cell = cell
        self._report = report
        self._json = json_
        self._stopping = False

    def watch(self, until: float, say: Callable[[str], None]) -> None:
        """Run until a time, or until stopped."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, self._stop)
        monitor, told = self._monitor, time.monotonic()
        try:
            monitor.start()
            while not self._stopping and time.monotonic() < until:
                time.sleep(TICK_S)
                monitor.tick()
                self.tell_alarms()
                self._write(running=True)
                if time.monotonic() - told >= STATUS_S:
                    told = time.monotonic()
                    say(self._line())
        finally:
            monitor.stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        self.tell_alarms()

    def end(self) -> None:
        """Write the last page and print the last status line."""
        self._write(running=False)
        if self._json:
            print_json(self._monitor.durable.read(lambda engine, recent: self._facts(engine)))
        else:
            console(stderr=True).print(self._line(), markup=False)

    def _facts(self, engine: AlarmEngine) -> dict[str, object]:
        return {
            "cell": self._cell.cell,
            "stored": self._monitor.stored,
            "hosts": sorted(engine.heard),
            "open": [f"{c.rule}/{c.host}/{c.item}" for c in engine.alarms],
            "lag": self._monitor.lag,
            "ignored": engine.ignored,
            "troubles": self._monitor.troubles,
        }

    def tell_alarms(self) -> None:
        """Print the alarms raised and cleared since the last call."""
        unshown = self._monitor.durable.unshown
        while unshown:
            alarm = unshown.popleft()
            if self._json:
                print_json({"alarm": alarm})
            else:
                line = f"{alarm.state} {alarm.severity}: {alarm.rule}: {alarm.text}"
                console().print(line, markup=False, soft_wrap=True)

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _line(self) -> str:
        hosts, alarms = self._monitor.durable.read(
            lambda engine, recent: (len(engine.heard), len(engine.alarms))
        )
        lag = sum(self._monitor.lag.values())
        troubles = [f"; {name} waits: {why}" for name, why in self._monitor.troubles.items()]
        return (
            f"{self._monitor.stored:,} rows stored, {hosts:,} hosts, "
            f"{alarms:,} open alarms, {lag:,} publications behind{''.join(troubles)}"
        )

    def _write(self, *, running: bool) -> None:
        path = self._report
        if path is None:
            return
        from quorumcast.monitoring.report import ReportFacts, write_report

        facts = ReportFacts(
            cell=self._cell.cell,
            now=time.time(),
            stored=self._monitor.stored,
            lag=self._monitor.lag,
            troubles=self._monitor.troubles,
            running=running,
        )
        self._monitor.durable.read(lambda engine, recent: write_report(path, engine, recent, facts))
