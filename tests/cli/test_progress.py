"""How far something is: shown from the side, also when the work itself says nothing for long."""

from __future__ import annotations

import io
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorumcast.cli import progress
from quorumcast.cli.common import Rows
from quorumcast.cli.main import main
from quorumcast.cli.progress import ProgressDisplay
from quorumcast.manifest.manifest import Manifest

#: For what comes at once unless the machine is very busy.
PATIENCE_S = 60


class Screen(io.StringIO):
    """Standard error, a terminal or not, that can be waited for."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self._changed = threading.Condition()

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        with self._changed:
            written = super().write(text)
            self._changed.notify_all()
        return written

    def wait_for(self, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: text in self.getvalue(), PATIENCE_S)


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A standard error that is looked at without a pause."""
    shown = Screen(terminal=request.param)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=shown))
    for pause in ("TERMINAL_S", "QUIET_S", "LINE_S"):
        monkeypatch.setattr(progress, pause, 0.001)
    return shown


def test_work_that_says_nothing_is_shown_by_what_it_began_with(screen: Screen) -> None:
    with ProgressDisplay("starting Spark"):
        assert screen.wait_for("starting Spark")
    assert screen.getvalue().count("starting Spark") == 1


def test_work_that_goes_on_is_shown_by_what_it_says_or_is_seen_to_do(screen: Screen) -> None:
    with ProgressDisplay("starting") as shown:
        shown("1 of 2 runs")
        assert screen.wait_for("1 of 2 runs")
        shown("2 of 2 runs")
        assert screen.wait_for("2 of 2 runs")
    done = itertools.count(1)
    with ProgressDisplay(look=lambda: f"{next(done)} tasks"):
        assert screen.wait_for("3 tasks")


def test_progress_leaves_no_half_line_behind(screen: Screen) -> None:
    with ProgressDisplay("half") as shown:
        assert screen.wait_for("half")
        shown.say("A sentence.")
        shown("another half")
        assert screen.wait_for("another half")
    lines = [line.split("\r\x1b[K")[-1] for line in screen.getvalue().split("\n")]
    assert lines[-1] == ""
    assert "A sentence." in lines


def test_work_that_is_over_at_once_is_not_spoken_of(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("TERMINAL_S", "QUIET_S"):
        monkeypatch.setattr(progress, pause, PATIENCE_S)
    with ProgressDisplay("quick") as shown:
        shown("done")
    assert screen.getvalue() == ""


def test_status_that_waits_for_a_paused_broker_says_so(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", str(tmp_path / "cell")]) == 0

    def paused(manifest: Manifest, urls: dict[str, str]) -> Rows:
        assert screen.wait_for("waiting for status pages of brokers")
        return {name: {"up": False, "state": "down", "trouble": "paused"} for name in urls}

    monkeypatch.setattr("quorumcast.cli.options.ask_cell", paused)
    assert main(["status", "-m", str(tmp_path / "cell")]) == 1
