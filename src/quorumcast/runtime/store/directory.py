"""A broker's data directory, as whoever looks after it sees it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from quorumcast.core.errors import UsageError


def look_at(directory: Path, broker: str) -> dict[str, object]:
    """Whether a store can be kept in a directory, how much room there is, and what was set aside.

    Nothing is written: a directory that is not there yet is judged by the one it would be made in.
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
            if not path.name.endswith("-wal")
        )
    except OSError:
        aside = []
    return {
        "directory": str(directory),
        "writable": present.is_dir() and os.access(present, os.W_OK | os.X_OK),
        "free_bytes": free,
        "set_aside": aside,
    }


def place_for(channel: str, directory: Path | None) -> Path:
    """Where stores are kept; a channel wants one."""
    if directory is None:
        raise UsageError(f"channel {channel!r} wants a store: say where to keep it with --data")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"there can be no store in {directory} ({error.strerror or error}): "
            "name another directory with --data"
        ) from None
    return directory
