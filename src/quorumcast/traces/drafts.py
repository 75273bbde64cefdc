"""Where files go: directories that are there, and files that are put in place at once.

Whoever reads sees the old file or the new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumcast.core.errors import UsageError


def directory_at(path: Path) -> Path:
    """A directory, made if it is not there; a sentence if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be used ({error.strerror}); choose another directory"
        ) from None
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of a file; hidden, and of this thread alone."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
