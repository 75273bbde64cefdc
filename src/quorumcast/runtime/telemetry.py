"""What a node counts, cheap enough for the hot path: plain integers in plain dictionaries.

Nothing here is a metric object: a `dict` increment costs tens of nanoseconds, a labelled Prometheus
counter more than a microsecond. `Collector` turns the numbers into Prometheus families when
somebody asks for `/metrics`, and `snapshot` into JSON for `/status`. Every key comes from an
enumeration or the manifest, never from what a peer sent: no peer can make them grow.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumcast.core.ids import NodeId


class Telemetry:
    """The counters of one node."""

    __slots__ = (
        "accusations",
        "bytes_in",
        "bytes_out",
        "drops",
        "messages_in",
        "messages_out",
        "packets_in",
        "packets_out",
        "publications",
        "started",
        "suspicions",
    )

    def __init__(self) -> None:
        #: Everything ignored, by reason: `Refusal`, `DropReason` or one of `link.Lost`.
        self.drops: Counter[str] = Counter()
        #: Suspicions voiced by the machine, by (node, reason); nodes are those of the manifest.
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
        self.started = time.monotonic()

    def traffic(self) -> dict[str, int]:
        """The plain counters by name."""
        return {
            "packets_in": self.packets_in,
            "packets_out": self.packets_out,
            "messages_in": self.messages_in,
            "messages_out": self.messages_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "publications": self.publications,
        }

    def snapshot(self) -> dict[str, object]:
        """All counters as JSON."""
        suspicions: dict[str, dict[str, int]] = {}
        for (node, reason), count in self.suspicions.items():
            suspicions.setdefault(node, {})[reason] = count
        return {
            "uptime_s": round(time.monotonic() - self.started, 3),
            "rss_bytes": rss_bytes(),
            "cpu_s": round(cpu_seconds(), 3),
            "traffic": self.traffic(),
            "drops": dict(self.drops),
            "suspicions": suspicions,
            "accusations": dict(self.accusations),
        }


class Rates:
    """Publications, messages and bytes per second since the last time somebody asked."""

    __slots__ = ("_at", "_last", "_latest", "_telemetry")

    #: Asked again sooner than this, it repeats its last answer.
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
    return int(psutil.Process().memory_info().rss)


def cpu_seconds() -> float:
    """Processor time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Collector:
    """Reads a node's counters when Prometheus asks."""

    def __init__(
        self,
        telemetry: Telemetry,
        sizes: Callable[[], dict[str, int]],
        peers: Callable[[], Iterable[NodeId]],
        storage: Callable[[], dict[str, int]],
        catching_up: Callable[[], list[str]],
    ) -> None:
        self._telemetry = telemetry
        self._sizes = sizes
        self._peers = peers
        self._storage = storage
        self._catching_up = catching_up

    def collect(self) -> Iterable[Metric]:
        """Every family that this node exports."""
        telemetry = self._telemetry
        for name, value in telemetry.traffic().items():
            yield CounterMetricFamily(f"quorumcast_{name}", name.replace("_", " "), value=value)
        drops = CounterMetricFamily("quorumcast_drops", "ignored, by reason", labels=["reason"])
        for reason, count in telemetry.drops.items():
            drops.add_metric([reason], count)
        yield drops
        suspicions = CounterMetricFamily(
            "quorumcast_suspicions", "suspicions voiced", labels=["node", "reason"]
        )
        for (node, reason), count in telemetry.suspicions.items():
            suspicions.add_metric([node, reason], count)
        yield suspicions
        accusations = CounterMetricFamily("quorumcast_accusations", "lies proven", labels=["node"])
        for node, count in telemetry.accusations.items():
            accusations.add_metric([node], count)
        yield accusations
        connected = GaugeMetricFamily("quorumcast_peer_up", "open links", labels=["peer"])
        for peer in self._peers():
            connected.add_metric([peer], 1)
        yield connected
        sizes = GaugeMetricFamily(
            "quorumcast_container_size", "what is kept for peers", labels=["container"]
        )
        for container, size in self._sizes().items():
            sizes.add_metric([container], size)
        yield sizes
        for name, value in self._storage().items():
            yield GaugeMetricFamily(f"quorumcast_store_{name}", name.replace("_", " "), value=value)
        waits = len(self._catching_up())
        yield GaugeMetricFamily("quorumcast_catching_up", "what it still waits for", value=waits)
        yield GaugeMetricFamily("quorumcast_rss_bytes", "resident memory", value=rss_bytes())
        yield CounterMetricFamily("quorumcast_cpu_seconds", "processor time", value=cpu_seconds())


def exposition(collector: Collector) -> bytes:
    """The text that `/metrics` answers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
