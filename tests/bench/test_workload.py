"""Workloads as files: what is written is read in order, and what is not a workload is refused."""

from pathlib import Path

import pytest
from tests.support.workloads import NODES, small_workload

from quorumcast.bench.workload import HEADER, read_header, read_workload
from quorumcast.core.errors import UsageError


def test_events_come_in_order_from_file_to_file_and_as_many_as_wanted(tmp_path: Path) -> None:
    small_workload(tmp_path, 60)
    workload = read_workload(tmp_path)
    assert [event.id for event in workload.events()] == list(range(60))
    assert [event.id for event in workload.events(25)] == list(range(25))
    assert workload.topics == ["cats", "news", "quiet"]
    assert workload.subscribers["news"] == list(NODES)


def test_unfinished_workload_is_refused(tmp_path: Path) -> None:
    small_workload(tmp_path)
    (tmp_path / HEADER).unlink()
    with pytest.raises(UsageError, match=r"never finished.*workload prepare"):
        read_workload(tmp_path)


def test_workload_of_another_format_is_refused(tmp_path: Path) -> None:
    small_workload(tmp_path)
    header = (tmp_path / HEADER).read_text()
    (tmp_path / HEADER).write_text(header.replace('"format": 1', '"format": 9'))
    with pytest.raises(UsageError, match="has format 9 and this version reads 1"):
        read_header(tmp_path)
    (tmp_path / HEADER).write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_header(tmp_path)
