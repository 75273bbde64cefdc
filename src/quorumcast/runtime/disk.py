"""A broker's data directory, as whoever looks after it sees it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


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
