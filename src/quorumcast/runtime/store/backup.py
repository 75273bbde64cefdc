"""Copies of the stores of a cell while its brokers run, all from one moment.

A copy of one store is worth little: its broker has voted since, and if it came back with the copy
it could contradict its votes. Copies of all stores *from one moment* are worth what the disks are
after a power failure at that moment, and a cell survives that: whatever a broker tells others about
a record, it tells after the record is on disk. So a backup stops the disks, not the brokers.

Each store has a *gate*, a file beside it that its broker locks (shared) around every change of the
store's files. A backup locks all gates (exclusively), so that no store changes; the brokers keep
what they would write in memory, as on a full disk, and say nothing that depends on it.

    copy      all files are copied while they change
    hold      all gates are locked; every file that has changed since is copied again
    release   the brokers go on

Most of a large store are segments that are written once, so the pause is short. The kernel releases
the gates of a backup that dies, and a broker waits for at most MAX_HOLD_S; a backup that held them
longer has failed.

The mark of a store is not copied. Without it a broker takes the copy for damaged and starts empty,
as it must if it alone is restored. `database.accept_copy` makes the mark, for a cell that is
restored as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.runtime.store.mark import MARK

GATE = ".gate"
#: How long a broker waits at its gate.
MAX_HOLD_S = 20.0
#: How long a backup waits until a broker is done with the change under way.
MAX_WAIT_S = 20.0
_PAUSE_S = 0.005
#: A file that changed so shortly before it was copied may have changed again within a clock tick.
_TICK_NS = 1_000_000_000


class Gate:
    """A broker's side of the gate: `with gate:` around each change of the store's files."""

    __slots__ = ("_file",)

    def __init__(self, store: Path) -> None:
        self._file = _open_gate(store)

    def __enter__(self) -> None:
        deadline = time.monotonic() + MAX_HOLD_S
        while not _lock(self._file, fcntl.LOCK_SH) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _open_gate(store: Path) -> int:
    return os.open(store.with_name(store.name + GATE), os.O_RDWR | os.O_CREAT, 0o600)


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def held(stores: Sequence[Path]) -> Iterator[None]:
    """Let no broker change these stores meanwhile."""
    with contextlib.ExitStack() as files:
        deadline = time.monotonic() + MAX_WAIT_S
        started: float | None = None
        for store in stores:
            gate = _open_gate(store)
            files.callback(os.close, gate)
            while not _lock(gate, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"the store {store} is written to all the time, or another backup holds "
                        "it: try again"
                    )
                time.sleep(_PAUSE_S / 10)
            started = started or time.monotonic()
        yield
        if started is not None and time.monotonic() - started > MAX_HOLD_S:
            raise UsageError(
                f"copying took longer than the {MAX_HOLD_S:g} s for which brokers wait, so the "
                "copies are not from one moment: try again when less is published, or onto a "
                "faster disk"
            )


class CopiedFile(msgspec.Struct, frozen=True):
    """What a file was like when it was copied."""

    inode: int
    size: int
    modified_ns: int
    copied_ns: int

    def is_still(self, status: os.stat_result) -> bool:
        """Whether the file has not changed since."""
        same = (self.inode, self.size, self.modified_ns) == (
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
        )
        return same and self.copied_ns - self.modified_ns > _TICK_NS


class StoreCopy:
    """A copy of the files of one store, made in two passes."""

    def __init__(self, store: Path, target: Path) -> None:
        self.store = store
        self._target = target
        self._copied: dict[Path, CopiedFile] = {}

    def update(self) -> None:
        """Copy every file that has changed since it was copied last."""
        present = set(self._files())
        for file in sorted(present):
            # A file may be removed while the broker runs; the pass under the gates misses none.
            with contextlib.suppress(FileNotFoundError):
                self._copy(file)
        for gone in self._copied.keys() - present:
            del self._copied[gone]
            self._place(gone).unlink(missing_ok=True)

    def sync(self) -> None:
        """Return when the copies are on disk."""
        for file in self._copied:
            with self._place(file).open("rb") as copy:
                os.fsync(copy.fileno())

    def _files(self) -> Iterator[Path]:
        """The files of the store: those with its name, and those in directories with its name."""
        name = self.store.name
        for path in self.store.parent.glob(f"{name}*"):
            rest = path.name.removeprefix(name)
            if rest.startswith((".damaged-", GATE, MARK, ".probe", ".new")):
                continue
            if path.is_dir():
                yield from (inner for inner in path.iterdir() if inner.is_file())
            else:
                yield path

    def _place(self, file: Path) -> Path:
        return self._target / file.relative_to(self.store.parent)

    def _copy(self, file: Path) -> None:
        place, known = self._place(file), self._copied.get(file)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("rb") as source:
            status, now = os.fstat(source.fileno()), time.time_ns()
            if known is not None and known.is_still(status):
                return
            mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with open(os.open(place, mode, 0o600), "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                size = copy.tell()
        self._copied[file] = CopiedFile(status.st_ino, size, status.st_mtime_ns, now)
