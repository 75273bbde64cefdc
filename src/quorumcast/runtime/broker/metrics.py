"""A node's counters in the form of Prometheus, whose library a node loads when first asked.

To load it is a sixth of what a broker's start costs, and clients never need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumcast.core.ids import NodeId
from quorumcast.runtime.links.fairness import Load
from quorumcast.runtime.telemetry import Telemetry, cpu_seconds, rss_bytes


class Collector:
    """Reads a node's counters when Prometheus asks."""

    def __init__(
        self,
        telemetry: Telemetry,
        sizes: Callable[[], dict[str, int]],
        peers: Callable[[], Iterable[NodeId]],
        load: Callable[[], dict[NodeId, Load]],
        storage: Callable[[], dict[str, int]],
        catching_up: Callable[[], list[str]],
    ) -> None:
        self._telemetry = telemetry
        self._sizes = sizes
        self._peers = peers
        self._load = load
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
        yield from self._costs()
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

    def _costs(self) -> Iterable[Metric]:
        """What each identity costs: processor time, and what it led to."""
        families: tuple[tuple[str, str, Callable[[Load], float]], ...] = (
            ("cpu_seconds", "processor time spent on an identity", lambda load: load.cpu_s),
            ("request_seconds", "of this, for its requests", lambda load: load.requests_s),
            ("pauses", "how often its requests were paused", lambda load: load.paused),
            ("disconnections", "how often it was disconnected", lambda load: load.disconnected),
        )
        for name, about, value in families:
            family = CounterMetricFamily(f"quorumcast_peer_{name}", about, labels=["peer"])
            for peer, load in self._load().items():
                family.add_metric([peer], value(load))
            yield family


def exposition(collector: Collector) -> bytes:
    """The text that `/metrics` answers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
