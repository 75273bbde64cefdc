"""`quorumcast members`: the brokers and clients of a cell, their keys, and who is connected.

`cli.cell.membership` has the commands that change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.cell.membership import add, remove, replace, rotate
from quorumcast.cli.common import Rows, console, print_json, table
from quorumcast.cli.options import Commands, JsonOption, StatusOptions

if TYPE_CHECKING:
    from rich.table import Table

    from quorumcast.manifest.manifest import Manifest

app = Commands(
    no_args_is_help=True,
    help="Show the members of a cell, and change them while it runs.",
    epilog="Example:  quorumcast members list -m cell --live",
)

_EXAMPLES: dict[Callable[..., None], str] = {
    add: "members add broker-5 --host 10.0.0.5 --port 7005 -m cell --wait",
    remove: "members remove broker-1 -m cell --wait",
    replace: "members replace broker-1 broker-5 --host 10.0.0.5 --port 7005 -m cell",
    rotate: "members rotate broker-2 -m cell --wait",
}
for command, example in _EXAMPLES.items():
    app.command(example=example)(command)

#: Characters of a fingerprint that the table shows.
SHOWN = 16


@app.command("list", example="members list -m cell --live")
def list_members(
    where: StatusOptions,
    live: Annotated[bool, typer.Option("--live", help="Ask the brokers who is there.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show brokers and clients with the fingerprints of their keys.

    With --live: which brokers are up, in which epoch, and to how many each client is connected.
    """
    cell = where.read()
    members = _members(cell, where.ask(cell) if live else None)
    if json_:
        print_json({"cell": cell.cell, "epoch": cell.epoch, "f": cell.f, "members": members})
    else:
        console().print(_table(cell, members, live=live))


def fingerprint(verify_key: bytes, exchange_key: bytes) -> str:
    """The fingerprint of a node's public keys."""
    return hashlib.sha256(verify_key + exchange_key).hexdigest()


def _members(cell: Manifest, rows: Rows | None) -> list[dict[str, Any]]:
    members: list[dict[str, Any]] = []
    for broker in cell.brokers:
        member: dict[str, Any] = {
            "name": broker.id,
            "role": "broker",
            "address": broker.address,
            "tls": bool(broker.certificate),
            "fingerprint": fingerprint(broker.verify_key, broker.exchange_key),
        }
        if rows is not None:
            row = rows[broker.id]
            member |= {"up": row["up"], "epoch": row.get("epoch")}
        members.append(member)
    for client in cell.clients:
        member = {
            "name": client.id,
            "role": "client",
            "fingerprint": fingerprint(client.verify_key, client.exchange_key),
        }
        if rows is not None:
            at = [name for name, row in rows.items() if client.id in row.get("clients", ())]
            member |= {"up": bool(at), "at": at}
        members.append(member)
    return members


def _table(cell: Manifest, members: list[dict[str, Any]], *, live: bool) -> Table:
    title = f"cell {cell.cell}, epoch {cell.epoch}: {len(cell.brokers)} brokers, f={cell.f}"
    more = ("state", "epoch") if live else ()
    found = table("name", "role", "address", "keys", *more, simple=True, title=title)
    for member in members:
        state = "[green]up[/]" if member.get("up") else "[red]down[/]"
        if member["role"] == "client":
            at = member.get("at", ())
            state = f"at {len(at)} brokers" if at else "not here"
        epoch = member.get("epoch")
        shown = (state, "" if epoch is None else str(epoch)) if live else ()
        found.add_row(
            member["name"],
            member["role"],
            member.get("address", ""),
            member["fingerprint"][:SHOWN],
            *shown,
        )
    return found
