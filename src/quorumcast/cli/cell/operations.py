"""`quorumcast status` and `quorumcast faults`: show running brokers, and inject faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from quorumcast.cli.common import Rows, ask, console, print_json, table, warn
from quorumcast.cli.options import (
    Commands,
    JsonOption,
    PercentOption,
    StatusOptions,
    VictimOption,
)
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

STATUS_EXAMPLE = "status -m cell"

#: Columns that the output of `status` needs at most.
STATUS_WIDTH = 80

faults = Commands(
    no_args_is_help=True,
    help="Make a running broker lie, and honest again; for tests and demonstrations.",
    epilog="Example:  quorumcast faults set broker-1 alter -m cell",
)


def status(where: StatusOptions, json_: JsonOption = False) -> None:
    """Show the brokers of a cell: their state, what they hold, and whether the cell is well.

    Exit code 0 if the cell is well, 1 if it is not.
    """
    from quorumcast.cli.cell.levels import levels_above
    from quorumcast.cli.cell.live_checks import judge_cell
    from quorumcast.cli.progress import WAITING, ProgressDisplay

    cell = where.read()
    with ProgressDisplay(WAITING):
        rows = where.ask(cell)
        levels = levels_above(cell, where.path.parent, rows)
    verdict = judge_cell(cell, where.path.parent, rows)
    if json_:
        shown = {"cell": cell.cell, "epoch": cell.epoch, "brokers": rows, "verdict": verdict}
        print_json({**shown, "levels": levels, "warning": cell.warning})
    else:
        out = console(width=STATUS_WIDTH)
        out.print(status_table(cell.cell, rows))
        for name, row in rows.items():
            suspects = row.get("suspicions", {}).items()
            counts = ", ".join(f"{node} ({sum(why.values())})" for node, why in suspects)
            if counts:
                out.print(f"{name} suspects {counts}", markup=False)
        for line in predicate_lines(rows):
            out.print(line, markup=False)
        for level in (level for steps in levels.values() for level in steps):
            out.print(level.sentence, markup=False)
        out.print(verdict.says, markup=False)
        if cell.warning:
            out.print(f"warning: {cell.warning}", markup=False)
    if not verdict.well:
        raise typer.Exit(1)


def status_table(cell: str, rows: Rows) -> Table:
    """A table of brokers."""
    found = table(
        *("broker", "state"),
        right=("epoch", "peers", "clients", "pubs/s", "MB/s", "MB", "batches"),
        simple=True,
        title=f"cell {cell}",
        show_edge=False,
        pad_edge=False,
    )
    broker, state, *figures = found.columns
    broker.overflow = state.overflow = "fold"  # long names take several lines
    state.min_width = len("catching up")
    for figure in figures:
        figure.no_wrap = True
    proven = {accused for row in rows.values() for accused in row.get("accusations", ())}
    for name, row in rows.items():
        if not row["up"]:
            found.add_row(name, f"[red]{row['state']}[/]")
            continue
        peers = [peer for peer, state in row["brokers"].items() if state["up"]]
        rates = row["rates"]
        found.add_row(
            name,
            _state(name, row, proven),
            str(row["epoch"]),
            f"{len(peers)}/{len(row['brokers'])}",
            str(len(row["clients"])),
            _figure(rates["publications"]),
            f"{rates['bytes_in'] / 1e6:,.1f}",
            f"{row['rss_bytes'] / 1e6:,.0f}",
            "\n".join(_figure(log["executed"]) for log in row["logs"].values()),
        )
    return found


def predicate_lines(rows: Rows) -> list[str]:
    """What the busiest broker does for the predicates of each channel that has any."""
    busiest: dict[str, tuple[str, dict[str, int]]] = {}
    for name, row in rows.items():
        for channel, work in row.get("predicates", {}).items():
            _, most = busiest.get(channel, ("", {"rows_looked_at": -1}))
            if work["predicates"] and work["rows_looked_at"] > most["rows_looked_at"]:
                busiest[channel] = (name, work)
    return [
        f"{channel}: {_count(work['predicates'], 'predicate')} of "
        f"{_count(work['subscribers'], 'subscriber')}; "
        f"{name} looked at {_count(work['rows_looked_at'], 'row')} and sent "
        f"{_figure(work['rows_sent'])}, in {_count(work['cuts'], 'cut')} and "
        f"{_count(work['whole'], 'whole publication')}"
        for channel, (name, work) in busiest.items()
    ]


def _count(number: int, noun: str) -> str:
    return f"{_figure(number)} {noun}{'' if number == 1 else 's'}"


def _figure(number: float) -> str:
    """A number in at most seven characters, up to a billion; --json has all of its digits."""
    return f"{number:,.0f}" if number < 1e6 else f"{number / 1e6:,.1f}M"


def _state(name: str, row: dict[str, Any], proven: set[str]) -> str:
    """The state of a broker that answers; the first that applies."""
    if name in proven:
        return "[red]proven liar[/]"
    if row["faults"]:
        return "[yellow]faulty[/]"
    if row.get("catching_up"):
        return "[yellow]catching up[/]"
    leads = any(log["leader"] == name for log in row["logs"].values())
    return "[green]leader[/]" if leads else "[green]up[/]"


@faults.command("list", example="faults list --json")
def list_faults(json_: JsonOption = False) -> None:
    """Show every fault that brokers, publishers and subscribers can commit."""
    from quorumcast.faults.cell.catalogue import CATALOGUE

    entries = [
        {
            "name": entry.name,
            "role": entry.role.value,
            "description": entry.description,
            "leaves": entry.trace.value,
        }
        for entry in CATALOGUE.values()
    ]
    if json_:
        print_json(entries)
        return
    found = table("fault", "of a", "what it does", "leaves")
    for entry in entries:
        found.add_row(*entry.values())
    console().print(found)


@faults.command("set", example="faults set broker-1 alter --percent 50 -m cell")
def set_fault(
    broker: Annotated[str, typer.Argument(help="The broker.")],
    fault: Annotated[str, typer.Argument(help="The fault; see 'faults list'.")],
    where: StatusOptions,
    percent: PercentOption = 100,
    victim: VictimOption = None,
    json_: JsonOption = False,
) -> None:
    """Make a broker misbehave; it must have been started with --allow-faults.

    Publishers and subscribers misbehave by --fault of 'publish' and 'subscribe'.
    """
    from quorumcast.faults.cell.catalogue import check_fault, check_victims
    from quorumcast.faults.cell.entry import Role

    check_fault(fault, Role.BROKER)
    check_victims(victim or (), where.read())
    address = _address(broker, where)
    if fault in ask(f"{address}/faults")["installed"]:
        # The new options replace those of the installed fault.
        ask(f"{address}/faults?name={quote(fault)}", "DELETE")
    order = {"name": fault, "percent": percent, "victims": victim or []}
    answer = ask(f"{address}/faults", "POST", order)
    cell = where.read()
    faulty = [name for name, row in where.ask(cell).items() if row["up"] and row["faults"]]
    warning = ""
    if len(faulty) > cell.f:
        warning = (
            f"{len(faulty)} brokers misbehave now ({', '.join(faulty)}), and f is {cell.f}: the "
            "cell promises nothing any more; make one honest with 'quorumcast faults clear'"
        )
    warn(warning)
    _report(broker, answer, json_, warning)


@faults.command("clear", example="faults clear broker-1 -m cell")
def clear_faults(
    broker: Annotated[str, typer.Argument(help="The broker.")],
    where: StatusOptions,
    fault: Annotated[str, typer.Argument(help="Only this fault; all of them if left out.")] = "",
    json_: JsonOption = False,
) -> None:
    """Make a broker honest again."""
    address = _address(broker, where)
    query = f"?name={quote(fault)}" if fault else ""
    _report(broker, ask(f"{address}/faults{query}", "DELETE"), json_)


def _address(broker: str, where: StatusOptions) -> str:
    cell = where.read()
    cell.check_brokers([broker])
    urls = where.urls(cell)
    page = ask(f"{urls[broker]}/status")
    if (page.get("node"), page.get("cell")) != (broker, cell.cell):
        raise UsageError(
            f"{urls[broker]} is the page of {page.get('node')} of cell {page.get('cell')!r}; say "
            f"where that of {broker} is with --url"
        )
    return urls[broker]


def _report(broker: str, answer: dict[str, Any], json_: bool, warning: str = "") -> None:
    if json_:
        print_json({"broker": broker, "faults": answer["installed"], "warning": warning})
    else:
        installed = ", ".join(answer["installed"])
        console().print(f"{broker}: {installed or 'honest'}", markup=False)
