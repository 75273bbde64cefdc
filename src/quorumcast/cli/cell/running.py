"""`quorumcast up` and `quorumcast broker`: cells and brokers in the foreground."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from quorumcast.cli.common import (
    Rows,
    ask_all,
    console,
    default_status_port,
    default_status_url,
    ports_taken,
    print_json,
    warn,
)
from quorumcast.cli.options import IdentityOptions, JsonOption, ObserveOption
from quorumcast.core.errors import UsageError
from quorumcast.core.limits import LAST_PORT
from quorumcast.manifest.paths import manifest_path

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.cli.cell.supervisor import SupervisedBroker, Supervisor
    from quorumcast.manifest.manifest import BrokerEntry

UP_EXAMPLE = "up cell --allow-faults"
BROKER_EXAMPLE = "broker -m cell/manifest.json -i cell/broker-1.identity"

TICK_S = 0.1
STOPPING = (signal.SIGTERM, signal.SIGHUP)
TABLE_S = 1.0
LEVELS = ("debug", "info", "warning", "error")

LogOption = Annotated[str, typer.Option("--log", help=f"One of {', '.join(LEVELS)}.")]
FaultsOption = Annotated[
    bool,
    typer.Option("--allow-faults", help="Let 'quorumcast faults' make brokers lie; for tests."),
]

StoreOption = Annotated[
    str, typer.Option(help="The kind of store: sqlite, or that of an installed package.")
]


def up(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made by 'init'.")],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Start this broker only; may be repeated.")
    ] = None,
    allow_faults: FaultsOption = False,
    store: StoreOption = "sqlite",
    log: LogOption = "info",
    json_: JsonOption = False,
) -> None:
    """Run the brokers of a cell on this machine until Ctrl-C, and restart those that exit.

    The log of a broker is DIR/logs/NAME.log; its status page is on its port plus 1000.
    """
    from quorumcast.cli.cell.supervisor import Supervisor
    from quorumcast.manifest.files import read_manifest

    check_level(log)
    manifest = read_manifest(manifest_path(directory))
    warn(manifest.warning)
    supervisor = Supervisor(
        directory, manifest, only=only, allow_faults=allow_faults, store=store, log_level=log
    )
    with stopped_by_signals(supervisor.stop):
        refuse_taken(directory, manifest.cell, [child.entry for child in supervisor.children])
        supervisor.start()
        names = [child.entry.id for child in supervisor.children]
        watch(
            lambda: _changes(supervisor),
            names,
            {"brokers": names},
            "the cell is up; Ctrl-C stops it",
            lambda: _table(supervisor, manifest.cell),
            json_=json_,
        )


def _changes(supervisor: Supervisor) -> Iterator[BrokerNews]:
    for child, happened in supervisor.poll():
        yield BrokerNews(child.entry.id, {"broker": child.entry.id}, child, happened)


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the end, which a signal may bring; a second one does not interrupt it."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _stop)
    try:
        yield
    except _Stopped:
        return
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def refuse_taken(
    directory: Path, cell: str, brokers: Sequence[BrokerEntry], *, command: str = "up"
) -> None:
    """Raise `UsageError` if this cell is already running, or another one in its place."""
    taken = ports_taken(cell, refuse_running(directory, cell, brokers, command=command))
    if taken is not None:
        raise UsageError("; ".join(taken))


def refuse_running(
    directory: Path, cell: str, brokers: Sequence[BrokerEntry], *, command: str = "up"
) -> Rows:
    """Raise `UsageError` if these brokers are already running; else return what answers."""
    rows = ask_all({broker.id: default_status_url(broker) for broker in brokers})
    for name, row in rows.items():
        if row["up"] and (row["node"], row["cell"]) == (name, cell):
            pid = supervisor_of(row["pid"])
            kill = f", or with 'kill {pid}'" if pid else ""
            raise UsageError(
                f"cell {cell!r} seems to be running already ({name} answers); stop it with Ctrl-C "
                f"where 'quorumcast {command} {directory}' runs{kill}"
            )
    return rows


def supervisor_of(pid: int) -> int | None:
    """The process id of the `quorumcast up` that started a broker, if /proc is available."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent = int(fields[1])
        command = Path(f"/proc/{parent}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):
        return None
    return parent if b"up" in command and any(b"quorumcast" in word for word in command) else None


class _Stopped(Exception):
    """Raised on SIGTERM, and on SIGHUP when the terminal closes."""


def _stop(number: int, frame: Any) -> None:
    raise _Stopped


def check_level(level: str) -> None:
    if level not in LEVELS:
        raise UsageError(f"--log is one of {', '.join(LEVELS)}, not {level!r}")


class BrokerNews(NamedTuple):
    """Something that happened to a supervised broker."""

    #: Its cell where there are several, and its name, for people and for programs.
    label: str
    fields: dict[str, str]
    child: SupervisedBroker
    happened: str


def watch(
    changes: Callable[[], Iterable[BrokerNews]],
    waiting: Iterable[str],
    all_up: dict[str, Any],
    up_text: str,
    picture: Callable[[], Table],
    *,
    json_: bool,
) -> None:
    """Show what happens to brokers: a picture on a terminal, else one line per change.

    `waiting` are the labels of all; `all_up` and `up_text` are said once each has been ready.
    """
    if sys.stdout.isatty() and not json_:
        _watch_live(changes, picture)
    else:
        _watch_plainly(changes, set(waiting), all_up, up_text, json_=json_)


def _watch_plainly(
    changes: Callable[[], Iterable[BrokerNews]],
    waiting: set[str],
    all_up: dict[str, Any],
    up_text: str,
    *,
    json_: bool,
) -> None:
    while True:
        for label, fields, child, happened in changes():
            if json_:
                print_json({**fields, "event": happened, "pid": child.pid})
            else:
                print(f"{label} {happened} ({child.entry.address})", flush=True)
            if happened == "ready" and waiting:
                waiting.discard(label)
                if not waiting:
                    print_json({"event": "up", **all_up}) if json_ else print(up_text, flush=True)
        time.sleep(TICK_S)


def _watch_live(changes: Callable[[], Iterable[BrokerNews]], picture: Callable[[], Table]) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        due = 0.0
        while True:
            changed = bool(list(changes()))
            if changed or time.monotonic() >= due:
                due = time.monotonic() + TABLE_S
                live.update(picture(), refresh=True)
            time.sleep(TICK_S)


def _table(supervisor: Supervisor, cell: str) -> Table:
    from quorumcast.cli.cell.operations import status_table

    entries = [child.entry for child in supervisor.children if child.ready]
    answers = ask_all({entry.id: default_status_url(entry) for entry in entries})
    rows: Rows = {}
    for child in supervisor.children:
        row = answers.get(child.entry.id) or {"up": False, "state": child.state}
        rows[child.entry.id] = {**row, "restarts": child.restarts}
    return status_table(cell, rows)


def broker(
    where: IdentityOptions,
    bind: Annotated[str, typer.Option(help="Listen here, not at the manifest's host.")] = "",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LAST_PORT,
            help="Status page and /metrics; 0 for none. The broker's port + 1000.",
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Where the status page is.")] = "127.0.0.1",
    evidence: Annotated[Path | None, typer.Option(help="Write evidence of lies here.")] = None,
    data: Annotated[Path | None, typer.Option(help="Keep the store here.")] = None,
    store: StoreOption = "sqlite",
    parents: Annotated[
        Path | None,
        typer.Option(help="Parent cells; the directory 'parents' beside the manifest by default."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Parquet trace here.")] = None,
    observe: ObserveOption = None,
    allow_faults: FaultsOption = False,
    fault: Annotated[
        list[str] | None, typer.Option(help="Misbehave from the start; needs --allow-faults.")
    ] = None,
    log: LogOption = "info",
    json_: JsonOption = False,
) -> None:
    """Run one broker in the foreground; it logs JSON lines to standard error.

    SIGTERM or Ctrl-C stops it. It adopts new epochs of its manifest while it runs.
    """
    from quorumcast.manifest.files import read_identity
    from quorumcast.runtime.broker.broker import BrokerSettings, serve_broker

    check_level(log)
    cell = where.read()
    warn(cell.warning)
    file = where.identity_file(of_broker=True)
    name = read_identity(file).name
    entry = cell.broker(name)
    port = metrics_port
    if port is None and entry is not None:
        port = default_status_port(entry)
    if json_ and entry is not None:
        print_json({"broker": name, "cell": cell.cell, "address": entry.address, "status": port})
    settings = BrokerSettings(
        manifest=where.path,
        identity=file,
        bind=bind,
        http_host=metrics_host,
        http_port=port or None,
        allow_faults=allow_faults,
        faults=tuple(fault or ()),
        evidence=evidence,
        data=data,
        store=store,
        parents=parents,
        trace=trace,
        observe=observe.resolve() if observe else None,
        log_level=log,
    )
    with _directories(evidence, data, trace, observe):
        serve_broker(settings)


@contextlib.contextmanager
def _directories(*wanted: Path | None) -> Iterator[None]:
    """Create missing directories; remove them again if the command is refused."""
    made: list[Path] = []
    try:
        for directory in wanted:
            if directory is not None:
                there = directory.exists()
                directory.mkdir(parents=True, exist_ok=True)
                made += [] if there else [directory]
        yield
    except UsageError:
        for directory in made:
            with contextlib.suppress(OSError):  # not empty
                directory.rmdir()
        raise
    except OSError as error:
        if error.filename not in map(str, wanted):
            raise
        raise UsageError(
            f"{error.filename} cannot be used ({error.strerror}); choose another directory"
        ) from None
