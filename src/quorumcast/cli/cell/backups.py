"""`quorumcast backup` and `quorumcast restore`: a whole cell, while it runs.

    BACKUP/backup.json      what the backup is of
    BACKUP/manifest.json, epochs/, *.identity …    the files of the cell, with all keys in them
    BACKUP/data/            the stores of its brokers, all from one moment (`runtime.store.backup`)

A restored cell goes on from that moment, like after a power failure. So `restore` takes the whole
cell and refuses while a broker of it runs: one that has gone on since would meet brokers that have
forgotten their votes. A single broker that lost its disk is not restored; it starts empty and gets
what it lacks from the others.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from quorumcast.cli.common import IDENTITY, MANIFEST, ask_cell, print_json, status_urls
from quorumcast.cli.options import CellOptions, JsonOption, UrlOption
from quorumcast.core.errors import UsageError
from quorumcast.core.version import __version__

if TYPE_CHECKING:
    from quorumcast.manifest.manifest import Manifest

BACKUP_EXAMPLE = "backup cell-2026-11-01 -m cell"
RESTORE_EXAMPLE = "restore cell-2026-11-01 cell"

BACKUP_FILE = "backup.json"
DATA = "data"
#: Files of a cell that are copied; logs and evidence are not needed to run it.
COPIED = (
    *(MANIFEST, f"*{IDENTITY}", f"*{IDENTITY}.next", "*.old", ".gitignore", "epochs/*.json"),
    *(f"parents/*/{MANIFEST}", f"parents/*/*{IDENTITY}"),
)
#: Passes over the stores before they are held: each is shorter than the one before.
PASSES = 2


class Backup(msgspec.Struct, frozen=True):
    """What a backup is of."""

    cell: str
    epoch: int
    #: When the stores were held still.
    taken_at: str
    #: The brokers whose stores are in it; others start empty.
    brokers: list[str]
    #: For how long brokers had to wait.
    paused_s: float
    bytes: int
    version: str = __version__


def backup(
    target: Annotated[Path, typer.Argument(metavar="BACKUP", help="The directory to make.")],
    where: CellOptions,
    data: Annotated[
        Path | None, typer.Option(help="Where the stores are; DIR/data by default.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Copy a cell whose brokers run on this machine: manifest, keys and stores.

    The stores are copied while the brokers run, and held still for a moment at the end, so that all
    copies are of one moment. Whoever has the backup has all keys in it.
    """
    from quorumcast.cli.cell.advancing import locked

    with locked(where.path), _draft(target) as draft:
        cell = where.read()
        stores = data or where.path.parent / DATA
        found = _copy_stores(cell, stores, draft)
        _copy_files(where.path.parent, draft)
        (draft / BACKUP_FILE).write_bytes(msgspec.json.encode(found))
    if json_:
        print_json(found)
        return
    print(
        f"{target}: cell {found.cell}, epoch {found.epoch}, {found.bytes / 1e6:,.1f} MB of stores; "
        f"brokers waited {found.paused_s:g} s"
    )
    _tell_missing(cell, found)


def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="Made by 'backup'.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the cell's files go.")],
    url: UrlOption = None,
    json_: JsonOption = False,
) -> None:
    """Make a cell from a backup; all its brokers must be stopped.

    The cell goes on from the moment of the backup: what was published later is gone, and later
    positions are given anew. For one broker that lost its disk no restore is needed.
    """
    from quorumcast.manifest.files import read_manifest
    from quorumcast.runtime.store.database import accept_copy

    found = _read(source)
    cell = read_manifest(source / MANIFEST)
    running = [n for n, row in ask_cell(cell, status_urls(cell, url)).items() if row["up"]]
    if running:
        raise UsageError(
            f"{', '.join(running)} of cell {cell.cell!r} still {_runs(running)}, and would go on "
            "from later than the backup: stop all brokers of the cell, and restore all of them"
        )
    with _draft(directory) as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True, ignore=_leave_out)
        for name in found.brokers:
            accept_copy(draft / DATA / f"{name}.store", f"{cell.cell}/{name}")
    if json_:
        print_json(found)
        return
    print(f"{directory}: cell {found.cell} as of {found.taken_at}, epoch {found.epoch}")
    _tell_missing(cell, found)
    print(f"Next:  quorumcast up {directory}")


def _runs(names: Sequence[str]) -> str:
    return "runs" if len(names) == 1 else "run"


def _leave_out(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == BACKUP_FILE]


def _tell_missing(cell: Manifest, found: Backup) -> None:
    missing = [name for name in cell.broker_ids if name not in found.brokers]
    if found.brokers and missing:
        print(f"without the store of {', '.join(missing)}, which will start empty")


def _read(source: Path) -> Backup:
    try:
        return msgspec.json.decode((source / BACKUP_FILE).read_bytes(), type=Backup)
    except (OSError, msgspec.MsgspecError):
        raise UsageError(
            f"{source} is not a backup; name a directory that 'quorumcast backup' made"
        ) from None


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A directory that becomes `target` once it is complete; nothing is left of one that is not."""
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} exists already; name another directory, or remove it first")
        draft = target.with_name(f".{target.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(
            f"{target} cannot be made ({error.strerror}); choose another directory"
        ) from None
    try:
        yield draft
        draft.replace(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _copy_stores(cell: Manifest, stores: Path, draft: Path) -> Backup:
    """Copy the stores of all brokers that have one here, all from one moment."""
    from quorumcast.runtime.broker.epochs import kept_path
    from quorumcast.runtime.store.backup import StoreCopy, held

    names: list[str] = [n for n in cell.broker_ids if (stores / f"{n}.store").exists()]
    needed = cell.quorums.responders
    if len(names) < needed and cell.needs_store:
        raise UsageError(
            f"{len(names)} of {len(cell.brokers)} brokers have their stores in {stores}, and a "
            f"backup needs those of {needed}: name their directory with --data; where they are on "
            "several machines, see 'Backup' in docs/operations.md"
        )
    copies = [StoreCopy(stores / f"{name}.store", draft / DATA) for name in names]
    for _ in range(PASSES):
        for copy in copies:
            copy.update()
    with held([copy.store for copy in copies]):
        taken_at, started = datetime.now(UTC), time.monotonic()
        for name, copy in zip(names, copies, strict=True):
            copy.update()
            kept = kept_path(stores, name)
            if kept is not None and kept.exists():
                shutil.copy2(kept, draft / DATA)
        paused_s = time.monotonic() - started
    for copy in copies:
        copy.sync()
    size = sum(file.stat().st_size for file in (draft / DATA).rglob("*") if file.is_file())
    when = taken_at.isoformat(timespec="milliseconds")
    return Backup(cell.cell, cell.epoch, when, names, round(paused_s, 3), size)


def _copy_files(directory: Path, draft: Path) -> None:
    """Copy the manifests and identities of a cell, with their modes."""
    for pattern in COPIED:
        for file in sorted(directory.glob(pattern)):
            place = draft / file.relative_to(directory)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)
