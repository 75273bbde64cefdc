"""Seats of one identity: processes on one machine take different ones."""

import os
from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import sign_manifest, write_identity, write_manifest
from quorumcast.pipeline.streams.connections import take_seat
from quorumcast.pipeline.streams.options import Access
from quorumcast.testing.cells import CellSetup


def access_to_a_new_cell(folder: Path) -> Access:
    plan = CellSetup(clients=("spark",), channels={"orders": "total"}, repeatable=False)
    folder.mkdir()
    write_manifest(folder / "manifest.json", sign_manifest(plan.manifest, plan.operator))
    write_identity(folder / "spark.identity", plan.identities["spark"])  # type: ignore[index]
    return Access(
        manifest=str(folder / "manifest.json"),
        identity=str(folder / "spark.identity"),
        seats=(2, 5, 6),
        timeout_s=0,
    )


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Access:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return access_to_a_new_cell(tmp_path / "cell")


def test_seats_are_taken_from_the_wished_one_on_and_free_again_when_their_holder_ends(
    access: Access,
) -> None:
    taken = [take_seat(access, wish) for wish in (1, 1, 4)]
    assert [seat.number for seat in taken] == [5, 6, 2]
    with pytest.raises(UsageError, match=r"seats 2, 5, 6 of 'spark' are all taken.*'seats'"):
        take_seat(access, 0)
    taken[1].leave()
    assert take_seat(access, 0).number == 6


def test_seats_of_a_cell_whose_names_are_the_same_are_other_seats(
    access: Access, tmp_path: Path
) -> None:
    other = access_to_a_new_cell(tmp_path / "another")
    assert [take_seat(cell, 0).number for cell in (access, other)] == [2, 2]


def test_seats_folder_of_somebody_else_is_refused(access: Access, tmp_path: Path) -> None:
    folder = tmp_path / f"quorumcast-seats-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="made by somebody else"):
        take_seat(access, 0)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="others may write to it"):
        take_seat(access, 0)
    assert list((tmp_path / "elsewhere").iterdir()) == list(folder.iterdir()) == []


def test_seat_whose_file_is_a_link_is_not_followed(access: Access, tmp_path: Path) -> None:
    first = take_seat(access, 0)
    folder = tmp_path / f"quorumcast-seats-{os.getuid()}"
    (path,) = folder.iterdir()
    first.leave()
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError, match="is a link"):
        take_seat(access, 0)
    assert not (tmp_path / "precious").exists()
