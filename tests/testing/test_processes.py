"""Processes that are forked from one that has loaded everything are processes like any other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from quorumcast.testing.processes import Child, Processes

pytestmark = pytest.mark.runtime

#: For what comes at once unless the machine is very busy.
PATIENCE_S = 60

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Runs a few lines of Python as the `main` of a module."""
    (tmp_path / "child.py").write_text(
        "import os, signal, sys\ndef main():\n    exec(sys.argv[1], globals())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    processes = Processes()
    children: list[Child] = []

    def begin(
        lines: str, *arguments: str, keep: tuple[int, ...] = (), arrow: bool = False
    ) -> Child:
        with (tmp_path / "output").open("ab") as output:
            children.append(
                processes.start("child", lines, *arguments, output=output, keep=keep, arrow=arrow)
            )
        return children[-1]

    yield begin
    for child in children:
        child.kill()
        child.wait(PATIENCE_S)
    processes.close()


def test_child_has_its_arguments_directory_and_environment(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORUMCAST_TOLD", "so")
    monkeypatch.chdir(tmp_path)
    child = start("print(sys.argv[2:], os.getcwd(), os.environ['QUORUMCAST_TOLD'])", "a", "b c")
    assert child.wait(PATIENCE_S) == 0
    assert (tmp_path / "output").read_text() == f"['a', 'b c'] {tmp_path} so\n"


def test_child_leads_a_session_of_its_own_and_holds_nothing_but_what_it_was_given(
    start: Start, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    others = [start("signal.pause()") for _ in range(3)]
    child = start(
        "assert os.getsid(0) == os.getpid()\n"
        "seen = sorted(map(int, os.listdir('/proc/self/fd')))\n"  # and what it looks with
        "print([one for one in seen if os.path.exists(f'/proc/self/fd/{one}')])\n"
        f"os.write({writing}, b'here')",
        keep=(writing,),
    )
    os.close(writing)
    assert child.wait(PATIENCE_S) == 0
    assert os.read(reading, 16) == b"here"
    os.close(reading)
    assert (tmp_path / "output").read_text() == f"{[0, 1, 2, writing]}\n"
    assert {other.poll() for other in others} == {None}


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("sys.exit(3)", 3),
        ("raise KeyError('what was wrong')", 1),
        ("os.kill(os.getpid(), 15)", -15),
        ("import atexit; atexit.register(os._exit, 7)", 7),
    ],
)
def test_child_ends_with_the_code_of_any_other(
    start: Start, tmp_path: Path, lines: str, code: int
) -> None:
    child = start(lines)
    assert child.wait(PATIENCE_S) == code
    assert child.poll() == code
    child.terminate()  # is nobody's any more
    assert ("what was wrong" in (tmp_path / "output").read_text()) == (code == 1)


def test_child_that_writes_parquet_files_has_loaded_arrow_already(
    start: Start, tmp_path: Path
) -> None:
    for arrow in (False, True):
        told = "print('pyarrow.parquet' in sys.modules, flush=True)"
        assert start(told, arrow=arrow).wait(PATIENCE_S) == 0
    assert (tmp_path / "output").read_text() == "False\nTrue\n"


def test_child_that_goes_on_can_be_waited_for_and_ended(start: Start) -> None:
    child = start("signal.pause()")
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.terminate()
    assert child.wait(PATIENCE_S) == -signal.SIGTERM


def test_fork_server_that_was_killed_is_followed_by_another(start: Start) -> None:
    orphan = start("signal.pause()")
    fork_server = psutil.Process(orphan.pid).parent()
    assert fork_server is not None
    fork_server.kill()
    fork_server.wait(PATIENCE_S)
    os.kill(orphan.pid, signal.SIGKILL)
    assert orphan.wait(PATIENCE_S) == -signal.SIGKILL
    assert start("sys.exit(4)").wait(PATIENCE_S) == 4


def test_fork_server_ends_with_whoever_started_it(start: Start, tmp_path: Path) -> None:
    lines = (
        "import os, psutil\n"
        "from quorumcast.testing.processes import PROCESSES\n"
        f"with open({str(tmp_path / 'output')!r}, 'wb') as output:\n"
        "    child = PROCESSES.start('child', 'signal.pause()', output=output)\n"
        "print(child.pid, psutil.Process(child.pid).ppid(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", lines], stdout=subprocess.PIPE, check=False)
    assert ended.returncode == -signal.SIGKILL
    child, fork_server = map(int, ended.stdout.split())
    os.kill(child, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):  # already
        psutil.Process(fork_server).wait(PATIENCE_S)
