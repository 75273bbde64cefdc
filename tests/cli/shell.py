"""Commands as a shell runs them: in processes of their own, or in this one."""

import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.world import PATIENCE_S
from tests.support.ports import IN_A_ROW, ROWS

from quorumcast.cli.main import main

QUORUMCAST = [sys.executable, "-m", "quorumcast"]
STATUS_OFFSET = 1000


def free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def base_port() -> int:
    while True:
        base = random.choice(ROWS)
        wanted = [base + i + offset for i in range(IN_A_ROW) for offset in (0, STATUS_OFFSET)]
        if all(map(free, wanted)):
            return base


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which does not outlive the test."""
    with subprocess.Popen(
        [*QUORUMCAST, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON that a process prints."""
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.stderr.read() if process.stderr else ""
    result: dict[str, Any] = json.loads(text)
    return result


def said(process: subprocess.Popen[str], words: str) -> None:
    """Wait until a process says these words on standard error."""
    assert process.stderr is not None
    for text in process.stderr:
        if words in text:
            return
    raise AssertionError(f"it never said {words!r}")


def summary_of(errors: str) -> Any:
    """The JSON at the end of standard error, after what a slow machine says of its progress."""
    return json.loads(errors.splitlines()[-1])


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    """What a command prints as JSON."""
    assert main([*map(str, arguments), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def sentence(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a wrong command says."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("quorumcast: ")
    return line


def brokers_up(capsys: pytest.CaptureFixture[str], cell: Path) -> dict[str, Any]:
    """What `status` says of each broker, as soon as all of them answer."""
    while True:
        main(["status", "-m", str(cell), "--json"])
        rows: dict[str, Any] = json.loads(capsys.readouterr().out)["brokers"]
        if all(row["up"] for row in rows.values()):
            return rows


def imported(*words: object) -> set[str]:
    """The modules that a command has imported when it ends."""
    code = (
        "import sys; from quorumcast.cli.main import main; code = main(sys.argv[1:]); "
        "print(*sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@contextmanager
def running(
    directory: Path, channels: Sequence[str], clients: str = "alice,bob", *options: object
) -> Iterator[Path]:
    """A cell in a directory, up until the test is over; it ends with the first Ctrl-C."""
    specs = [text for channel in channels for text in ("--channel", channel)]
    place = ["init", str(directory), "--base-port", str(base_port())]
    assert main([*place, "--clients", clients, *specs]) == 0
    with started("up", directory, "--json", *options) as up:
        while line(up).get("event") != "up":
            pass
        yield directory
        up.send_signal(signal.SIGINT)
        _, errors = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 130
    assert errors == ""
