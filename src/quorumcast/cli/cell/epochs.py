"""`quorumcast epoch …`: show a manifest, or write its next epoch, signed by the operator.

Brokers check their manifest file every second and adopt a newer epoch without a restart. If a
broker has its own copy of the file, copy the new manifest there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumcast.cli.cell.advancing import Change, OperatorOption, advance
from quorumcast.cli.cell.init import CHANNEL, parse_channel, summary
from quorumcast.cli.cell.membership import rotating
from quorumcast.cli.common import (
    IDENTITY,
    OPERATOR,
    JsonOption,
    ManifestOption,
    console,
    manifest_path,
    print_json,
)
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import Manifest

app = typer.Typer(
    no_args_is_help=True,
    help="Show a manifest, or make its next epoch.",
    epilog="Example:  quorumcast epoch add-client carol -m cell",
)


@app.command(epilog="Example:  quorumcast epoch show -m cell")
def show(manifest: ManifestOption = Path(), json_: JsonOption = False) -> None:
    """Show the manifest."""
    from quorumcast.manifest.files import read_manifest

    path = manifest_path(manifest)
    _report(read_manifest(path), path, json_)


@app.command(epilog="Example:  quorumcast epoch add-client carol -m cell")
def add_client(
    name: Annotated[str, typer.Argument(help="The new client.")],
    manifest: ManifestOption = Path(),
    operator: OperatorOption = None,
    json_: JsonOption = False,
) -> None:
    """Add a client, and make its identity."""
    from quorumcast.core.ids import NodeId
    from quorumcast.crypto.identity import Identity
    from quorumcast.manifest import build
    from quorumcast.manifest.files import write_identity

    path = manifest_path(manifest)
    if name == OPERATOR:
        raise UsageError(f"no node can be called {OPERATOR!r}; choose another name")
    identity = Identity.generate(NodeId(name))

    def add(old: Manifest) -> Manifest:
        new = build.add_client(old, identity.name, identity)
        write_identity(path.parent / f"{name}{IDENTITY}", identity)
        return new

    _advance(path, operator, add, json_)


@app.command(epilog="Example:  quorumcast epoch add-channel audit:brb::alice:bob -m cell")
def add_channel(
    channel: Annotated[str, typer.Argument(metavar=CHANNEL)],
    manifest: ManifestOption = Path(),
    operator: OperatorOption = None,
    json_: JsonOption = False,
) -> None:
    """Add a channel."""
    from quorumcast.manifest.build import next_epoch

    entry = parse_channel(channel)
    _advance(
        manifest_path(manifest),
        operator,
        lambda old: next_epoch(old, channels=(*old.channels, entry)),
        json_,
    )


@app.command(epilog="Example:  quorumcast epoch rotate alice -m cell")
def rotate(
    name: Annotated[str, typer.Argument(help="The node whose keys are replaced.")],
    manifest: ManifestOption = Path(),
    operator: OperatorOption = None,
    json_: JsonOption = False,
) -> None:
    """Give a node new keys; a copy of its old identity is kept, which brokers no longer accept.

    A broker reads its identity file again when it adopts the epoch.
    """
    path = manifest_path(manifest)
    _advance(path, operator, rotating(path, name), json_)


def _advance(path: Path, operator: Path | None, change: Change, json_: bool) -> None:
    _report(advance(path, operator, change), path, json_)


def _report(manifest: Manifest, path: Path, json_: bool) -> None:
    facts = summary(manifest, path.parent)
    if json_:
        print_json(facts)
        return
    out = console()
    for name, value in facts.items():
        match value:
            case dict():
                shown = ", ".join(f"{key} ({entry})" for key, entry in value.items())
            case list():
                shown = ", ".join(map(str, value))
            case _:
                shown = str(value)
        out.print(f"{name:10} {shown}", markup=False)
