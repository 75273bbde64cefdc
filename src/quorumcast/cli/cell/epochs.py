"""`quorumcast epoch …`: show a manifest, or write its next epoch, signed by the operator.

Brokers check their manifest file every second and adopt a newer epoch without a restart. If a
broker has its own copy of the file, copy the new manifest there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.cell.advancing import advance, wait_until_taken
from quorumcast.cli.cell.init import CHANNEL, CellSummary, parse_channel
from quorumcast.cli.cell.members import Rotation, old_identity
from quorumcast.cli.common import IDENTITY, OPERATOR, console, print_json
from quorumcast.cli.options import (
    CellOptions,
    Commands,
    JsonOption,
    OperatorOption,
    OperatorOptions,
    WaitForRunningOption,
)
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
        write_identity(file, identity)
        return new

    file = where.path.parent / f"{name}{IDENTITY}"
    new = advance(where.path, operator, add)
    restart = f"nothing; give {name} the identity and {where.path}"
    _report(new, where.path, json_, {"identity": str(file), "restart": restart})


@app.command(example="epoch remove-client carol -m cell")
def remove_client(
    name: Annotated[str, typer.Argument(help="The client whose identity is revoked.")],
    where: OperatorOptions,
    wait: WaitForRunningOption = True,
    json_: JsonOption = False,
) -> None:
    """Revoke a client's identity: brokers that take the epoch end its sessions and refuse it.

    What it published before stays valid, and can be verified with the manifest of its epoch.
    """
    from quorumcast.core.ids import NodeId
    from quorumcast.manifest import build

    new = advance(where.path, where.operator, lambda old: build.remove_client(old, NodeId(name)))
    file = where.path.parent / f"{name}{IDENTITY}"
    if file.exists():
        file.rename(old_identity(file, new.epoch - 1))
    taken = wait_until_taken(new, where.urls(new)) if wait else {}
    late = [broker for broker, done in taken.items() if not done]
    facts: dict[str, object] = {"removed": name, "taken": [b for b, done in taken.items() if done]}
    if late:
        facts["late"] = late
    _report(new, where.path, json_, facts)
    if late:
        raise typer.Exit(1)


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

    _report(advance(where.path, operator, add), where.path, json_)


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
    rotation = Rotation(where.path, name)
    new = advance(where.path, operator, rotation.change)
    _report(new, where.path, json_, rotation.facts(new))


def _report(
    manifest: Manifest, path: Path, json_: bool, more: Mapping[str, object] | None = None
) -> None:
    """Print a manifest, and what else there is to say about the change that made it."""
    facts = msgspec.structs.asdict(CellSummary.of(manifest, path.parent)) | dict(more or {})
    if json_:
        print_json(facts)
        return
    out = console()
    for name, value in facts.items():
        match value:
            case dict():
                shown = ", ".join(f"{key} ({entry})" for key, entry in value.items())
            case list():
                shown = ", ".join(map(str, value)) or "none"
            case "":
                continue
            case _:
                shown = str(value)
        out.print(f"{name:10} {shown}", markup=False, soft_wrap=True)
