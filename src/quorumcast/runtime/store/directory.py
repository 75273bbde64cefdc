"""The data directory of a broker: whether a store can be kept there, for status and doctor."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from quorumcast.core.errors import UsageError


class DiskStatus(msgspec.Struct, frozen=True):
    """The state of a data directory."""

    directory: str
    writable: bool
    #: None if it cannot be found out.
    free_bytes: int | None
    #: Names of damaged stores that were set aside.
    set_aside: list[str]
    #: Whether the broker that uses it found no store when it started.
    began_empty: bool


def look_at(directory: Path, broker: str, *, began_empty: bool = False) -> DiskStatus:
    """Whether a broker can keep its store in a directory, and what lies there.

    Nothing is written: a directory that does not exist is judged by the one it would be made in.
    """
    present = directory.absolute()
    while not present.exists() and present != present.parent:
        present = present.parent
    try:
        free: int | None = shutil.disk_usage(present).free
    except OSError:
        free = None
    try:
        aside = sorted(
            path.name
            for path in directory.glob(f"{broker}.store.damaged-*")
            if not path.name.endswith(("-wal", ".d"))
        )
    except OSError:
        aside = []
    writable = present.is_dir() and os.access(present, os.W_OK | os.X_OK)
    return DiskStatus(str(directory), writable, free, aside, began_empty)


def store_files(directory: Path, broker: str) -> list[Path]:
    """The files of a broker's stores: the one in use and those set aside, with their segments."""
    found: list[Path] = []
    for path in directory.glob(f"{broker}.store*"):
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    return found


def place_for(needed_by: str, directory: Path | None) -> Path:
    """The directory of the store that a channel or log needs, made if it does not exist.

    `needed_by` names that channel or log.
    """
    if directory is None:
        raise UsageError(f"{needed_by} needs a store: say where to keep it with --data")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"there can be no store in {directory} ({error.strerror or error}): "
            "name another directory with --data"
        ) from None
    return directory
