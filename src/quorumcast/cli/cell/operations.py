"""`quorumcast status` and `quorumcast faults`: show running brokers, and inject faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from quorumcast.cli.common import (
    JsonOption,
    ManifestOption,
    StatusOption,
    ask,
    ask_cell,
    console,
    manifest_path,
    print_json,
    status_urls,
)
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

STATUS_EXAMPLE = "Example:  quorumcast status -m cell"

faults = typer.Typer(
    no_args_is_help=True,
    help="Make a running broker lie, and honest again; for tests and demonstrations.",
    epilog="Example:  quorumcast faults set broker-1 alter -m cell",
)


def status(
    manifest: ManifestOption = Path(), url: StatusOption = None, json_: JsonOption = False
) -> None:
    """Show the brokers of a cell: their state, what they hold, and whom they suspect."""
    from quorumcast.manifest.files import read_manifest

    path = manifest_path(manifest)
    cell = read_manifest(path)
    rows = ask_cell(cell, status_urls(cell, url))
    if not any(row["up"] for row in rows.values()):
        raise UsageError(
            f"no broker of cell {cell.cell!r} is up; start it with 'quorumcast up {path.parent}'"
        )
    if json_:
        print_json({"cell": cell.cell, "epoch": cell.epoch, "brokers": rows})
    else:
        console().print(status_table(cell.cell, rows))


def status_table(cell: str, rows: dict[str, dict[str, Any]]) -> Table:
    """A table of brokers."""
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=f"cell {cell}", title_justify="left", box=SIMPLE)
    for column in ("broker", "state", "epoch", "peers", "clients", "streams"):
        table.add_column(column, no_wrap=column == "broker")
    for column in ("pubs/s", "MB/s in", "MB"):
        table.add_column(column, justify="right")
    for column in ("log", "suspects", "proven", "faults"):
        table.add_column(column)
    for name, row in rows.items():
        if not row["up"]:
            table.add_row(name, f"[red]{row['state']}[/]")
            continue
        peers = [peer for peer, state in row["brokers"].items() if state["up"]]
        rates = row["rates"]
        table.add_row(
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
    return table


@faults.command("list", epilog="Example:  quorumcast faults list --json")
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
    from rich.table import Table

    table = Table()
    for column in ("fault", "of a", "what it does", "leaves"):
        table.add_column(column)
    for entry in entries:
        table.add_row(entry["name"], entry["role"], entry["description"], entry["leaves"])
    console().print(table)


@faults.command("set", epilog="Example:  quorumcast faults set broker-1 alter --percent 50 -m cell")
def set_fault(
    broker: Annotated[str, typer.Argument(help="The broker.")],
    fault: Annotated[str, typer.Argument(help="The fault; see 'faults list'.")],
    percent: Annotated[int, typer.Option(help="Percentage of messages that are affected.")] = 100,
    victim: Annotated[
        list[str] | None, typer.Option(help="A node or channel to aim at; may be repeated.")
    ] = None,
    manifest: ManifestOption = Path(),
    url: StatusOption = None,
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
    address = _address(broker, manifest, url)
    if fault in ask(f"{address}/faults")["installed"]:
        # The new options replace those of the installed fault.
        ask(f"{address}/faults?name={quote(fault)}", "DELETE")
    order = {"name": fault, "percent": percent, "victims": victim or []}
    _report(broker, ask(f"{address}/faults", "POST", order), json_)


@faults.command("clear", epilog="Example:  quorumcast faults clear broker-1 -m cell")
def clear_faults(
    broker: Annotated[str, typer.Argument(help="The broker.")],
    fault: Annotated[str, typer.Argument(help="Only this fault; all of them if left out.")] = "",
    manifest: ManifestOption = Path(),
    url: StatusOption = None,
    json_: JsonOption = False,
) -> None:
    """Make a broker honest again."""
    address = _address(broker, manifest, url)
    query = f"?name={quote(fault)}" if fault else ""
    _report(broker, ask(f"{address}/faults{query}", "DELETE"), json_)


def _address(broker: str, manifest: Path, url: list[str] | None) -> str:
    from quorumcast.manifest.files import read_manifest

    cell = read_manifest(manifest_path(manifest))
    urls = status_urls(cell, url)
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
