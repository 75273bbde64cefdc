"""The counters of a node: plain integers, cheap enough for the hot path.

Incrementing a dictionary entry takes tens of nanoseconds, a labelled Prometheus counter more than a
microsecond; `broker.metrics` converts when somebody asks. Every key comes from an enumeration or
the directory, never from a message, so no peer can make the dictionaries grow.
"""

from __future__ import annotations

import resource
import time
from bisect import bisect_left
from collections import Counter

from quorumcast.core.ids import Channel, NodeId

#: The names of the plain counters.
TRAFFIC = (
    "packets_in", "packets_out", "messages_in", "messages_out", "bytes_in", "bytes_out",
    "publications",
)  # fmt: skip


#: Upper bounds of the buckets of a latency histogram, in seconds.
LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How often a latency was observed, by bucket."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        #: One per bound of `LATENCIES_S`, and one for what exceeds the last.
        self.counts = [0] * (len(LATENCIES_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a latency; clocks that differ may make it negative."""
        self.counts[bisect_left(LATENCIES_S, seconds)] += 1
        self.sum_s += max(seconds, 0.0)


class Telemetry:
    """The counters of one node."""

    def __init__(self) -> None:
        #: Everything ignored, by reason: `Refusal`, `DropReason` or one of `link.LinkDrop`.
        self.drops: Counter[str] = Counter()
        #: Of these, messages that the machine dropped.
        self.dropped = 0
        #: Suspicions of the machine, by (node, reason); all nodes are in the directory.
        self.suspicions: Counter[tuple[NodeId, str]] = Counter()
        #: Accusations with proof, by node.
        self.accusations: Counter[NodeId] = Counter()
        self.packets_in = 0
        self.packets_out = 0
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        #: Publications that this node vouched for (broker) or delivered (subscriber).
        self.publications = 0
        #: By channel of the manifest: time from a publisher's time stamp to this broker's vote.
        self.latency: dict[Channel, Histogram] = {}
        self.started = time.monotonic()
        #: When the first link to each other broker opened, on the clock of `started`.
        self.met: dict[NodeId, float] = {}

    def meet(self, broker: NodeId) -> None:
        """Note that a link to a broker is open; only the first one counts."""
        self.met.setdefault(broker, time.monotonic())

    def met_s_ago(self, broker: NodeId) -> float | None:
        """Seconds since the first link to a broker; None if there never was one."""
        at = self.met.get(broker)
        return None if at is None else round(time.monotonic() - at, 3)

    def traffic(self) -> dict[str, int]:
        """The plain counters by name."""
        return {name: getattr(self, name) for name in TRAFFIC}

    @property
    def uptime_s(self) -> float:
        """Seconds since the start of this node."""
        return round(time.monotonic() - self.started, 3)

    def suspicions_by_node(self) -> dict[NodeId, dict[str, int]]:
        """How often each node was suspected, by reason."""
        found: dict[NodeId, dict[str, int]] = {}
        for (node, reason), count in self.suspicions.items():
            found.setdefault(node, {})[reason] = count
        return found


class Rates:
    """The plain counters per second, since the last sample."""

    __slots__ = ("_at", "_last", "_latest", "_telemetry")

    #: A sample sooner than this repeats the last one.
    SHORTEST_S = 0.2

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._at = time.monotonic()
        self._last = telemetry.traffic()
        self._latest: dict[str, float] = dict.fromkeys(self._last, 0.0)

    def sample(self) -> dict[str, float]:
        """Per second, by counter."""
        now = time.monotonic()
        elapsed = now - self._at
        if elapsed >= self.SHORTEST_S:
            current = self._telemetry.traffic()
            self._latest = {
                name: round((value - self._last[name]) / elapsed, 1)
                for name, value in current.items()
            }
            self._at, self._last = now, current
        return self._latest


def rss_bytes() -> int:
    """Resident memory of this process."""
    import psutil  # needed by brokers only

    return int(psutil.Process().memory_info().rss)


def cpu_seconds() -> float:
    """Processor time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
