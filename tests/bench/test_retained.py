"""The suite `retention`, with few events: nothing is lost on any of its steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumcast.bench.retained import BATCH, RetentionReport, run_retention
from quorumcast.core.errors import UsageError


def test_retention_suite_loses_nothing_on_the_way(tmp_path: Path) -> None:
    stages: list[str] = []
    report = run_retention(20 * BATCH, tmp_path, stages.append)
    assert report.events == 20 * BATCH
    assert report.sound
    assert "deletes the channel" in stages


def test_retention_report_with_losses_is_not_sound() -> None:
    figures = dict.fromkeys(RetentionReport.__struct_fields__, 0) | {"lost": 1}
    assert not RetentionReport(**figures).sound  # type: ignore[arg-type]


def test_retention_of_less_than_a_publication_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1,000 or more"):
        run_retention(BATCH - 1, tmp_path)
