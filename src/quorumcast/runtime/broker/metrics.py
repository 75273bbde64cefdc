"""A broker's counters in the text format of Prometheus.

Imported when `/metrics` is first asked for: loading the Prometheus library takes a sixth of a
broker's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quorumcast.core.ids import NodeId
from quorumcast.runtime.links.fairness import Load
from quorumcast.runtime.store.store import StoreStatus
from quorumcast.runtime.telemetry import Telemetry, cpu_seconds, rss_bytes

#: Counters of each peer: name, help text, field of `Load`.
_COSTS = (
    ("cpu_seconds", "processor time spent on an identity", "cpu_s"),
    ("request_seconds", "of this, for its requests", "requests_s"),
    ("pauses", "how often its requests were paused", "paused"),
    ("disconnections", "how often it was disconnected", "disconnected"),
)


class Collector(msgspec.Struct, eq=False):
    """What one answer shows."""

    telemetry: Telemetry
    sizes: dict[str, int]
    peers: list[NodeId]
    load: dict[NodeId, Load]
    store: StoreStatus | None
    catching_up: list[str]

    def collect(self) -> Iterable[Metric]:
        """Every metric family of this broker."""
        telemetry = self.telemetry
        for name, value in telemetry.traffic().items():
            yield CounterMetricFamily(f"quorumcast_{name}", name.replace("_", " "), value=value)
        drops = CounterMetricFamily("quorumcast_drops", "ignored, by reason", labels=["reason"])
        yield _filled(drops, telemetry.drops)
        suspicions = CounterMetricFamily(
            "quorumcast_suspicions", "suspicions voiced", labels=["node", "reason"]
        )
        for (node, reason), count in telemetry.suspicions.items():
            suspicions.add_metric([node, reason], count)
        yield suspicions
        accusations = CounterMetricFamily("quorumcast_accusations", "lies proven", labels=["node"])
        yield _filled(accusations, telemetry.accusations)
        connected = GaugeMetricFamily("quorumcast_peer_up", "open links", labels=["peer"])
        yield _filled(connected, dict.fromkeys(self.peers, 1))
        for name, about, field in _COSTS:
            family = CounterMetricFamily(f"quorumcast_peer_{name}", about, labels=["peer"])
            yield _filled(family, {peer: getattr(load, field) for peer, load in self.load.items()})
        sizes = GaugeMetricFamily(
            "quorumcast_container_size", "what is kept for peers", labels=["container"]
        )
        yield _filled(sizes, self.sizes)
        store = {} if self.store is None else msgspec.structs.asdict(self.store)
        for name, value in store.items():
            yield GaugeMetricFamily(f"quorumcast_store_{name}", name.replace("_", " "), value=value)
        waits = len(self.catching_up)
        yield GaugeMetricFamily("quorumcast_catching_up", "what it still waits for", value=waits)
        yield GaugeMetricFamily("quorumcast_rss_bytes", "resident memory", value=rss_bytes())
        yield CounterMetricFamily("quorumcast_cpu_seconds", "processor time", value=cpu_seconds())


def _filled(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[Any, float]) -> Metric:
    """A family with one label, and a sample for each of its values."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def exposition(collector: Collector) -> bytes:
    """The body of an answer to `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
