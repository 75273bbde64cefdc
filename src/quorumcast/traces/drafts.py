"""Directories made on demand, and files that are replaced atomically."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumcast.core.errors import UsageError


def directory_at(path: Path) -> Path:
    """A directory, made if it does not exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be used ({error.strerror}); choose another directory"
        ) from None
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden draft that replaces the file when the block ends without an exception."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
