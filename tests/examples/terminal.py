"""A terminal in a fresh clone: a shell and a Python interpreter, into which blocks are pasted."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.examples.java import java_options

ROOT = Path(__file__).parents[2]
#: What a clone has for those who paste the blocks of its pages.
CLONED = ("Makefile", "pyproject.toml", "requirements.lock.txt", "examples", "tests")
#: Upper bounds for what commands repeat: a page shows counts that say something, tests need few.
AT_MOST = {"--seeds": 1, "--seconds": 1, "--events": 100}

#: `quorumcast` with ports that no other test uses, and with fewer repetitions.
COMMAND = f"""#!{sys.executable}
import os, sys
from quorumcast.cli.main import run
words, at_most = sys.argv, {AT_MOST}
for place, word in enumerate(words[:-1]):
    if word in at_most:
        words[place + 1] = str(min(float(words[place + 1]), at_most[word])).removesuffix(".0")
if words[1:2] == ["init"]:
    words += ["--base-port", os.environ["BASE_PORT"]]
if words[1:2] == ["demo"]:
    words += ["--seconds", "2", "--no-spark"]
sys.exit(run())
"""

#: Reports failed commands, and the end of a block, on a file descriptor of its own.
SHELL = """
set -o pipefail
trap 'echo "exit code $?: $BASH_COMMAND" >&$REPORT' ERR
while read -r block; do . "$block" < /dev/null; echo >&$REPORT; done
"""

#: Reads a block line by line, as if it was typed: only blank lines end what is indented.
INTERPRETER = """
import code, os, sys, traceback
def report(text):
    os.write(int(os.environ["REPORT"]), f"{text}\\n".encode())
class Console(code.InteractiveConsole):
    def write(self, data):
        sys.stderr.write(data)
        report(data.strip().splitlines()[-1])
console = Console({"__name__": "__main__", "__doc__": None})
for name in sys.stdin:
    open_ = False
    for line in open(name.strip()).read().splitlines():
        open_ = console.push(line)
    if open_:
        console.resetbuffer()
        report("the block does not end: add a blank line")
    sys.stdout.flush()
    report("")
"""


class Terminal:
    """The processes, and what they printed."""

    def __init__(self, directory: Path, base_port: int) -> None:
        self._directory = directory
        self._base_port = base_port
        self._log = directory.parent / f"{directory.name}.log"
        self._pasted = 0
        self._running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}

    def __enter__(self) -> Self:
        commands = self._directory / ".venv/bin"
        commands.mkdir(parents=True)
        for name in CLONED:
            (self._directory / name).symlink_to(ROOT / name)
        for name in ("python", "pytest"):
            (commands / name).symlink_to(Path(sys.executable).parent / name)
        (commands / "quorumcast").write_text(COMMAND)
        (commands / "quorumcast").chmod(0o755)
        (commands / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
        (commands.parent / ".installed").touch()  # `make install` finds nothing to do
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for process, reports in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            os.close(reports)

    @property
    def printed(self) -> str:
        """Everything on standard output and standard error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def paste(self, language: str, block: str, timeout_s: float) -> list[str]:
        """Run a block to its end; return its failures."""
        self._pasted += 1
        path = self._directory.parent / f"{self._directory.name}.{self._pasted}"
        ending = "\n:\n" if language == "sh" else ""  # so that a block is no failure of its own
        path.write_text(block + ending, encoding="utf-8")
        if language not in self._running:
            self._running[language] = self._start(language)
        process, reports = self._running[language]
        assert process.stdin is not None
        process.stdin.write(f"{path}\n".encode())
        process.stdin.flush()
        failures = b""
        while not failures.endswith(b"\n\n") and failures != b"\n":
            ready, _, _ = select.select([reports], [], [], timeout_s)
            more = os.read(reports, 4096) if ready else b""
            if not more:
                return [*failures.decode().splitlines(), f"no end within {timeout_s:g} s"]
            failures += more
        return failures.decode().splitlines()[:-1]

    def _start(self, language: str) -> tuple[subprocess.Popen[bytes], int]:
        reports, report = os.pipe()
        bash = ["bash", "-c", SHELL]
        python = [sys.executable, "-u", "-c", INTERPRETER]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                bash if language == "sh" else python,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment() | {"REPORT": str(report)},
                pass_fds=[report],
                start_new_session=True,
            )
        os.close(report)
        return process, reports

    def _environment(self) -> dict[str, str]:
        commands = self._directory / ".venv/bin"
        return os.environ | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "BASE_PORT": str(self._base_port),
            "COLUMNS": "80",
            "SPARK_MASTER": "local[1]",
            "JAVA_TOOL_OPTIONS": java_options(),
        }
