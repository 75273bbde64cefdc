"""The cells of a tree in a directory: every directory in it that has a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quorumcast.cli.common import MANIFEST
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.origins import check_tree

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
    """The cells of a tree, each behind its first parent; refused if they do not fit together."""
    found: dict[CellKey, tuple[Path, Manifest]] = {}
    for path in sorted(directory.glob(f"*/{MANIFEST}")):
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
    check_tree(manifest for _, manifest in found.values())
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


def foreign_parents(cells: Sequence[TreeCell]) -> list[str]:
    """A sentence for each cell whose parent is elsewhere, and has the name of another cell here.

    That may be meant, since names of cells may collide. A root that was made anew looks the same.
    """
    here = {cell.manifest.key for cell in cells}
    named = {cell.name: cell.directory for cell in cells}
    return [
        f"the parent {name!r} of {cell.name!r} has another operator than {named[name]}, which "
        f"gives it nothing; if the parent should be that, make {cell.name!r} anew"
        for cell in cells
        for name, operator in cell.manifest.parents
        if name in named and (name, operator) not in here
    ]


def _check_parents(directory: Path, found: dict[CellKey, tuple[Path, Manifest]]) -> None:
    """Refuse an origin whose cell is here under another operator, or not at all."""
    named = {manifest.cell: path for path, manifest in found.values()}
    for path, manifest in found.values():
        for parent, entries in manifest.parents.items():
            name, operator = parent
            what = f"channel {entries[0].name!r} of {path}"
            if parent in found or list((path / "parents").glob(f"*/{MANIFEST}")):
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
