"""`quorumcast tree …`: make, run and show a tree of cells in one directory.

DIR/root, DIR/cell-1, DIR/cell-1-1 …    a cell each, as 'quorumcast init' makes them
DIR/cell-1/parents/root/                what the brokers of cell-1 need to reach the root
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumcast.cli.cell.channels import parse_columns
from quorumcast.cli.cell.init import CHANNEL, DEFAULT_CHANNEL, parse_channel, retaining, write_cell
from quorumcast.cli.cell.running import (
    BrokerNews,
    FaultsOption,
    LogOption,
    StoreOption,
    check_level,
    refuse_taken,
    stopped_by_signals,
    watch,
)
from quorumcast.cli.common import IDENTITY, MANIFEST, console, print_json, table, warn
from quorumcast.cli.options import Commands, JsonOption, RetainOption
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from quorumcast.cli.cell.supervisor import Supervisor
    from quorumcast.cli.tree.cells import TreeCell
    from quorumcast.cli.tree.mapping import MappedCell
    from quorumcast.manifest.manifest import ChannelEntry
    from quorumcast.manifest.trees import PlannedCell, Shape

app = Commands(
    no_args_is_help=True,
    help="Make, run and show trees of cells: children carry on channels of their parents.",
    epilog="Example:  quorumcast tree init tree --levels 2 --fanout 3",
)

TreeArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Made by 'tree init'.")]


@app.command("init", example="tree init tree --levels 3 --fanout 2 --channel trades:total")
def init_tree(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the cells go.")],
    levels: Annotated[int, typer.Option(help="Levels, with the root.")] = 2,
    fanout: Annotated[int, typer.Option(help="Children of each cell.")] = 2,
    f: Annotated[int, typer.Option("--f", help="Faulty brokers in each cell.")] = 1,
    policy: Annotated[
        str, typer.Option(help="The root's policy for the channel 'events'; see 'init --channel'.")
    ] = "",
    channel: Annotated[
        list[str] | None,
        typer.Option(metavar=CHANNEL, help="A channel of the root instead; may be repeated."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="CHANNEL:NAME:TYPE", help="A column of a channel; may be repeated."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELL:CHANNEL:PREDICATE",
            help="The rows that a cell carries on, with all cells below it; may be repeated, once "
            "for each cell and channel.",
        ),
    ] = None,
    clients: Annotated[
        str, typer.Option(help="Names of clients, with commas; each has keys in every cell.")
    ] = "alice,bob",
    retain: RetainOption = None,
    host: Annotated[str, typer.Option(help="Where brokers listen.")] = "127.0.0.1",
    base_port: Annotated[int, typer.Option(help="Port of the first broker.")] = 7100,
    digest: Annotated[
        str, typer.Option(help="sha256, blake3, blake2b, or auto: the fastest on this machine.")
    ] = "auto",
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt all links.")] = False,
    json_: JsonOption = False,
) -> None:
    """Create a tree of cells: identities, operators' keys and signed manifests.

    The root has as many brokers as its policies need, and every child 2f+1. Clients publish in the
    root, and subscribe anywhere.
    """
    from quorumcast.cell.filters import filter_of
    from quorumcast.manifest.trees import TreeDesign, full_tree, make_tree
    from quorumcast.runtime.digests import choose_digest

    if policy and channel:
        raise UsageError("--policy is for the channel 'events' alone; write it into each --channel")
    shape = full_tree(levels, fanout)
    default = f"{DEFAULT_CHANNEL.partition(':')[0]}:{policy}" if policy else DEFAULT_CHANNEL
    channels = tuple(
        _with_columns(retaining(parse_channel(spec), retain or ()), column or ())
        for spec in channel or [default]
    )
    _check_channels(column or (), channels)
    plan = TreeDesign(
        shape=shape,
        channels=channels,
        where=_carried_rows(where or (), shape, channels),
        f=f,
        clients=tuple(name.strip() for name in clients.split(",") if name.strip()),
        host=host,
        base_port=base_port,
        fields={"digest": choose_digest(digest)},
    )
    cells = make_tree(plan)
    for cell in cells.values():
        for entry in cell.manifest.channels:
            filter_of(entry, ())
    write_tree(directory, cells, tls=tls)
    if json_:
        print_json(
            {
                "directory": str(directory),
                "cells": {
                    name: {
                        "parent": cell.parent,
                        "f": cell.manifest.f,
                        "brokers": {b.id: b.address for b in cell.manifest.brokers},
                        "channels": {c.name: c.policy.title for c in cell.manifest.channels},
                    }
                    for name, cell in cells.items()
                },
            }
        )
        return
    print(_sentence(cells, f))
    for entry in next(iter(cells.values())).manifest.channels:
        print(f"  channel {entry.name}: {entry.policy.described}")
    print(f"Next:  quorumcast tree up {shlex.quote(str(directory))}")


def _with_columns(entry: ChannelEntry, column: Sequence[str]) -> ChannelEntry:
    """A channel with the columns that options `--column` give to it."""
    from msgspec.structs import replace

    own = [spec.partition(":")[2] for spec in column if spec.partition(":")[0] == entry.name]
    return replace(entry, schema=parse_columns(own))


def _check_channels(column: Sequence[str], channels: Sequence[ChannelEntry]) -> None:
    """Refuse a column of a channel that is not there."""
    known = [entry.name for entry in channels]
    for spec in column:
        name = spec.partition(":")[0]
        if name not in known:
            raise UsageError(
                f"--column {spec!r} is for the channel {name!r}, which is not there; write "
                f"CHANNEL:NAME:TYPE, as in {known[0]}:price:int64"
            )


def _carried_rows(
    specs: Sequence[str], shape: Shape, channels: Sequence[ChannelEntry]
) -> dict[tuple[str, str], str]:
    """The predicates of options `--where`, by cell and channel."""
    found: dict[tuple[str, str], str] = {}
    for spec in specs:
        place, where = _parse_where(spec, shape, channels)
        if place in found:
            cell, channel = place
            raise UsageError(
                f"--where is given twice for the channel {channel!r} of {cell!r}: write one "
                "predicate, with OR or AND in it"
            )
        found[place] = where
    return found


def _parse_where(
    spec: str, shape: Shape, channels: Sequence[ChannelEntry]
) -> tuple[tuple[str, str], str]:
    """Cell, channel and predicate of an option `--where`."""
    cell, _, rest = spec.partition(":")
    channel, _, where = rest.partition(":")
    known = [entry.name for entry in channels]
    children = [name for name, parent in shape.items() if parent]
    if not where.strip():
        raise UsageError(
            f"--where {spec!r} is no CELL:CHANNEL:PREDICATE; write it as in "
            '--where "cell-1:trades:price < 10"'
        )
    if cell not in children:
        raise UsageError(
            f"--where names the cell {cell!r}, which carries on nothing here; choose one of "
            f"{', '.join(children[:20]) or 'none: there is the root alone'}"
        )
    if channel not in known:
        raise UsageError(
            f"--where names the channel {channel!r}, which is not there: there are "
            f"{', '.join(known)}"
        )
    return (cell, channel), where.strip()


def _sentence(cells: dict[str, PlannedCell], f: int) -> str:
    root, *others = cells.values()
    count = "1 cell" if not others else f"{len(cells)} cells"
    said = f"{count}: the root with {len(root.manifest.brokers)} brokers"
    if others:
        many = "1 child" if len(others) == 1 else f"{len(others)} children"
        each = "" if len(others) == 1 else " each"
        said += f", {many} with {len(others[0].manifest.brokers)}{each}"
    return f"{said}; in each cell {f} may lie"


def write_tree(directory: Path, cells: dict[str, PlannedCell], *, tls: bool = False) -> None:
    """Write the files of all cells; refused if one is there already."""
    from quorumcast.manifest.files import read_manifest, sign_manifest
    from quorumcast.runtime.broker.identities import with_certificates
    from quorumcast.runtime.broker.parents import write_parents

    for place in (directory, *(directory / name for name in cells)):
        if (place / MANIFEST).exists() or any(place.glob(f"*{IDENTITY}")):
            raise UsageError(f"{place} already has a cell; choose another directory")
    for name, cell in cells.items():
        place, identities = directory / name, cell.identities
        manifest = with_certificates(cell.manifest, identities) if tls else cell.manifest
        write_cell(place, manifest, [cell.operator, *identities.values()], force=False)
        if cell.parent:
            above = read_manifest(directory / cell.parent / MANIFEST)
            write_parents(place, sign_manifest(above, cells[cell.parent].operator), cell.uplinks)


# ---------------------------------------------------------------------- running


@app.command("up", example="tree up tree --allow-faults")
def up_tree(
    directory: TreeArgument,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Start this cell only; may be repeated.")
    ] = None,
    allow_faults: FaultsOption = False,
    store: StoreOption = "sqlite",
    log: LogOption = "info",
    json_: JsonOption = False,
) -> None:
    """Run all brokers of a tree on this machine until Ctrl-C, and restart those that exit.

    Files of each cell are where 'quorumcast up' puts them: DIR/CELL/logs, DIR/CELL/evidence.
    """
    from quorumcast.cli.cell.supervisor import Supervisor
    from quorumcast.cli.tree.cells import doubts, read_tree, renew_parents

    check_level(log)
    cells = read_tree(directory)
    for sentence in doubts(cells):
        warn(sentence)
    names = [cell.name for cell in cells]
    for name in only or ():
        if name not in names:
            raise UsageError(f"there is no cell {name!r} in {directory}; it has {', '.join(names)}")
    supervisors: dict[str, Supervisor] = {}
    for cell in cells:
        if only and cell.name not in only:
            continue
        warn(cell.manifest.warning)
        supervisors[cell.name] = Supervisor(
            cell.directory, cell.manifest, allow_faults=allow_faults, store=store, log_level=log
        )

    def stop() -> None:
        stop_all(list(supervisors.values()))

    with stopped_by_signals(stop):
        for cell in cells:
            if cell.name in supervisors:
                refuse_taken(directory, cell.name, cell.manifest.brokers, command="tree up")
        renew_parents(cells)
        for supervisor in supervisors.values():
            supervisor.start()
        watch(
            lambda: _changes(supervisors),
            [
                f"{cell}/{child.entry.id}"
                for cell, supervisor in supervisors.items()
                for child in supervisor.children
            ],
            {"cells": list(supervisors)},
            "the tree is up; Ctrl-C stops it",
            lambda: _current_picture(directory),
            json_=json_,
        )


def stop_all(supervisors: list[Supervisor]) -> None:
    """Stop all brokers at the same time."""
    for supervisor in supervisors:
        for child in supervisor.children:
            child.terminate()
    for supervisor in supervisors:
        supervisor.stop()


def _changes(supervisors: dict[str, Supervisor]) -> Iterator[BrokerNews]:
    for cell, supervisor in supervisors.items():
        for child, happened in supervisor.poll():
            name = child.entry.id
            yield BrokerNews(f"{cell}/{name}", {"cell": cell, "broker": name}, child, happened)


def _current_picture(directory: Path) -> Table:
    from quorumcast.cli.tree.cells import read_tree
    from quorumcast.cli.tree.mapping import look_at

    cells = read_tree(directory)
    return _picture(directory, cells, look_at(cells))


# ------------------------------------------------------------------------- map


@app.command("map", example="tree map tree")
def map_tree(directory: TreeArgument, json_: JsonOption = False) -> None:
    """Show the cells of a tree: who is up, and how far each cell is behind its parent."""
    from quorumcast.cli.progress import WAITING, ProgressDisplay
    from quorumcast.cli.tree.cells import doubts, read_tree
    from quorumcast.cli.tree.mapping import look_at

    cells = read_tree(directory)
    for sentence in doubts(cells):
        warn(sentence)
    with ProgressDisplay(WAITING):
        facts = look_at(cells)
    if json_:
        print_json({"directory": str(directory), "cells": facts})
    else:
        console().print(_picture(directory, cells, facts))


def _picture(directory: Path, cells: list[TreeCell], facts: list[MappedCell]) -> Table:
    from rich.markup import escape

    found = table("cell", simple=True, title=f"tree {escape(str(directory))}")
    some_rows = any(one.where for cell in facts for one in cell.channels)
    for name, settings in _COLUMNS.items():
        if name != "rows" or some_rows:
            found.add_column(name, **settings)
    for branch, cell in zip(_branches(cells), facts, strict=True):
        up = sum(cell.brokers.values())
        colour = "green" if up == len(cell.brokers) else "yellow" if up >= cell.needed else "red"
        found.add_row(
            f"{branch}{escape(cell.cell)}",
            f"[{colour}]{up}/{len(cell.brokers)}[/]",
            str(cell.f),
            str(cell.epoch),
            "\n".join(f"{escape(one.channel)} ({one.policy})" for one in cell.channels),
            *(["\n".join(_short(one.where) for one in cell.channels)] if some_rows else []),
            "\n".join("?" if one.held is None else f"{one.held:,}" for one in cell.channels),
            "\n".join("" if not one.parent else _late(one.behind) for one in cell.channels),
        )
    return found


_COLUMNS: dict[str, dict[str, Any]] = {
    "up": {"justify": "right"},
    "f": {"justify": "right"},
    "epoch": {"justify": "right"},
    "channel": {"overflow": "fold"},
    "rows": {"no_wrap": True, "overflow": "ellipsis"},
    "publications": {"justify": "right"},
    "behind its parent": {"justify": "right"},
}


def _short(where: str) -> str:
    """The beginning of a predicate: each channel has one line."""
    from rich.markup import escape

    return escape(where if len(where) <= 40 else f"{where[:39]}…")


def _late(behind: int | None) -> str:
    return "?" if behind is None else f"{behind:,}"


def _branches(cells: list[TreeCell]) -> list[str]:
    """The lines of the picture before each cell's name."""
    drawn: list[str] = []
    for at, cell in enumerate(cells):
        marks = ""
        for level in range(2, cell.level + 1):
            later = [other.level for other in cells[at + 1 :]]
            # Whether another cell of that level follows below the same parent.
            more = next((other for other in later if other <= level), 0) == level
            if level == cell.level:
                marks += "├─ " if more else "└─ "
            else:
                marks += "│  " if more else "   "
        drawn.append(marks)
    return drawn
