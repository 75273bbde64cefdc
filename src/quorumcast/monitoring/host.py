"""Measurements of this host by psutil.

Rates are differences of counters between two samples: the first sample has no rates, and a counter
that decreased (a recreated interface) gives none. Metrics that this system lacks are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import psutil

#: (metric, item, value)
Measurement: TypeAlias = tuple[str, str, float]

#: Errors of psutil on systems without a metric.
_UNAVAILABLE = (OSError, RuntimeError, NotImplementedError, AttributeError, psutil.Error)
#: Network file systems, which may hang for minutes when their server is unreachable.
_REMOTE = ("nfs", "cifs", "smb", "fuse.sshfs", "9p")


class HostSampler:
    """Measures this host; keeps the counters of the last sample."""

    def __init__(self) -> None:
        #: Counters by (metric, item), and when they were read.
        self._counters: dict[tuple[str, str], float] = {}
        self._read_at: float | None = None
        # The first call has nothing to compare with and returns 0.
        psutil.cpu_percent()

    def sample(self, now: float) -> list[Measurement]:
        """Return all measurements; `now` is a monotonic time in seconds."""
        found: list[Measurement] = []
        for look in (_cpu, _load, _memory, _disks, _processes):
            found += _available(look)
        return found + self._rates(_available(_disk_counters) + _available(_network_counters), now)

    def _rates(self, counters: list[Measurement], now: float) -> list[Measurement]:
        before, self._counters = self._counters, {(m, i): value for m, i, value in counters}
        elapsed = 0.0 if self._read_at is None else now - self._read_at
        self._read_at = now
        if elapsed <= 0:
            return []
        return [
            (metric, item, (value - before[metric, item]) / elapsed)
            for (metric, item), value in self._counters.items()
            if value >= before.get((metric, item), float("inf"))
        ]


def _available(look: Callable[[], Iterator[Measurement]]) -> list[Measurement]:
    found: list[Measurement] = []
    with contextlib.suppress(*_UNAVAILABLE):
        found.extend(look())
    return found


def _cpu() -> Iterator[Measurement]:
    yield "cpu.percent", "", psutil.cpu_percent()


def _load() -> Iterator[Measurement]:
    cores = psutil.cpu_count() or 1
    for minutes, value in zip((1, 5, 15), psutil.getloadavg(), strict=True):
        yield f"load.{minutes}", "", value
    yield "load.per_core", "", psutil.getloadavg()[0] / cores


def _memory() -> Iterator[Measurement]:
    memory = psutil.virtual_memory()
    yield "memory.percent", "", memory.percent
    yield "memory.available_bytes", "", memory.available
    yield "swap.percent", "", psutil.swap_memory().percent


def _disks() -> Iterator[Measurement]:
    for part in psutil.disk_partitions(all=False):
        if part.fstype.startswith(_REMOTE):
            continue
        try:
            usage = psutil.disk_usage(part.mountpoint)
        except OSError:  # an empty or inaccessible drive
            continue
        yield "disk.percent", part.mountpoint, usage.percent
        yield "disk.free_bytes", part.mountpoint, usage.free


def _processes() -> Iterator[Measurement]:
    yield "processes.count", "", len(psutil.pids())


def _disk_counters() -> Iterator[Measurement]:
    counters = psutil.disk_io_counters()
    if counters is not None:
        yield "disk.read_bytes_s", "", counters.read_bytes
        yield "disk.written_bytes_s", "", counters.write_bytes


def _network_counters() -> Iterator[Measurement]:
    for name, counters in psutil.net_io_counters(pernic=True).items():
        yield "net.sent_bytes_s", name, counters.bytes_sent
        yield "net.received_bytes_s", name, counters.bytes_recv
        yield "net.errors_s", name, counters.errin + counters.errout
