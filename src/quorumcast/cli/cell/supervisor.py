"""Supervises the broker processes of a cell directory: starts them, and restarts them.

A broker that exits is restarted after a pause. The pause doubles with each early exit, and is reset
once the broker has run for STEADY_S. Exit code 2 means that a restart cannot help (a port in use, a
wrong key): the supervisor stops with the broker's last line of output. Brokers hold the reading end
of a pipe, the lifeline, and stop when it closes, so they end with their supervisor, even if it is
killed. Brokers that a new epoch of the manifest adds are started; one that it removes exits and is
not restarted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from quorumcast.cli.common import IDENTITY, default_status_port
from quorumcast.core.errors import UsageError
from quorumcast.manifest.files import read_manifest
from quorumcast.manifest.manifest import BrokerEntry, Manifest
from quorumcast.runtime.broker.broker import BrokerSettings
from quorumcast.runtime.broker.process import encode_settings
from quorumcast.runtime.store.contract import SQLITE

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
#: Running time after which the pause is reset.
STEADY_S = 10.0
STOP_TIMEOUT_S = 5.0
_WRONG_USE = 2


class SupervisedBroker:
    """One broker process, with its restarts."""

    def __init__(self, entry: BrokerEntry, settings: BrokerSettings, log: Path) -> None:
        self.entry = entry
        self.log = log
        self.restarts = 0
        self._settings = settings
        self._lifeline = [] if settings.lifeline_fd is None else [settings.lifeline_fd]
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_pipe = -1
        self._pause_s = FIRST_PAUSE_S
        self._started_at = 0.0
        self._start_at = 0.0
        self.ready = False
        #: Whether the manifest no longer contains it, so that it is not restarted.
        self.leaving = False

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """The state as text for people."""
        if self._process is None:
            return f"restarts in {max(self._start_at - time.monotonic(), 0):.0f} s"
        return "up" if self.ready else "starting"

    def start(self) -> None:
        """Start the process; `poll` reports when it is ready."""
        from msgspec.structs import replace

        self._ready_pipe, writing = os.pipe()
        os.set_blocking(self._ready_pipe, False)
        settings = replace(self._settings, ready_fd=writing)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "quorumcast.runtime.broker.process",
                    encode_settings(settings),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writing, *self._lifeline],
                start_new_session=True,  # so that Ctrl-C reaches only the supervisor
            )
        os.close(writing)
        self._started_at = time.monotonic()
        self.ready = False

    def poll(self) -> str:
        """The change since the last poll: "", "ready", "ended", "left" or "restarted"."""
        if self._process is None:
            if time.monotonic() < self._start_at:
                return ""
            self.start()
            self.restarts += 1
            return "restarted"
        code = self._process.poll()
        if code is not None:
            self._ended(code)
            return "left" if self.leaving else "ended"
        if not self.ready and self._reported_ready():
            self.ready = True
            return "ready"
        return ""

    def _reported_ready(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            if os.read(self._ready_pipe, 64):
                os.close(self._ready_pipe)
                return True
        return False

    def _ended(self, code: int) -> None:
        if not self.ready:
            os.close(self._ready_pipe)
        self._process = None
        if code == _WRONG_USE:
            raise UsageError(f"{self.entry.id} cannot start: {self.last_log_line()}")
        if self.ready and time.monotonic() - self._started_at > STEADY_S:
            self._pause_s = FIRST_PAUSE_S
        self._start_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.ready = False

    def last_log_line(self) -> str:
        """The last line of its log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it left no message"

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it has stopped; kill it after STOP_TIMEOUT_S."""
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class Supervisor:
    """The brokers of a cell directory."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        *,
        only: list[str] | None = None,
        allow_faults: bool = False,
        store: str = SQLITE,
        log_level: str = "info",
    ) -> None:
        manifest.check_brokers(only or ())
        self._directory = directory
        self._only = only
        self._allow_faults = allow_faults
        self._store = store
        self._log_level = log_level
        (directory / "logs").mkdir(exist_ok=True)
        self._lifeline = os.pipe()
        self._stamp = self._modified_at()
        self.children = [self._child(entry) for entry in self._selected(manifest)]

    def _selected(self, manifest: Manifest) -> list[BrokerEntry]:
        return [e for e in manifest.brokers if not self._only or e.id in self._only]

    def _child(self, entry: BrokerEntry) -> SupervisedBroker:
        directory = self._directory
        settings = BrokerSettings(
            manifest=directory / "manifest.json",
            identity=directory / f"{entry.id}{IDENTITY}",
            http_port=default_status_port(entry),
            allow_faults=self._allow_faults,
            evidence=directory / "evidence",
            data=directory / "data",
            store=self._store,
            lifeline_fd=self._lifeline[0],
            log_level=self._log_level,
        )
        return SupervisedBroker(entry, settings, directory / "logs" / f"{entry.id}.log")

    def _modified_at(self) -> int:
        try:
            return (self._directory / "manifest.json").stat().st_mtime_ns
        except OSError:
            return 0

    def _adopt_manifest(self) -> None:
        """If the manifest has changed, start the brokers that it adds and mark removed ones."""
        stamp = self._modified_at()
        if stamp in (0, self._stamp):
            return
        self._stamp = stamp
        try:
            manifest = read_manifest(self._directory / "manifest.json")
        except UsageError:
            return  # brokers log what is wrong with it
        known = {child.entry.id: child for child in self.children}
        for entry in self._selected(manifest):
            if entry.id not in known:
                self.children.append(self._child(entry))
                self.children[-1].start()
        for name, child in known.items():
            child.leaving = manifest.broker(name) is None

    def start(self) -> None:
        """Start every broker."""
        for child in self.children:
            child.start()

    def poll(self) -> Iterator[tuple[SupervisedBroker, str]]:
        """Yield each broker that changed since the last poll, and its change."""
        self._adopt_manifest()
        for child in list(self.children):
            happened = child.poll()
            if happened == "left":
                self.children.remove(child)
            if happened:
                yield child, happened

    def stop(self) -> None:
        """Stop every broker."""
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait()
        for descriptor in self._lifeline:
            with contextlib.suppress(OSError):
                os.close(descriptor)
