"""`quorumcast status` and `quorumcast faults`: show running brokers, and inject faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from quorumcast.cli.common import Rows, ask, console, print_json, table
from quorumcast.cli.options import Commands, JsonOption, StatusOptions
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

STATUS_EXAMPLE = "status -m cell"

faults = Commands(
    no_args_is_help=True,
    help="Make a running broker lie, and honest again; for tests and demonstrations.",
    epilog="Example:  quorumcast faults set broker-1 alter -m cell",
)


def status(where: StatusOptions, json_: JsonOption = False) -> None:
    """Show the brokers of a cell: their state, what they hold, and whom they suspect."""
    cell = where.read()
    rows = where.ask(cell)
    if not any(row["up"] for row in rows.values()):
        raise UsageError(
            f"no broker of cell {cell.cell!r} is up; start it with 'quorumcast up "
            f"{where.path.parent}'"
        )
    if json_:
        print_json({"cell": cell.cell, "epoch": cell.epoch, "brokers": rows})
    else:
        console().print(status_table(cell.cell, rows))


def status_table(cell: str, rows: Rows) -> Table:
    """A table of brokers."""
    found = table(
        *("broker", "state", "epoch", "peers", "clients", "streams"),
        right=("pubs/s", "MB/s in", "MB"),
        simple=True,
        title=f"cell {cell}",
    )
    found.columns[0].no_wrap = True
    for column in ("log", "suspects", "proven", "faults"):
        found.add_column(column)
    for name, row in rows.items():
        if not row["up"]:
            found.add_row(name, f"[red]{row['state']}[/]")
            continue
        peers = [peer for peer, state in row["brokers"].items() if state["up"]]
        rates = row["rates"]
        found.add_row(
            name,
            "[yellow]catching up[/]" if row.get("catching_up") else "[green]up[/]",
            str(row["epoch"]),
            f"{len(peers)}/{len(row['brokers'])}",
            str(len(row["clients"])),
            str(len(row["streams"])),
            f"{rates['publications']:,.0f}",
            f"{rates['bytes_in'] / 1e6:,.1f}",
            f"{row['rss_bytes'] / 1e6:,.0f}",
            ", ".join(
                f"{log['executed']:,} led by {log['leader']}" for log in row["logs"].values()
            ),
            ", ".join(f"{node} ({sum(why.values())})" for node, why in row["suspicions"].items()),
            ", ".join(row["accusations"]),
            f"[yellow]{', '.join(row['faults'])}[/]",
        )
    return found


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
    percent: Annotated[int, typer.Option(help="Percentage of messages that are affected.")] = 100,
    victim: Annotated[
        list[str] | None, typer.Option(help="A node or channel to aim at; may be repeated.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Make a broker misbehave; it must have been started with --allow-faults."""
    from quorumcast.faults.cell.catalogue import CATALOGUE
    from quorumcast.faults.cell.entry import Role

    names = [entry.name for entry in CATALOGUE.values() if entry.role is Role.BROKER]
    if fault not in names:
        other = CATALOGUE.get(fault)
        wrong = (
            f"{fault!r} is a {other.role.value}'s fault"
            if other
            else f"there is no fault {fault!r}"
        )
        raise UsageError(f"{wrong}; a broker can commit {', '.join(names)}")
    if not 1 <= percent <= 100:
        raise UsageError("--percent is 1 to 100")
    address = _address(broker, where)
    if fault in ask(f"{address}/faults")["installed"]:
        # The new options replace those of the installed fault.
        ask(f"{address}/faults?name={quote(fault)}", "DELETE")
    order = {"name": fault, "percent": percent, "victims": victim or []}
    _report(broker, ask(f"{address}/faults", "POST", order), json_)


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
    urls = where.urls(cell)
    if broker not in urls:
        raise UsageError(
            f"there is no broker {broker!r} in cell {cell.cell!r}; it has {', '.join(urls)}"
        )
    page = ask(f"{urls[broker]}/status")
    if (page.get("node"), page.get("cell")) != (broker, cell.cell):
        raise UsageError(
            f"{urls[broker]} is the page of {page.get('node')} of cell {page.get('cell')!r}; say "
            f"where that of {broker} is with --url"
        )
    return urls[broker]


def _report(broker: str, answer: dict[str, Any], json_: bool) -> None:
    if json_:
        print_json({"broker": broker, "faults": answer["installed"]})
    else:
        installed = ", ".join(answer["installed"])
        console().print(f"{broker}: {installed or 'honest'}", markup=False)
