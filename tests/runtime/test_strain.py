"""Strain: a thread that has too much to do says so."""

import time
from pathlib import Path

import pytest

from quorumcast.runtime.links import strain
from quorumcast.runtime.links.strain import LOOK_MS, Strain, wanted_s


@pytest.mark.parametrize(("wanted", "strained"), [(0.79, False), (0.81, True)])
def test_thread_that_wants_to_run_most_of_the_time_is_strained(
    wanted: float, strained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = iter([5.0, 5.0 + wanted])
    monkeypatch.setattr(strain, "wanted_s", lambda: next(looked))
    found = Strain()
    assert not found.look(10_000), "nothing to compare with"
    assert not found.look(10_000 + LOOK_MS - 1), "too early to say"
    assert found.look(11_000) is strained


def test_work_counts() -> None:
    before = wanted_s()
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    assert wanted_s() - before > 0.15


def test_without_linux_only_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strain, "_SCHEDULED", Path("/nowhere"))
    assert wanted_s() == pytest.approx(time.thread_time(), abs=0.5)
