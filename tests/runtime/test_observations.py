"""The log of an observer: a disk that fails costs notes and nothing else."""

import logging
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.cells import B1, B2, BOB, Cell

from quorumcast.core.ids import Millis
from quorumcast.core.machine import Connected
from quorumcast.manifest.policy import Policy
from quorumcast.runtime.observations import LONGEST_MS, ObservationLog


def test_log_that_follows_another_in_the_same_process_keeps_its_files(tmp_path: Path) -> None:
    manifest = Cell(Policy.named("ab"), 4).manifest
    for broker in (B1, B2):
        log = ObservationLog(tmp_path, manifest, BOB, "subscriber")
        log.on_handled(Connected(broker), [], Millis(1))
        log.close()
    rows = pq.read_table(tmp_path / "observations" / "observer=bob").to_pylist()
    assert {row["accused"] for row in rows} == {B1, B2}


def test_notes_that_cannot_be_written_are_lost_and_said_once_and_the_next_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "log"
    log = ObservationLog(directory, Cell(Policy.named("ab"), 4).manifest, BOB, "subscriber")
    shutil.rmtree(directory)
    directory.write_text("where a directory should be")
    with caplog.at_level(logging.WARNING, "quorumcast"):
        for turn in (1, 2, 3):
            log.on_handled(Connected(B1), [], Millis(turn * 2 * LONGEST_MS))
    assert [record.getMessage() for record in caplog.records] == ["observations are lost"]
    directory.unlink()
    log.on_handled(Connected(B1), [], Millis(8 * LONGEST_MS))
    log.close()
    own = directory / "observations" / "observer=bob"
    assert {row["kind"] for row in pq.read_table(own).to_pylist()} == {"link"}
