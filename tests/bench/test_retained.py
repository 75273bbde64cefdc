"""The suite `retention`, with few events: nothing is lost on any of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quorumcast.bench.retained import BATCH, FULL_RUN, RetentionReport, run_retention
from quorumcast.core.errors import UsageError


def test_retention_suite_loses_nothing_on_the_way(tmp_path: Path) -> None:
    stages: list[str] = []
    report = run_retention(20 * BATCH, tmp_path, stages.append)
    assert report.events == 20 * BATCH
    assert report.sound
    assert "deletes the channel" in stages


#: Every figure is at its budget.
REPORT = RetentionReport(
    events=FULL_RUN,
    bytes_per_event=100.0,
    publish_events_per_s=1.0,
    replay_events_per_s=500_000.0,
    lost=0,
    disordered=0,
    memory_mb=(300.0, 300.0, 300.0),
    store_mb=1300.0,
    store_ratio=1.3,
    restart_s=100.0,
    votes_after_s=10.0,
    complete_after_s=1000.0,
    share_meanwhile=0.8,
    halved_after_s=60.0,
    deleted_after_s=60.0,
)
BEYOND: dict[str, dict[str, Any]] = {
    "memory": {"memory_mb": (10.0, 301.0, 10.0)},
    "store": {"store_mb": 1302.0},
    "replay": {"replay_events_per_s": 499_000.0},
    "votes after": {"votes_after_s": 10.1},
    "publishers kept": {"share_meanwhile": 0.79},
    "half": {"halved_after_s": 60.1},
    "nothing": {"deleted_after_s": 60.1},
}


@pytest.mark.parametrize("figure", BEYOND)
def test_retention_report_with_a_figure_beyond_its_budget_is_not_sound(figure: str) -> None:
    assert REPORT.sound
    report = replace(REPORT, **BEYOND[figure])
    assert (report.exceeded, report.sound) == ([figure], False)
    # With fewer events, times and rates show the machine.
    fewer = replace(report, events=FULL_RUN - BATCH)
    assert fewer.exceeded == ([figure] if figure in ("memory", "store") else [])


@pytest.mark.parametrize("flaw", ["lost", "disordered"])
def test_retention_report_with_losses_is_not_sound(flaw: str) -> None:
    assert not replace(REPORT, events=BATCH, store_mb=0.0, **{flaw: 1}).sound


def test_retention_of_less_than_a_publication_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1,000 or more"):
        run_retention(BATCH - 1, tmp_path)
