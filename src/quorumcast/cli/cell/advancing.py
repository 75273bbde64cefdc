"""Writing the next epoch of a manifest: change it, check it, sign it, write it, wait for brokers.

Shared by `quorumcast epoch`, `channel` and `members`. A manifest that a running cell could not
adopt is not written. Brokers check their manifest file every second; `wait_until_taken` polls their
status pages until they have adopted the epoch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quorumcast.cli.common import IDENTITY, OPERATOR, ask_cell, console
from quorumcast.core.errors import UsageError

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import Manifest

Change = Callable[["Manifest"], "Manifest"]

#: How long to wait for running brokers, when to print that we wait, and the poll interval.
TIMEOUT_S = 30.0
QUIET_S = 2.0
PAUSE_S = 0.1


def advance(path: Path, operator: Path | None, change: Change) -> Manifest:
    """Replace the manifest in a file by its next epoch, signed by the operator."""
    with locked(path):
        return _advance(path, operator, change)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the directory: two different manifests with one epoch would split the cell."""
    try:
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError:
        yield  # reading the manifest raises the error
        return
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _advance(path: Path, operator: Path | None, change: Change) -> Manifest:
    from quorumcast.manifest.files import (
        read_identity,
        read_manifest,
        sign_manifest,
        write_manifest,
    )
    from quorumcast.manifest.successor import check_successor

    old = read_manifest(path)
    signer = read_identity(operator or path.parent / f"{OPERATOR}{IDENTITY}")
    if signer.verify_key != old.operator:
        raise UsageError(
            f"{signer.name!r} is not the operator of cell {old.cell!r}; name the operator's "
            "identity with --operator"
        )
    new = change(old)
    check_successor(old, new)
    write_manifest(path, sign_manifest(new, signer))
    return new


def wait_until_taken(manifest: Manifest, urls: dict[str, str]) -> dict[str, bool]:
    """Wait until all running brokers have adopted this epoch; return whether each has."""
    started = time.monotonic()
    told = False
    while True:
        rows = ask_cell(manifest, urls)
        taken = {name: row["epoch"] >= manifest.epoch for name, row in rows.items() if row["up"]}
        waited = time.monotonic() - started
        if all(taken.values()) or waited > TIMEOUT_S:
            return taken
        if waited > QUIET_S and not told:
            told = True
            waiting = ", ".join(name for name, done in taken.items() if not done)
            console(stderr=True).print(
                f"waiting until {waiting} takes epoch {manifest.epoch}", markup=False
            )
        time.sleep(PAUSE_S)
