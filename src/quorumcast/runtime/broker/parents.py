"""The files with which a broker of a child cell reaches its parent cells.

    parents/NAME/manifest.json      the parent's manifest, as its operator signed it
    parents/NAME/BROKER.identity    the identity that BROKER has in the parent: a client there

The directory lies beside the manifest of the child. NAME is for people: a parent is found by what
its manifest says, and only one of the cell and the operator's key that `ChannelEntry.origin` names
is taken. A manifest of a later epoch that the parent has shown is written over the older one, so
that a restarted broker begins there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.core.ids import NodeId
from quorumcast.crypto.identity import Identity
from quorumcast.manifest.files import (
    SignedManifest,
    read_identity,
    read_manifest,
    write_identity,
    write_manifest,
)
from quorumcast.manifest.manifest import CellKey, Manifest
from quorumcast.manifest.paths import IDENTITY, MANIFEST, PARENTS, manifests_below
from quorumcast.runtime.broker.epochs import stamp_of
from quorumcast.runtime.logs import note

#: Time and size of the manifest and the identity, which tell whether one has changed.
Stamp = tuple[tuple[int, int] | None, ...]


def parents_beside(manifest: Path) -> Path:
    """The directory for the parents of the cell with this manifest file."""
    return manifest.parent / PARENTS


class ParentFiles(msgspec.Struct, frozen=True):
    """The files of one parent and one broker."""

    manifest: Path
    identity: Path

    def stamp(self) -> Stamp:
        """What changes when one of them does."""
        return stamp_of(self.manifest), stamp_of(self.identity)

    def read_identity(self) -> Identity:
        """Who the broker is in the parent."""
        if not self.identity.exists():
            raise UsageError(
                f"there is no {self.identity}, with which this broker would be a client of its "
                f"parent; make one with 'quorumcast epoch add-client NAME -m PARENT', and copy it "
                "there"
            )
        return read_identity(self.identity)

    def keep(self, data: bytes, manifest: Manifest) -> None:
        """Write a later manifest, unless the file has it or a later one already."""
        try:
            if read_manifest(self.manifest, operator=manifest.operator).epoch < manifest.epoch:
                write_manifest(self.manifest, msgspec.json.decode(data, type=SignedManifest))
        except UsageError as error:
            # The uplink goes on; only a restart begins in an older epoch.
            note("cannot keep its parent's epoch", level=logging.WARNING, reason=str(error))


def find_parent(parents: Path, child: Manifest, key: CellKey, broker: str) -> ParentFiles:
    """The files of the parent that channels of the child come from."""
    cell, operator = key
    channels = ", ".join(entry.name for entry in child.parents[key])
    wanted = f"cell {cell!r}, the origin of {channels} of cell {child.cell!r}"
    other = ""
    for path in manifests_below(parents):
        found = read_manifest(path)
        if found.key == key:
            return ParentFiles(path, path.with_name(f"{broker}{IDENTITY}"))
        if found.cell == cell:
            other = str(path)
    if other:
        raise UsageError(
            f"{other} is of a cell {cell!r} with another operator than the manifest of "
            f"{child.cell!r} names (its key begins with {operator.hex()[:16]}); get the manifest "
            f"of {wanted}, from its operator"
        )
    raise UsageError(
        f"the manifest of {wanted}, is not below {parents}; copy it to "
        f"{parents / cell.replace('/', '-') / MANIFEST}, or name another directory with --parents"
    )


def renew_parent(cell: Path, parent: Path) -> None:
    """Put a later manifest of a parent where the brokers of a cell have theirs.

    They take it from the parent themselves, but not if the parent changed while it was down: then
    there are no signed statements on its epoch.
    """
    later = read_manifest(parent)
    for path in manifests_below(cell / PARENTS):
        found = read_manifest(path)
        if found.key == later.key and found.epoch < later.epoch:
            write_manifest(path, msgspec.json.decode(parent.read_bytes(), type=SignedManifest))


def write_parents(cell: Path, parent: SignedManifest, uplinks: Mapping[NodeId, Identity]) -> None:
    """Write what the brokers of the cell in a directory need to reach a parent."""
    directory = cell / PARENTS / parent.manifest.cell.replace("/", "-")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be made ({error.strerror}); choose another directory"
        ) from None
    write_manifest(directory / MANIFEST, parent)
    for broker, identity in uplinks.items():
        write_identity(directory / f"{broker}{IDENTITY}", identity)
