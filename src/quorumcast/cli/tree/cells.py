"""The cells of a tree in a directory: every directory in it that has a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.cli.common import MANIFEST
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.origins import check_circles, check_origin
from quorumcast.manifest.paths import PARENTS, manifests_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorumcast.manifest.manifest import CellKey, Manifest


class TreeCell(msgspec.Struct, frozen=True):
    """One cell of a tree."""

    directory: Path
    manifest: Manifest
    #: 1 for cells without parents.
    level: int
    #: The cells of this tree that its channels come from.
    parents: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the cell."""
        return self.manifest.cell


def read_tree(directory: Path) -> list[TreeCell]:
    """The cells of a tree, each behind its first parent; refused if there is a circle.

    A channel that its parent does not have, or not so, stops no other: see `doubts`.
    """
    found: dict[CellKey, tuple[Path, Manifest]] = {}
    for path in manifests_below(directory):
        manifest = read_manifest(path)
        twin = found.setdefault(manifest.key, (path.parent, manifest))
        if twin[0] != path.parent:
            raise UsageError(
                f"{twin[0]} and {path.parent} are both of cell {manifest.cell!r}; keep one of them"
            )
    if not found:
        raise UsageError(
            f"there is no tree in {directory}; make one with 'quorumcast tree init {directory}'"
        )
    check_circles(manifest for _, manifest in found.values())
    _check_parents(directory, found)
    children: dict[CellKey, list[CellKey]] = {}
    tops: list[CellKey] = []
    for key, (_, manifest) in found.items():
        above = [parent for parent in manifest.parents if parent in found]
        (children.setdefault(above[0], []) if above else tops).append(key)
    cells: list[TreeCell] = []

    def add(key: CellKey, level: int) -> None:
        path, manifest = found[key]
        names = tuple(name for name, _ in manifest.parents)
        cells.append(TreeCell(path, manifest, level, names))
        for child in children.get(key, ()):
            add(child, level + 1)

    for key in tops:
        add(key, 1)
    if len(cells) < len(found):
        lost = sorted({found[key][1].cell for key in found} - {cell.name for cell in cells})
        raise UsageError(
            f"cells {', '.join(lost)} of {directory} carry on channels of one another, and none is "
            "at the top; let one of them carry on nothing of the others"
        )
    return cells


def doubts(cells: Sequence[TreeCell]) -> list[str]:
    """A sentence for everything by which cells get nothing from one another.

    The parent of a cell may be elsewhere and have the name of another cell here. That may be
    meant, since names may collide; a root that was made anew looks the same. A channel may not fit
    its parent any more, as after it was deleted there; brokers leave it, and go on with the others.
    """
    here = {cell.manifest.key: cell.manifest for cell in cells}
    named = {cell.name: cell.directory for cell in cells}
    found: list[str] = []
    for cell in cells:
        for parent, entries in cell.manifest.parents.items():
            name = parent[0]
            if parent in here:
                for entry in entries:
                    try:
                        check_origin(cell.manifest, entry, here[parent])
                    except UsageError as error:
                        found.append(f"{error}; nothing arrives there until it fits, or is deleted")
            elif name in named:
                found.append(
                    f"the parent {name!r} of {cell.name!r} has another operator than "
                    f"{named[name]}, which gives it nothing; if the parent should be that, make "
                    f"{cell.name!r} anew"
                )
    return found


def renew_parents(cells: Sequence[TreeCell]) -> None:
    """Give cells the present manifests of their parents, which may have changed while down."""
    from quorumcast.runtime.broker.parents import renew_parent

    places = {cell.manifest.key: cell.directory for cell in cells}
    for cell in cells:
        for parent in cell.manifest.parents:
            if parent in places:
                renew_parent(cell.directory, places[parent] / MANIFEST)


def _check_parents(directory: Path, found: dict[CellKey, tuple[Path, Manifest]]) -> None:
    """Refuse an origin whose cell is here under another operator, or not at all."""
    named = {manifest.cell: path for path, manifest in found.values()}
    for path, manifest in found.values():
        for parent, entries in manifest.parents.items():
            name, operator = parent
            what = f"channel {entries[0].name!r} of {path}"
            if parent in found or manifests_below(path / PARENTS):
                continue  # its brokers check what is in there
            if name in named:
                raise UsageError(
                    f"{what} comes from a cell {name!r} of another operator than that of "
                    f"{named[name]} (its key begins with {operator.hex()[:16]}); make the child "
                    "anew, or put the right parent there"
                )
            raise UsageError(
                f"{what} comes from cell {name!r}, which is not in {directory}; it has "
                f"{', '.join(sorted(named))}"
            )
