"""Finds manifest and identity files: users may name a directory or a node instead of a file."""

from __future__ import annotations

from pathlib import Path

from quorumcast.core.errors import UsageError

MANIFEST = "manifest.json"
IDENTITY = ".identity"
#: The directory for parent cells beside a child's manifest (`runtime.broker.parents`).
PARENTS = "parents"


def manifests_below(directory: Path) -> list[Path]:
    """The manifest files of the cells that have directories in this one."""
    return sorted(directory.glob(f"*/{MANIFEST}"))


def manifest_path(given: Path) -> Path:
    """The manifest file, given the file or its directory."""
    return given / MANIFEST if given.is_dir() else given


def identity_path(given: str, manifest: Path, *, of_broker: bool = False) -> Path:
    """An identity file, given the file or the name of a node whose file is beside the manifest."""
    path = Path(given)
    if given and (path.is_file() or len(path.parts) > 1):
        return path
    beside = manifest.parent / f"{given}{IDENTITY}"
    from quorumcast.manifest.files import read_identity, read_manifest

    if given and beside.exists():
        # With a renamed or copied file a process would use another node's identity.
        if (name := read_identity(beside).name) != given:
            raise UsageError(
                f"{beside} is the identity of {name!r}, not of {given!r}; rename it, or name the "
                "file that you mean"
            )
        return beside
    cell = read_manifest(manifest)
    names: list[str] = sorted(cell.broker_ids if of_broker else (c.id for c in cell.clients))
    kind = "brokers" if of_broker else "clients"
    known = f"cell {cell.cell!r} has the {kind} {', '.join(names)}" if names else f"no {kind} yet"
    if not given:
        raise UsageError(
            f"who are you? name an identity, on the command line with --identity; {known}"
        )
    if of_broker:
        raise UsageError(f"there is no identity {given!r}; {known}")
    raise UsageError(
        f"there is no identity {given!r}; {known}, and "
        f"'quorumcast epoch add-client NAME -m {manifest.parent}' makes another"
    )
