"""How far a child cell is behind the cells that its channels come from.

A cell *holds* a number of a stream if f+1 brokers say that they have it: one of them is correct,
and a reader of a relayed channel needs as many. A child is behind by what its parent holds and it
does not, over all streams of the channel. Only brokers whose status pages answer count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.cli.common import Rows, ask_cell, status_urls
from quorumcast.core.errors import UsageError
from quorumcast.manifest.paths import PARENTS, manifests_below

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import CellKey, ChannelEntry, Manifest


class LevelBehind(msgspec.Struct, frozen=True):
    """One step of the way of a channel from the root to a cell."""

    cell: str
    channel: str
    parent: str
    parent_channel: str
    #: Publications; None if too few status pages answer.
    behind: int | None

    @property
    def sentence(self) -> str:
        """The step in words."""
        here = f"{self.channel!r} of {self.cell}"
        there = f"{self.parent_channel!r} of {self.parent}"
        if self.behind is None:
            return (
                f"{here} comes from {there}; how far behind it is, is not known: {self.parent} "
                "does not have it, or too few status pages of the two cells answer on this machine"
            )
        many = "" if self.behind == 1 else "s"
        return f"{here} is {self.behind:,} publication{many} behind {there}"


class CellAnswers(msgspec.Struct, frozen=True):
    """A cell and the answers of its brokers."""

    manifest: Manifest
    rows: Rows


def held(cell: CellAnswers, channel: str) -> dict[str, tuple[int, int]] | None:
    """By stream: the first number that the cell holds, and the one behind the last."""
    needed = cell.manifest.f + 1
    pages = [row for row in cell.rows.values() if row["up"]]
    if len(pages) < needed:
        return None
    said: dict[str, list[tuple[int, int]]] = {}
    for page in pages:
        for stream in page["streams"]:
            name, _, publisher = stream["stream"].rpartition("/")
            if name == channel:
                said.setdefault(publisher, []).append((stream["base"], stream["next"]))
    found: dict[str, tuple[int, int]] = {}
    for publisher, ranges in said.items():
        if len(ranges) >= needed:
            bases = sorted(base for base, _ in ranges)
            ends = sorted((end for _, end in ranges), reverse=True)
            found[publisher] = (bases[needed - 1], ends[needed - 1])
    return found


def behind(child: CellAnswers, entry: ChannelEntry, parent: CellAnswers) -> int | None:
    """How many publications a channel of a child is behind its origin; None if unknown."""
    if not entry.origin or parent.manifest.channel(entry.origin.channel) is None:
        return None
    here, there = held(child, entry.name), held(parent, entry.origin.channel)
    if here is None or there is None:
        return None
    return sum(
        max(0, end - max(base, here.get(publisher, (0, 0))[1]))
        for publisher, (base, end) in there.items()
    )


def levels_above(manifest: Manifest, directory: Path, rows: Rows) -> dict[str, list[LevelBehind]]:
    """By relayed channel: every step of its way, as far as manifests of parents are at hand."""
    known = {manifest.key: CellAnswers(manifest, rows)}
    places = {manifest.key: directory}

    def look(key: CellKey, below: CellKey) -> CellAnswers | None:
        if key not in known:
            found = parent_manifest(places[below], key)
            if found is None:
                return None
            path, parent = found
            places[key] = path.parent
            known[key] = CellAnswers(parent, ask_cell(parent, status_urls(parent, None)))
        return known[key]

    return {
        entry.name: _steps(known[manifest.key], entry, look)
        for entry in manifest.channels
        if entry.origin
    }


def _steps(
    cell: CellAnswers, entry: ChannelEntry, look: Callable[[CellKey, CellKey], CellAnswers | None]
) -> list[LevelBehind]:
    steps: list[LevelBehind] = []
    seen = {cell.manifest.key}
    present: ChannelEntry | None = entry
    while present is not None and present.origin and present.origin.parent not in seen:
        origin = present.origin
        seen.add(origin.parent)
        parent = look(origin.parent, cell.manifest.key)
        late = None if parent is None else behind(cell, present, parent)
        names = (cell.manifest.cell, present.name, origin.cell, origin.channel)
        steps.append(LevelBehind(*names, late))
        if parent is None:
            break
        cell, present = parent, parent.manifest.channel(origin.channel)
    return steps


def starting_command(manifest: Manifest, directory: Path) -> str:
    """The command that starts a cell, or the tree whose cells lie beside it."""
    from quorumcast.manifest.files import read_manifest

    within = directory.parent if directory.name not in ("", "..") else directory.resolve().parent
    for path in manifests_below(within):
        try:
            other = read_manifest(path)
        except UsageError:
            continue
        if other.key in manifest.parents or manifest.key in other.parents:
            return f"quorumcast tree up {within}"
    return f"quorumcast up {directory}"


def parent_manifest(directory: Path, key: CellKey) -> tuple[Path, Manifest] | None:
    """The manifest of a parent: of its own directory beside the child's, or else the child's copy.

    The parent's own is in its present epoch, and knows its own parents.
    """
    from quorumcast.manifest.files import read_manifest

    beside = directory.resolve().parent
    for path in (*manifests_below(beside), *manifests_below(directory / PARENTS)):
        try:
            manifest = read_manifest(path)
        except UsageError:
            continue
        if manifest.key == key:
            return path, manifest
    return None
