"""`quorumcast restart`: restart brokers of `quorumcast up`, one at a time.

The command stops a broker with SIGTERM, and its supervisor starts it again. Each broker is awaited
until it has caught up, and none is stopped while too few of the others are well: so a rolling
restart loses nothing that is retained.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.cell.levels import starting_command
from quorumcast.cli.cell.running import supervisor_of
from quorumcast.cli.common import print_json
from quorumcast.cli.options import JsonOption, StatusOptions
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import Manifest

EXAMPLE = "restart broker-2 -m cell"

PAUSE_S = 0.1


class RestartOptions(StatusOptions, kw_only=True):
    """How brokers are restarted."""

    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait for each.")] = 60.0
    hasty: Annotated[
        bool,
        typer.Option(
            "--hasty", help="Also while other brokers are down or catch up: the cell may stop."
        ),
    ] = False


def restart(
    where: RestartOptions,
    brokers: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER]...", help="Which; all if left out.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Restart brokers that 'quorumcast up' runs on this machine, one at a time.

    After an upgrade of Quorumcast, or to read its files anew. Without names: all brokers.
    """
    cell = where.read()
    names = list(dict.fromkeys(brokers or cell.broker_ids))
    cell.check_brokers(names)
    for name in names:
        _pid(where, cell, name)  # refused before the first one is stopped
    done = [_restart(where, cell, name) for name in names]
    if json_:
        print_json({"cell": cell.cell, "restarted": done})
    else:
        for fact in done:
            print(f"{fact['broker']} restarted in {fact['seconds']} s")


def _pid(where: RestartOptions, cell: Manifest, name: str) -> int:
    """The process of a broker, if its supervisor runs on this machine."""
    rows = where.ask(cell)
    row = rows[name]
    if not any(other["up"] for other in rows.values()):
        start = starting_command(cell, where.path.parent)
        raise UsageError(f"no broker of cell {cell.cell!r} is up; start it with '{start}'")
    if not row["up"]:
        raise UsageError(
            f"{name} does not answer; 'quorumcast up' restarts a broker that exits, and "
            f"{where.path.parent / 'logs' / name}.log says why it did"
        )
    pid: int = row["pid"]
    if supervisor_of(pid) is None:
        raise UsageError(
            f"{name} was not started by 'quorumcast up' on this machine; restart it where and how "
            "it was started"
        )
    return pid


def _restart(where: RestartOptions, cell: Manifest, name: str) -> dict[str, Any]:
    if not where.hasty:
        _await_others(where, cell, name)
    pid = _pid(where, cell, name)
    started = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    with ProgressDisplay() as progress:
        while True:
            row = where.ask(cell)[name]
            if row["up"] and row["pid"] != pid and not row.get("catching_up"):
                waited = round(time.monotonic() - started, 1)
                return {"broker": name, "pid": row["pid"], "seconds": waited}
            if time.monotonic() - started > where.timeout:
                break
            progress(f"waiting until {name} is back")
            time.sleep(PAUSE_S)
    raise UsageError(
        f"{name} was stopped and is not back, or has not caught up, after {where.timeout:g} s; see "
        f"'quorumcast status' and {where.path.parent / 'logs' / name}.log; the other brokers were "
        "left alone"
    )


def _await_others(where: RestartOptions, cell: Manifest, name: str) -> None:
    """Wait until the cell can do without this broker."""
    needed = cell.quorums.responders
    deadline = time.monotonic() + where.timeout
    with ProgressDisplay() as progress:
        while True:
            rows = where.ask(cell)
            well = [n for n, row in rows.items() if row["up"] and not row.get("catching_up")]
            others = [n for n in well if n != name]
            if len(others) >= needed:
                return
            if time.monotonic() > deadline:
                break
            ill = [n for n in cell.broker_ids if n not in well and n != name]
            progress(f"waiting for {', '.join(ill)} to be up and to catch up")
            time.sleep(PAUSE_S)
    raise UsageError(
        f"{name} was not restarted: besides it only {len(others)} of {len(cell.brokers)} brokers "
        f"are up and caught up, and the cell needs {needed}; start the others, or say --hasty"
    )
