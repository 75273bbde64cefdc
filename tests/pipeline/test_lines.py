"""Seats of one identity: processes on one machine take different ones."""

import os
from pathlib import Path

import pytest

from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import sign_manifest, write_identity, write_manifest
from quorumcast.pipeline.streams.lines import take_seat
from quorumcast.pipeline.streams.options import Access
from quorumcast.testing.cells import CellPlan


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Access:
    plan = CellPlan(clients=("spark",), channels={"orders": "total"})
    write_manifest(tmp_path / "manifest.json", sign_manifest(plan.manifest, plan.operator))
    write_identity(tmp_path / "spark.identity", plan.identities["spark"])  # type: ignore[index]
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return Access(
        manifest=str(tmp_path / "manifest.json"),
        identity=str(tmp_path / "spark.identity"),
        seats=(2, 5, 6),
        timeout_s=0,
    )


def test_seats_are_taken_from_the_wished_one_on_and_free_again_when_their_holder_ends(
    access: Access,
) -> None:
    taken = [take_seat(access, wish) for wish in (1, 1, 4)]
    assert [seat for seat, _ in taken] == [5, 6, 2]
    with pytest.raises(UsageError, match=r"seats 2, 5, 6 of 'spark' are all taken.*'seats'"):
        take_seat(access, 0)
    os.close(taken[1][1])
    assert take_seat(access, 0)[0] == 6
