"""What `quorumcast tree map` shows: the brokers of each cell, and how far its channels are."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from quorumcast.cli.cell.levels import CellAnswers, behind, held
from quorumcast.cli.common import ask_cell, status_urls
from quorumcast.cli.tree.cells import TreeCell
from quorumcast.manifest.manifest import ChannelEntry


class MappedChannel(msgspec.Struct, frozen=True):
    """How far a cell is on one channel."""

    channel: str
    policy: str
    #: The cell and the channel there that it comes from; "" if it comes from none.
    parent: str
    parent_channel: str
    #: The predicate of the rows that are carried on; "" for all.
    where: str
    #: Publications of all streams that the cell has held; None if too few status pages answer.
    held: int | None
    #: Publications that the parent holds and this cell does not; None if unknown.
    behind: int | None


class MappedCell(msgspec.Struct, frozen=True):
    """One cell of a tree."""

    cell: str
    directory: str
    level: int
    parents: tuple[str, ...]
    epoch: int
    f: int
    #: How many brokers the cell needs to go on.
    needed: int
    #: Whether each broker is up.
    brokers: dict[str, bool]
    addresses: dict[str, str]
    channels: list[MappedChannel]


def look_at(cells: Sequence[TreeCell]) -> list[MappedCell]:
    """Ask the brokers of all cells; the facts in the same order."""

    def ask(cell: TreeCell) -> CellAnswers:
        manifest = cell.manifest
        return CellAnswers(manifest, ask_cell(manifest, status_urls(manifest, None)))

    with ThreadPoolExecutor(len(cells)) as pool:
        known = list(pool.map(ask, cells))
    by_key = {one.manifest.key: one for one in known}
    return [
        MappedCell(
            cell=cell.name,
            directory=str(cell.directory),
            level=cell.level,
            parents=cell.parents,
            epoch=cell.manifest.epoch,
            f=cell.manifest.f,
            needed=cell.manifest.quorums.responders,
            brokers={name: bool(row["up"]) for name, row in one.rows.items()},
            addresses={broker.id: broker.address for broker in cell.manifest.brokers},
            channels=[_channel(one, entry, by_key) for entry in cell.manifest.channels],
        )
        for cell, one in zip(cells, known, strict=True)
    ]


def _channel(
    cell: CellAnswers, entry: ChannelEntry, known: dict[tuple[str, bytes], CellAnswers]
) -> MappedChannel:
    streams = held(cell, entry.name)
    origin = entry.origin or None
    parent = None if origin is None else known.get(origin.parent)
    return MappedChannel(
        entry.name,
        entry.policy.title,
        "" if origin is None else origin.cell,
        "" if origin is None else origin.channel,
        entry.carried,
        None if streams is None else sum(end - 1 for _, end in streams.values()),
        None if parent is None else behind(cell, entry, parent),
    )
