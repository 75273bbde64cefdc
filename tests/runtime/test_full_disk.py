"""Full disks are told from broken ones."""

import resource
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorumcast.runtime.store.full_disk import DiskFullError, writing

BROKEN = 1000


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "store", tmp_path / "store-wal"
    paths[0].write_bytes(bytes(10))
    return paths


def failing(times: int, code: int) -> Callable[[], str]:
    """Fails so often before it works."""
    left = iter(range(times))

    def work() -> str:
        for _ in left:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error
        return "written"

    return work


@pytest.fixture
def limited() -> Iterator[None]:
    """No file of this process may be longer than what a probe would make of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_works_is_done_once(files: tuple[Path, Path]) -> None:
    assert writing(failing(0, 0), *files) == "written"


def test_no_space_is_a_full_disk(files: tuple[Path, Path]) -> None:
    with pytest.raises(DiskFullError, match="disk I/O error"):
        writing(failing(1, sqlite3.SQLITE_FULL), *files)


@pytest.mark.usefixtures("limited")
def test_write_that_a_limit_refuses_is_a_full_disk(files: tuple[Path, Path]) -> None:
    with pytest.raises(DiskFullError):
        writing(failing(BROKEN, sqlite3.SQLITE_IOERR_WRITE), *files)


@pytest.mark.parametrize("times", [1, 2])
def test_room_that_came_before_the_look_at_it_is_used(files: tuple[Path, Path], times: int) -> None:
    assert writing(failing(times, sqlite3.SQLITE_IOERR_WRITE), *files) == "written"


def test_writes_that_fail_with_room_are_a_broken_disk(files: tuple[Path, Path]) -> None:
    with pytest.raises(sqlite3.OperationalError):
        writing(failing(BROKEN, sqlite3.SQLITE_IOERR_WRITE), *files)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_READONLY])
def test_nothing_is_tried_again_that_may_have_been_half_done(
    files: tuple[Path, Path], code: int
) -> None:
    with pytest.raises(sqlite3.OperationalError):
        writing(failing(1, code), *files)


def test_probe_leaves_nothing_behind(files: tuple[Path, Path], tmp_path: Path) -> None:
    writing(failing(1, sqlite3.SQLITE_IOERR_WRITE), *files)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
