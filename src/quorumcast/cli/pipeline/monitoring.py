"""The run of `quorumcast pipeline monitor run`: queries, periodic work, alarms, the page."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorumcast.cli.common import console, print_json
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

#: Interval of checks of hosts, alarms and the page, and interval of status lines.
TICK_S = 1.0
TELL_S = 10.0
#: Rows and bytes per micro-batch and channel, which bound the memory of the driver.
MOST_EVENTS = 200_000
MOST_BYTES = 64 * 1024 * 1024


def watch_cell(
    manifest: Path,
    identity: Path,
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
    from quorumcast.manifest.files import read_manifest
    from quorumcast.monitoring.channels import Names, check_channel
    from quorumcast.monitoring.rules import read_rules

    # Check arguments before Java starts, as far as that is possible without it.
    rules = read_rules(rules_file)
    cell, names = read_manifest(manifest), Names.under(prefix)
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
        options = {"manifest": str(manifest.absolute()), "identity": str(identity.absolute())}
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
                if time.monotonic() - told >= TELL_S:
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
