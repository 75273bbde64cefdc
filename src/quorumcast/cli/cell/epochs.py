"""`quorumcast epoch …`: show a manifest, or write its next epoch, signed by the operator.

Brokers check their manifest file every second and adopt a newer epoch without a restart. If a
broker has its own copy of the file, copy the new manifest there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.cell.advancing import Change, advance
from quorumcast.cli.cell.init import CHANNEL, CellSummary, parse_channel
from quorumcast.cli.cell.members import rotating
from quorumcast.cli.common import IDENTITY, OPERATOR, console, print_json
from quorumcast.cli.options import CellOptions, Commands, JsonOption, OperatorOption
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import Manifest

app = Commands(
    no_args_is_help=True,
    help="Show a manifest, or make its next epoch.",
    epilog="Example:  quorumcast epoch add-client carol -m cell",
)


@app.command(example="epoch show -m cell")
def show(where: CellOptions, json_: JsonOption = False) -> None:
    """Show the manifest."""
    _report(where.read(), where.path, json_)


@app.command(example="epoch add-client carol -m cell")
def add_client(
    name: Annotated[str, typer.Argument(help="The new client.")],
    where: CellOptions,
    operator: OperatorOption = None,
    json_: JsonOption = False,
) -> None:
    """Add a client, and make its identity."""
    from quorumcast.core.ids import NodeId
    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest import build
    from quorumcast.manifest.files import write_identity

    if name == OPERATOR:
        raise UsageError(f"no node can be called {OPERATOR!r}; choose another name")
    identity = Identity.generate(NodeId(name))

    def add(old: Manifest) -> Manifest:
        new = build.add_client(old, identity.name, identity)
        write_identity(where.path.parent / f"{name}{IDENTITY}", identity)
        return new

    _advance(where, operator, add, json_)


@app.command(example="epoch add-channel audit:brb::alice:bob -m cell")
def add_channel(
    channel: Annotated[str, typer.Argument(metavar=CHANNEL)],
    where: CellOptions,
    operator: OperatorOption = None,
    json_: JsonOption = False,
) -> None:
    """Add a channel."""
    from quorumcast.manifest.build import next_epoch

    entry = parse_channel(channel)

    def add(old: Manifest) -> Manifest:
        return next_epoch(old, channels=(*old.channels, entry))

    _advance(where, operator, add, json_)


@app.command(example="epoch rotate alice -m cell")
def rotate(
    name: Annotated[str, typer.Argument(help="The node whose keys are replaced.")],
    where: CellOptions,
    operator: OperatorOption = None,
    json_: JsonOption = False,
) -> None:
    """Give a node new keys; a copy of its old identity is kept, which brokers no longer accept.

    A broker reads its identity file again when it adopts the epoch.
    """
    _advance(where, operator, rotating(where.path, name), json_)


def _advance(where: CellOptions, operator: Path | None, change: Change, json_: bool) -> None:
    _report(advance(where.path, operator, change), where.path, json_)


def _report(manifest: Manifest, path: Path, json_: bool) -> None:
    facts = CellSummary.of(manifest, path.parent)
    if json_:
        print_json(facts)
        return
    out = console()
    for name, value in msgspec.structs.asdict(facts).items():
        match value:
            case dict():
                shown = ", ".join(f"{key} ({entry})" for key, entry in value.items())
            case list():
                shown = ", ".join(map(str, value))
            case _:
                shown = str(value)
        out.print(f"{name:10} {shown}", markup=False)
